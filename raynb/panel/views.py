"""Chooses the view for where raynb runs: a notebook, a terminal, or no one who looks."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from raynb.engine.run import Run
from raynb.results.mount import in_notebook
from raynb.results.tune.live import lane_words
from raynb.telemetry.update import Update

#: Lines of worker output that --echo prints into a cell before it points to the panel.
MAX_ECHO = 500


class View(Protocol):
    def show(self) -> None: ...
    def close(self) -> None: ...


def open_view(run: Run, *, echo: bool = False) -> None:
    """Open the view that fits and set ``run.panel``; a view that fails never fails the run."""
    if echo:
        run.listen(_Echo(run))
    try:
        view: View
        if in_notebook():
            from raynb.panel.notebook import NotebookView

            view = NotebookView(run)
        else:
            view = _Terminal(run)
        view.show()
        run.panel = view
    except Exception as error:
        _tell("the panel can't be shown", error)


def close_view(run: Run) -> None:
    """Let the run's view show its end."""
    if run.panel is not None:
        try:
            run.panel.close()
        except Exception as error:
            _tell("the record can't be shown", error)


def _tell(what: str, error: Exception) -> None:
    print(
        f"raynb: {what} ({type(error).__name__}: {error}); the run is not touched by it",
        file=sys.stderr,
    )


class _Terminal:
    """:class:`~raynb.panel.terminal.TerminalView` of a run."""

    def __init__(self, run: Run) -> None:
        from raynb.panel.terminal import TerminalView

        self._run = run
        self._view = TerminalView()

    def show(self) -> None:
        with self._run.lock:
            self._view.open(self._run.mirror)
        self._run.listen(self._update)

    def _update(self, update: Update) -> None:
        with self._run.lock:
            self._view.update(self._run.mirror)

    def close(self) -> None:
        text = repr(self._run.result) if self._run.result is not None else ""
        with self._run.lock:
            self._view.close(self._run.mirror, text)


class _Echo:
    """Prints the workers' lines into the cell, up to a limit."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._printed: set[tuple[int, int]] = set()
        self._full = False

    def __call__(self, update: Update) -> None:
        lines: list[dict[str, Any]] = update.content.get("logs", [])
        for line in lines:
            key = (line["rank"], line["seq"])
            if key in self._printed or self._full:
                continue
            self._printed.add(key)
            print(f"[{lane_words(self._run.mirror.run, line['rank'])}] {line['text']}")
            if len(self._printed) >= MAX_ECHO:
                self._full = True
                print(f"(--echo stops after {MAX_ECHO} lines; the panel and the run's logs go on)")
