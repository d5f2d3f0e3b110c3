"""The cell magic in a real IPython shell; starting a run is faked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ipykernel.compiler import XCachingCompiler
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

import raynb
from raynb.errors import CaptureError, OptionError, TrainingError
from raynb.magics import loading, spmd, train, tune
from raynb.magics.config import RayNB
from raynb.magics.train import CellSyntaxError, RunInterrupted


class FakeRun:
    """What the magic uses of a run; ``wait`` sets the result as the real one does."""

    def __init__(self, error: BaseException | None) -> None:
        self.result: object = None
        self.error = error

    def wait(self) -> object:
        self.result = SimpleNamespace(history=[1])
        if self.error is not None:
            raise self.error
        return self.result


class FakeApi(ModuleType):
    """Stands in for ``raynb.api`` and keeps what was started."""

    def __init__(self) -> None:
        super().__init__("raynb.api")
        self.started: list[SimpleNamespace] = []
        self.error: BaseException | None = None

    def run_cell(self, spec: Any, capture: Any, *, background: bool, echo: bool) -> FakeRun:
        run = FakeRun(self.error)
        self.started.append(
            SimpleNamespace(spec=spec, capture=capture, background=background, echo=echo, run=run)
        )
        return run


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "raynb.api", fake)
    monkeypatch.setattr(raynb, "api", fake, raising=False)
    return fake


@pytest.fixture
def ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    loading.load_ipython_extension(shell)
    yield shell
    loading.unload_ipython_extension(shell)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def cell(ip: InteractiveShell, text: str) -> ExecutionResult:
    return ip.run_cell(text, store_history=True)


def failure(ip: InteractiveShell, text: str) -> BaseException:
    error = cell(ip, text).error_in_exec
    assert error is not None
    return error


def test_a_run_gets_spec_and_capture_and_binds_its_result(
    ip: InteractiveShell, api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cell(ip, "config = {'lr': 0.1}\nfactor = 3").raise_error()
    capsys.readouterr()
    line = "%%distributed_train -n 2 -c config --storage-path runs --name one --echo"
    cell(ip, f"{line}\nprint(factor)").raise_error()
    (started,) = api.started
    assert (started.spec.num_workers, started.spec.config) == (2, {"lr": 0.1})
    assert started.spec.run_path == str(tmp_path / "runs" / "one")
    assert [c.name for c in started.capture.table] == ["factor"]
    assert started.capture.program.label == "Cell In[2]"
    assert (started.background, started.echo) == (False, True)
    assert ip.user_ns["result"] is started.run.result is not None
    assert capsys.readouterr() == ("", "")


def test_out_is_checked_before_anything_starts(ip: InteractiveShell, api: FakeApi) -> None:
    for name in ("1x", "a.b", "class"):
        error = failure(ip, f"%%distributed_train -o {name}\n1")
        assert isinstance(error, OptionError)
        assert "-o/--out" in str(error) and name in str(error)
    assert api.started == []
    cell(ip, "%%distributed_train -o mine\n1").raise_error()
    assert ip.user_ns["mine"] is api.started[0].run.result


def test_a_failure_fails_the_cell_in_short_and_keeps_the_result(
    ip: InteractiveShell, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.error = TrainingError("rank 1 failed: ZeroDivisionError", rank=1)
    assert failure(ip, "%%distributed_train\n1/0") is api.error
    assert ip.user_ns["result"] is api.started[0].run.result is not None
    shown = capsys.readouterr().out
    more = "More: %raynb help training-failed (docs/troubleshooting.md#training-failed)"
    assert shown.strip() == f"TrainingError: rank 1 failed: ZeroDivisionError\n{more}"


def test_a_stop_keeps_the_result_and_shows_one_line(
    ip: InteractiveShell, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.error = KeyboardInterrupt()
    error = failure(ip, "%%distributed_train -o r --name halted\n1")
    assert isinstance(error, RunInterrupted) and isinstance(error, KeyboardInterrupt)
    assert ip.user_ns["r"] is api.started[0].run.result is not None
    shown = capsys.readouterr().out.strip()
    assert shown == "KeyboardInterrupt: run halted stopped; `r` holds what came"


def test_background_binds_the_run_without_waiting(ip: InteractiveShell, api: FakeApi) -> None:
    api.error = AssertionError("waited")
    cell(ip, "%%distributed_train --background -o run\n1").raise_error()
    assert api.started[0].background
    assert ip.user_ns["run"] is api.started[0].run


def test_local_runs_take_values_as_they_are(ip: InteractiveShell, api: FakeApi) -> None:
    cell(ip, "import threading\nlock = threading.Lock()").raise_error()
    cell(ip, "%%distributed_train --local\nlock").raise_error()
    assert api.started[0].spec.local
    assert api.started[0].capture.large["lock"] is ip.user_ns["lock"]
    assert isinstance(failure(ip, "%%distributed_train --local --background\n1"), OptionError)


@pytest.mark.parametrize("compiler", [None, XCachingCompiler])
def test_an_error_of_a_local_run_shows_the_cells_frames_only(
    ip: InteractiveShell,
    api: FakeApi,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compiler: type | None,
) -> None:
    if compiler is not None:
        ip.compile = compiler()

    def wait(run: FakeRun) -> None:
        program = api.started[-1].capture.program
        exec(compile(program.source, program.filename, "exec"), {})

    monkeypatch.setattr(FakeRun, "wait", wait)
    cell(ip, "def unrelated(): pass").raise_error()
    error = failure(ip, "%%distributed_train --local\ndef f():\n    return 1/0\n\nf()\n")
    assert isinstance(error, ZeroDivisionError)
    shown = capsys.readouterr().out
    assert "----> 3     return 1/0" in shown and "----> 5 f()" in shown
    assert "train.py" not in shown and "test_magics.py" not in shown, shown


def test_a_dry_run_shows_capture_and_spec_and_starts_nothing(
    ip: InteractiveShell, api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cell(ip, "factor = 3\nconfig = {'lr': 0.1}").raise_error()
    capsys.readouterr()
    line = "%%distributed_train --dry-run -n 1:4 -c config --storage-path runs --env KEY=secret"
    cell(ip, f"{line}\nprint(factor)").raise_error()
    shown = capsys.readouterr().out
    table, text = shown.split("\n\n")
    assert table.splitlines()[1].split()[:2] == ["factor", "int"]
    options = dict(row.split("  ", 1) for row in text.splitlines())
    options = {name: value.strip() for name, value in options.items()}
    assert options["num_workers"] == "1:4"
    assert options["config"] == "lr=0.1"
    assert options["storage_path"] == str(tmp_path / "runs")
    assert options["use_gpu"] == "if the cluster has enough"
    assert "secret" not in shown
    assert api.started == [] and "result" not in ip.user_ns


@pytest.mark.parametrize("compiler", [None, XCachingCompiler])
@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("%%distributed_train\n", 2),
        ("\n\n%%distributed_train -n 2\n", 4),
        ("%%distributed_train -n 2 \\\n  --no-gpu \\\n  --name x{1 + 1}\n", 4),
        ("%%time\n%%distributed_train\n", 3),
        ("%%distributed_train\r\n", 2),
    ],
)
def test_line_numbers_are_the_gutters(
    ip: InteractiveShell,
    api: FakeApi,
    capsys: pytest.CaptureFixture[str],
    head: str,
    line: int,
    compiler: type | None,
) -> None:
    if compiler is not None:
        ip.compile = compiler()
    cell(ip, f"{head}x = 1\n1/0\n").raise_error()
    (started,) = api.started
    program = started.capture.program
    assert program.source.splitlines()[line - 1] == "x = 1"
    if "\\" in head:
        assert (started.spec.num_workers, started.spec.use_gpu) == (2, False)
        assert started.spec.name == "x2"
    # IPython's own traceback of that code shows the cell and the line.
    label = program.label
    capsys.readouterr()
    try:
        exec(compile(program.source, program.filename, "exec"), {})
    except ZeroDivisionError:
        ip.showtraceback()
    shown = capsys.readouterr().out
    assert f"{label}, line {line + 1}" in shown
    assert f"----> {line + 1} 1/0" in shown


def test_cells_run_from_code_have_a_label_too(ip: InteractiveShell, api: FakeApi) -> None:
    cell(ip, "unrelated = 1").raise_error()
    ip.run_cell_magic("distributed_train", "-n 1", "y = 2\n")
    assert api.started[0].capture.program.source == "\ny = 2\n"


@pytest.mark.parametrize("compiler", [None, XCachingCompiler])
def test_a_syntax_error_shows_the_cells_line_and_no_frames(
    ip: InteractiveShell,
    api: FakeApi,
    capsys: pytest.CaptureFixture[str],
    compiler: type | None,
) -> None:
    if compiler is not None:
        ip.compile = compiler()
    error = failure(ip, "%%distributed_train -n 2\nx = 1\nfor i in range(3)\n    pass\n")
    assert isinstance(error, CellSyntaxError) and isinstance(error, CaptureError)
    assert isinstance(error.__cause__, SyntaxError)
    shown = capsys.readouterr().out
    lines = [text.rstrip() for text in shown.strip().splitlines()]
    assert lines[0].strip() == "Cell In[1], line 3"
    assert lines[1].strip() == "for i in range(3)"
    assert lines[2].index("^") == lines[1].index(")") + 1
    assert lines[3] == "SyntaxError: expected ':'"
    assert api.started == []


def test_other_cells_are_labelled_for_tracebacks(ip: InteractiveShell, api: FakeApi) -> None:
    cell(ip, "def helper():\n    return 1").raise_error()
    cell(ip, "%%distributed_train\nhelper()").raise_error()
    (other,) = api.started[0].capture.program.other_cells
    assert other.label == "Cell In[1]"


@pytest.mark.parametrize("body", ["", "\n", "\n   \n", "\n# only words\n"])
def test_an_empty_cell_is_one_clear_error(ip: InteractiveShell, api: FakeApi, body: str) -> None:
    assert isinstance(failure(ip, "%%distributed_train -n 2" + body), CaptureError)
    assert api.started == []


def test_the_line_magic_says_that_it_is_a_cell_magic(ip: InteractiveShell, api: FakeApi) -> None:
    error = failure(ip, "x = 1\n%distributed_train -n 2")
    assert "%%distributed_train is a cell magic" in str(error)
    assert api.started == []


@pytest.mark.parametrize("text", ["%%distributed_train --help", "%%distributed_train -h\nx = 1"])
def test_help_prints_and_runs_nothing(
    ip: InteractiveShell, api: FakeApi, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    cell(ip, text).raise_error()
    assert "--num-workers N|MIN:MAX" in capsys.readouterr().out
    assert api.started == []


def test_func_reaches_the_capture(ip: InteractiveShell, api: FakeApi) -> None:
    cell(ip, "%%distributed_train --func go\ndef go(config):\n    pass").raise_error()
    program = api.started[0].capture.program
    assert (program.form, program.func_name, program.takes_config) == ("function", "go", True)
    assert isinstance(failure(ip, "%%distributed_train --func a-b\n1"), OptionError)


def test_config_sets_defaults_and_flags_override_them(
    ip: InteractiveShell, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    cell(ip, "%config RayNB.num_workers = 3").raise_error()
    cell(ip, "%config RayNB.out = 'r'").raise_error()
    cell(ip, "%config RayNB.echo = True").raise_error()
    cell(ip, "%config RayNB.capture_limit_mib = 0.001").raise_error()
    cell(ip, "data = bytes(5000)").raise_error()
    cell(ip, "%%distributed_train\ndata").raise_error()
    cell(ip, "%%distributed_train -n 1 -o s --no-echo\n1").raise_error()
    first, second = api.started
    assert (first.spec.num_workers, first.echo) == (3, True)
    assert list(first.capture.large) == ["data"]
    assert (second.spec.num_workers, second.echo) == (1, False)
    assert (ip.user_ns["r"], ip.user_ns["s"]) == (first.run.result, second.run.result)
    with caplog.at_level(logging.ERROR):
        cell(ip, "%config RayNB.num_workers = (4, 2)")
    assert "1 <= min <= max" in caplog.text


def test_config_lists_the_traits_with_help(
    ip: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    cell(ip, "%config RayNB").raise_error()
    shown = capsys.readouterr().out
    assert "RayNB.num_workers" in shown and "Workers of a run" in shown
    assert all(t.help for t in RayNB.class_traits(config=True).values())


def test_config_files_set_defaults(ip: InteractiveShell, api: FakeApi) -> None:
    loading.unload_ipython_extension(ip)
    ip.update_config(Config({"RayNB": {"num_workers": 2}}))
    loading.load_ipython_extension(ip)
    cell(ip, "%%distributed_train\n1").raise_error()
    assert api.started[0].spec.num_workers == 2


def test_loading_twice_and_unloading_leave_nothing_behind(ip: InteractiveShell) -> None:
    loaded = len(ip.configurables), len(ip.Completer.custom_matchers)
    cleanups = len(ip.input_transformers_cleanup)
    loading.load_ipython_extension(ip)
    assert (len(ip.configurables), len(ip.Completer.custom_matchers)) == loaded
    assert len(ip.input_transformers_cleanup) == cleanups
    loading.unload_ipython_extension(ip)
    assert len(ip.configurables) == loaded[0] - 1
    assert not [m for m in ip.Completer.custom_matchers if "raynb" in repr(m)]
    assert len(ip.input_transformers_cleanup) == cleanups - 2
    for name in ("distributed_train", "distributed"):
        assert ip.find_cell_magic(name) is None
        assert ip.find_line_magic(name) is None
    assert ip.find_line_magic("raynb") is None


def completions(ip: InteractiveShell, text: str) -> dict[str, str]:
    """Complete at ``|`` as ipykernel does; each completion with the text it replaces."""
    cursor = text.index("|")
    code = text.replace("|", "")
    with provisionalcompleter():
        found = list(ip.Completer.completions(code, cursor))
    return {c.text: code[c.start : c.end] for c in found}


@pytest.fixture
def variables(ip: InteractiveShell) -> InteractiveShell:
    ip.run_cell(
        "import os\nconfig = {}\nconfig_b = {}\ntrain_ds = 1\ndef confuse(): pass\n_conf = 1"
    )
    return ip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%%distributed_train --num|\nx = 1", {"--num-workers": "--num", "--num-to-keep": "--num"}),
        ("%%distributed_train -n 2 --placement-strategy STRICT_P|", {"STRICT_PACK": "STRICT_P"}),
        ("%%distributed_train --placement-strategy=sp|\nx", {"SPREAD": "sp"}),
        ("%%distributed_train --backend |\nx", {"nccl": "", "gloo": ""}),
        ("%%distributed_train -c conf|\nx", {"config": "conf", "config_b": "conf"}),
        ("%%distributed_train --config=config_|\nx", {"config_b": "config_"}),
        ("%%distributed_train --dataset train=tr|\nx", {"train_ds": "tr"}),
        ("%%distributed_train --dataset=train=tr|\nx", {"train_ds": "tr"}),
        ("%%distributed_train -n 2 \\\n --no-e|\nx", {"--no-echo": "--no-e"}),
        ("\n%%distributed_train --dry|", {"--dry-run": "--dry"}),
        ("%%distributed_train --best loss:|\nx", {"min": "", "max": ""}),
        ("%%distributed_tune --scheduler a|\nx", {"asha": "a"}),
        ("%%distributed_tune --scheduler-arg grace=tr|\nx", {"train_ds": "tr"}),
        ("%%distributed --pu|\nx", {"--push": "--pu", "--pull": "--pu"}),
        ("%%distributed --push config,tr|\nx", {"train_ds": "tr"}),
        ("%%distributed --push conf|\nx", {"config": "conf", "config_b": "conf"}),
        ("%raynb s|", {"stop": "s"}),
        ("x = 1\n%raynb cluster |\nx", {"up": "", "down": "", "status": ""}),
        ("%raynb cluster up --num-c|", {"--num-cpus": "--num-c"}),
        ("%raynb cluster down --|", {"--help": "--", "--force": "--"}),
        ("%raynb workers re|", {"restart": "re"}),
        ("%raynb workers up --idle|", {"--idle-timeout": "--idle"}),
        ("%raynb workers up -n 2 --backend |", {"nccl": "", "gloo": ""}),
        ("%raynb workers down |", {"--force": ""}),
        ("%raynb auto o|", {"on": "o", "off": "o"}),
        ("%raynb help collective|", {"collective-timeout": "collective"}),
    ],
)  # fmt: skip
def test_completion_in_the_magic_line(
    variables: InteractiveShell, text: str, found: dict[str, str]
) -> None:
    assert completions(variables, text) == found


def test_every_spelling_is_offered(ip: InteractiveShell) -> None:
    for magic in (
        train.TrainMagics.distributed_train,
        tune.TuneMagics.distributed_tune,
        spmd.SpmdMagics.distributed,
    ):
        offered = completions(ip, f"%%{magic.__name__} |\nx = 1")
        assert set(offered) == {s for option in magic.options for s in option.spellings}


def test_every_command_is_offered(ip: InteractiveShell) -> None:
    offered = completions(ip, "%raynb |")
    assert {"runs", "attach", "stop", "help", "cluster", "workers", "auto"} == set(offered)


@pytest.mark.parametrize("start", ["%%distributed_tr", "%%distributed_tu", "%%distr", "%rayn"])
def test_magics_themselves_are_offered(ip: InteractiveShell, start: str) -> None:
    offered = completions(ip, f"{start}|")
    assert any(o.startswith(start) for o in offered)


@pytest.mark.parametrize(
    "text",
    [
        "%%distributed_train -n 2\nconf|",
        "%%distributed_train -n 2\nx = 1\nconfig.ke|",
        "conf|",
        "%%timeit -n 2\nconf|",
        "%%distributed_tr|",
        "%%distributed_train -c os.pat|\nx",
    ],
)
def test_other_completion_is_untouched(variables: InteractiveShell, text: str) -> None:
    with_raynb = completions(variables, text)
    loading.unload_ipython_extension(variables)
    if "distributed_tr|" in text:
        assert "%%distributed_train" in with_raynb
    else:
        assert with_raynb and with_raynb == completions(variables, text)
