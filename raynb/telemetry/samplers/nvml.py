"""Utilisation, memory, temperature and power of a worker's NVIDIA GPU, through NVML."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from raynb.telemetry.samplers.processes import Family

#: A MIG device as drivers before R470 name it: the GPU's UUID, the instances' numbers.
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/(\d+)")


class NvmlSampler:
    """The GPU of one worker; what NVML can't tell is None, with the reason in ``note``.

    Parameters
    ----------
    gpu : str or None
        An entry of ``CUDA_VISIBLE_DEVICES``: an index, a ``GPU-…`` UUID or the start of one, or a
        MIG device (``MIG-<uuid>``, ``MIG-GPU-<uuid>/<gi>/<ci>``). None when the worker has no
        GPU: then there is nothing to sample.
    num_cpus : float
        Unused here.
    """

    def __init__(self, gpu: str | None, num_cpus: float) -> None:
        self._gpu = gpu
        self._nvml: Any = None
        self._handle: Any = None
        self._opened: str | None = None
        self._lost = False
        self._family = Family() if gpu is not None else None

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
            "mem_process": None,
            "temperature": None,
            "power": None,
            "device_wide": None,
            "note": None,
        }
        self._lost = False
        try:
            self._open()
            self._read(row)
        except Exception as error:
            self._lost = True
            row["note"] = f"NVML: {error}"
        if self._lost:
            # A lost device or driver may come back: the next sample opens it anew.
            self._close()
        return row

    # -- what the device tells -------------------------------------------------------------------

    def _read(self, row: dict[str, Any]) -> None:
        nvml, handle = self._nvml, self._handle
        row["device"] += f" · {_text(nvml.nvmlDeviceGetName(handle))}"
        # Temperature and power are the whole GPU's, also for a part of it.
        whole = self._whole()
        missing: list[str] = []

        def ask(what: str, question: Callable[[], dict[str, Any]]) -> None:
            try:
                row.update(question())
            except nvml.NVMLError as error:
                missing.append(f"{what}: {error}")
                if error.value not in (
                    nvml.NVML_ERROR_NOT_SUPPORTED,
                    nvml.NVML_ERROR_NO_PERMISSION,
                ):
                    self._lost = True

        ask("memory", self._memory)
        ask("utilisation", lambda: {"util": float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)})
        ask("temperature", lambda: {"temperature": float(nvml.nvmlDeviceGetTemperature(whole, 0))})
        ask("power", lambda: {"power": nvml.nvmlDeviceGetPowerUsage(whole) / 1000.0})
        ask("processes", self._processes)
        if missing:
            row["note"] = "NVML: " + "; ".join(missing)

    def _memory(self) -> dict[str, Any]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {"mem_used": int(memory.used), "mem_total": int(memory.total)}

    def _processes(self) -> dict[str, Any]:
        """The memory of the worker's own processes, and whether there are others."""
        try:
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)
        except self._nvml.NVMLError_FunctionNotFound:  # drivers before R510
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses_v2(self._handle)
        memory = {process.pid: process.usedGpuMemory for process in listed}
        assert self._family is not None
        self._family.members()
        own = self._family.pids() & set(memory)
        if not own:
            # In a container NVML knows this process by another pid: it may be the one there.
            return {"device_wide": len(memory) > (1 if _cuda_is_up() else 0)}
        known = all(memory[pid] is not None for pid in own)
        return {
            "device_wide": len(memory) > len(own),
            "mem_process": sum(int(memory[pid]) for pid in own) if known else None,
        }

    def _whole(self) -> Any:
        """The physical GPU: a MIG device has no sensors of its own."""
        nvml, handle = self._nvml, self._handle
        with contextlib.suppress(nvml.NVMLError):
            if nvml.nvmlDeviceIsMigDeviceHandle(handle):
                return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return handle

    # -- which device it is ----------------------------------------------------------------------

    def _open(self) -> None:
        assert self._gpu is not None
        wanted = _cuda_uuid(self._gpu) or self._gpu
        if self._handle is not None and wanted == self._opened:
            return
        self._close()
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle, self._opened = _find(pynvml, wanted), wanted

    def _close(self) -> None:
        nvml, self._nvml, self._handle = self._nvml, None, None
        if nvml is not None:
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()  # of this sampler's own nvmlInit(): NVML counts them


def _find(nvml: Any, wanted: str) -> Any:
    """The handle of a device by its index, UUID, start of its UUID, or MIG name."""
    if wanted.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(wanted))
    old = _OLD_MIG.fullmatch(wanted)
    if old is not None:
        whole = _find(nvml, old[1])
        for part in _mig_devices(nvml, whole):
            numbers = (
                nvml.nvmlDeviceGetGpuInstanceId(part),
                nvml.nvmlDeviceGetComputeInstanceId(part),
            )
            if numbers == (int(old[2]), int(old[3])):
                return part
        raise LookupError(f"no MIG device {wanted}")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(wanted)
    except nvml.NVMLError as error:
        # CUDA takes the start of a UUID too, as long as it is one device's.
        found = [h for h in _devices(nvml) if _text(nvml.nvmlDeviceGetUUID(h)).startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(
                f"{len(found)} devices have a UUID that starts with {wanted}"
            ) from error
        raise


def _devices(nvml: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield handle
        yield from _mig_devices(nvml, handle)


def _mig_devices(nvml: Any, whole: Any) -> Iterator[Any]:
    try:
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(whole)
    except nvml.NVMLError:
        return
    for index in range(count):
        # Places that hold no device are errors.
        with contextlib.suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _cuda_is_up() -> bool:
    torch = sys.modules.get("torch")
    try:
        return bool(torch is not None and torch.cuda.is_initialized())
    except AttributeError:  # torch is being imported
        return False


def _cuda_uuid(gpu: str) -> str | None:
    """The UUID of a visible CUDA device, once training has started CUDA; never starts it.

    CUDA may number devices otherwise than NVML does; the UUID is the same for both. The device is
    found by its place among the visible ones: the current device is each thread's own, and this
    runs on another thread than training.
    """
    visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not gpu.isdigit() or gpu not in visible or not _cuda_is_up():
        return None
    properties = sys.modules["torch"].cuda.get_device_properties(visible.index(gpu))
    uuid = getattr(properties, "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else None
