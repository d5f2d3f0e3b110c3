"""CPUs and memory of a worker's processes; network and disk of its node."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

import psutil

from raynb.cgroups import cgroup_cpus
from raynb.telemetry.samplers.node import NodeRates
from raynb.telemetry.samplers.processes import Family


class CpuSampler:
    """Utilisation of the worker's CPUs, the memory its processes hold, and the node's rates.

    Parameters
    ----------
    gpu : str or None
        The worker's GPU as ``CUDA_VISIBLE_DEVICES`` names it; unused here.
    num_cpus : float
        CPUs that Ray gave the worker: 100 % is all of them busy; more is possible.
    """

    def __init__(self, gpu: str | None, num_cpus: float) -> None:
        self._num_cpus = max(num_cpus, 1.0)
        self._family = Family()
        self._node = NodeRates()
        self._family.parent.cpu_percent(None)
        self._limit = cgroup_cpus()

    def sample(self) -> dict[str, Any]:
        percent, memory, shared = 0.0, 0, 0
        for process in (self._family.parent, *self._family.members()):
            with contextlib.suppress(psutil.Error):
                percent += process.cpu_percent(None)
                info = process.memory_info()
                memory += info.rss
                # Of Ray's object store and of files: resident here, but not this process's own.
                shared += getattr(info, "shared", 0)
        util = percent / self._num_cpus
        return {
            "device": "CPU",
            "device_kind": "CPU",
            "util": util,
            "mem_used": memory,
            "mem_total": psutil.virtual_memory().total,
            "note": None,
            "cpu": util,
            "rss": memory,
            "private": memory - shared,
            "threads": _torch_threads(),
            "cores": self._cores(),
            **self._node.sample(),
        }

    def _cores(self) -> float:
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        return cores if self._limit is None else min(cores, self._limit)


def _torch_threads() -> int | None:
    """Threads of a torch operation in the worker; None until the user's code imported torch."""
    get = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if get is None:
        return None
    found: list[int] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.append(int(get()))

    # A thread takes over what torch.set_num_threads() set when it first asks, and never again: so
    # a new one asks.
    asking = threading.Thread(target=ask, name="raynb-threads")
    asking.start()
    asking.join()
    return found[0] if found else None
