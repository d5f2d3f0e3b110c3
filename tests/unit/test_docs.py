"""README and docs: code blocks run, and what pages name is there."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_blocks import PAGES, ROOT, Block, blocks_of, run_blocks
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import raynb
from raynb.cli import make_parser
from raynb.engine.hints.failures import topic
from raynb.engine.hints.health import RULES
from raynb.errors import TROUBLESHOOTING, OptionError, RaynbError
from raynb.magics.config import RayNB
from raynb.magics.options import Option

PACKAGE = Path(raynb.__file__).parent
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
#: Options of other programs that pages name.
FOREIGN = {
    "--no-deps": "pip",
    "--force-reinstall": "pip",
    "--keep-going": "sphinx-build",
    "--filter": "ray list",
    "--head": "ray start",
    "--port": "ray start",
    "--block": "ray start",
    "--address": "ray start",
    "--port-forward": "ray attach",
    "--no-browser": "jupyter",
    "--ip": "jupyter",
    "--nodes": "sbatch",
    "--ntasks": "srun",
    "--ntasks-per-node": "sbatch",
    "--gpus-per-node": "sbatch",
    "--cpus-per-task": "sbatch",
    "--exclude": "srun",
    "--overlap": "srun",
    "--limit-mb": "tests/bench/memory.py",
    "--only": "tests/bench/compare.py",
    "--keep": "tests/bench/compare.py",
    "--table": "tests/bench/compare.py",
    "--times": "tests/bench/reliability.py",
    "--notebook": "tests/bench/memory.py",
}


def code_in(page: Path) -> str:
    """What a page says in code: its blocks and the spans in backticks."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    spans = re.findall(
        r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    return "\n".join([*spans, *(b.code for b in blocks_of(page))])


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# -- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.where)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.run or block.reason, f"{block.where} lacks a comment, see docs/writing-docs.md"
    if block.run == "ray":
        assert block.language == "python"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.where)
def test_every_block_parses(block: Block) -> None:
    match block.language:
        case "python":
            ast.parse(TransformerManager().transform_cell(block.code))
            magic_line, _, body = block.code.partition("\n")
            if magic_line.startswith("%%"):
                ast.parse(body)
        case "bash":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
        case "toml":
            tomllib.loads(block.code)
        case "yaml":
            yaml.safe_load(block.code)
        case "" if block.run or block.reason:
            pass
        case other:
            pytest.fail(f"{block.where}: nothing here knows how to parse {other!r}")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.run == "unit" for b in blocks_of(p))], ids=page_id
)
def test_blocks_run(page: Path, shell: Any) -> None:
    blocks = [b for b in blocks_of(page) if b.run == "unit" and b.language == "python"]
    run_blocks(shell, blocks)


def test_the_quickstart_is_the_tutorial() -> None:
    def plain(page: str) -> list[str]:
        codes = (b.code for b in blocks_of(ROOT / "docs" / page) if b.language == "python")
        return "".join(re.sub(r" *#.*", "", code) + "\n" for code in codes).split()

    assert plain("zh/quickstart.md") == plain("tutorial.md")


# -- names ---------------------------------------------------------------------------------------


def magic_options() -> set[str]:
    import pkgutil

    from IPython.core.magic import Magics

    import raynb.magics
    from raynb.magics.workers import FORCE, WorkersCommands

    known: list[Option] = [*getattr(WorkersCommands._up, "options", ()), FORCE]
    for info in pkgutil.iter_modules(raynb.magics.__path__):
        for cls in vars(importlib.import_module(f"raynb.magics.{info.name}")).values():
            if isinstance(cls, type) and issubclass(cls, Magics):
                for methods in cls.magics.values():
                    for name in methods.values():
                        known += getattr(getattr(cls, name), "options", ())
    return {spelling for option in known for spelling in option.spellings}


def command_options(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found |= set[str]().union(*map(command_options, action.choices.values()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_exist(page: Path) -> None:
    known = magic_options() | command_options(make_parser()) | FOREIGN.keys()
    written = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code_in(page)))
    # Typos that the troubleshooting page quotes, and the prefix of the switches' negative form.
    assert written - known <= {"--num-worker", "--shm-size", "--ulimit"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_exist(page: Path) -> None:
    code = code_in(page)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for dotted in set(re.findall(r"(?<![\w./\"])raynb\.(\w+(?:\.\w+)*)", code)):
        if f"raynb.{dotted}" not in groups:
            assert resolve(dotted), f"raynb.{dotted}"
    for name in re.findall(r"(?<![\w.])RayNB\.(\w+)", code):
        assert name == "NAME" or name in RayNB.class_trait_names(config=True)
    for name in re.findall(r"(?<![\w.])result\.(\w+)", code):
        assert name in RESULT, f"result.{name}"


#: What `result` may be in an example.
RESULT = {
    member
    for kind in (getattr(raynb, name) for name in raynb.__all__ if name.endswith("Result"))
    for member in (*dir(kind), *kind.__annotations__, *getattr(kind, "__dataclass_fields__", ()))
}


def resolve(dotted: str) -> bool:
    value: Any = raynb
    for part in dotted.split("."):
        if not hasattr(value, part):
            try:
                importlib.import_module(f"{value.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        value = getattr(value, part)
    return True


def test_readme_lists_every_option() -> None:
    readme = code_in(ROOT / "README.md")
    from raynb.magics.options import TRAIN_GROUPS

    missing = [o.title for g in TRAIN_GROUPS for o in g.options if o.flags[-1] not in readme]
    assert missing == ["-h/--help"]


def test_every_hint_is_described() -> None:
    text = (ROOT / "docs" / "hints.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    kinds = {
        node.args[0].value
        for path in (PACKAGE / "engine" / "hints").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "Finding"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert kinds and kinds <= headings and len(kinds) >= len(RULES)
    assert kinds <= set(re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE))


# -- links ---------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub and MyST make anchors of them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "[](" not in text, "GitHub shows nothing for a link without a text"
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if "notebooks" in file.parts and not file.exists():  # copied there when docs are built
            file = ROOT / "notebooks" / file.name
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


# -- errors --------------------------------------------------------------------------------------


def topics() -> dict[str, str]:
    """Every topic that the code names, with one place that does."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            values: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "topic":
                values = [node.value]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                values = [node.value] if names == ["topic"] else []
            for value in values:
                for part in ast.walk(value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value] = f"{path.name}:{node.value.lineno}"
    return found


def test_errors_name_headings_that_are_there() -> None:
    headings = anchors(ROOT / TROUBLESHOOTING)
    named = topics()
    assert {"name-taken", "unpicklable", "resources", "ray-train-v1"} <= named.keys()
    assert {name: where for name, where in named.items() if name and name not in headings} == {}


@pytest.mark.parametrize(
    ("kind", "message", "traceback", "heading"),
    [
        (
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2 GiB",
            "",
            "cuda-out-of-memory",
        ),
        ("RuntimeError", "[gloo] Connection closed by peer", "", "collective-timeout"),
        ("torch.distributed.DistNetworkError", "EADDRINUSE: port 29500", "", "port-in-use"),
        ("ValueError", "Connection closed by peer, says my own code", "", ""),
    ],
)
def test_a_workers_failure_has_its_heading(
    kind: str, message: str, traceback: str, heading: str
) -> None:
    failure = {"type": kind, "message": message, "traceback": traceback}
    assert topic(failure, None) == heading
    assert not heading or heading in anchors(ROOT / TROUBLESHOOTING)


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        (
            "The actor died unexpectedly before finishing this task; Connection reset by peer",
            "worker-died",
        ),
        ("Timed out waiting 60s for 1 ranks", "collective-timeout"),
        ("OSError: [Errno 98] Address already in use", "port-in-use"),
        ("something else", ""),
    ],
)
def test_rays_failure_has_its_heading(text: str, heading: str) -> None:
    assert topic(None, RuntimeError(text)) == heading
    assert not heading or heading in anchors(ROOT / TROUBLESHOOTING)


def test_an_error_says_where_to_read_more() -> None:
    import pickle
    import traceback

    error = OptionError("no", hint="yes", topic="name-taken")
    more = "More: %raynb help name-taken (docs/troubleshooting.md#name-taken)"
    assert str(error) == "no\nWay out: yes"
    assert error._render_traceback_() == ["OptionError: no", "Way out: yes", more]
    assert traceback.format_exception(error)[-1].strip() == more
    assert pickle.loads(pickle.dumps(error)).whole() == error.whole()
    assert RaynbError("x").whole().endswith("#raynb-error)")
