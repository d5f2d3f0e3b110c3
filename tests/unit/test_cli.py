"""The command line and what ``raynb doctor`` finds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

import raynb
from raynb import cli, doctor
from raynb.doctor import NOTE, OK, PROBLEM, Nvml, Row
from raynb.errors import ResourceError

# --- the command ----------------------------------------------------------------------------


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("demo", "lab", "doctor", "--version"))


def test_python_m_raynb_tells_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raynb", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"raynb {raynb.__version__}\n")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def run_demo(**options: Any) -> int:
        calls.append(options)
        if options["out"] == "fail":
            raise ResourceError("asked for 9 CPUs", hint="-n 2")
        if options["out"] == "stop":
            raise KeyboardInterrupt
        return 7

    module = ModuleType("raynb.demo")
    module.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raynb.demo", module)
    return calls


def test_demo_passes_its_options_and_status_on(demo: list[dict[str, Any]]) -> None:
    words = "demo --workers 3 --epochs 4 --limit 100 --dataset digits --data d --json --out o"
    assert cli.main(words.split()) == 7
    assert cli.main(["demo"]) == 7
    given, plain = demo
    assert given == {
        "workers": 3, "epochs": 4, "limit": 100, "dataset": "digits", "data": "d",
        "json_output": True, "out": "o",
    }  # fmt: skip
    assert plain == {
        "workers": 2, "epochs": 2, "limit": None, "dataset": None, "data": None,
        "json_output": False, "out": None,
    }  # fmt: skip


def test_errors_are_a_message_and_a_status(
    demo: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--out", "fail"]) == 1
    more = "More: raynb help resources (docs/troubleshooting.md#resources)"
    told = f"raynb: asked for 9 CPUs\nWay out: -n 2\n{more}\n"
    assert capsys.readouterr() == ("", told)
    assert cli.main(["demo", "--out", "stop"]) == 130


@pytest.mark.parametrize("words", [["demo", "--workers", "0"], ["demo", "--", "x"], ["dmo"]])
def test_wrong_usage_is_status_2(words: list[str], demo: list[dict[str, Any]]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2 and demo == []


@pytest.fixture
def execs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def execv(path: str, argv: list[str]) -> None:
        assert path == argv[0] == sys.executable
        calls.append(argv[1:])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    return calls


def test_lab_becomes_jupyterlab(
    execs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    checkout = tmp_path / "checkout"
    monkeypatch.setattr(cli, "__file__", str(checkout / "raynb" / "cli.py"))
    for words in (["lab"], ["lab", "sub", "--", "--port", "9"], ["lab", "--", "--no-browser"]):
        with pytest.raises(SystemExit):
            cli.main(words)
    (checkout / "notebooks").mkdir(parents=True)
    (checkout / "notebooks" / "a.ipynb").write_text("{}")
    with pytest.raises(SystemExit):
        cli.main(["lab"])
    start = ["-m", "jupyterlab"]
    assert execs == [
        [*start, f"--ServerApp.root_dir={tmp_path}"],
        [*start, f"--ServerApp.root_dir={tmp_path / 'sub'}", "--port", "9"],
        [*start, f"--ServerApp.root_dir={tmp_path}", "--no-browser"],
        [*start, f"--ServerApp.root_dir={checkout / 'notebooks'}"],
    ]


def test_lab_needs_a_directory_that_exists(
    execs: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lab", "/no/such/place"]) == 1
    assert "/no/such/place" in capsys.readouterr().err and execs == []


# --- doctor: versions -----------------------------------------------------------------------


def fake_packages(
    monkeypatch: pytest.MonkeyPatch, *, requires: list[str] | None, **versions: str | None
) -> dict[str, Row]:
    """Run the version check with other installed versions and other metadata."""
    installed = {name: "1.0" for name in doctor._PACKAGES} | versions

    def version(name: str) -> str:
        found = installed[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    def metadata(name: str) -> dict[str, str]:
        if requires is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return {"Requires-Python": ">=3.11"}

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    return {row.name: row for row in doctor.check_versions()}


def test_versions_are_compared_with_raynbs_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_packages(
        monkeypatch,
        requires=["ray[train]>=2.5", "torch>=2", "anywidget>=3", "jupyterlab>9; extra == 'x'"],
        ray="2.60",
        torch="1.13",
        torchvision=None,
    )
    assert (rows["ray"].level, rows["torch"].level) == (OK, PROBLEM)
    assert rows["torch"].advice == "pip install 'torch>=2'"
    assert "1.13" in rows["torch"].value and ">=2" in rows["torch"].value
    # Without these training works, so they are notes.
    assert (rows["anywidget"].level, rows["torchvision"].level) == (NOTE, NOTE)
    assert rows["torchvision"].value == "not installed"
    assert (rows["jupyterlab"].level, rows["python"].level) == (OK, OK)


def test_the_refused_ipykernel_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_packages(monkeypatch, requires=None, ipykernel="7.0.1")
    assert rows["ipykernel"].level == PROBLEM
    assert "live panel" in rows["ipykernel"].advice and "!=7.0.*" in rows["ipykernel"].advice


def test_a_checkout_without_metadata_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_packages(monkeypatch, requires=None)
    assert rows["raynb"].level == NOTE and "pip install -e ." in rows["raynb"].advice
    assert rows["ray"] == Row("versions", "ray", "1.0")


# --- doctor: raynb and its front end --------------------------------------------------------


def test_missing_ray_hooks_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    from raynb._ray import compat

    monkeypatch.setattr(compat, "problems", lambda: ["Ray 9 has no x.y"])
    (row,) = doctor.check_ray_hooks()
    assert (row.level, row.value) == (PROBLEM, "Ray 9 has no x.y") and row.advice
    monkeypatch.setattr(compat, "problems", lambda: [])
    assert [r.level for r in doctor.check_ray_hooks()] == [OK]


def test_a_missing_bundle_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "doctor.py"))
    assert doctor.check_bundle()[0].level == NOTE
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "panel.js").write_text("x" * 12)
    assert doctor.check_bundle()[0] == Row("raynb", "live panel", "12 B bundle")


# --- doctor: devices ------------------------------------------------------------------------


def test_container_limits_of_both_cgroup_versions(tmp_path: Path) -> None:
    assert doctor.cgroup_cpus(tmp_path) is None and doctor.cgroup_memory(tmp_path) is None
    v2 = tmp_path / "v2"
    v2.mkdir()
    (v2 / "cpu.max").write_text("150000 100000\n")
    (v2 / "memory.max").write_text("max\n")
    (v2 / "memory.current").write_text("5\n")
    assert doctor.cgroup_cpus(v2) == 1.5 and doctor.cgroup_memory(v2) is None
    (v2 / "memory.max").write_text("1000\n")
    (v2 / "memory.current").write_text("700\n")
    (v2 / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    assert doctor.cgroup_memory(v2) == (1000, 400)
    v1 = tmp_path / "v1"
    for name, text in {
        "cpu/cpu.cfs_quota_us": "50000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "2000",
        "memory/memory.usage_in_bytes": "900",
        "memory/memory.stat": "total_inactive_file 100",
    }.items():
        (v1 / name).parent.mkdir(parents=True, exist_ok=True)
        (v1 / name).write_text(text)
    assert (doctor.cgroup_cpus(v1), doctor.cgroup_memory(v1)) == (0.5, (2000, 800))


def test_the_container_limit_counts_for_memory_and_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    machine = SimpleNamespace(total=64 * gib, available=32 * gib)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(doctor, "cgroup_memory", lambda: None)
    assert doctor.check_memory()[0] == Row("devices", "memory", "32 GiB free of 64 GiB")
    monkeypatch.setattr(doctor, "cgroup_memory", lambda: (4 * gib, 3 * gib))
    (row,) = doctor.check_memory()
    assert row.value == "1.0 GiB free of 4.0 GiB (container limit)"
    assert row.level == NOTE and "--local" in row.advice
    monkeypatch.setattr(doctor, "cgroup_cpus", lambda: 0.5)
    (row,) = doctor.check_cpu()
    assert "container limit 0.5" in row.value and row.level == NOTE
    monkeypatch.setattr(doctor, "cgroup_cpus", lambda: None)
    assert doctor.check_cpu()[0].level == OK


@pytest.mark.parametrize(
    ("gpus", "built", "usable", "hidden", "level", "said"),
    [
        ((), None, False, False, OK, "training runs on CPUs"),
        (("H200",), "13.0", True, False, OK, "CUDA 13.0, usable"),
        (("H200",), None, False, False, PROBLEM, "CPU-only torch, can't use"),
        (("H200",), "13.0", False, False, PROBLEM, "driver too old"),
        (("H200",), "13.0", False, True, NOTE, "CUDA_VISIBLE_DEVICES"),
        ((), "13.0", True, False, NOTE, "NVML sees no GPU"),
    ],
)
def test_torch_against_nvml(
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[str, ...],
    built: str | None,
    usable: bool,
    hidden: bool,
    level: str,
    said: str,
) -> None:
    import warnings

    import torch

    def is_available() -> bool:
        if not usable and built:
            warnings.warn("driver too old", stacklevel=1)
        return usable

    monkeypatch.setattr(doctor, "ask_nvml", lambda: Nvml(gpus, "550.1", "" if gpus else "no lib"))
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    first, last = doctor.check_gpus()
    assert first.value == ("H200, driver 550.1" if gpus else "none found (NVML: no lib)")
    assert last.level == level and said in last.value, last
    assert bool(last.advice) == (level != OK)


def fake_nvml(error: type[Exception] | None = None) -> ModuleType:
    """A pynvml with one GPU, which fails half way when ``error`` is given."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = RuntimeError
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 1
    module.nvmlDeviceGetHandleByIndex = lambda index: index

    def memory(handle: int) -> SimpleNamespace:
        if error is not None:
            raise error("GPU is lost")
        return SimpleNamespace(free=2**30, total=4 * 2**30)

    module.nvmlDeviceGetMemoryInfo = memory
    module.nvmlDeviceGetName = lambda handle: b"Tesla"
    module.nvmlSystemGetDriverVersion = lambda: "550.1"
    return module  # type: ignore[no-any-return]


def test_nvml_lists_gpus_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert doctor.ask_nvml() == Nvml(("Tesla, 1.0 GiB free of 4.0 GiB",), "550.1")
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(RuntimeError))
    assert doctor.ask_nvml() == Nvml(reason="GPU is lost")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in doctor.ask_nvml().reason


Usage = namedtuple("Usage", "total used free")


def test_little_shared_memory_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    (row,) = doctor.check_shared_memory(str(tmp_path))
    assert row.level == NOTE and "--shm-size" in row.advice and "64 MiB" in row.value
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**33, 0, 2**32))
    assert doctor.check_shared_memory(str(tmp_path))[0].level == OK
    monkeypatch.undo()
    assert doctor.check_shared_memory("/no/such/place")[0].level == NOTE


# --- doctor: cluster ------------------------------------------------------------------------


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    done = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)


def test_a_cluster_is_listed_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "address": "10.0.0.1:6379",
        "nodes": 2,
        "total": {"CPU": 8.0, "memory": 2.0**33, "node:__internal_head__": 1.0},
        "free": {"memory": 2.0**32},
    }
    answer(monkeypatch, 0, "a line of Ray's\n" + json.dumps(found), "")
    rows = {row.name: row.value for row in doctor.check_cluster()}
    assert rows == {
        "Ray cluster": "10.0.0.1:6379, 2 nodes",
        "CPU": "0 free of 8",
        "memory": "4.0 GiB free of 8.0 GiB",
    }


@pytest.mark.parametrize(
    ("address", "err", "level", "said"),
    [
        (None, "noise\nnone", OK, "none running"),
        (None, "RuntimeError: Version mismatch", PROBLEM, "Version mismatch"),
        ("10.0.0.1:1", "ConnectionError: nobody there", PROBLEM, "RAY_ADDRESS=10.0.0.1:1"),
    ],
)
def test_no_cluster(
    monkeypatch: pytest.MonkeyPatch, address: str | None, err: str, level: str, said: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    answer(monkeypatch, 1, "", err)
    (row,) = doctor.check_cluster()
    assert row.level == level and said in row.value
    assert bool(row.advice) == (level != OK)


def test_a_cluster_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    monkeypatch.setattr(doctor, "_CLUSTER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(doctor, "_ASK_CLUSTER", "import time; time.sleep(60)")
    (row,) = doctor.check_cluster()
    assert row.level == PROBLEM and "did not answer" in row.value and "RAY_ADDRESS" in row.advice


# --- doctor: storage and limits -------------------------------------------------------------


def test_run_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, 2**39))
    (row,) = doctor.check_storage()
    assert row.level == OK and str(tmp_path / "a" / "b") in row.value
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, 2**20))
    assert doctor.check_storage()[0].level == NOTE
    (tmp_path / "a").write_text("a file")
    (row,) = doctor.check_storage()
    assert row.level == PROBLEM and "--storage-path" in row.advice


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    def level(soft: int, hard: int) -> str:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        return doctor.check_open_files()[0].level

    infinite = resource.RLIM_INFINITY
    assert level(1024, 1024) == NOTE
    # Ray raises the soft limit itself.
    assert level(1024, 1_000_000) == level(1024, infinite) == level(infinite, infinite) == OK


# --- doctor: the report ---------------------------------------------------------------------


def test_a_check_that_breaks_hides_no_other() -> None:
    def check_one_thing() -> list[Row]:
        raise ValueError("boom")

    rows = doctor.collect([check_one_thing, lambda: [Row("a", "b", "c")]])
    assert rows == [
        Row("doctor", "one thing", "ValueError: boom", NOTE, "this check failed; please report it"),
        Row("a", "b", "c"),
    ]


def test_the_report_and_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        Row("versions", "ray", "2.60"),
        Row("devices", "GPU 0", "lost", NOTE, "replace it"),
        Row("devices", "torch and CUDA", "gone", PROBLEM, "install it"),
    ]
    monkeypatch.setattr(doctor, "collect", lambda: rows)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out == (
        "versions\n"
        "  ok       ray             2.60\n"
        "\n"
        "devices\n"
        "  note     GPU 0           lost\n"
        "                           -> replace it\n"
        "  problem  torch and CUDA  gone\n"
        "                           -> install it\n"
        "\n"
        "1 problem, 1 note: training can't work yet\n"
    )
    assert cli.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False and told["rows"][1] == {
        "section": "devices", "name": "GPU 0", "value": "lost", "level": "note",
        "advice": "replace it",
    }  # fmt: skip
    rows.pop()
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_the_real_checks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    rows = doctor.collect()
    assert [r for r in rows if r.section == "doctor"] == []
    names = {r.name for r in rows}
    assert {"python", "ray", "ipykernel", "CPU", "memory", "Ray cluster", "run storage"} <= names


def test_digits_are_scikit_learns_without_importing_it() -> None:
    code = (
        "import sys\nfrom raynb.demo import Digits\n"
        "parts = [Digits(train=True), Digits(train=False)]\n"
        "assert 'sklearn' not in sys.modules\n"
        "import numpy as np, torch\nfrom sklearn.datasets import load_digits\n"
        "images, labels = (torch.cat([p.tensors[k] for p in parts]) for k in (0, 1))\n"
        "there = load_digits()\n"
        "assert [len(p) for p in parts] == [1500, 297]\n"
        "assert images.shape == (1797, 1, 8, 8) and float(images.max()) == 1.0\n"
        "assert np.array_equal(images[:, 0].numpy() * 16, there.images.astype('float32'))\n"
        "assert np.array_equal(labels.numpy(), there.target)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
