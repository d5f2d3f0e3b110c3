"""CPU and memory of a worker process and its children, through psutil."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil


class CpuSampler:
    """Utilisation of the worker's CPUs and the memory its processes hold.

    Children that were there before the sampler are not the run's, and neither are theirs: in local
    mode this process may have started a Ray cluster.

    Parameters
    ----------
    gpu : str or None
        The worker's GPU as ``CUDA_VISIBLE_DEVICES`` names it; unused here.
    num_cpus : float
        CPUs that Ray gave the worker: 100 % is all of them busy; more is possible.
    """

    def __init__(self, gpu: str | None, num_cpus: float) -> None:
        self._process = psutil.Process()
        self._num_cpus = max(num_cpus, 1.0)
        self._children: dict[int, psutil.Process] = {}
        self._process.cpu_percent(None)
        self._foreign = {child.pid: child for child in self._process.children(True)}

    def sample(self) -> dict[str, Any]:
        percent = self._process.cpu_percent(None)
        memory = self._process.memory_info().rss
        # cpu_percent compares with the call before, so the objects of the children are kept; they
        # compare equal only while the pid is still the same process.
        alive = {}
        for child in self._process.children(True):
            if self._is_foreign(child):
                continue
            kept = self._children.get(child.pid)
            alive[child.pid] = kept if kept is not None and kept == child else child
        for child in alive.values():
            with contextlib.suppress(psutil.Error):
                percent += child.cpu_percent(None)
                memory += child.memory_info().rss
        self._children = alive
        return {
            "device": "CPU",
            "device_kind": "CPU",
            "util": percent / self._num_cpus,
            "mem_used": memory,
            "mem_total": psutil.virtual_memory().total,
            "note": None,
        }

    def _is_foreign(self, child: psutil.Process) -> bool:
        if self._foreign.get(child.pid) == child:
            return True
        # psutil lists parents before their children.
        with contextlib.suppress(psutil.Error):
            if self._foreign and child.ppid() in self._foreign:
                self._foreign[child.pid] = child
                return True
        return False
