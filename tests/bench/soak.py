"""Runs one after another with faults at random: no history row may be lost, and memory stays flat.

Run by hand: ``python tests/bench/soak.py [--minutes 30] [--seed N]``. A local Ray of four logical
CPUs; each run has four ranks of one CPU, which write what they log to their own files as well. At
random, from the seed that is printed: a worker is killed (with ``max_failures``), the supervisor is
killed, the run is stopped, a rank raises, the history's storage fails for a while, or nothing
happens. At the end of each run its history, read anew from storage, is compared with the ranks'
files, row for row:

* A row that a rank wrote and that is not there is **lost**, unless the process that held it was
  killed: such rows are counted as **killed with**, and their number is bounded. A killed worker
  takes along what it had not sent, a killed supervisor what it had not written.
* A row that is there twice, or that no rank wrote, is **wrong**.

Bars: nothing lost, nothing wrong; after the first runs, memory of this process and of the
supervisors grows by less than 10 %; no process, actor or placement group is left.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import os
import random
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raynb.processes import runs

RANKS = 4
#: Seconds that a step takes, and steps of short and of long runs.
STEP_S, SHORT, LONG = 0.02, (200, 500), (1_500, 2_500)
#: How often each fault comes up, of so many parts.
FAULTS = {"none": 3, "kill worker": 3, "kill supervisor": 2, "stop": 2, "raise": 2, "storage": 3}
#: Seconds of rows that a killed worker and a killed supervisor may take along.
WORKER_S, SUPERVISOR_S = 3.0, 6.0
#: Runs at the start of which memory is not judged: imports, pools and caches fill.
WARM_UP = 3


def train_func(config: dict[str, Any]) -> str:
    """Logs each step and writes it to its own file; goes on from its checkpoint."""
    import time
    from pathlib import Path

    import ray.train
    import torch

    import raynb

    rank = ray.train.get_context().get_world_rank()
    model = torch.nn.Linear(2, 1)
    saved = raynb.resume(model)
    first = 0 if saved is None else saved.extra["step"] + 1
    with Path(config["there"], f"rank{rank}.txt").open("a", buffering=1) as file:
        file.write("start\n")
        for step in range(first, config["steps"]):
            value = step + rank / 10
            file.write(f"{step} {value}\n")
            raynb.log({"loss": value, "other": -value}, step=step)
            time.sleep(config["step_s"])
            if step == config["raise_at"] and rank == config["rank"]:
                raise ValueError("on purpose")
            if step % 100 == 99:
                raynb.checkpoint(model, step=step)
    return "done"


@dataclass
class Tally:
    """What all runs came to."""

    runs: collections.Counter[str] = field(default_factory=collections.Counter)
    rows: int = 0
    lost: int = 0
    wrong: int = 0
    killed_with: int = 0
    problems: list[str] = field(default_factory=list)
    kernel: list[int] = field(default_factory=list)
    supervisors: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    #: How much supervisors of long runs grew, from a third of the run to its end.
    long: list[float] = field(default_factory=list)


def pid_of_supervisor(name: str) -> int | None:
    """The process of a run's supervisor."""
    import ray
    from ray.util.state import list_actors

    found = list_actors(
        address=ray.get_runtime_context().gcs_address,
        filters=[("state", "=", "ALIVE"), ("name", "=", f"run:{name}")],
    )
    return int(found[0].pid) if found else None


def held_by(pid: int | None) -> int | None:
    """Bytes that a process has for itself alone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().uss)
    return None


def written(there: Path) -> dict[int, list[str]]:
    """What each rank has written itself, attempt after attempt."""
    found = {}
    for rank in range(RANKS):
        path = there / f"rank{rank}.txt"
        # The last line of a killed process may be half one.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        found[rank] = lines
    return found


def attempts(lines: list[str]) -> list[list[str]]:
    """A rank's lines by attempt."""
    parts: list[list[str]] = []
    for line in lines:
        if line == "start":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def compare(there: Path, frame: Any, fault: str, tally: Tally, name: str) -> None:
    """Compare the history with the ranks' own files."""
    frame = frame[frame["loss"].notna()] if "loss" in frame else frame
    for rank, lines in written(there).items():
        own = attempts(lines)
        told = []
        if len(frame):
            told = [
                [f"{int(s)} {v}" for s, v in zip(part["step"], part["loss"], strict=True)]
                for _, part in frame[frame["rank"] == rank].groupby("attempt")
            ]
        tally.rows += sum(map(len, told))
        # A row that is in the history is one that was written, in its place and once.
        for k, part in enumerate(own):
            got = told[k] if k < len(told) else []
            if got != part[: len(got)]:
                tally.wrong += 1
                tally.problems.append(f"{name}: rank {rank}, attempt {k} has other rows")
                continue
            missing = len(part) - len(got)
            last = k == len(own) - 1
            killed = {
                "kill worker": not last,
                "kill supervisor": last,
                # The others are ended by Ray, where the first one's failure came first.
                "raise": last,
                "stop": last,
            }.get(fault, False)
            bound = (SUPERVISOR_S if fault == "kill supervisor" else WORKER_S) / STEP_S
            if killed and missing <= bound:
                tally.killed_with += missing
            elif missing:
                tally.lost += missing
                tally.problems.append(f"{name}: rank {rank}, attempt {k} lost {missing} rows")
        if len(told) > len(own):
            tally.wrong += 1
            tally.problems.append(f"{name}: rank {rank} has attempts that it did not write")


def swap(history: Path, there: Path, *, good: bool) -> None:
    """Let the history's directory be one, or a file that nothing can be written into."""
    real, link = there / ("history" if good else "no directory"), there / "link"
    real.mkdir(exist_ok=True) if good else real.touch()
    history.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)
    os.replace(link, history)


def one_run(number: int, rng: random.Random, root: Path, tally: Tally, left: float) -> None:
    import raynb
    from raynb.errors import RaynbError

    fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    steps = rng.randint(*(LONG if rng.random() < 0.2 and left > 240 else SHORT))
    at = rng.randint(steps // 10, steps * 9 // 10)
    rank = rng.randrange(RANKS)
    name = f"soak-{number}"
    there = root / name
    there.mkdir()
    config = {"there": str(there), "steps": steps, "step_s": STEP_S, "rank": rank,
              "raise_at": at if fault == "raise" else -1}  # fmt: skip
    began = time.monotonic()
    if fault == "storage":
        swap(root / "runs" / name / "raynb" / "history", there, good=True)
    run = raynb.train(
        train_func, config=config, num_workers=RANKS, storage_path=str(root / "runs"), name=name,
        max_failures=1 if fault == "kill worker" else 0, block=False, show=False,
    )  # fmt: skip
    pids: set[int] = set()
    supervisor = None
    acted, failing = None, False
    # The history's directory, which can be swapped for a file and back at one stroke.
    history = root / "runs" / name / "raynb" / "history"
    held: list[int] = []
    while not run.done:
        time.sleep(0.1)
        pids |= {row["pid"] for row in list(run.mirror.workers.values()) if row["pid"]}
        reached = min((len(lines) for lines in written(there).values()), default=0)
        if supervisor is None and reached > 0:
            supervisor = pid_of_supervisor(name)
        if supervisor is not None and reached > steps * (0.3 + 0.1 * len(held)):
            held += [found] if (found := held_by(supervisor)) else []
        if acted is None and reached >= at and fault != "raise" and not run.done:
            acted = time.monotonic()
            now = {r: row["pid"] for r, row in run.mirror.workers.items()}
            with contextlib.suppress(ProcessLookupError):
                if fault == "kill worker" and now.get(rank):
                    os.kill(now[rank], signal.SIGKILL)
                elif fault == "kill supervisor" and supervisor:
                    os.kill(supervisor, signal.SIGKILL)
            if fault == "stop":
                run.stop()
            if fault == "storage":
                failing = True
                swap(history, there, good=False)
        if failing and acted is not None and time.monotonic() - acted > 4:
            failing = False
            swap(history, there, good=True)
        if time.monotonic() - began > 300:
            tally.problems.append(f"{name}: {fault}: still {run.state} after 300 s")
            run.stop()
            break
    if failing:  # it ended while storage failed: the supervisor has the rest in memory
        swap(history, there, good=True)
    with contextlib.suppress(RaynbError, TimeoutError):
        run.wait(60)
    ends = {"stop": "stopped", "raise": "failed", "kill supervisor": "failed"}
    expected = ends.get(fault, "finished")
    if acted is None and fault not in ("raise", "none"):
        expected, fault = "finished", "none"  # it was over before
    if run.state != expected:
        tally.problems.append(f"{name}: {fault}: {run.state}, not {expected}: {run.mirror.run}")
    if failing:  # what waits for storage is tried again, by the supervisor or as it leaves
        time.sleep(12)
    frame = raynb.open(root / "runs" / name).history
    compare(there, frame, fault, tally, name)
    tally.runs[fault] += 1
    end = time.monotonic() + 20
    while (alive := {p for p in pids if runs(p)}) and time.monotonic() < end:
        time.sleep(0.2)
    if alive:
        tally.problems.append(f"{name}: {fault}: processes {alive} are left")
    del run
    gc.collect()
    tally.kernel.append(held_by(os.getpid()) or 0)
    tally.processes.append(len(psutil.Process().children(recursive=True)))
    if held:
        tally.supervisors.append(held[-1])
    if steps >= LONG[0] and len(held) > 4:
        tally.long.append(held[-1] / held[0] - 1)
    told = f"{held[-1] / 2**20:4.0f}" if held else " n/a"
    print(
        f"run {number:3} {fault:15} {steps:5} steps {time.monotonic() - began:6.1f} s  "
        f"kernel {tally.kernel[-1] / 2**20:4.0f} MiB, supervisor {told} MiB  "
        f"rows {tally.rows:7,} lost {tally.lost} wrong {tally.wrong}",
        flush=True,
    )


def left_on_cluster() -> list[str]:
    """Actors and placement groups of runs that are there; waits for those that are going."""
    import ray
    from ray.util.state import list_actors, list_placement_groups

    address = ray.get_runtime_context().gcs_address
    end = time.monotonic() + 90
    while True:
        actors = list_actors(address=address, filters=[("state", "!=", "DEAD")])
        found = [a.class_name for a in actors if not a.class_name.startswith("_")]
        groups = list_placement_groups(address=address, filters=[("state", "!=", "REMOVED")])
        found += [f"group {g.state}" for g in groups]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def table_of(tally: Tally) -> None:
    print(f"\nruns      {sum(tally.runs.values())}: {dict(tally.runs)}")
    print(f"rows       {tally.rows:,}")
    print(f"lost       {tally.lost} (bar: 0)")
    print(f"wrong      {tally.wrong} (bar: 0)")
    print(f"killed with their process, at most {SUPERVISOR_S:g} s of a rank: {tally.killed_with:,}")
    rows = (("kernel", tally.kernel), ("supervisor", tally.supervisors))
    for what, held in rows:
        held = held[WARM_UP:] if len(held) > 2 * WARM_UP else held
        if not held:
            continue
        third = max(1, len(held) // 3)
        parts = [held[:third], held[(len(held) - third) // 2 :][:third], held[-third:]]
        start, middle, last = (statistics.median(part) / 2**20 for part in parts)
        print(
            f"{what:11}start {start:.0f}, middle {middle:.0f}, end {last:.0f} MiB: "
            f"{last / start - 1:+.1%} (bar: 10 %)"
        )
    if tally.long:
        print(f"supervisors within long runs: {', '.join(f'{g:+.1%}' for g in tally.long)}")
    print(f"processes  {tally.processes[0]} after the first run, {tally.processes[-1]} at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    print(f"seed {seed}, {args.minutes:g} minutes")
    rng, tally = random.Random(seed), Tally()
    import ray

    from raynb._ray import cluster

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with tempfile.TemporaryDirectory(prefix="raynb-soak-") as directory:
        cluster.start_local(num_cpus=RANKS)
        end, number = time.monotonic() + 60 * args.minutes, 0
        while time.monotonic() < end:
            number += 1
            one_run(number, rng, Path(directory), tally, end - time.monotonic())
        left = left_on_cluster()
        ray.shutdown()
    time.sleep(3)
    after = [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.pid not in before
        and runs(child.pid)
        and "resource_tracker" not in " ".join(child.cmdline())
    ]
    table_of(tally)
    print(f"left on the cluster {left}, processes left {after}")
    for problem in tally.problems:
        print("PROBLEM", problem)
    ok = not (tally.lost or tally.wrong or tally.problems or left or after)
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
