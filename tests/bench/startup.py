"""Call to first step: raynb beside a bare ``TorchTrainer.fit()``, in turn, in one process.

Run by hand: ``python tests/bench/startup.py [--pairs 5]``. Prints a table and the ratio of the
medians; the bar is 1.10.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    from raynb._ray import cluster

    cluster.start_local()
    # Both find these in the driver already, as a notebook does after its first cell.
    import ray.train.torch  # noqa: F401

    import raynb.api  # noqa: F401

    times: dict[str, list[float]] = {"bare": [], "raynb": []}
    with tempfile.TemporaryDirectory() as directory:
        for pair in range(args.pairs):
            # Order alternates, so that what one leaves behind falls on both.
            runs = [("bare", bare), ("raynb", watched)]
            for name, run in runs if pair % 2 == 0 else reversed(runs):
                times[name].append(run(directory, args.workers))
                print(f"pair {pair + 1} {name:6} {times[name][-1]:6.2f} s", flush=True)
    print(f"\n{'':8}{'median':>8}{'min':>8}{'max':>8}  seconds from call to first step")
    for name, found in times.items():
        print(f"{name:8}{statistics.median(found):8.2f}{min(found):8.2f}{max(found):8.2f}")
    ratio = statistics.median(times["raynb"]) / statistics.median(times["bare"])
    print(f"ratio raynb / bare: {ratio:.3f} (bar: at most 1.10)")


if __name__ == "__main__":
    main()
