"""A warm re-run of an edited cell beside a bare ``TorchTrainer.fit()``: submit to first user line.

Run by hand: ``python tests/bench/warm.py [--rounds 30] [--bare 2]``. Both on the same cluster, the
cells in an IPython shell as a notebook runs them. The time is from the cell's start, or the call of
``fit()``, to the first line of user code on the last rank. The bars: a median of at most 50 ms, and
100 times faster than bare.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import tempfile
import time


def first_line(mark: pathlib.Path, workers: int) -> float:
    """When the last rank reached its first line."""
    return max(float(mark.with_suffix(f".{r}").read_text()) for r in range(workers))


def train_func(config: dict) -> None:
    import time
    from pathlib import Path

    now = time.time()
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    Path(config["mark"]).with_suffix(f".{rank}").write_text(repr(now))


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
    return first_line(mark, workers) - began


CELL = """\
%%distributed_train --warm
import time
now = time.time()
import ray.train
edited = {turn}
rank = ray.train.get_context().get_world_rank()
open({mark!r} + "." + str(rank), "w").write(repr(now))
"""


def warm(shell, directory: str, workers: int, turn: int) -> tuple[float, float]:
    mark = pathlib.Path(tempfile.mkdtemp(dir=directory)) / "mark"
    cell = CELL.format(turn=turn, mark=str(mark))
    began = time.time()
    shell.run_cell(cell, store_history=True).raise_error()
    return first_line(mark, workers) - began, time.time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--bare", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    from IPython.core.interactiveshell import InteractiveShell

    from raynb import workers
    from raynb._ray import cluster

    with tempfile.TemporaryDirectory() as directory:
        os.environ["IPYTHONDIR"] = directory
        cluster.start_local(num_cpus=4)
        import ray.train.torch  # noqa: F401 - as in a notebook after its first cell

        shell = InteractiveShell.instance()
        shell.run_cell("%load_ext raynb")
        shell.run_cell(f"%config RayNB.storage_path = {directory!r}")
        times: dict[str, list[float]] = {"bare fit()": [], "warm": [], "warm, whole cell": []}
        for _ in range(args.bare):
            times["bare fit()"].append(bare(directory, args.workers))
            print(f"bare {times['bare fit()'][-1]:.2f} s", flush=True)
        began = time.time()
        shell.run_cell(f"%raynb workers up -n {args.workers}").raise_error()
        print(f"workers up: {time.time() - began:.1f} s", flush=True)
        for turn in range(args.rounds + 3):
            first, whole = warm(shell, directory, args.workers, turn)
            time.sleep(0.3)  # nobody edits a cell in less
            if turn >= 3:
                times["warm"].append(first)
                times["warm, whole cell"].append(whole)
        workers.down()
    base = statistics.median(times["bare fit()"])
    print(f"\n{'':20}{'median':>10}{'min':>10}{'max':>10}{'bare is':>12}  milliseconds")
    for kind, found in times.items():
        m = statistics.median(found)
        row = "".join(f"{v * 1000:10.1f}" for v in (m, min(found), max(found)))
        print(f"{kind:20}{row}{base / m:10.0f} x")


if __name__ == "__main__":
    main()
