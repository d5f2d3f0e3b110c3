"""Processes of this machine: whether they run, and a wait for their end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import psutil

Process = TypeVar("Process", int, psutil.Process)


def runs(process: int | psutil.Process) -> bool:
    """Whether a process, or the one of that number, runs.

    One that has ended may stay a zombie for long, since a container's first process seldom reaps
    them: it does not run.
    """
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def left(processes: Sequence[Process], seconds: float) -> list[Process]:
    """Those that still run after so many seconds; returns sooner where none does."""
    end = time.monotonic() + seconds
    while (alive := [p for p in processes if runs(p)]) and time.monotonic() < end:
        time.sleep(0.05)
    return alive
