"""Utilisation and memory of a worker's NVIDIA GPU, through NVML."""

from __future__ import annotations

import os
import sys
from typing import Any


class NvmlSampler:
    """The GPU of one worker; what NVML can't tell is None, with the reason in ``note``.

    Parameters
    ----------
    gpu : str or None
        An entry of ``CUDA_VISIBLE_DEVICES``: an index, a ``GPU-…`` UUID or a ``MIG-…`` name. None
        when the worker has no GPU: then there is nothing to sample.
    num_cpus : float
        Unused here.
    """

    def __init__(self, gpu: str | None, num_cpus: float) -> None:
        self._gpu = gpu
        self._nvml: Any = None
        self._handle: Any = None
        self._uuid: str | None = None

    def sample(self) -> dict[str, Any] | None:
        if self._gpu is None:
            return None
        row: dict[str, Any] = {
            # Of a UUID, the start tells devices apart and leaves room for the name.
            "device": f"GPU {self._gpu}" if self._gpu.isdigit() else self._gpu[:12],
            "device_kind": "GPU",
            "util": None,
            "mem_used": None,
            "mem_total": None,
            "note": None,
        }
        try:
            nvml, handle = self._open()
            name = nvml.nvmlDeviceGetName(handle)
            row["device"] += f" · {name.decode() if isinstance(name, bytes) else name}"
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            row["mem_used"], row["mem_total"] = int(memory.used), int(memory.total)
            row["util"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except Exception as error:
            # A lost device or driver may come back: the next sample opens it anew.
            self._handle = None
            row["note"] = f"NVML: {error}"
        return row

    def _open(self) -> tuple[Any, Any]:
        assert self._gpu is not None
        uuid = _uuid(self._gpu)
        if self._handle is not None and uuid == self._uuid:
            return self._nvml, self._handle
        import pynvml

        pynvml.nvmlInit()
        if uuid or not self._gpu.isdigit():
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid or self._gpu)
        else:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(self._gpu))
        self._nvml, self._uuid = pynvml, uuid
        return pynvml, self._handle


def _uuid(gpu: str) -> str | None:
    """The UUID of a visible CUDA device, once training has started CUDA; never starts it.

    CUDA may number devices otherwise than NVML does; the UUID is the same for both. The device is
    found by its place among the visible ones: the current device is each thread's own, and this
    runs on another thread than training.
    """
    torch = sys.modules.get("torch")
    visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not gpu.isdigit() or gpu not in visible or torch is None:
        return None
    if not torch.cuda.is_initialized():
        return None
    uuid = getattr(torch.cuda.get_device_properties(visible.index(gpu)), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else None
