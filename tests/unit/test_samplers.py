"""Device samplers: this process through psutil, GPUs through a stub of NVIDIA's library."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

from raynb.telemetry.samplers import Samplers, merge, node
from raynb.telemetry.samplers.cpu import CpuSampler
from raynb.telemetry.samplers.node import NodeRates
from raynb.telemetry.samplers.nvml import NvmlSampler
from raynb.telemetry.samplers.processes import Family, children

DEVICE = {"device", "device_kind", "util", "mem_used", "mem_total", "note"}
CPU = {"cpu", "rss", "private", "threads", "cores", "net_in", "net_out", "net_speed"}
CPU |= {"disk_read", "disk_write"}


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
    assert set(row) == DEVICE | CPU and row["device_kind"] == "CPU"
    assert (row["cpu"], row["rss"]) == (row["util"], row["mem_used"])
    assert 0 < row["cores"] <= len(os.sched_getaffinity(0))
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
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    gone = sampler.sample()  # not yet waited for
    child.wait()
    child.stdout.close()
    assert gone["mem_used"] < with_child["mem_used"] - 40_000_000
    assert sampler.sample()["mem_used"] < with_child["mem_used"] - 40_000_000
    assert not sampler._family.members()


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
        assert not sampler._family.members()
    finally:
        for process in [*psutil.Process(daemon.pid).children(), daemon]:
            process.kill()
        daemon.communicate()


def test_a_pid_that_is_another_process_now_is_not_mistaken() -> None:
    sampler = CpuSampler(None, 1.0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        other = psutil.Process()
        sampler._family._members = {child.pid: other}
        sampler.sample()
        assert [p.pid for p in sampler._family.members()] == [child.pid]
    finally:
        child.communicate(b"\n")


def test_children_of_children_and_of_threads() -> None:
    """As psutil finds them, whichever thread started them."""
    script = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(flush=True)\ninput()"
    )
    family, started = Family(), []

    def start() -> None:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    start()
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        found = {p.pid for p in family.members()}
        expected = {p.pid for s in started for p in psutil.Process(s.pid).children(True)}
        assert found == expected | {s.pid for s in started} and len(found) == 4
        assert family.pids() == found | {os.getpid()}
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        for process in started:
            process.communicate()
    assert family.members() == [] and children(started[0].pid) == []


def test_a_kernel_without_the_list_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    real = open

    def missing(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file).endswith("/children"):
            raise FileNotFoundError(file)
        return real(file, *args, **kwargs)

    try:
        monkeypatch.setattr("builtins.open", missing)
        assert child.pid in children(os.getpid())
    finally:
        monkeypatch.undo()
        child.communicate(b"\n")


def test_threads_of_torch_whoever_set_them() -> None:
    import torch

    sampler = CpuSampler(None, 1.0)
    before = torch.get_num_threads()
    try:
        for threads in (3, 5):
            torch.set_num_threads(threads)
            assert sampler.sample()["threads"] == threads
    finally:
        torch.set_num_threads(before)


def test_rates_of_network_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = NodeRates()
    first = rates.sample()
    assert [first[k] for k in ("net_in", "net_out", "disk_read", "disk_write")] == [None] * 4
    time.sleep(0.05)
    second = rates.sample()
    assert all(second[k] is None or second[k] >= 0 for k in second)

    class Counts:
        def __init__(self, n: int) -> None:
            self.bytes_recv = self.read_bytes = n
            self.bytes_sent = self.write_bytes = 2 * n

    at = [0, 0]
    monkeypatch.setattr(node.time, "monotonic", lambda: float(at[0]))
    monkeypatch.setattr(
        psutil, "net_io_counters", lambda pernic: {"lo": Counts(9**9), "x0": Counts(at[1])}
    )
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: None)
    rates = NodeRates()
    rates.sample()
    at[:] = [2, 3000]
    row = rates.sample()
    assert (row["net_in"], row["net_out"], row["disk_read"]) == (1500.0, 3000.0, None)
    at[:] = [3, 10]  # the device was taken out and came back
    assert rates.sample()["net_in"] is None


def test_one_row_of_many() -> None:
    cpu = {"device": "CPU", "device_kind": "CPU", "util": 90.0, "cpu": 90.0, "note": None}
    gpu = {"device": "GPU 0", "device_kind": "GPU", "util": None, "note": "NVML: lost"}
    assert merge([]) == {}
    assert merge([cpu]) == cpu
    for rows in ([cpu, gpu], [gpu, cpu]):
        row = merge(rows)
        assert (row["device"], row["util"], row["cpu"]) == ("GPU 0", None, 90.0)
        assert row["note"] == "NVML: lost"
    extra = {"my_fact": 1, "cpu": 1.0, "note": "mine"}
    row = merge([extra, gpu, cpu])
    assert (row["my_fact"], row["cpu"], row["device"]) == (1, 1.0, "GPU 0")
    assert row["note"] == "mine; NVML: lost"
    assert merge([cpu, gpu], shared=True)["device_wide"] is True
    assert "device_wide" not in merge([cpu], shared=True)


def test_a_broken_sampler_silences_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, gpu: str | None, num_cpus: float) -> None: ...

        def sample(self) -> dict[str, Any]:
            raise RuntimeError("broken")

    class Odd(Broken):
        def sample(self) -> dict[str, Any]:
            return {"mine": 1}

    samplers = Samplers(None, 1.0)
    samplers._samplers += [Broken(None, 1.0), Odd(None, 1.0)]
    row = samplers.sample()
    assert row["mine"] == 1 and row["device"] == "CPU"


# -- NVML ----------------------------------------------------------------------------------------

STUB = r"""
/* A stub of libnvidia-ml.so.1 for tests: three made-up GPUs, the last with two MIG devices, and no
   driver. The file named by NVML_STUB holds what they tell now, a line each:
     error CODE                      every question is answered with it
     fail NAME CODE                  that question is
     gpu INDEX UTIL USED DEGREES MILLIWATTS
     process INDEX PID BYTES
   After an error, the devices have to be opened anew. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { int index, opened, gi, ci; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process;

/* 3 and 4 are the MIG devices of 2. */
static device devices[5] = {{0}, {1}, {2}, {3, 0, 7, 0}, {4, 0, 9, 1}};
static int errors = 0, inits = 0;
static const char *uuids[5] = {
    "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd", "GPU-00000001-aaaa-bbbb-cccc-dddddddddddd",
    "GPU-00000002-aaaa-bbbb-cccc-dddddddddddd", "MIG-00000003-aaaa-bbbb-cccc-dddddddddddd",
    "MIG-00000004-aaaa-bbbb-cccc-dddddddddddd",
};

static FILE *facts(void) {
    const char *path = getenv("NVML_STUB");
    return path ? fopen(path, "r") : NULL;
}

static nvmlReturn_t status(const char *name) {
    char line[200], asked[100];
    int code = 0, found = 0;
    FILE *file = facts();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "error %d", &code) == 1) { errors++; found = code; }
        if (sscanf(line, "fail %99s %d", asked, &code) == 2 && !strcmp(asked, name)) found = code;
    }
    if (file) fclose(file);
    return inits > 0 ? found : 1;
}

static nvmlReturn_t ask(device *handle, const char *name) {
    nvmlReturn_t code = status(name);
    return code ? code : handle->opened == errors ? 0 : 15;
}

static int fact(int index, int which, int otherwise) {
    char line[200];
    int at, told[4], value = otherwise;
    FILE *file = facts();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "gpu %d %d %d %d %d", &at, told, told + 1, told + 2, told + 3) == 5
            && at == index)
            value = told[which];
    if (file) fclose(file);
    return value;
}

static nvmlReturn_t opened(int index, device **handle) {
    *handle = &devices[index];
    nvmlReturn_t code = status("open");
    devices[index].opened = errors;
    return code;
}

nvmlReturn_t nvmlInit_v2(void) { inits++; return status("init"); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { inits++; return status("init"); }
nvmlReturn_t nvmlShutdown(void) { inits--; return 0; }
const char *nvmlErrorString(nvmlReturn_t code) { return code == 3 ? "Not Supported" : "stubbed"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return status("count"); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **handle) {
    return index < 3 ? opened(index, handle) : 2;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    for (int k = 0; k < 5; k++)
        if (!strcmp(uuids[k], uuid)) return opened(k, handle);
    return 6;
}

nvmlReturn_t nvmlDeviceGetUUID(device *handle, char *uuid, unsigned int length) {
    snprintf(uuid, length, "%s", uuids[handle->index]);
    return ask(handle, "uuid");
}

nvmlReturn_t nvmlDeviceGetName(device *handle, char *name, unsigned int length) {
    snprintf(name, length, "Stub %d", handle->index);
    return ask(handle, "name");
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(device *handle, memory *info) {
    info->total = 1000ull * (handle->index + 1);
    info->used = fact(handle->index, 1, 100 * (handle->index + 1));
    info->free = info->total - info->used;
    return ask(handle, "memory");
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(device *handle, utilization *rates) {
    if (handle->index > 2) return 3;
    rates->gpu = fact(handle->index, 0, 10 * (handle->index + 1));
    rates->memory = 0;
    return ask(handle, "utilization");
}

nvmlReturn_t nvmlDeviceGetTemperature(device *handle, int sensor, unsigned int *degrees) {
    if (handle->index > 2) return 3;
    *degrees = fact(handle->index, 2, 40 + handle->index);
    return ask(handle, "temperature");
}

nvmlReturn_t nvmlDeviceGetPowerUsage(device *handle, unsigned int *milliwatts) {
    if (handle->index > 2) return 3;
    *milliwatts = fact(handle->index, 3, 50000 + 500 * handle->index);
    return ask(handle, "power");
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    device *handle, unsigned int *count, process *list
) {
    char line[200];
    int index, pid;
    unsigned int n = 0;
    unsigned long long used;
    nvmlReturn_t code = ask(handle, "processes");
    FILE *file = facts();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "process %d %d %llu", &index, &pid, &used) == 3
            && index == handle->index) {
            if (list && n < *count) { list[n].pid = pid; list[n].used = used; }
            n++;
        }
    if (file) fclose(file);
    int small = n && (!list || n > *count);
    *count = n;
    return code ? code : small ? 7 : 0;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(device *handle, unsigned int *count) {
    *count = handle->index == 2 ? 7 : 0;
    return ask(handle, "mig");
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(
    device *handle, unsigned int index, device **part
) {
    return handle->index == 2 && (index == 1 || index == 4) ? opened(index == 1 ? 3 : 4, part) : 6;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(device *handle, unsigned int *is) {
    *is = handle->index > 2;
    return ask(handle, "is_mig");
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *part, device **handle) {
    return opened(2, handle);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(device *part, unsigned int *id) {
    *id = part->gi;
    return ask(part, "gi");
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(device *part, unsigned int *id) {
    *id = part->ci;
    return ask(part, "ci");
}
"""

SESSION = """
import json, os, subprocess, sys, types
from raynb.telemetry.samplers.nvml import NvmlSampler

def tell(*lines):
    with open(os.environ["NVML_STUB"], "w") as file:
        file.write("\\n".join(lines))

def look(gpu):
    return NvmlSampler(gpu, 1).sample()

uuid = "0000000{}-aaaa-bbbb-cccc-dddddddddddd".format
out = {}
out["by index"] = [look(str(k)) for k in range(3)]
out["by uuid"] = look("GPU-" + uuid(2))
out["by its start"] = look("GPU-00000001")
out["ambiguous"] = look("GPU-0000000")
out["unknown"] = [look(g) for g in ("7", "GPU-nope", "MIG-GPU-" + uuid(2) + "/1/1")]
out["mig"] = [look("MIG-" + uuid(3)), look("MIG-GPU-" + uuid(2) + "/9/1")]

sampler = NvmlSampler("1", 1)
story = [sampler.sample()]
tell("error 15")                       # NVML_ERROR_GPU_IS_LOST
story.append(sampler.sample())
tell("")
story.append(sampler.sample())
out["lost and found"] = story
tell("gpu 1 77 800 91 123456")
out["changed"] = sampler.sample()
tell("fail power 3", "fail temperature 999")
out["partly"] = sampler.sample()
tell("")
out["whole again"] = sampler.sample()

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
own = [f"process 1 {os.getpid()} 300", f"process 1 {child.pid} 50", "process 0 1 77"]
tell(*own)
out["own processes"] = sampler.sample()
tell(*own, "process 1 1 400")
out["with others"] = sampler.sample()
tell(f"process 1 {os.getpid()} {2**64 - 1}")
out["size unknown"] = sampler.sample()
tell("process 1 1 400")
out["others only"] = sampler.sample()
child.communicate(b"\\n")

# CUDA numbers its devices otherwise than NVML here. Stands in for torch on a machine with GPUs.
uuids = [uuid(2), uuid(0)]
cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    current_device=lambda: 0,      # of the sampling thread, whatever training uses
    get_device_properties=lambda k: types.SimpleNamespace(uuid=uuids[k]),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
out["in a container"] = sampler.sample()
tell("process 1 1 400", "process 1 2 400")
out["shared in a container"] = sampler.sample()
tell("")
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
out["cuda order"] = [look(g) for g in ("0", "1")]
cuda.is_initialized = lambda: False
out["before cuda"] = look("0")
sampler = NvmlSampler("0", 1)
sampler.sample()
cuda.is_initialized = lambda: True
out["once cuda is up"] = sampler.sample()
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
        "NVML_STUB": str(directory / "facts"),
    }
    env.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


FIGURES = {"util", "mem_used", "mem_total", "temperature", "power", "mem_process", "device_wide"}


def gpu(index: int, label: str, **other: Any) -> dict[str, Any]:
    return {
        "device": f"{label} · Stub {index}",
        "device_kind": "GPU",
        "util": 10.0 * (index + 1),
        "mem_used": 100 * (index + 1),
        "mem_total": 1000 * (index + 1),
        "mem_process": None,
        "temperature": 40.0 + index,
        "power": 50.0 + index / 2,
        "device_wide": False,
        "note": None,
        **other,
    }


def test_gpus_by_index_and_by_uuid(nvml: dict[str, Any]) -> None:
    assert nvml["by index"] == [gpu(k, f"GPU {k}") for k in range(3)]
    assert nvml["by uuid"] == gpu(2, "GPU-00000002")
    assert nvml["by its start"] == gpu(1, "GPU-00000001")


def test_mig_devices_by_both_names(nvml: dict[str, Any]) -> None:
    """Memory is the part's own; temperature and power are the whole GPU's."""
    note = "NVML: utilisation: Not Supported"
    shared = {"util": None, "temperature": 42.0, "power": 51.0, "note": note}
    assert nvml["mig"] == [
        gpu(3, "MIG-00000003", **shared),
        gpu(4, "MIG-GPU-0000", **shared),
    ]


def test_what_is_not_known_is_none_with_a_reason(nvml: dict[str, Any]) -> None:
    for row in (*nvml["unknown"], nvml["ambiguous"]):
        assert all(row[key] is None for key in FIGURES)
        assert row["note"].startswith("NVML: ") and row["device_kind"] == "GPU"
    assert "3 devices have a UUID that starts with" in nvml["ambiguous"]["note"]


def test_a_gpu_that_is_lost_may_come_back(nvml: dict[str, Any]) -> None:
    before, lost, after = nvml["lost and found"]
    assert before == after == gpu(1, "GPU 1")
    assert all(lost[key] is None for key in FIGURES)
    assert lost["note"].startswith("NVML: ")


def test_figures_are_read_anew_each_time(nvml: dict[str, Any]) -> None:
    assert nvml["changed"] == gpu(
        1, "GPU 1", util=77.0, mem_used=800, temperature=91.0, power=123.456
    )


def test_one_figure_that_fails_leaves_the_others(nvml: dict[str, Any]) -> None:
    note = "NVML: temperature: Unknown Error; power: Not Supported"
    assert nvml["partly"] == gpu(1, "GPU 1", temperature=None, power=None, note=note)
    assert nvml["whole again"] == gpu(1, "GPU 1")


def test_own_processes_and_others(nvml: dict[str, Any]) -> None:
    assert nvml["own processes"] == gpu(1, "GPU 1", mem_process=350)
    assert nvml["with others"] == gpu(1, "GPU 1", mem_process=350, device_wide=True)
    assert nvml["size unknown"] == gpu(1, "GPU 1")
    assert nvml["others only"] == gpu(1, "GPU 1", device_wide=True)


def test_a_container_hides_whose_process_it_is(nvml: dict[str, Any]) -> None:
    assert nvml["in a container"] == gpu(1, "GPU 1")
    assert nvml["shared in a container"] == gpu(1, "GPU 1", device_wide=True)


def test_each_worker_of_a_node_sees_its_own_gpu(nvml: dict[str, Any]) -> None:
    assert nvml["cuda order"] == [gpu(2, "GPU 0"), gpu(0, "GPU 1")]
    assert nvml["before cuda"] == gpu(0, "GPU 0")
    assert nvml["once cuda is up"] == gpu(2, "GPU 0")


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
