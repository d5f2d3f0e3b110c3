"""What telemetry costs training: blocks with and without it, in turn, inside one worker group.

Run by hand: ``python tests/bench/overhead.py [--pairs 10] [--steps 150]``. Two ranks train a small
CNN on FashionMNIST (digits where it is not there) under a bare ``TorchTrainer``. In every second
block the ranks enter raynb's worker runtime: samplers, counted loaders, step timing, captured
output, and ``raynb.log`` of every step, sent to a supervisor that this process watches. Two runs
after each other differ by more than telemetry costs; blocks of one group do not. Prints the ratio
of the rows a second with telemetry to those without, a pair at a time and their median with a
bootstrap interval (bar: at least 0.98), the CPU that supervisor and kernel take meanwhile, and the
median time of a call of ``raynb.log`` (bar: 20 microseconds) and of ``ray.train.report``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import time
from typing import Any


def train_func(config: dict[str, Any]) -> None:
    import contextlib
    import json
    import time
    from pathlib import Path

    import ray.train.torch
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    import raynb
    from raynb.demo import Digits
    from raynb.worker.runtime import Runtime

    if config["root"]:
        from torchvision.datasets import FashionMNIST
        from torchvision.transforms import ToTensor

        data: Any = FashionMNIST(config["root"], transform=ToTensor())
        side = 28
    else:
        data, side = Digits(train=True), 8

    def block(watched: bool) -> float:
        """Rows a second of this rank."""
        torch.manual_seed(0)
        model = ray.train.torch.prepare_model(
            torch.nn.Sequential(
                torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                torch.nn.Flatten(), torch.nn.Linear(32 * (side // 4) ** 2, 10),
            )
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=128, shuffle=True))
        step, began = -10, 0.0  # the first steps warm up
        while step < config["steps"]:
            for images, labels in loader:
                if step == 0:
                    began = time.perf_counter()
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if watched:
                    raynb.log({"loss": loss})
                step += 1
                if step == config["steps"]:
                    break
        return 128 * config["steps"] / (time.perf_counter() - began)

    block(False)  # threads, allocator, page cache
    rates = []
    for pair in range(config["pairs"]):
        for watched in (False, True) if pair % 2 == 0 else (True, False):
            dist.barrier()
            with Runtime(config["link"], None) if watched else contextlib.nullcontext():
                rates.append((pair, watched, block(watched)))
    logs, reports = [], []
    with Runtime(config["link"], None):
        for k in range(config["logs"]):
            began = time.perf_counter()
            raynb.log({"loss": 0.5}, step=k)
            logs.append(time.perf_counter() - began)
    for _ in range(5):
        began = time.perf_counter()
        ray.train.report({"loss": 0.5})
        reports.append(time.perf_counter() - began)
    found = {"rates": rates, "logs": logs, "reports": reports}
    rank = ray.train.get_context().get_world_rank()
    Path(config["mark"]).with_suffix(f".{rank}").write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--logs", type=int, default=10_000)
    args = parser.parse_args()

    import psutil
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    from raynb._ray import cluster
    from raynb.demo import fashion_mnist
    from raynb.engine.collector import RunFacts
    from raynb.engine.run import RemoteBackend, Run
    from raynb.errors import StorageError
    from raynb.results.run_result import RunResult
    from raynb.worker.runtime import Link

    try:
        root: str | None = fashion_mnist()
    except StorageError:
        root = None
    cluster.start_local()
    with tempfile.TemporaryDirectory() as directory:
        name = f"bench-{time.time():.2f}"
        facts = RunFacts(name, f"{directory}/{name}", None, {"CPU": 1.0}, {})
        backend = RemoteBackend.start(facts, {})
        run = Run(facts, RunResult.of)
        run.attach(backend)
        link = Link(name, backend.actor, cwd=directory, log_dir=f"{directory}/{name}/raynb/logs")
        mark = pathlib.Path(directory) / "mark"
        config = {"link": link, "mark": str(mark), "root": root, **vars(args)}
        supervisor = psutil.Process(ray.get(backend.actor.__ray_call__.remote(_pid)))
        before, began = [_cpu(p) for p in (supervisor, psutil.Process())], time.monotonic()
        TorchTrainer(
            train_func,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=directory),
        ).fit()
        seconds = time.monotonic() - began
        after = [_cpu(p) for p in (supervisor, psutil.Process())]
        rows = len(run.history)
        backend.kill()
        ranks = [json.loads(mark.with_suffix(f".{rank}").read_text()) for rank in (0, 1)]
    assert rows == 2 * (args.pairs * (args.steps + 10) + args.logs), "a record was lost"
    blocks = [found["rates"] for found in ranks]
    rates = {(p, w): min(b[i][2] for b in blocks) for i, (p, w, _) in enumerate(blocks[0])}
    ratios = [rates[p, True] / rates[p, False] for p in range(args.pairs)]
    print(f"{'pair':>4}{'bare':>9}{'raynb':>9}{'ratio':>8}   rows/s of the slower rank")
    for p, ratio in enumerate(ratios):
        print(f"{p + 1:4}{rates[p, False]:9.0f}{rates[p, True]:9.0f}{ratio:8.3f}")
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2_000))
    print(
        f"median ratio {statistics.median(ratios):.3f}, 95 % of resampled medians in "
        f"{medians[50]:.3f} to {medians[-50]:.3f} (bar: at least 0.98)"
    )
    for who, a, b in zip(("supervisor", "kernel"), before, after, strict=True):
        print(f"{who}: {100 * (b - a) / seconds:.1f} % of a core over the whole run")
    log_us, report_us = (
        statistics.median(took for found in ranks for took in found[kind]) * 1e6
        for kind in ("logs", "reports")
    )
    print(f"raynb.log        median {log_us:12.1f} us a call (bar: at most 20)")
    print(f"ray.train.report median {report_us:12.1f} us a call, {report_us / log_us:,.0f} times")


def _pid(_: Any) -> int:
    import os

    return os.getpid()


def _cpu(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
