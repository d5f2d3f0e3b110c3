"""Call to first step: raynb beside a bare ``TorchTrainer.fit()``, in turn.

Run by hand: ``python tests/bench/startup.py [--rounds 4]``. Three kinds: bare and raynb on the same
cluster as ``ray.init()`` starts it, and raynb on a cluster that it started itself, as it does where
there is none. Prints medians and their ratio to bare; the bar is 1.10.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

#: raynb on a cluster that it started.
OWN = "raynb, own cluster"


def train_func(config: dict) -> None:
    import time
    from pathlib import Path

    import ray.train

    rank = ray.train.get_context().get_world_rank()
    Path(config["mark"]).with_suffix(f".{rank}").write_text(repr(time.time()))


def first_step(mark: pathlib.Path, workers: int) -> float:
    """When the last rank reached its first line."""
    return max(float(mark.with_suffix(f".{r}").read_text()) for r in range(workers))


def bare(directory: str, workers: int) -> float:
    import ray.train
    from ray.train.torch import TorchTrainer

    mark = pathlib.Path(tempfile.mkdtemp(dir=directory)) / "mark"
    began = time.time()
    TorchTrainer(
        train_func,
        train_loop_config={"mark": str(mark)},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(storage_path=directory),
    ).fit()
    return first_step(mark, workers) - began


def watched(directory: str, workers: int) -> float:
    import raynb

    mark = pathlib.Path(tempfile.mkdtemp(dir=directory)) / "mark"
    began = time.time()
    raynb.train(
        train_func,
        config={"mark": str(mark)},
        num_workers=workers,
        storage_path=directory,
        name=f"bench-{began:.2f}",
        show=False,
    )
    return first_step(mark, workers) - began


def child(plain: bool, kinds: list[str], workers: int) -> None:
    """Start a cluster, then measure each kind on it; one line ``kind seconds`` each."""
    import ray

    if plain:
        ray.init(log_to_driver=False, logging_level="ERROR")
    else:
        from raynb._ray import cluster

        cluster.start_local()
    # Both find these in the driver already, as a notebook does after its first cell.
    import ray.train.torch

    with tempfile.TemporaryDirectory() as directory:
        for kind in kinds:
            seconds = (bare if kind == "bare" else watched)(directory, workers)
            print(kind if plain else OWN, seconds, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0] == "plain", args.child[1:], args.workers)
        return
    times: dict[str, list[float]] = {"bare": [], "raynb": [], OWN: []}
    for turn in range(args.rounds):
        # The order alternates, so that what one leaves behind falls on all.
        pair = ["bare", "raynb"] if turn % 2 == 0 else ["raynb", "bare"]
        jobs = [["plain", *pair], ["own", "raynb"]]
        for job in jobs if turn % 2 == 0 else reversed(jobs):
            command = [sys.executable, __file__, "--workers", str(args.workers), "--child", *job]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for line in done.stdout.splitlines():
                kind, _, seconds = line.rpartition(" ")
                if kind in times:
                    times[kind].append(float(seconds))
                    print(f"round {turn + 1}  {kind:18}{times[kind][-1]:6.2f} s", flush=True)
    base = statistics.median(times["bare"])
    print(f"\n{'':20}{'median':>8}{'min':>8}{'max':>8}{'ratio':>8}  seconds, call to first step")
    for kind, found in times.items():
        median = statistics.median(found)
        print(f"{kind:20}{median:8.2f}{min(found):8.2f}{max(found):8.2f}{median / base:8.3f}")


if __name__ == "__main__":
    main()
