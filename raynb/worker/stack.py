"""Where a train function stands: the innermost line of the user's code, and what it is inside."""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType
from typing import Any

import raynb
from raynb.worker.program import CellProgram

_OWN = os.path.dirname(os.path.abspath(raynb.__file__)) + os.sep
#: Characters of a line of source that are shown.
MAX_LINE = 120


def where(thread: int, program: CellProgram) -> str | None:
    """Tell the line at which a thread's train function stands.

    Parameters
    ----------
    thread : int
        The thread's identifier.
    program : CellProgram
        The cell that runs; for a function from Python, one without a file name.

    Returns
    -------
    str or None
        ``Cell In[3], line 12: loss.backward() (in torch/_tensor.py:581 backward)``; for a function
        from Python ``train.py:12: …``. None when the thread is gone, or in no code of the user's.
    """
    frames = _frames(thread)
    if not frames:
        return None
    labels = {cell.filename: cell.label for cell in program.cells if cell.filename}
    at = next((k for k, f in enumerate(frames) if f.f_code.co_filename in labels), None)
    if at is None:
        # The train function's own file: the outermost that is neither raynb's nor Ray's.
        home = next((f for f in reversed(frames) if not _is_ray(f)), None)
        if home is None:
            return None
        file = home.f_code.co_filename
        at = next(k for k, f in enumerate(frames) if f.f_code.co_filename == file)
    frame = frames[at]
    file, line = frame.f_code.co_filename, frame.f_lineno
    name = f"{labels[file]}, line {line}" if file in labels else f"{os.path.basename(file)}:{line}"
    text = linecache.getline(file, line, frame.f_globals).strip()[:MAX_LINE]
    told = f"{name}: {text}" if text else name
    # raynb's own frames stand between the user's code and what it calls.
    inner = next((f for f in frames[:at] if not f.f_code.co_filename.startswith(_OWN)), None)
    if inner is not None:
        code = inner.f_code
        told += f" (in {_short(code.co_filename)}:{inner.f_lineno} {code.co_name})"
    return told


def _frames(thread: int) -> list[FrameType]:
    """The thread's frames inside raynb's own call of the train function, innermost first."""
    found: list[FrameType] = []
    frame: Any = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_name == "run" and frame.f_code.co_filename == _OWN + _RUNTIME:
            return found
        found.append(frame)
        frame = frame.f_back
    return found


_RUNTIME = os.path.join("worker", "runtime.py")


def _is_ray(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("ray", "raynb", "threading")


def _short(file: str) -> str:
    """A file as its package names it: below the directory that it was imported from."""
    homes = [home + os.sep for home in sys.path if home and file.startswith(home + os.sep)]
    home = max(homes, key=len, default="")
    return file.removeprefix(home) if home else os.path.basename(file)
