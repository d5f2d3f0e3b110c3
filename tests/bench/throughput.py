"""Training throughput with everything on, and the price of a log call, beside bare Ray Train.

Run by hand: ``python tests/bench/throughput.py [--pairs 3] [--steps 400]``. A small CNN on
FashionMNIST (digits where it is not there), two ranks, DDP; raynb logs every step of every rank and
samples devices while it trains. Prints the ratio of the medians of rows a second (bar: at least
0.97), and the median time of ``raynb.log`` (bar: 20 microseconds) and of ``ray.train.report``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any


def train_func(config: dict[str, Any]) -> None:
    import json
    import time
    from pathlib import Path

    import ray.train.torch
    import torch
    from torch.utils.data import DataLoader

    import raynb
    from raynb.demo import Digits

    if config["root"]:
        from torchvision.datasets import FashionMNIST
        from torchvision.transforms import ToTensor

        data: Any = FashionMNIST(config["root"], transform=ToTensor())
        side = 28
    else:
        data, side = Digits(train=True), 8
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32 * (side // 4) ** 2, 10),
    )  # fmt: skip
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=128, shuffle=True))
    step, began = -20, 0.0  # the first steps warm up
    while step < config["steps"]:
        for images, labels in loader:
            if step == 0:
                began = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if config["watched"]:
                raynb.log({"loss": loss})
            step += 1
            if step == config["steps"]:
                break
    seconds = time.perf_counter() - began
    calls, reports = [], []
    if config["watched"]:
        for k in range(10_000):
            a = time.perf_counter()
            raynb.log({"loss": 0.5}, step=k)
            calls.append(time.perf_counter() - a)
    else:
        for _ in range(5):
            a = time.perf_counter()
            ray.train.report({"loss": 0.5})
            reports.append(time.perf_counter() - a)
    rank = ray.train.get_context().get_world_rank()
    found = {"rate": 128 * config["steps"] / seconds, "calls": calls, "reports": reports}
    Path(config["mark"]).with_suffix(f".{rank}").write_text(json.dumps(found))


def measure(directory: str, root: str | None, steps: int, watched: bool) -> list[dict[str, Any]]:
    """One run; gives what each rank measured."""
    import ray.train
    from ray.train.torch import TorchTrainer

    import raynb

    mark = pathlib.Path(tempfile.mkdtemp(dir=directory)) / "mark"
    config = {"mark": str(mark), "root": root, "steps": steps, "watched": watched}
    if watched:
        name = f"bench-{time.time():.2f}"
        result = raynb.train(
            train_func, config=config, num_workers=2, storage_path=directory, name=name, show=False
        )
        assert len(result.history) == 2 * (10_000 + steps + 20), "a record was lost"
    else:
        TorchTrainer(
            train_func,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=directory),
        ).fit()
    return [json.loads(mark.with_suffix(f".{rank}").read_text()) for rank in (0, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    from raynb._ray import cluster
    from raynb.demo import fashion_mnist
    from raynb.errors import StorageError

    try:
        root: str | None = fashion_mnist()
    except StorageError:
        root = None
    cluster.start_local()
    rates: dict[bool, list[float]] = {False: [], True: []}
    calls: list[float] = []
    reports: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for pair in range(args.pairs):
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                found = measure(directory, root, args.steps, watched)
                rates[watched].append(min(f["rate"] for f in found))
                for f in found:
                    calls += f["calls"]
                    reports += f["reports"]
                kind = "raynb" if watched else "bare"
                print(f"pair {pair + 1} {kind:6}{rates[watched][-1]:9.0f} rows/s", flush=True)
    print(f"\n{'':8}{'median':>9}{'min':>9}{'max':>9}  rows/s of the slower rank")
    for watched, kind in ((False, "bare"), (True, "raynb")):
        r = rates[watched]
        print(f"{kind:8}{statistics.median(r):9.0f}{min(r):9.0f}{max(r):9.0f}")
    ratio = statistics.median(rates[True]) / statistics.median(rates[False])
    print(f"ratio raynb / bare: {ratio:.3f} (bar: at least 0.97)")
    log_us, report_us = statistics.median(calls) * 1e6, statistics.median(reports) * 1e6
    print(f"raynb.log        median {log_us:12.1f} us a call (bar: at most 20)")
    print(f"ray.train.report median {report_us:12.1f} us a call, {report_us / log_us:,.0f} times")


if __name__ == "__main__":
    main()
