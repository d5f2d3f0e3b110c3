"""Device samplers: this process through psutil, GPUs through a stub of NVIDIA's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

from raynb.telemetry.samplers.cpu import CpuSampler
from raynb.telemetry.samplers.nvml import NvmlSampler

KEYS = {"device", "device_kind", "util", "mem_used", "mem_total", "note"}


def test_both_are_registered() -> None:
    loaded = {e.name: e.load() for e in entry_points(group="raynb.samplers")}
    assert loaded["cpu"] is CpuSampler and loaded["nvml"] is NvmlSampler


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_cpu_of_this_process() -> None:
    sampler = CpuSampler(None, 1.0)
    busy(0.2)
    row = sampler.sample()
    assert set(row) == KEYS and row["device_kind"] == "CPU"
    assert row["util"] > 20
    assert row["mem_used"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.3)
    assert row["mem_total"] == psutil.virtual_memory().total
    # Of four CPUs, one busy loop is a quarter.
    shared = CpuSampler(None, 4.0)
    busy(0.2)
    assert shared.sample()["util"] < 60


def test_children_count_and_may_die() -> None:
    sampler = CpuSampler(None, 1.0)
    alone = sampler.sample()["mem_used"]
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(50_000_000)\nprint(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = sampler.sample()
        assert with_child["mem_used"] > alone + 40_000_000
        time.sleep(0.3)
        assert sampler.sample()["util"] > 20  # this process slept, the child did not
    finally:
        child.kill()
    gone = sampler.sample()  # not yet waited for: a zombie
    child.wait()
    child.stdout.close()
    assert gone["mem_used"] < with_child["mem_used"] - 40_000_000
    assert sampler.sample()["mem_used"] < with_child["mem_used"] - 40_000_000
    assert not sampler._children


def test_children_from_before_are_not_the_runs() -> None:
    """Local mode in a kernel with a Ray cluster: its processes, old and new, are not training."""
    script = (
        "import subprocess, sys\n"
        "for line in sys.stdin:\n"
        "    subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "    print(flush=True)"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert daemon.stdin is not None and daemon.stdout is not None
    try:
        sampler = CpuSampler(None, 1.0)
        daemon.stdin.write(b"start\n")
        daemon.stdin.flush()
        daemon.stdout.readline()
        assert len(psutil.Process(daemon.pid).children()) == 1
        sampler.sample()
        assert not sampler._children
    finally:
        for process in [*psutil.Process(daemon.pid).children(), daemon]:
            process.kill()
        daemon.communicate()


def test_a_pid_that_is_another_process_now_is_not_mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = CpuSampler(None, 1.0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        other = psutil.Process()
        sampler._children = {child.pid: other}
        sampler.sample()
        assert sampler._children[child.pid].pid == child.pid
    finally:
        child.communicate(b"\n")


# -- NVML ----------------------------------------------------------------------------------------

STUB = r"""
/* A stub of libnvidia-ml.so.1 for tests: three made-up GPUs, no driver. The file named by
   NVML_STUB_ERROR, where it exists, holds the error code that every question is answered with;
   after an error, the devices have to be opened anew. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { int index, opened; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int gpu, memory; } utilization;

static device devices[3] = {{0}, {1}, {2}};
static int errors = 0;

static nvmlReturn_t status(void) {
    const char *path = getenv("NVML_STUB_ERROR");
    FILE *file = path ? fopen(path, "r") : NULL;
    int code = 0;
    if (file) { if (fscanf(file, "%d", &code) != 1) code = 0; fclose(file); }
    if (code) errors++;
    return code;
}

static nvmlReturn_t ask(device *handle) {
    nvmlReturn_t code = status();
    return code ? code : handle->opened == errors ? 0 : 15;
}

static nvmlReturn_t opened(int index, device **handle) {
    *handle = &devices[index];
    devices[index].opened = errors;
    return status();
}

nvmlReturn_t nvmlInit_v2(void) { return status(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return status(); }
nvmlReturn_t nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(nvmlReturn_t code) { return "stubbed error"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return status(); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **handle) {
    if (index >= 3) return 2;
    return opened(index, handle);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    for (int k = 0; k < 3; k++) {
        char own[64];
        snprintf(own, sizeof own, "GPU-0000000%d-aaaa-bbbb-cccc-dddddddddddd", k);
        if (strcmp(own, uuid) == 0) return opened(k, handle);
    }
    return 6;
}

nvmlReturn_t nvmlDeviceGetName(device *handle, char *name, unsigned int length) {
    snprintf(name, length, "Stub %d", handle->index);
    return ask(handle);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(device *handle, memory *info) {
    info->total = 1000ull * (handle->index + 1);
    info->used = 100ull * (handle->index + 1);
    info->free = info->total - info->used;
    return ask(handle);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(device *handle, utilization *rates) {
    rates->gpu = 10 * (handle->index + 1);
    rates->memory = 0;
    return ask(handle);
}
"""

SESSION = """
import json, os, sys, types
from raynb.telemetry.samplers.nvml import NvmlSampler

error = os.environ["NVML_STUB_ERROR"]
uuid = "0000000{}-aaaa-bbbb-cccc-dddddddddddd".format
out = {}
out["by index"] = [NvmlSampler(str(k), 1).sample() for k in range(3)]
out["by uuid"] = NvmlSampler("GPU-" + uuid(2), 1).sample()
out["unknown"] = [NvmlSampler(g, 1).sample() for g in ("7", "GPU-nope")]
sampler = NvmlSampler("1", 1)
story = [sampler.sample()]
open(error, "w").write("15")     # NVML_ERROR_GPU_IS_LOST
story.append(sampler.sample())
os.remove(error)
story.append(sampler.sample())
out["lost and found"] = story

# CUDA numbers its devices otherwise than NVML here. Stands in for torch on a machine with GPUs.
uuids = [uuid(2), uuid(0)]
cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    current_device=lambda: 0,      # of the sampling thread, whatever training uses
    get_device_properties=lambda k: types.SimpleNamespace(uuid=uuids[k]),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
out["cuda order"] = [NvmlSampler(g, 1).sample() for g in ("0", "1")]
cuda.is_initialized = lambda: False
out["before cuda"] = NvmlSampler("0", 1).sample()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the stub of NVIDIA's library with")
    directory: Path = tmp_path_factory.mktemp("nvml")
    source = directory / "stub.c"
    source.write_text(STUB)
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(directory),
        "NVML_STUB_ERROR": str(directory / "error"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def gpu(index: int, label: str) -> dict[str, Any]:
    return {
        "device": f"{label} · Stub {index}",
        "device_kind": "GPU",
        "util": 10.0 * (index + 1),
        "mem_used": 100 * (index + 1),
        "mem_total": 1000 * (index + 1),
        "note": None,
    }


def test_gpus_by_index_and_by_uuid(nvml: dict[str, Any]) -> None:
    assert nvml["by index"] == [gpu(k, f"GPU {k}") for k in range(3)]
    assert nvml["by uuid"] == gpu(2, "GPU-00000002")


def test_what_is_not_known_is_none_with_a_reason(nvml: dict[str, Any]) -> None:
    for row in nvml["unknown"]:
        assert row["util"] is row["mem_used"] is row["mem_total"] is None
        assert row["note"].startswith("NVML: ") and row["device_kind"] == "GPU"


def test_a_gpu_that_is_lost_may_come_back(nvml: dict[str, Any]) -> None:
    before, lost, after = nvml["lost and found"]
    assert before == after == gpu(1, "GPU 1")
    assert lost["util"] is lost["mem_used"] is lost["mem_total"] is None
    assert lost["note"].startswith("NVML: ")


def test_each_worker_of_a_node_sees_its_own_gpu(nvml: dict[str, Any]) -> None:
    assert nvml["cuda order"] == [gpu(2, "GPU 0"), gpu(0, "GPU 1")]
    assert nvml["before cuda"] == gpu(0, "GPU 0")


def test_no_gpu_is_nothing_to_sample() -> None:
    assert NvmlSampler(None, 1.0).sample() is None


def test_no_driver_is_said() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pynvml\n"
            "def init(): raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)\n"
            "pynvml.nvmlInit = init\n"
            "from raynb.telemetry.samplers.nvml import NvmlSampler\n"
            "print(NvmlSampler('0', 1).sample())",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "'note': 'NVML: " in done.stdout and "'util': None" in done.stdout
