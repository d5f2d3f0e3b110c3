"""What workers tell of their steps, shards and standstills, measured on real worker groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.data
import ray.train
from ray.train.torch import TorchTrainer

import raynb

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a run of two ranks, unless told otherwise; stops it at the end."""
    runs = []

    def start(fn: Any, **options: Any) -> Any:
        run = raynb.train(
            fn,
            **{"num_workers": 2, "storage_path": str(tmp_path), "show": False, **options},
            block=False,
        )
        runs.append(run)
        return run

    yield start
    for run in runs:
        if not run.done:
            run.stop(timeout=30)


def until(run: Any, ready: Callable[[dict[int, Any]], bool], seconds: float = 90) -> dict[int, Any]:
    """The workers' rows once they are as wanted."""
    end = time.monotonic() + seconds
    while not ready(run.mirror.workers):
        assert time.monotonic() < end and not run.done, run.mirror.workers
        time.sleep(0.1)
    workers: dict[int, Any] = {r: dict(w) for r, w in run.mirror.workers.items()}
    return workers


def ended(run: Any) -> dict[int, Any]:
    result = run.wait(120)
    assert result.state == "finished"
    return {w["rank"]: w for w in result.record["workers"]}


def test_a_slow_rank_makes_the_other_wait_in_ddp(train: Callable[..., Any]) -> None:
    def train_func() -> None:
        import time

        import ray.train
        import torch
        from ray.train.torch import prepare_data_loader, prepare_model
        from torch.utils.data import DataLoader, TensorDataset

        rank = ray.train.get_context().get_world_rank()
        rows = TensorDataset(torch.randn(403, 8), torch.randn(403, 1))
        loader = prepare_data_loader(DataLoader(rows, batch_size=8, shuffle=True, drop_last=True))
        held_out = TensorDataset(torch.randn(31, 8), torch.randn(31, 1))
        validation = prepare_data_loader(DataLoader(held_out, batch_size=8))
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
        model = prepare_model(torch.nn.Sequential(*layers, torch.nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        for _ in range(3):  # without set_epoch
            for x, y in loader:
                time.sleep(0.05 if rank else 0.0)  # rank 1 computes longer
                loss = ((model(x) - y) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                raynb.log({"loss": loss.detach()})
            for x, _ in validation:
                model(x)

    rows = ended(train(train_func))
    fast, slow = rows[0], rows[1]
    for row in (fast, slow):
        assert 0.05 < row["step_s"] < 0.2
        assert row["wait_s"] < 0.02 and row["report_s"] == 0
        assert row["rows_rate"] == pytest.approx(8 / row["step_s"], rel=0.1)
        assert row["lr"] == 0.25 and row["reports"] == 0 and row["waiting_since"] is None
        training, validation = row["shards"]
        # 403 rows are 202 a rank: one is read twice. Of these, 25 batches of 8 leave 2.
        assert training["rows_total"] == 200 and training["batches_total"] == 25
        assert (training["rows_seen"], training["epoch"]) == (200, 3)
        assert training["rows_dropped"] == (2 if row["rank"] == 0 else 1)
        assert training["rows_repeated"] == 0
        assert training["shuffle"] is True and training["set_epoch"] == "missing"
        assert training["eta_s"] == 0
        assert validation["rows_total"] == 16 and validation["set_epoch"] is None
        assert validation["rows_repeated"] == row["rank"] and validation["shuffle"] is False
        assert row["threads"] >= 1 and row["cores"] >= 1 and row["rss"] > 50e6
        assert row["cpu"] is not None
    assert fast["sync_s"] > 0.03
    assert slow["sync_s"] < fast["sync_s"] / 4


def test_a_data_bound_loop_and_reports(train: Callable[..., Any]) -> None:
    def train_func() -> None:
        import time

        import ray.train
        import torch
        from ray.train.torch import prepare_data_loader
        from torch.utils.data import DataLoader, Dataset

        class Slow(Dataset[Any]):
            def __len__(self) -> int:
                return 400

            def __getitem__(self, at: int) -> Any:
                time.sleep(0.005)
                return torch.tensor([float(at)])

        loader = prepare_data_loader(DataLoader(Slow(), batch_size=5, shuffle=True))
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.Adam([weight], lr=1e-3)
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for k, x in enumerate(loader):
                (weight * x).sum().backward()
                optimizer.step()
                if k % 20 == 19:
                    ray.train.report({"x": 1.0})

    run = train(train_func)
    live = until(run, lambda w: bool(w) and bool((w[0]["shards"] or [{}])[0].get("eta_s")))
    assert 0 < live[0]["shards"][0]["eta_s"] < 60
    for row in ended(run).values():
        assert 0.025 < row["wait_s"] < row["step_s"]
        assert row["wait_s"] / (row["step_s"] - row["report_s"]) > 0.7
        assert row["report_s"] > 0 and row["reports"] == 4
        assert row["sync_s"] is None  # no DDP
        assert row["shards"][0]["set_epoch"] == "ok"


def test_ray_data_shards(tmp_path: Path) -> None:
    def loop() -> None:
        import ray.train

        train = ray.train.get_dataset_shard("train")
        for _ in range(2):
            for batch in train.iter_torch_batches(batch_size=16, drop_last=True):
                raynb.log({"n": len(batch["id"])})
                time.sleep(0.02)
        small = ray.train.get_dataset_shard("validation")
        raynb.log({"rows": sum(1 for _ in small.iter_rows())})

    trainer = TorchTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="shards", storage_path=str(tmp_path)),
        # Which rows an equal split drops is known beforehand where the number of rows is.
        datasets={
            "train": ray.data.range(301),
            "validation": ray.data.range(41).filter(lambda row: row["id"] < 20),
        },
    )
    result = raynb.fit(trainer, show=False)
    for row in result.record["workers"]:
        training, validation = row["shards"]
        assert (training["name"], training["kind"]) == ("train", "ray")
        assert training["epoch"] == 2 and training["batch_size"] == 16
        assert training["batches_seen"] == training["batches_total"] == 9
        assert training["rows_seen"] == training["rows_total"] == 144
        # 150 rows a rank of 301, of which drop_last leaves 6; the odd row counts as rank 0's.
        assert training["rows_dropped"] == (7 if row["rank"] == 0 else 6)
        assert row["wait_s"] is not None and row["rows_rate"] > 0
        assert validation["name"] == "validation" and validation["rows_seen"] == 10
        assert validation["rows_total"] == 10 and validation["rows_dropped"] is None


def test_a_rank_that_waits_alone_in_report_and_one_that_stands(train: Callable[..., Any]) -> None:
    def train_func() -> None:
        import time

        import ray.train

        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({"loss": 1.0})
            ray.train.report({"loss": 2.0})
        else:
            ray.train.report({"loss": 1.0})
            time.sleep(1000)  # never gets to its second report

    run = train(train_func)
    rows = until(
        run, lambda w: len(w) == 2 and all(r["still_since"] for r in w.values()), seconds=60
    )
    assert (rows[0]["status"], rows[0]["reports"]) == ("waiting", 2)
    assert (rows[1]["status"], rows[1]["reports"]) == ("running", 1)
    assert 5 < time.time() - rows[0]["waiting_since"] < 30 and rows[1]["waiting_since"] is None
    for row in rows.values():
        assert 5 < time.time() - row["still_since"] < 30
    file = Path(__file__).name
    assert rows[0]["where"].startswith(f"{file}:") and "report" in rows[0]["where"]
    assert 'ray.train.report({"loss": 2.0})' in rows[0]["where"] and " (in ray/" in rows[0]["where"]
    assert rows[1]["where"].startswith(f"{file}:") and "time.sleep(1000)" in rows[1]["where"]


def test_the_cells_line_where_a_rank_stands(notebook: Any) -> None:
    notebook.run(
        "%%distributed_train -n 1 --background -o run\n"
        "import threading\n"
        "def wait():\n"
        "    threading.Event().wait()\n"
        "wait()"
    )
    run = notebook["run"]
    rows = until(run, lambda w: bool(w) and w[0]["where"] is not None, seconds=60)
    where = rows[0]["where"]
    assert where.startswith("Cell In[") and "line 4: threading.Event().wait() (in " in where
    assert where.endswith(" wait)") and "threading.py:" in where
    run.stop(timeout=30)
