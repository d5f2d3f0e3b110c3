"""Faults produced for real bring up their hint within 15 s, and no other; a healthy run none.

Two runs share the cluster at a time where both mostly sleep: they have nothing else in common.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raynb.engine.hints.memory import WARM_S

pytestmark = pytest.mark.usefixtures("cluster")

#: Seconds from the moment a fault can be seen, which the cell logs as ``fault``, to its hint.
SOON_S = 15.0
#: What every cell begins with.
HEAD = textwrap.dedent(
    """
    import time, torch, torch.distributed as dist, ray.train, ray.train.torch
    from torch.utils.data import DataLoader, TensorDataset
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(7)
    """
)
DDP = textwrap.dedent(
    """
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train_on(rows):
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss
    """
)


@dataclass
class Fault:
    """A cell with a fault, and what its hint has to say."""

    kind: str
    ranks: list[int]
    told: str
    body: str
    head: str = DDP
    warm: float = 0.0
    n: int = 2


FAULTS = {
    "skipped": Fault(
        "stalled",
        [0],
        "rank 0 waits at Cell In[2], line",
        """
        for step in range(200):
            if rank == 1 and step == 100:
                continue  # one collective less than rank 0
            raynb.log({"loss": train_on(torch.randn(32, 64))})
            time.sleep(0.01)
        raynb.log({"fault": 1.0})
        """,
    ),
    "asleep": Fault(
        "stalled",
        [0],
        "for rank 1",
        """
        raynb.log({"fault": 1.0})
        if rank == 0:
            dist.barrier()
        time.sleep(1e6)  # in the first step, so to speak
        """,
        head="",
        warm=5.0,  # before the first step, a rank is given so much more
    ),
    "C7": Fault(
        "stalled",
        [0],
        "rank 0 waits in report() number 2, which rank 1 never called",
        """
        if rank == 0:
            ray.train.report({"loss": 1.0})
        ray.train.report({"loss": 2.0})
        raynb.log({"fault": 1.0})
        """,
        head="",
    ),
    "silent": Fault(
        "silent",
        [1],
        "rank 1 has not reported for",
        """
        raynb.log({"fault": 1.0})
        for step in range(10**6):
            raynb.log({"loss": 1 / (step + 1)})
            time.sleep(0.05 if rank == 0 or step < 40 else 1e6)
        """,
        head="",
        warm=3.0,
    ),
    "data": Fault(
        "data_bound",
        [0, 1],
        "ranks 0 and 1 wait",
        """
        class Slow(TensorDataset):
            def __getitem__(self, at):
                time.sleep(0.002)
                return super().__getitem__(at)
        loader = DataLoader(Slow(torch.randn(20000, 64)), batch_size=20, shuffle=True)
        loader = ray.train.torch.prepare_data_loader(loader)
        raynb.log({"fault": 1.0})
        for rows, in loader:
            raynb.log({"loss": train_on(rows)})
            time.sleep(0.01)
        """,
    ),
    "straggler": Fault(
        "straggler",
        [1],
        "rank 1 is",
        """
        raynb.log({"fault": 1.0})
        for step in range(10**6):
            time.sleep(0.12 if rank == 1 else 0.03)
            raynb.log({"loss": train_on(torch.randn(32, 64))})
        """,
    ),
    "imbalance": Fault(
        "imbalance",
        [1],
        "rank 1 has more rows than the others",
        """
        data = TensorDataset(torch.randn(3000 if rank == 1 else 1000, 64))
        loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=10))
        raynb.log({"fault": 1.0})
        for epoch in range(10**6):
            for rows, in loader:
                raynb.log({"mean": rows.mean()})
                time.sleep(0.03)
        """,
        head="",
    ),
    "leak": Fault(
        "leak",
        [0],
        "memory of rank 0 grows steadily",
        """
        kept = []
        raynb.log({"fault": 1.0})
        for step in range(600):
            raynb.log({"loss": train_on(torch.randn(32, 64))})
            if rank == 0:
                kept.append(torch.ones(1_250_000))  # 5 MB
            time.sleep(0.1)
        """,
        warm=WARM_S,
    ),
    "nan": Fault(
        "non_finite",
        [0],
        "loss is NaN on rank 0 since step 30",
        """
        for step in range(10**6):
            loss = train_on(torch.randn(32, 64)) * (float("nan") if step >= 30 else 1.0)
            if step == 30:
                raynb.log({"fault": 1.0}, step=step)
            raynb.log({"loss": loss}, step=step)
            time.sleep(0.05)
        """,
        n=1,
    ),
    "set_epoch": Fault(
        "set_epoch",
        [0, 1],
        "each epoch shuffles the rows in the same order",
        """
        data = TensorDataset(torch.randn(400, 64))
        loader = DataLoader(data, batch_size=20, shuffle=True)
        loader = ray.train.torch.prepare_data_loader(loader)
        for epoch in range(10**6):
            for rows, in loader:
                raynb.log({"loss": train_on(rows)})
                time.sleep(0.05)
            if epoch == 0:
                raynb.log({"fault": 1.0})
        """,
    ),
    "reports": Fault(
        "report_rate",
        [0],
        "report() takes",
        """
        raynb.log({"fault": 1.0})
        for step in range(10**6):
            ray.train.report({"loss": train_on(torch.randn(32, 64)).item()})
        """,
        n=1,
    ),
}


class Watched:
    """A run that goes on in the background."""

    def __init__(self, notebook: Any, name: str, head: str, body: str, n: int = 2) -> None:
        cell = f"%%distributed_train -n {n} --background --name {name} -o run_{name}\n"
        notebook.run(cell + HEAD + head + textwrap.dedent(body))
        self.run = notebook[f"run_{name}"]
        self.name = name

    def hints(self) -> list[dict[str, Any]]:
        with self.run.lock:
            return list(self.run.mirror.hints)

    def fault(self) -> float | None:
        """When the fault could be seen, on all ranks that tell."""
        with self.run.lock:
            times = [
                float(data[1, 0])
                for (metric, _, _), data in self.run.mirror.series.items()
                if metric == "fault" and data.shape[1]
            ]
        return max(times, default=None)

    def until(self, done: Callable[[], Any], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (
                self.name,
                self.run.mirror.run,
                self.hints(),
                self.rows(),
            )
            assert not self.run.done, (self.name, self.run.mirror.run["error"])
            time.sleep(0.1)

    def rows(self) -> list[dict[str, Any]]:
        with self.run.lock:
            return [dict(row) for row in self.run.mirror.workers.values()]


@pytest.fixture
def watch(notebook: Any, nothing_left: Callable[..., None]) -> Iterator[Callable[..., Watched]]:
    """Starts runs; in the end they are stopped."""
    notebook.run("import raynb")
    started: list[Watched] = []

    def start(name: str, head: str, body: str, n: int = 2) -> Watched:
        started.append(Watched(notebook, name, head, body, n))
        return started[-1]

    yield start
    for one in started:
        one.run.stop()
    for one in started:
        one.run.wait(timeout=30)
    nothing_left([w["pid"] for one in started for w in one.rows() if w["pid"] is not None])


@pytest.mark.parametrize(
    "names",
    [
        ("skipped", "C7"),
        ("asleep", "silent"),
        ("data", "nan", "reports"),
        ("straggler", "imbalance"),
        ("leak", "set_epoch"),
    ],
    ids="-".join,
)
def test_a_fault_brings_up_its_hint_and_no_other(
    names: tuple[str, ...], watch: Callable[..., Watched], notebook: Any
) -> None:
    faults = [(name, FAULTS[name]) for name in names]
    runs = [watch(name, fault.head, fault.body, fault.n) for name, fault in faults]
    for one in runs:
        one.until(one.fault, 150)
    for one in runs:
        fault = FAULTS[one.name]
        at = one.fault()
        assert at is not None
        one.until(one.hints, at + fault.warm + SOON_S - time.time())
    time.sleep(4)  # what else might come up
    for one in runs:
        fault = FAULTS[one.name]
        (hint,) = one.hints()
        assert hint["kind"] == fault.kind, hint
        assert hint["ranks"] == fault.ranks and fault.told in hint["title"], hint
        assert hint["until"] is None, hint
        assert all(hint[part] for part in ("evidence", "threshold", "fix")), hint
    for one in runs:
        one.run.stop()
        result = one.run.wait(timeout=30)
        (kept,) = json.loads(Path(result.path, "raynb", "record.json").read_text())["hints"]
        assert kept["kind"] == FAULTS[one.name].kind
        assert kept["title"].split()[:2] == one.hints()[0]["title"].split()[:2]


HEALTHY = """
from raynb.demo import Digits
model = torch.nn.Sequential(
    torch.nn.Unflatten(1, (1, 8, 8)), torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.Linear(576, 10),
)
model = ray.train.torch.prepare_model(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)
loader = ray.train.torch.prepare_data_loader(loader)
epoch, began, stop = 0, time.time(), torch.zeros(1)
while not stop:
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        raynb.log({"loss": loss})
    epoch += 1
    if epoch % 40 == 0:
        ray.train.report({"epoch": epoch})
    stop.fill_(time.time() - began > 25)
    dist.broadcast(stop, 0)
"""


def test_a_healthy_run_brings_up_none(watch: Callable[..., Watched]) -> None:
    one = watch("healthy", "", HEALTHY)
    seen: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + 120
    while not one.run.done and time.monotonic() < end:
        seen |= {hint["id"]: hint for hint in one.hints()}
        time.sleep(0.1)
    assert one.run.done and one.run.state == "finished"
    assert seen == {} and one.run.result.record["hints"] == []
    scale = one.run.result.record["scale"]
    assert scale == {"lr": 1e-3, "global_batch": 128.0}


def test_the_batch_grew_and_the_learning_rate_did_not(notebook: Any) -> None:
    cell = "%%distributed_train --local\n" + textwrap.dedent(
        """
        import time, torch, ray.train.torch, raynb
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(9000, 8)), batch_size=BATCH)
        end = time.time() + 2.5
        for rows, in ray.train.torch.prepare_data_loader(loader):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)
            if time.time() > end:
                break
        """
    )
    kinds = []
    for batch in (10, 10, 40):
        notebook.run(cell.replace("BATCH", str(batch)))
        kinds.append([hint["kind"] for hint in notebook["result"].record["hints"]])
    assert kinds == [[], [], ["lr_scaling"]]
    (hint,) = notebook["result"].record["hints"]
    assert hint["level"] == "info" and "10 rows a step at learning rate 0.1" in hint["evidence"]
