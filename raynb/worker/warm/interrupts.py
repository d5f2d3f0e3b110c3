"""Interrupting a job: KeyboardInterrupt in the thread that runs the user's code."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator

_sleep = time.sleep


class Interrupts:
    """The way to interrupt one job, from any thread.

    Python raises the exception where the thread next runs Python code. Of what waits inside of C,
    ``time.sleep`` is woken; a collective ends when the process group does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._lock = threading.RLock()
        self._thread: int | None = None
        self._awake = threading.Event()
        self._asleep = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let this thread be interrupted until the block ends."""
        with self._lock:
            if self.asked:
                raise KeyboardInterrupt
            self._thread = threading.get_ident()
        time.sleep = self._sleep  # type: ignore[assignment]
        try:
            try:
                yield
            finally:
                self._close()
        finally:
            # An interrupt may have come in the middle of the first one.
            self._close()

    def _close(self) -> None:
        time.sleep = _sleep
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, None)
            self._thread = None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the job; what it does afterwards is its own."""
        with self._lock:
            self.asked = True
            self._awake.set()
            if self._thread is not None and not self._asleep:
                _raise_in(self._thread, KeyboardInterrupt)

    def _sleep(self, seconds: float) -> None:
        """``time.sleep`` that an interrupt ends, on the job's own thread."""
        if threading.get_ident() != self._thread or not 0 <= seconds <= threading.TIMEOUT_MAX:
            return _sleep(seconds)
        with self._lock:
            self._asleep = not self.asked
        try:
            if self._awake.wait(seconds):
                # Once: what handles the interrupt may sleep as well.
                self._awake.clear()
                raise KeyboardInterrupt
        finally:
            self._asleep = False


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
