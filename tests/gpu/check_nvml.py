"""Compares the NVML sampler's figures with nvidia-smi's while a real GPU works.

Run by hand on a machine with an NVIDIA GPU: ``python tests/gpu/check_nvml.py [--seconds 60]``. It
needs raynb's sampler module, nvidia-ml-py, psutil and torch; no Ray, and no cluster. It exits with
0 when all figures agree, 1 when one does not, 2 when there is no GPU to check with.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

#: nvidia-smi's fields, the sampler's, the factor to the sampler's unit, and how far the medians of
#: a minute may lie apart: relative and absolute.
FIGURES = (
    ("utilization.gpu", "util", 1.0, 0.15, 10.0),
    ("memory.used", "mem_used", 2.0**20, 0.02, 64e6),
    ("memory.total", "mem_total", 2.0**20, 0.01, 1e6),
    ("temperature.gpu", "temperature", 1.0, 0.0, 3.0),
    ("power.draw", "power", 1.0, 0.15, 15.0),
)


def smi(query: str, uuid: str | None = None) -> list[list[str]]:
    """Rows of an nvidia-smi query."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    if uuid is not None:
        command += ["-i", uuid]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]


def no_gpu(reason: str) -> int:
    print(f"no GPU to check with: {reason}", file=sys.stderr)
    return 2


def main() -> int:
    """Check, print a table, and tell the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    if shutil.which("nvidia-smi") is None:
        return no_gpu("nvidia-smi is not here")
    try:
        import torch

        if not torch.cuda.is_available():
            return no_gpu("torch.cuda.is_available() is False")
        gpus = [row[0] for row in smi("--query-gpu=uuid")]
    except (ImportError, RuntimeError) as error:
        return no_gpu(str(error))

    from raynb.telemetry.samplers.nvml import NvmlSampler

    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, GPUs: {', '.join(gpus)}")
    properties: Any = torch.cuda.get_device_properties(0)
    uuid = f"GPU-{properties.uuid}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", visible)
    torch.zeros(1, device="cuda")

    problems: list[str] = []
    for name in (visible, uuid, uuid[:12]):
        row = NvmlSampler(name, 1.0).sample()
        print(f"as {name}: {row}")
        if row is None or row["mem_total"] is None:
            problems.append(f"{name} is not found: {row}")
    if not any(uuid == gpu for gpu in gpus):
        problems.append(f"torch's UUID {uuid} is not among nvidia-smi's")

    ours, theirs = load(torch, NvmlSampler(uuid, 1.0), uuid, seconds, problems)
    print(f"{'figure':<12} {'sampler':>16} {'nvidia-smi':>16}   medians of {len(ours)} looks")
    for field, key, factor, relative, absolute in FIGURES:
        mine = [row[key] for row in ours if row[key] is not None]
        other = [
            float(row[field]) * factor for row in theirs if row[field].replace(".", "").isdigit()
        ]
        if not mine or not other:
            told = ["told" if values else "n/a" for values in (mine, other)]
            print(f"{key:<12} {told[0]:>16} {told[1]:>16}")
            if told[0] != told[1]:
                problems.append(f"{key}: only one of the two tells it")
            continue
        a, b = statistics.median(mine), statistics.median(other)
        print(f"{key:<12} {a:>16,.1f} {b:>16,.1f}")
        if abs(a - b) > max(relative * abs(b), absolute):
            problems.append(f"{key}: {a:,.1f}, but nvidia-smi {b:,.1f}")
    for problem in problems:
        print(f"PROBLEM {problem}")
    print("all figures agree" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def load(
    torch: Any, sampler: Any, uuid: str, seconds: float, problems: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Work on the GPU and look once a second, both ways."""
    matrix = torch.randn(4096, 4096, device="cuda")
    held = torch.ones(2**28, device="cuda")  # 1 GiB
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, str]] = []
    fields = [f[0] for f in FIGURES]
    end, due, cost = time.monotonic() + seconds, time.monotonic() + 3.0, []
    while time.monotonic() < end:
        for _ in range(20):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()
        if time.monotonic() < due:
            continue
        due = time.monotonic() + 1.0
        began = time.process_time()
        ours.append(sampler.sample())
        cost.append(time.process_time() - began)
        theirs.append(
            dict(zip(fields, smi(f"--query-gpu={','.join(fields)}", uuid)[0], strict=True))
        )
    notes = {row["note"] for row in ours if row["note"]}
    print(f"a look costs {statistics.median(cost) * 1e3:.2f} ms of CPU; notes: {notes or 'none'}")
    listed = smi("--query-compute-apps=pid,used_memory", uuid)
    own = [row for row in listed if row[0] == str(os.getpid())]
    mine = ours[-1]["mem_process"]
    print(f"own process: {mine} bytes, nvidia-smi lists {listed}")
    if own and own[0][1].isdigit():
        told = int(own[0][1]) * 2**20
        if mine is None or abs(mine - told) > 64e6:
            problems.append(f"mem_process: {mine}, but nvidia-smi {told}")
        if mine is not None and mine < held.nbytes:
            problems.append("mem_process is less than what is held")
        if ours[-1]["device_wide"] != (len(listed) > 1):
            problems.append(f"device_wide: {ours[-1]['device_wide']} with {len(listed)} processes")
    return ours, theirs


if __name__ == "__main__":
    sys.exit(main())
