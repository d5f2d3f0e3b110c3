"""What watching costs a search: trivial trials under a bare Tuner and under raynb, in turn.

Run by hand: ``python tests/bench/tune_overhead.py [--trials 100] [--rounds 1] [--swap]``. Both run
in one cluster of four logical CPUs, with the same function, space and storage; which comes first
alternates. A first small search of each kind warms the page cache. Prints the seconds of each and
their ratio (bar: at most 1.1). A trial is a process of its own under Ray Tune, whose start is most
of what is measured; noise of some per cent is normal on a busy machine, so look at the rounds.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from typing import Any


def trivial(config: dict[str, Any]) -> None:
    from ray import tune

    for step in range(3):
        tune.report({"score": config["x"] + step})


def bare(trials: int, storage: str) -> float:
    from ray import tune

    began = time.perf_counter()
    results = tune.Tuner(
        trivial,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=trials),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    ).fit()
    assert len(results) == trials and not results.errors
    return time.perf_counter() - began


def watched(trials: int, storage: str) -> float:
    from ray import tune

    import raynb

    began = time.perf_counter()
    result = raynb.tune(
        trivial,
        {"x": tune.uniform(0, 1)},
        metric="score",
        mode="max",
        num_samples=trials,
        storage_path=storage,
        show=False,
    )
    assert len(result) == trials and not result.errors
    assert [row["iterations"] for row in result.rows] == [3] * trials
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--swap", action="store_true", help="raynb first in the first round")
    args = parser.parse_args()

    import ray

    from raynb._ray import cluster

    cluster.start_local(num_cpus=4)
    with tempfile.TemporaryDirectory(prefix="raynb-bench-") as directory:
        storage = str(pathlib.Path(directory))
        bare(4, storage), watched(4, storage)
        print(f"{'round':>5} {'bare s':>9} {'raynb s':>9} {'ratio':>7}", flush=True)
        ratios = []
        for number in range(args.rounds):
            order = (bare, watched) if number % 2 == args.swap else (watched, bare)
            seconds = {run.__name__: run(args.trials, storage) for run in order}
            ratios.append(seconds["watched"] / seconds["bare"])
            print(
                f"{number:5} {seconds['bare']:9.1f} {seconds['watched']:9.1f} {ratios[-1]:7.3f}",
                flush=True,
            )
    print(f"{args.trials} trials, median ratio {statistics.median(ratios):.3f} (bar: 1.1)")
    ray.shutdown()


if __name__ == "__main__":
    main()
