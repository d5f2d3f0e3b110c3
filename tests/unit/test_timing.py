"""The step meter and torch's hooks: real optimizers, real DDP, real time."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import linecache
import math
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from raynb.telemetry import timing as timing_module
from raynb.telemetry.shards_torch import meter_loader
from raynb.telemetry.timing import StepMeter
from raynb.telemetry.torch_hooks import LEARN, MISSED, PeerWait, watch_steps
from raynb.worker import runtime
from raynb.worker.program import CellProgram
from raynb.worker.stack import where


@pytest.fixture
def meter() -> Iterator[StepMeter]:
    made = StepMeter()
    undo = watch_steps(made)
    assert undo is not None
    yield made
    undo()


def told(meter: StepMeter) -> dict[str, Any]:
    timing = meter.news(final=True)[1]
    assert timing is not None
    return timing


def optimizer(lr: float = 0.5) -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=lr)


def test_nothing_is_known_at_first(meter: StepMeter) -> None:
    assert told(meter) == {
        "step_s": None,
        "wait_s": None,
        "report_s": None,
        "sync_s": None,
        "rows_rate": None,
        "lr": None,
        "reports": 0,
        "waiting_since": None,
        "still_since": None,
        "where": None,
    }
    assert math.isnan(meter.epoch())
    assert meter.news(final=True) == (None, None)


def test_a_step_is_an_optimizer_step(meter: StepMeter) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(48, 2)), batch_size=4)
    meter.shards.add(meter_loader(loader))
    steps = optimizer(0.125)
    for k, _ in enumerate(loader):
        time.sleep(0.005)
        if k % 2:  # two batches a step
            steps.step()
    row = told(meter)
    assert row["step_s"] >= 0.01 and 0 < row["wait_s"] < row["step_s"] / 2
    assert row["rows_rate"] == pytest.approx(8 / row["step_s"], rel=0.01)
    assert row["lr"] == 0.125 and row["sync_s"] is None and row["report_s"] == 0
    assert meter.epoch() == 1.0


def test_without_an_optimizer_a_step_is_a_batch_or_else_a_record(meter: StepMeter) -> None:
    for _ in range(5):
        time.sleep(0.01)
        meter.record()
    assert 0.01 <= told(meter)["step_s"] < 0.03
    loader = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=2)
    meter.shards.add(meter_loader(loader))
    for _ in loader:
        time.sleep(0.03)
        meter.record()  # no step of its own now
    row = told(meter)
    assert row["step_s"] >= 0.03 and row["lr"] is None


def test_optimizers_that_take_turns_are_one_step(meter: StepMeter) -> None:
    generator, critic = optimizer(0.1), optimizer(0.2)
    for _ in range(6):
        time.sleep(0.01)
        critic.step()
        time.sleep(0.01)
        generator.step()
    row = told(meter)
    assert row["step_s"] >= 0.02 and row["lr"] == 0.1
    assert meter._steps == 6
    # The one that counted is gone.
    del critic
    gc.collect()
    for _ in range(6):
        generator.step()
    assert meter._steps == 12


def test_the_last_ten_seconds_count(meter: StepMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_module, "WINDOW_S", 0.2)
    steps = optimizer()
    for pause in (0.05, 0.01):
        for _ in range(int(0.4 / pause)):
            time.sleep(pause)
            steps.step()
            meter.news(final=True)
    assert meter._timing()["step_s"] < 0.03


def test_reports(meter: StepMeter) -> None:
    steps = optimizer()
    before = time.time()
    for _ in range(4):
        meter.report_begins()
        row = told(meter)
        assert before <= row["waiting_since"] <= time.time()
        time.sleep(0.01)
        meter.report_ends()
        steps.step()
    row = told(meter)
    assert row["reports"] == 4 and row["waiting_since"] is None
    assert 0.01 <= row["report_s"] <= row["step_s"]


def test_news_are_few_but_a_report_is_told_at_once(meter: StepMeter) -> None:
    steps = optimizer()
    steps.step()
    assert meter.news()[1] is not None
    steps.step()
    assert meter.news() == (None, None)
    meter.report_begins()
    timing = meter.news()[1]
    assert timing is not None and timing["reports"] == 1
    steps.step()
    assert meter.news() == (None, None)
    time.sleep(timing_module.NEWS_S)
    assert meter.news()[1] is not None


def test_a_learning_rate_that_is_a_tensor_or_nonsense(meter: StepMeter) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    steps = torch.optim.Adam([weight], lr=torch.tensor(0.25), capturable=False, foreach=False)
    steps.step()
    assert told(meter)["lr"] == 0.25
    steps.param_groups[0]["lr"] = math.nan
    meter.step(steps)
    assert told(meter)["lr"] is None


def test_the_hooks_are_undone_and_import_nothing() -> None:
    from torch.optim import optimizer as module

    before = len(module._global_optimizer_post_hooks)
    undo = watch_steps(StepMeter())
    assert undo is not None and len(module._global_optimizer_post_hooks) == before + 1
    undo()
    assert len(module._global_optimizer_post_hooks) == before
    script = (
        "import sys\n"
        "from raynb.telemetry.samplers import Samplers\n"
        "from raynb.telemetry.timing import StepMeter\n"
        "from raynb.telemetry.torch_hooks import watch_steps\n"
        "import raynb.telemetry.shards_torch, raynb.telemetry.shards_ray\n"
        "row = Samplers(None, 1.0).sample()\n"
        "print(watch_steps(StepMeter()), row['threads'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["None", "None", "False"], done.stderr


def test_a_hook_never_raises_into_training(meter: StepMeter) -> None:
    class Odd(torch.optim.SGD):
        pass

    weight = torch.nn.Parameter(torch.zeros(1))
    odd = Odd([weight], lr=0.1)
    odd.param_groups = []
    odd.step()
    meter.on_step.append(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    optimizer().step()


def test_prepare_functions_are_watched_by_whatever_name_they_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.train.torch import prepare_data_loader
    from ray.train.v2._internal.execution import train_fn_utils

    from raynb._ray.worker import watch_prepare

    # As Ray's own local mode sets it.
    local = train_fn_utils.LocalTrainFnUtils("run")
    monkeypatch.setattr(train_fn_utils, "_train_fn_utils", local)
    signature, code = inspect.signature(prepare_data_loader), prepare_data_loader.__code__
    told: list[Any] = []
    undo = watch_prepare(on_loader=told.append, on_model=told.append)
    assert undo is not None and inspect.signature(prepare_data_loader) == signature
    loader = DataLoader(TensorDataset(torch.zeros(3)))
    assert prepare_data_loader(loader, move_to_device=False) is loader and told == [loader]
    with pytest.raises(TypeError):
        prepare_data_loader()
    undo()
    assert (
        prepare_data_loader.__code__ is code and inspect.signature(prepare_data_loader) == signature
    )
    prepare_data_loader(loader, move_to_device=False)
    assert told == [loader]


# -- DDP -----------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def net() -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])


def hooks(model: torch.nn.Module) -> list[bool]:
    return [bool(p._post_accumulate_grad_hooks) for p in model.parameters()]


def train(model: torch.nn.Module, steps: torch.optim.Optimizer, n: int) -> None:
    for _ in range(n):
        steps.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        steps.step()


def test_the_wait_for_peers_ends_with_the_backward_pass(meter: StepMeter, group: None) -> None:
    model = DistributedDataParallel(net())
    peers = PeerWait(model, meter)
    assert all(hooks(model))

    def slow_exchange(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        # Stands in for a slow peer: DDP waits for the future at the end of the backward pass.
        future: Any = torch.futures.Future()
        threading.Timer(0.05, lambda: future.set_result(bucket.buffer())).start()
        return future

    model.register_comm_hook(None, slow_exchange)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, steps, LEARN + 4)
    # The first layer's gradients come last; one parameter is watched by then.
    assert sum(hooks(model)) == 1 and hooks(model).index(True) < 2
    time.sleep(0.01)
    row = told(meter)
    assert 0.04 < row["sync_s"] < row["step_s"]
    # What the user does between the backward pass and the step is not DDP's wait.
    steps.zero_grad()
    before = meter.synced
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.2)
    steps.step()
    assert meter.synced - before < 0.1
    peers.remove()
    assert not any(hooks(model))


def test_a_gradient_that_stops_coming_is_replaced(meter: StepMeter, group: None) -> None:
    inner = net()
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    peers = PeerWait(model, meter)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, steps, LEARN)
    counted = meter.measured
    assert counted == LEARN
    next(
        p for p, h in zip(model.parameters(), hooks(model), strict=True) if h
    ).requires_grad = False
    rebuilt = DistributedDataParallel(inner)
    train(rebuilt, steps, MISSED)
    assert meter.measured == counted
    train(rebuilt, steps, 5)
    assert meter.measured == counted + 5
    peers.remove()


def test_a_watched_model_can_be_let_go(meter: StepMeter, group: None) -> None:
    for _ in range(3):  # as for the folds of a cross-validation
        model = DistributedDataParallel(net())
        PeerWait(model, meter)
        steps = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, steps, LEARN)
        weights = [weakref.ref(p) for p in model.parameters()]
        del model, steps
        gc.collect()
        assert [w() for w in weights] == [None] * len(weights)
    model = net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert not meter.on_step and not meter.readers


def test_watched_models_copy_and_save_as_ever(meter: StepMeter, group: None) -> None:
    model = DistributedDataParallel(net())
    peers = PeerWait(model, meter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(model.module, io.BytesIO())
        copied = copy.deepcopy(model.module)
    assert not any(hooks(copied))
    # A pass that fails half-way does not stop the counting.
    x = torch.ones(2, 4)
    handle = next(model.parameters()).register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.module(x).sum().backward()
    handle.remove()
    peers.remove()


# -- standing still ------------------------------------------------------------------------------


def test_standing_still_is_told_after_a_while(
    meter: StepMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing_module, "STILL_S", 0.05)
    meter.record()
    at = time.time()
    meter.stand(lambda: pytest.fail("asked too early"))
    time.sleep(0.06)
    meter.stand(lambda: "here")
    row = told(meter)
    assert row["where"] == "here" and row["still_since"] == pytest.approx(at, abs=0.03)
    meter.stand(lambda: "there")
    again = told(meter)
    assert again["where"] == "there" and again["still_since"] == row["still_since"]
    meter.record()
    meter.stand(lambda: "here")
    assert told(meter)["where"] is None


CELL = """
import threading
def inner(event):
    event.wait()  # here
def outer(event): inner(event)
"""


def standing(program: CellProgram, call: Any) -> str | None:
    """What is told of a thread that runs ``call`` as the runtime runs a train function."""
    event, there = threading.Event(), threading.Event()

    def run() -> None:
        there.set()
        runtime.Runtime.run(None, lambda: call(event), {})  # type: ignore[arg-type]

    thread = threading.Thread(target=run)
    thread.start()
    there.wait()
    time.sleep(0.1)
    try:
        assert thread.ident is not None
        return where(thread.ident, program)
    finally:
        event.set()
        thread.join()
        assert where(thread.ident, program) is None


def test_the_cells_innermost_line_and_what_it_is_inside() -> None:
    names: dict[str, Any] = {}
    exec(compile(CELL, "<cell-7>", "exec"), names)
    linecache.cache["<cell-7>"] = (len(CELL), None, CELL.splitlines(True), "<cell-7>")
    program = CellProgram(CELL, "<cell-7>", "Cell In[7]", "function", "outer")
    told = standing(program, names["outer"])
    assert told is not None
    assert told.startswith("Cell In[7], line 4: event.wait()  # here (in threading.py:")
    assert told.endswith(" wait)")


def test_a_function_from_python_is_named_by_its_file() -> None:
    def stand(event: threading.Event) -> None:
        event.wait()

    told = standing(CellProgram("", "", "", "function", "f"), stand)
    assert told is not None
    line = stand.__code__.co_firstlineno + 1
    assert told.startswith(f"{os.path.basename(__file__)}:{line}: event.wait() (in threading.py:")


def test_a_long_line_is_cut_and_a_package_is_named_by_its_path() -> None:
    source = f"def stand(event):\n    sleep(event); {'x' * 500} = 1\n"
    names: dict[str, Any] = {}

    def sleep(event: threading.Event) -> None:
        # Blocks in C, called by torch's own code.
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=lambda: waiting.put(event.wait())).start()
        next(iter(DataLoader(TensorDataset(torch.zeros(3)), collate_fn=waiting.get)))  # type: ignore[arg-type]

    names["sleep"] = sleep
    exec(compile(source, "<cell-8>", "exec"), names)
    linecache.cache["<cell-8>"] = (len(source), None, source.splitlines(True), "<cell-8>")
    program = CellProgram(source, "<cell-8>", "Cell In[8]", "function", "stand")
    told = standing(program, names["stand"])
    assert told is not None and told.startswith("Cell In[8], line 2: sleep(event); xxx")
    assert len(told) < 250
    assert "(in torch/utils/data/_utils/fetch.py:" in told and told.endswith(" fetch)")
