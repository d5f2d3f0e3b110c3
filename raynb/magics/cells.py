"""Where a cell magic's body stands in its cell, for line numbers that match the gutter."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class MagicCell:
    """A cell magic's line and body, and their place in the cell.

    Attributes
    ----------
    line : str
        The magic line without the magic's name, with continued lines joined.
    body : str
        What is below it.
    first_line : int
        The line of the cell on which the body starts.
    filename : str
        IPython's own file name of the cell.
    label : str
        How users see the cell, ``"Cell In[3]"``.
    """

    line: str
    body: str
    first_line: int
    filename: str
    label: str


def locate(shell: Any, magic_name: str, line: str, body: str) -> MagicCell:
    """Find where the body of the cell magic that runs now stands in its cell.

    The cell's text is made known to IPython, so that its own tracebacks show the right line.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell that runs the cell.
    magic_name : str
        The magic's name without ``%%``.
    line, body : str
        What IPython gives the magic.

    Returns
    -------
    MagicCell
        The cell.
    """
    line, body, continued = _join_continued(shell, line, body.replace("\r\n", "\n"))
    raw = _raw_cell(shell)
    end = body.rstrip("\n")
    head = raw[: len(raw) - len(end)]
    if raw.endswith(end) and f"%%{magic_name}" in head:
        first_line = head.count("\n") + 1
    else:
        # Run from code or without history: the cell is the magic line and its body.
        first_line = 2 + continued
        raw = "\n" * (first_line - 1) + end
    count = _number(shell)
    filename = shell.compile.cache(raw, count, raw_code=raw)
    return MagicCell(line, body, first_line, filename, f"Cell In[{count}]")


def whole(shell: Any, body: str) -> MagicCell:
    """The cell that runs now where all of it is the body, without a magic's line."""
    body = body.replace("\r\n", "\n").rstrip("\n")
    count = _number(shell)
    return MagicCell(
        "", body, 1, shell.compile.cache(body, count, raw_code=body), f"Cell In[{count}]"
    )


def labels(shell: Any) -> dict[str, str]:
    """The file names of the notebook's cells, with the labels that users see."""
    known = {}
    for filename in list(linecache.cache):
        label = shell.compile.format_code_name(filename)
        if label is not None:
            known[filename] = " ".join(label)
    return known


def from_cell_on(trace: TracebackType | None, filename: str) -> TracebackType | None:
    """Drop the frames above a cell's own.

    Parameters
    ----------
    trace : traceback or None
        Of an error.
    filename : str
        IPython's file name of the cell.

    Returns
    -------
    traceback or None
        From the cell's first frame on; all of it when the cell is not in it.
    """
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename != filename:
        step = step.tb_next
    return step or trace


def _join_continued(shell: Any, line: str, body: str) -> tuple[str, str, int]:
    """Join lines that end with a backslash, which IPython does not do for cell magics."""
    continued = 0
    while line.endswith("\\") and body:
        more, _, body = body.partition("\n")
        # So deep that only the notebook's names are expanded, none of the frames in between.
        more = shell.var_expand(more.strip(), sys.getrecursionlimit())
        line = f"{line[:-1].rstrip()} {more}"
        continued += 1
    return line, body, continued


def _number(shell: Any) -> int:
    """The number that the running cell shows, ``In[number]``."""
    # The shell's own counter tells it in some IPython versions, and the next cell's in others.
    running = shell.displayhook.exec_result
    number: int = getattr(running, "execution_count", None) or shell.execution_count
    return number


def _raw_cell(shell: Any) -> str:
    """The text of the cell that runs now, as it was typed; empty when it isn't known."""
    history = getattr(shell.history_manager, "input_hist_raw", None)
    return history[-1].replace("\r\n", "\n").rstrip("\n") if history else ""
