"""This process and its children, read cheaply: psutil's listing scans all processes of the node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil


def children(pid: int) -> list[int]:
    """Pids of a process's children, as Linux lists them for each thread; else psutil's listing.

    Parameters
    ----------
    pid : int

    Returns
    -------
    list of int
        Empty for a process that is gone.
    """
    tasks = f"/proc/{pid}/task"
    try:
        threads = os.listdir(tasks)
    except FileNotFoundError:
        if os.path.exists("/proc/self/task"):
            return []  # the process is gone
        return _listed_by_psutil(pid)
    except OSError:
        return _listed_by_psutil(pid)
    found: list[int] = []
    told = False
    for thread in threads:
        # A thread may have ended meanwhile; a kernel may be built without these files.
        with contextlib.suppress(OSError), open(f"{tasks}/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
            told = True
    return found if told or not os.path.exists(tasks) else _listed_by_psutil(pid)


def _listed_by_psutil(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


class Family:
    """This process and the children it started since; not those from before, nor theirs.

    In local mode this process may have started a Ray cluster, whose processes are not the run's.
    """

    def __init__(self) -> None:
        self.parent = psutil.Process()
        self._members: dict[int, psutil.Process] = {}
        self._foreign: dict[int, psutil.Process] = {}
        self._foreign = {p.pid: p for p in self._walk(self.parent.pid)}

    def members(self) -> list[psutil.Process]:
        """The run's children alive now, at any depth; the same object for a process each time."""
        self._members = {p.pid: p for p in self._walk(self.parent.pid)}
        return list(self._members.values())

    def pids(self) -> set[int]:
        """The process and its children, as :meth:`members` found them last."""
        return {self.parent.pid, *self._members}

    def _walk(self, pid: int) -> Iterator[psutil.Process]:
        for child in children(pid):
            try:
                process = psutil.Process(child)
            except psutil.Error:
                continue
            # Equal only while the pid is still the same process.
            if self._foreign.get(child) == process:
                continue
            kept = self._members.get(child)
            yield kept if kept is not None and kept == process else process
            yield from self._walk(child)
