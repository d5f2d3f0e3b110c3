"""Cells on every rank: a namespace that lasts, the cell's output, and what its last line gives."""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib
import inspect
import io
import linecache
import os
import pydoc
import re
import rlcompleter
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from ray import cloudpickle

from raynb.worker.program import CellProgram, as_main, describe_exception
from raynb.worker.stdio import LogPump
from raynb.worker.warm.interrupts import Interrupts

#: Seconds between two looks at what a cell has written.
LOOK_S = 0.05
#: Characters of a value's text that are sent.
MAX_TEXT = 100_000
#: Bytes of a rich output: more is left to its text.
MAX_RICH = 20_000_000
_RICH = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
}

Bundle = dict[str, Any]


@dataclass
class CellOrder:
    """A cell for some ranks.

    Attributes
    ----------
    number : int
    program : CellProgram
        The cell; ``form`` is ``"cell"``, ``"complete"`` or ``"inspect"``, the latter two with the
        text in question as their source.
    ranks : tuple of int
        The ranks that run it.
    push : bytes
        Pickled values by name, which the namespace gets first.
    pull : tuple of str
        Names whose values are given back.
    value : bool
        Whether the last expression's value is given back too.
    cwd : str
    """

    number: int
    program: CellProgram
    ranks: tuple[int, ...]
    push: bytes = field(default=b"", repr=False)
    pull: tuple[str, ...] = ()
    value: bool = False
    cwd: str = ""


@dataclass
class CellEnd:
    """What a cell came to on a rank.

    Attributes
    ----------
    shown : list of dict
        MIME bundles: what was displayed, and the last expression.
    error : dict or None
        As :func:`~raynb.worker.program.describe_exception` gives it.
    values : bytes or None
        A pickled list of what was asked for.
    interrupted : bool
    lines : list of (int, str, str)
        Output that was not sent before: number, stream, text.
    """

    shown: list[Bundle] = field(default_factory=list)
    error: Any = None
    values: bytes | None = None
    interrupted: bool = False
    lines: list[tuple[int, str, str]] = field(default_factory=list)


class Namespace:
    """A rank's namespace of ``%%distributed`` cells, and what runs cells in it."""

    def __init__(self) -> None:
        self._module = ModuleType("__main__")
        self.names = self._module.__dict__
        self._shown: list[Bundle] = []

    def set_up(self) -> None:
        """Give the namespace what is at hand in it, where the user has not given it another."""
        import ray.train
        import ray.train.torch
        import torch
        import torch.distributed as dist

        context = ray.train.get_context()
        given = {
            "rank": context.get_world_rank(),
            "world_size": context.get_world_size(),
            "local_rank": context.get_local_rank(),
            "device": ray.train.torch.get_device(),
            "torch": torch,
            "dist": dist,
            "display": self._display,
        }
        self.names.update({k: v for k, v in given.items() if k not in self.names})

    def run(
        self, order: CellOrder, interrupts: Interrupts, send: Callable[[list[Any]], None]
    ) -> CellEnd:
        """Run a cell; never raises."""
        if order.program.form != "cell":
            return self._ask(order.program.form, order.program.source)
        end = CellEnd()
        self._shown = end.shown
        shows = _ipython_shows(self._display, order.program.source)
        with _output(send) as lines, as_main(self._module), shows:
            try:
                with interrupts.open():
                    values = self._execute(order)
                end.shown += _figures()
                if order.pull or order.value:
                    end.values = cloudpickle.dumps(values)
            except BaseException as error:
                end.interrupted = interrupts.asked and isinstance(error, KeyboardInterrupt)
                end.error = describe_exception(error, order.program)
        end.lines = lines
        return end

    def _execute(self, order: CellOrder) -> list[Any]:
        program = order.program
        source = [line + "\n" for line in program.source.split("\n")]
        entry = (len(program.source), None, source, program.filename)
        linecache.cache[program.filename] = entry
        if order.cwd and os.path.isdir(order.cwd):
            os.chdir(order.cwd)
            if order.cwd not in sys.path:
                sys.path.insert(0, order.cwd)
        if order.push:
            self.names.update(cloudpickle.loads(order.push))
        before, last = compile_split(program.source, program.filename)
        value = None
        if before is not None:
            exec(before, self.names)
        if last is not None:
            value = eval(last, self.names)
            if value is not None and not program.source.rstrip().endswith(";"):
                self.names["_"] = value
                self._shown.append(bundle_of(value))
        missing = [name for name in order.pull if name not in self.names]
        if missing:
            raise NameError(
                f"--pull: name {missing[0]!r} is not defined on rank {self.names['rank']}"
            )
        return [*(self.names[name] for name in order.pull), *([value] if order.value else [])]

    def _display(self, *values: Any, raw: bool = False, **_: Any) -> None:
        """What ``display`` is on a worker: it is shown below the cell."""
        self._shown += [
            {str(k): v for k, v in value.items() if isinstance(v, str)}
            if raw and isinstance(value, dict)
            else bundle_of(value)
            for value in values
        ]

    def _ask(self, form: str, text: str) -> CellEnd:
        found: Any = None
        with contextlib.suppress(Exception):
            found = completions(text, self.names) if form == "complete" else about(text, self.names)
        return CellEnd(values=cloudpickle.dumps([found]))


@contextlib.contextmanager
def _ipython_shows(display: Callable[..., None], source: str) -> Iterator[None]:
    """Let IPython's ``display`` show on this worker too; without a shell it would print a repr."""
    homes: list[tuple[Any, Any]] = []
    if "IPython" in source:  # the cell imports it; a worker by itself does not
        with contextlib.suppress(ImportError):
            for name in ("IPython.core.display_functions", "IPython.display"):
                home = importlib.import_module(name)
                homes.append((home, home.display))
    for home, _ in homes:
        home.display = display
    try:
        yield
    finally:
        for home, original in homes:
            home.display = original


def compile_split(source: str, filename: str) -> tuple[CodeType | None, CodeType | None]:
    """A cell's statements, and its last one where that is an expression."""
    tree = ast.parse(source, filename)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = tree.body.pop()
        assert isinstance(expression, ast.Expr)
        last = compile(ast.Expression(expression.value), filename, "eval", dont_inherit=True)
    before = compile(tree, filename, "exec", dont_inherit=True) if tree.body else None
    return before, last


def bundle_of(value: Any) -> Bundle:
    """A value as a MIME bundle; what fails to show itself leaves its text."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}: {error}>"
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + " … (cut)"
    bundle: Bundle = {"text/plain": text}
    if isinstance(value, type):
        return bundle
    figure = sys.modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, figure.Figure):
        return {**bundle, "image/png": _png(value)}
    for mime, method in _RICH.items():
        with contextlib.suppress(Exception):
            made = getattr(value, method)()
            made = made[0] if isinstance(made, tuple) else made
            if isinstance(made, bytes):
                made = base64.b64encode(made).decode()
            if isinstance(made, str) and len(made) <= MAX_RICH:
                bundle[mime] = made
    return bundle


def _png(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode()


def _figures() -> list[Bundle]:
    """Figures that the cell drew and left open, as a notebook shows them; closed afterwards."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    found = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        found.append({"text/plain": repr(figure), "image/png": _png(figure)})
        pyplot.close(figure)
    return found


def completions(text: str, names: dict[str, Any]) -> list[str]:
    """What the word at the end of a text can become."""
    match = re.search(r"[\w.]+$", text)
    word = match[0] if match else ""
    completer = rlcompleter.Completer(names)
    found: list[str] = []
    while len(found) < 200 and (one := completer.complete(word, len(found))) is not None:
        found.append(one.rstrip("( "))
    return found


def about(name: str, names: dict[str, Any]) -> str | None:
    """What ``name?`` tells of an object: its type, text, signature and documentation."""
    first, *rest = name.rstrip("?").strip().split(".")
    if first not in names:
        return None
    value = names[first]
    for part in rest:
        value = getattr(value, part)
    parts = [f"Type:      {type(value).__name__}"]
    with contextlib.suppress(Exception):
        parts.insert(0, f"Signature: {name.rstrip('?')}{inspect.signature(value)}")
    parts.append(f"String:    {bundle_of(value)['text/plain'][:2000]}")
    with contextlib.suppress(Exception):
        parts.append(
            f"File:      {inspect.getsourcefile(type(value) if not callable(value) else value)}"
        )
    if name.endswith("??"):
        with contextlib.suppress(Exception):
            parts.append(f"Source:\n{inspect.getsource(value)}")
    parts.append(f"Docstring:\n{pydoc.getdoc(value)[:10_000]}")
    return "\n".join(parts)


class _Collected:
    """Takes a pump's lines, as the channel of a run does."""

    def __init__(self) -> None:
        self.lines: dict[int, tuple[str, str]] = {}

    def put_log(self, seq: int, stream: str, text: str) -> None:
        self.lines[seq] = (stream, text)

    def take(self) -> list[tuple[int, str, str]]:
        taken, self.lines = self.lines, {}
        return [(seq, *line) for seq, line in sorted(taken.items())]


@contextlib.contextmanager
def _output(send: Callable[[list[Any]], None]) -> Iterator[list[tuple[int, str, str]]]:
    """Take what this process writes: sent while the block runs; the rest is in the list then."""
    rest: list[tuple[int, str, str]] = []
    collected: Any = _Collected()
    file, path = tempfile.mkstemp(prefix="raynb-cell-")
    os.close(file)
    pump = LogPump(path)
    os.unlink(path)  # it is open, and goes with the pump
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            with contextlib.suppress(Exception):
                pump.pump(collected)
                if lines := collected.take():
                    send(lines)

    pump.install()
    thread = threading.Thread(target=look, name="raynb-cell-output", daemon=True)
    thread.start()
    try:
        yield rest
    finally:
        pump.uninstall()
        done.set()
        thread.join(1)
        with contextlib.suppress(Exception):
            pump.pump(collected)
            if dropped := pump.take_dropped():
                collected.put_log(-1, "err", f"({dropped} lines were dropped)")
        rest += collected.take()
        pump.close()
