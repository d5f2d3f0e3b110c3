"""``raynb doctor``: can this machine train, and what to do where it can't?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from raynb._version import __version__
from raynb.cgroups import cgroup_cpus, cgroup_memory
from raynb.telemetry.units import human_bytes

OK, NOTE, PROBLEM = "ok", "note", "problem"
GIB = 2**30

#: Packages whose versions matter, and whether training can work without a supported one.
_PACKAGES = {
    "ray": True,
    "torch": True,
    "torchvision": False,
    "ipykernel": True,
    "ipywidgets": False,
    "anywidget": False,
    "jupyterlab": False,
}
#: Below these, training starts to hurt.
_LEAST_MEMORY = 2 * GIB
_LEAST_SHARED_MEMORY = GIB
_LEAST_DISK = 2 * GIB
_LEAST_OPEN_FILES = 4096
_CLUSTER_TIMEOUT_S = 30

# Run in a process of its own: an address that nobody answers blocks Ray for minutes.
_ASK_CLUSTER = """
import json, sys
import ray
from raynb._ray import cluster
if not cluster.connect():
    sys.exit("none")
nodes = sum(node["Alive"] for node in ray.nodes())
print(json.dumps({
    "address": ray.get_runtime_context().gcs_address,
    "nodes": nodes,
    "total": ray.cluster_resources(),
    "free": ray.available_resources(),
}))
"""


@dataclass(frozen=True)
class Row:
    """One fact about the machine.

    Attributes
    ----------
    section : str
        The part of the report.
    name : str
        What it is about.
    value : str
        What was found.
    level : str
        ``"ok"``, ``"note"`` or, where training can't work, ``"problem"``.
    advice : str
        What to do about it, in one line; empty when it is fine.
    """

    section: str
    name: str
    value: str
    level: str = OK
    advice: str = ""


def check_versions() -> list[Row]:
    """Compare the installed versions with the ranges in raynb's own metadata."""
    try:
        metadata = importlib.metadata.metadata("raynb")
        required = [Requirement(r) for r in importlib.metadata.requires("raynb") or ()]
    except importlib.metadata.PackageNotFoundError:
        known, python_range = {}, ""
        own = Row(
            "versions",
            "raynb",
            f"{__version__}, not installed",
            NOTE,
            "the supported versions are not known without raynb's metadata: pip install -e .",
        )
    else:
        plain = [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
        known = {r.name.lower(): r.specifier for r in plain}
        python_range = metadata["Requires-Python"]
        own = Row("versions", "raynb", __version__)
    python = SpecifierSet(python_range)
    rows = [_version("python", platform.python_version(), python, essential=True), own]
    for name, essential in _PACKAGES.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        rows.append(_version(name, version, known.get(name, SpecifierSet()), essential=essential))
    return rows


def _version(name: str, version: str | None, supported: SpecifierSet, *, essential: bool) -> Row:
    level = PROBLEM if essential else NOTE
    wanted = f"pip install '{name}{supported}'" if name != "python" else f"use Python {supported}"
    if version is None:
        return Row("versions", name, "not installed", level, wanted)
    if name == "ipykernel" and version.startswith("7.0."):
        why = "in 7.0.* no thread can send messages, so the live panel can't work: "
        return Row("versions", name, version, level, why + "pip install 'ipykernel!=7.0.*'")
    if not supported.contains(version, prereleases=True):
        return Row("versions", name, f"{version}, supported: {supported}", level, wanted)
    return Row("versions", name, f"{version}" + (f"  ({supported})" if supported else ""))


def check_ray_hooks() -> list[Row]:
    """Ask whether the installed Ray has what raynb stands on."""
    name = "Ray Train hooks"
    try:
        from raynb._ray import compat

        missing = compat.problems()
    except ImportError as error:
        return [Row("raynb", name, f"Ray Train can't be imported: {error}", PROBLEM,
                    "pip install 'ray[default,train,tune]'")]  # fmt: skip
    advice = "install a Ray version that raynb supports, and leave Ray Train V2 on"
    return [Row("raynb", name, p, PROBLEM, advice) for p in missing] or [
        Row("raynb", name, "all there")
    ]


def check_bundle() -> list[Row]:
    """Look for the front end of the live panel."""
    bundle = Path(__file__).parent / "static" / "panel.js"
    if bundle.is_file():
        return [Row("raynb", "live panel", f"{human_bytes(bundle.stat().st_size)} bundle")]
    advice = "reinstall raynb, or in a checkout run `npm ci && npm run build` in raynb/frontend"
    return [Row("raynb", "live panel", "not built: the static view is shown", NOTE, advice)]


def check_cpu() -> list[Row]:
    """Count CPUs, as the machine, the scheduler and the container have them."""
    visible = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else visible
    limit = cgroup_cpus()
    text = f"{visible} CPUs" + (f", {usable} of them usable" if usable < visible else "")
    if limit is not None and limit < usable:
        text += f", container limit {limit:g}"
        if limit < 1:
            advice = "less than one CPU: training will crawl; raise the container's CPU limit"
            return [Row("devices", "CPU", text, NOTE, advice)]
    return [Row("devices", "CPU", text)]


def check_memory() -> list[Row]:
    """Measure memory, as the machine and the container have it."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    text = f"{human_bytes(free)} free of {human_bytes(total)}"
    limit = cgroup_memory()
    if limit is not None and limit[0] < total:
        allowed, used = limit
        free = min(free, max(allowed - used, 0))
        text = f"{human_bytes(free)} free of {human_bytes(allowed)} (container limit)"
    if free < _LEAST_MEMORY:
        advice = (
            f"two workers take about {human_bytes(_LEAST_MEMORY)}: stop other programs, "
            "or use fewer workers or --local"
        )
        return [Row("devices", "memory", text, NOTE, advice)]
    return [Row("devices", "memory", text)]


@dataclass(frozen=True)
class Nvml:
    """What NVML tells: the GPUs' descriptions, the driver, and why there is nothing."""

    gpus: tuple[str, ...] = ()
    driver: str = ""
    reason: str = ""


def ask_nvml() -> Nvml:
    """Ask the NVIDIA driver for its GPUs."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return Nvml(reason=str(error))
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            free, total = human_bytes(memory.free), human_bytes(memory.total)
            gpus.append(f"{_text(pynvml.nvmlDeviceGetName(handle))}, {free} free of {total}")
        return Nvml(tuple(gpus), _text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        return Nvml(reason=str(error))
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def check_gpus() -> list[Row]:
    """List NVIDIA GPUs, and tell whether torch can use them."""
    nvml = ask_nvml()
    if not nvml.gpus:
        reason = f" (NVML: {nvml.reason})" if nvml.reason else ""
        rows = [Row("devices", "NVIDIA GPUs", f"none found{reason}")]
    else:
        rows = [
            Row("devices", f"GPU {index}", f"{gpu}, driver {nvml.driver}")
            for index, gpu in enumerate(nvml.gpus)
        ]
    return [*rows, _torch_row(nvml)]


def _torch_row(nvml: Nvml) -> Row:
    name = "torch and CUDA"
    try:
        import torch
    except Exception as error:
        text = f"torch can't be imported: {error}"
        return Row("devices", name, text, PROBLEM, "reinstall torch: https://pytorch.org")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    built = f"torch built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU-only torch"
    if available:
        if nvml.gpus:
            return Row("devices", name, f"{built}, usable")
        advice = "GPU charts will be empty: install nvidia-ml-py and make libnvidia-ml reachable"
        return Row("devices", name, f"{built}, usable, but NVML sees no GPU", NOTE, advice)
    if not nvml.gpus:
        return Row("devices", name, f"{built}, training runs on CPUs")
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip():
        advice = "unset CUDA_VISIBLE_DEVICES to train on the GPUs"
        return Row("devices", name, f"{built}, CUDA_VISIBLE_DEVICES hides the GPUs", NOTE, advice)
    if not torch.version.cuda:
        advice = "install a CUDA build of torch (https://pytorch.org), or train with --no-gpu"
    else:
        advice = (
            f"driver {nvml.driver} may be too old: update it, install a torch build for an older "
            "CUDA, or train with --no-gpu"
        )
    why = f": {caught[0].message}".splitlines()[0] if caught else ""
    return Row("devices", name, f"{built}, can't use the GPUs{why}", PROBLEM, advice)


def check_shared_memory(path: str = "/dev/shm") -> list[Row]:
    """Measure the shared memory that Ray's object store lives in.

    Parameters
    ----------
    path : str
        Where it is mounted.
    """
    if not sys.platform.startswith("linux"):
        return []
    name = "shared memory"
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        advice = f"mount a tmpfs at {path}; Ray's object store falls back to slow files"
        return [Row("devices", name, f"{path}: {error.strerror}", NOTE, advice)]
    text = f"{human_bytes(usage.free)} free of {human_bytes(usage.total)} in {path}"
    if usage.total < _LEAST_SHARED_MEMORY:
        advice = (
            "Ray's object store falls back to slow files: start the container with --shm-size=2g"
        )
        return [Row("devices", name, text, NOTE, advice)]
    return [Row("devices", name, text)]


def check_cluster() -> list[Row]:
    """Look for a running Ray cluster, and start none."""
    name = "Ray cluster"
    address = os.environ.get("RAY_ADDRESS")
    if importlib.util.find_spec("ray") is None:
        return []
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_CLUSTER],
            capture_output=True,
            text=True,
            timeout=_CLUSTER_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        where = f"RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
        text = f"{where} did not answer in {_CLUSTER_TIMEOUT_S} s"
        advice = (
            "unset RAY_ADDRESS or start that cluster"
            if address
            else "end the notebook or program that started it; `ray stop` ends every Ray here"
        )
        return [Row("cluster", name, text, PROBLEM, advice)]
    said = asked.stderr.strip().splitlines()
    if asked.returncode:
        last = said[-1] if said else f"exit status {asked.returncode}"
        if address:
            advice = "unset RAY_ADDRESS or start that cluster"
            return [Row("cluster", name, f"RAY_ADDRESS={address}: {last}", PROBLEM, advice)]
        if last == "none":
            return [Row("cluster", name, "none running; a run starts a local one")]
        advice = "use the Ray and Python versions of that cluster, or end it with `ray stop`"
        return [Row("cluster", name, last, PROBLEM, advice)]
    found = json.loads(asked.stdout.strip().splitlines()[-1])
    nodes = found["nodes"]
    rows = [Row("cluster", name, f"{found['address']}, {nodes} node{'s' if nodes != 1 else ''}")]
    for kind in ("CPU", "GPU", "memory", "object_store_memory"):
        if kind in found["total"]:
            total, free = found["total"][kind], found["free"].get(kind, 0)
            write = human_bytes if "memory" in kind else "{:g}".format
            rows.append(Row("cluster", kind, f"{write(free)} free of {write(total)}"))
    return rows


def check_storage() -> list[Row]:
    """Tell whether runs can be stored where they go by default."""
    from raynb.engine.spec import absolute_storage, default_storage

    path = absolute_storage(default_storage())
    name = "run storage"
    if "://" in path:
        return [Row("storage", name, f"{path} (not checked)")]
    there = next(p for p in (Path(path), *Path(path).parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = f"make {there} writable, or choose another directory with --storage-path"
        return [Row("storage", name, f"{path} can't be written", PROBLEM, advice)]
    free = shutil.disk_usage(there).free
    text = f"{path}, {human_bytes(free)} free"
    if free < _LEAST_DISK:
        advice = "checkpoints fill it soon: free some space, or choose another --storage-path"
        return [Row("storage", name, text, NOTE, advice)]
    return [Row("storage", name, text)]


def check_open_files() -> list[Row]:
    """Read the limit of open files; Ray's processes need many."""
    if sys.platform == "win32":
        return []
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [Row("storage", "open files", "unlimited")]
    # Ray raises its own limit as far as the hard one goes.
    reachable = soft if hard == resource.RLIM_INFINITY else max(soft, hard)
    if reachable < _LEAST_OPEN_FILES and hard != resource.RLIM_INFINITY:
        advice = f"raise it to {_LEAST_OPEN_FILES} or more (ulimit -n, docker --ulimit nofile=)"
        return [Row("storage", "open files", f"at most {reachable}", NOTE, advice)]
    return [Row("storage", "open files", f"limit {soft}")]


CHECKS: tuple[Callable[[], list[Row]], ...] = (
    check_versions,
    check_ray_hooks,
    check_bundle,
    check_cpu,
    check_memory,
    check_gpus,
    check_shared_memory,
    check_cluster,
    check_storage,
    check_open_files,
)


def collect(checks: Iterable[Callable[[], list[Row]]] = CHECKS) -> list[Row]:
    """Run the checks; one that breaks becomes a row of its own.

    Parameters
    ----------
    checks : iterable of callable
        The checks.

    Returns
    -------
    list of Row
        What they found.
    """
    checks = list(checks)
    rows: list[Row] = []
    with ThreadPoolExecutor(1) as pool:
        # Asking the cluster waits for another process, beside which this one can import.
        beside = {c: pool.submit(_guarded, c) for c in checks if c is check_cluster}
        for check in checks:
            rows += beside[check].result() if check in beside else _guarded(check)
    return rows


def _guarded(check: Callable[[], list[Row]]) -> list[Row]:
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        text = f"{type(error).__name__}: {error}"
        return [Row("doctor", name, text, NOTE, "this check failed; please report it")]


def report(rows: Iterable[Row]) -> str:
    """Write rows as a table of plain text.

    Parameters
    ----------
    rows : iterable of Row
        From `collect`.

    Returns
    -------
    str
        One line a row, an indented one for each advice, and a last line with the outcome.
    """
    rows = list(rows)
    width = max((len(r.name) for r in rows), default=0)
    lines: list[str] = []
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines += [""] * bool(lines) + [section]
        lines.append(f"  {row.level:<7}  {row.name:<{width}}  {row.value}")
        if row.advice:
            lines.append(f"{'':<{width + 13}}-> {row.advice}")
    problems = sum(r.level == PROBLEM for r in rows)
    notes = sum(r.level == NOTE for r in rows)
    outcome = f"{problems or 'no'} problem{'' if problems == 1 else 's'}"
    outcome += f", {notes or 'no'} note{'' if notes == 1 else 's'}: "
    outcome += "training can't work yet" if problems else "training can work"
    return "\n".join([*lines, "", outcome])


def run_doctor(*, json_output: bool = False) -> int:
    """Check the machine and print what was found.

    Parameters
    ----------
    json_output : bool
        Whether to print one JSON object instead of a table.

    Returns
    -------
    int
        1 when training can't work, else 0.
    """
    rows = collect()
    broken = any(r.level == PROBLEM for r in rows)
    if json_output:
        print(json.dumps({"ok": not broken, "rows": [asdict(r) for r in rows]}, indent=1))
    else:
        print(report(rows))
    return int(broken)
