"""Checkpoints of real runs: saved on a worker group, gone on from, loaded into plain models."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
import ray.train
import torch
from ray.train.torch import TorchTrainer
from torch import nn

import raynb
from raynb.demo import Digits
from raynb.errors import CheckpointError, OptionError, TrainingError, UnsafeCheckpointError

from . import test_storage

#: An S3 server on loopback.
s3 = test_storage.s3
pytestmark = pytest.mark.usefixtures("cluster")

#: Real digits under DDP; the last epoch is spoilt, so that the best checkpoint is not the latest.
TRAIN = textwrap.dedent(
    """
    import torch, ray.train, ray.train.torch
    from torch.utils.data import DataLoader
    from raynb.demo import Digits

    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state = raynb.resume(model, optimizer=optimizer, scheduler=scheduler)
    found = None
    if state is not None:
        steps = int(optimizer.state[next(iter(model.parameters()))]["step"])
        found = [state.epoch, state.extra["tag"], steps, scheduler.get_last_lr()[0]]
        print("resumed", found)
    images, labels = Digits(train=False).tensors
    data = DataLoader(Digits(train=True), batch_size=50, shuffle=True)
    data = ray.train.torch.prepare_data_loader(data)
    first = 0 if state is None else state.epoch + 1
    for epoch in range(first, first + config["epochs"]):
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            if config["spoil"] and epoch == first + config["epochs"] - 1:
                for p in model.parameters():
                    p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
            held_out = torch.nn.functional.cross_entropy(model(images), labels)
        raynb.checkpoint(
            model, optimizer=optimizer, scheduler=scheduler, epoch=epoch,
            metrics={"held_out": held_out, "epoch": epoch}, tag=config["tag"],
            curve=[{"epoch": epoch, "mean": torch.ones(2) * epoch}],
        )
        if config["fail"] and state is None or config["fail"] and state.extra["tag"] == "first":
            raise RuntimeError("on purpose")
    return found
    """
).strip()
BASE = {"epochs": 3, "spoil": True, "fail": False, "tag": "first"}


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def held_out(model: nn.Module) -> float:
    images, labels = Digits(train=False).tensors
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), labels))


def start(notebook: Any, options: str, cell: str = TRAIN, **config: Any) -> Any:
    notebook.run(f"import raynb\nconfig = {BASE | config!r}")
    notebook.run(f"%%distributed_train --config config {options}\n{cell}")
    return notebook["result"]


def test_best_loads_in_one_line_and_runs_go_on_from_it(notebook: Any) -> None:
    result = start(notebook, "-n 2 --best held_out:min --name first")
    kept = {int(m["epoch"]): m["held_out"] for _, m in result.best_checkpoints}
    assert len(kept) == 3
    best = min(kept, key=lambda e: kept[e])
    assert best != 2  # the last one was spoilt

    model = result.load(into=plain())
    assert held_out(model) == pytest.approx(kept[best], abs=1e-6)
    assert held_out(result.load("latest", plain())) == pytest.approx(kept[2], abs=1e-6)
    assert held_out(result.load("held_out:max", plain())) == pytest.approx(
        max(kept.values()), abs=1e-6
    )
    for index, (_, metrics) in enumerate(result.best_checkpoints):
        found = held_out(result.load(index, plain()))
        assert found == pytest.approx(metrics["held_out"], abs=1e-6)
    saved = raynb.load_checkpoint(result.checkpoint)
    assert (saved["epoch"], saved["extra"]["tag"]) == (2, "first")
    assert saved["metrics"]["held_out"] == pytest.approx(kept[2], abs=1e-6)
    optimizer = torch.optim.Adam(plain().parameters())
    assert result.load("latest", optimizer, key="optimizer") is optimizer

    with pytest.raises(CheckpointError, match=r"has 3 checkpoints.*none of index 3"):
        result.load(3)
    with pytest.raises(CheckpointError, match=r"number 'f1'(.|\n)*epoch, held_out"):
        result.load("f1:max")
    with pytest.raises(OptionError, match="not 'newest'"):
        result.load("newest")
    with pytest.raises(CheckpointError, match=r"wrong shape +1\.weight"):
        result.load(into=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))

    # One worker goes on from it, unwrapped; a failure goes on from what came since.
    notebook.run("earlier = result")
    again = start(
        notebook, "-n 1 --resume earlier --max-failures 1 --name again",
        epochs=1, spoil=False, fail=True, tag="again",
    )  # fmt: skip
    log = Path(again.path, "raynb", "logs", "rank-00000.log").read_text()
    told = [line for line in log.splitlines() if line.startswith("resumed")]
    assert told == [
        f"resumed {[2, 'first', 45, 1e-2 / 8]}",
        f"resumed {[3, 'again', 75, 1e-2 / 16]}",
    ]
    assert again.return_value == [3, "again", 75, 1e-2 / 16]
    assert again.record["options"]["resume"] == result.checkpoint.path
    # By a path, of the run's directory too.
    third = start(notebook, f"-n 2 --resume {again.path}", epochs=1, spoil=False, tag="third")
    assert third.return_value == [4, "again", 105, 1e-2 / 32]


def test_what_can_not_be_resumed_is_said_before_anything_starts(notebook: Any) -> None:
    notebook.run("import raynb\nconfig = {}\nsome = 3")
    for value, says in (
        ("gone", "no variable `gone`"),
        ("runs/gone", "there is no checkpoint"),
        ("some", "not from int"),
    ):
        error = notebook.error(f"%%distributed_train -n 1 --resume {value}\npass")
        assert isinstance(error, OptionError | CheckpointError)
        assert says in str(error)


def test_what_would_need_code_to_read_back_is_refused_when_it_is_saved(notebook: Any) -> None:
    cell = (
        "import torch, pathlib\nraynb.checkpoint(torch.nn.Linear(1, 1), at=[{'x': pathlib.Path()}])"
    )
    notebook.run("import raynb")
    error = notebook.error(f"%%distributed_train -n 1\n{cell}")
    assert isinstance(error, TrainingError)
    assert "at[0]['x']" in str(error) and "PosixPath" in str(error)


def test_a_checkpoint_of_rays_own_way(notebook: Any) -> None:
    """Names with DDP's prefix load into a plain model; resume gives the checkpoint itself."""
    cell = textwrap.dedent(
        """
        import os, tempfile, torch, ray.train, ray.train.torch
        torch.manual_seed(3)
        model = ray.train.torch.prepare_model(torch.nn.Linear(2, 2))
        state = raynb.resume()
        if state is not None:
            raynb.load_checkpoint(state.checkpoint, into=model)
            try:
                raynb.resume(model)
            except raynb.CheckpointError as error:
                return [float(p.sum().detach()) for p in model.parameters()], str(error)
        with tempfile.TemporaryDirectory() as directory:
            torch.save({"net": model.state_dict()}, os.path.join(directory, "model.pt"))
            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))
        """
    ).strip()
    result = start(notebook, "-n 2 --name rays", cell)
    assert list(raynb.load_checkpoint(result.checkpoint, key="net")) == [
        "module.weight", "module.bias",
    ]  # fmt: skip
    torch.manual_seed(3)
    same = nn.Linear(2, 2)
    model = result.load(into=nn.Linear(2, 2))
    assert torch.equal(model.weight, same.weight) and torch.equal(model.bias, same.bias)
    # Into a model that DDP wraps, of which the state was saved inside of the wrapper or not.
    again = start(notebook, "-n 2 --resume result", cell)
    sums, error = again.return_value
    assert sums == pytest.approx([float(p.sum().detach()) for p in same.parameters()])
    assert "raynb.checkpoint did not write it" in error


def test_a_whole_model_saved_in_rays_own_way_is_refused(notebook: Any) -> None:
    notebook.run(
        "import torch, raynb\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(2, 1)"
    )
    cell = textwrap.dedent(
        """
        import os, tempfile, ray.train
        with tempfile.TemporaryDirectory() as directory:
            torch.save(Net(), os.path.join(directory, "model.pt"))
            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))
        """
    ).strip()
    result = start(notebook, "-n 1", cell)
    with pytest.raises(UnsafeCheckpointError) as caught:
        result.load()
    told = str(caught.value)
    assert "__main__.Net" in told and f"{result.checkpoint.path}/model.pt" in told
    assert "state_dict" in told and "trusted=True where Net is defined" in told
    assert isinstance(result.load(trusted=True), notebook["Net"])
    assert isinstance(result.load(into=notebook["Net"](), trusted=True), notebook["Net"])


def test_under_rays_own_trainer(tmp_path: Path) -> None:
    """The same train function without raynb around it."""
    handler = signal.getsignal(signal.SIGINT)

    def train_func() -> Any:
        model = nn.Linear(2, 1)
        state = raynb.resume(model)
        if state is not None:
            return state.epoch, float(model.bias.detach())
        nn.init.constant_(model.bias, 7)
        raynb.checkpoint(model, epoch=2, metrics={"loss": torch.tensor(0.5)})
        raise RuntimeError("on purpose")

    result = TorchTrainer(
        train_func,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    ).fit()
    # Bare fit() leaves a handler of its own, which keeps its controller alive and eats SIGINT.
    signal.signal(signal.SIGINT, handler)
    assert result.return_value == (2, 7)
    assert result.metrics == {"loss": 0.5}
    assert float(raynb.load_checkpoint(result, nn.Linear(2, 1)).bias.detach()) == 7


SHARDED = textwrap.dedent(
    """
    import torch, ray.train, ray.train.torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    def make(sharded):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        if sharded:
            fully_shard(model)
        else:
            model = ray.train.torch.prepare_model(model)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def whole(value):
        return value.full_tensor() if isinstance(value, DTensor) else value

    def numbers(model, optimizer):
        weights = [whole(p.detach()).sum().item() for p in model.parameters()]
        moments = [
            whole(optimizer.state[p]["exp_avg_sq"]).sum().item() for p in model.parameters()
        ]
        return weights + moments + [float(optimizer.state[p]["step"]) for p in model.parameters()]

    model, optimizer = make(config["sharded"])
    state = raynb.resume(model, optimizer=optimizer)
    if state is not None:
        return numbers(model, optimizer), state.epoch, state.extra
    for step in range(3):
        optimizer.zero_grad()
        x = torch.arange(8.0).reshape(2, 4) + ray.train.get_context().get_world_rank()
        model(x).pow(2).mean().backward()
        optimizer.step()
    raynb.checkpoint(model, optimizer, epoch=4, metrics={"loss": 1.0}, names=["a"])
    return numbers(model, optimizer), 4, {"names": ["a"]}
    """
).strip()


def test_sharded_models_and_plain_ones_go_on_from_each_other(notebook: Any) -> None:
    results = {}
    for sharded in (True, False):
        result = results[sharded] = start(notebook, "-n 2 -o result", SHARDED, sharded=sharded)
        files = sorted(p.name for p in Path(result.checkpoint.path).iterdir())
        shards = [".metadata", "__0_0.distcp", "__1_0.distcp"] if sharded else []
        assert [f for f in files if f != "checkpoint.pt"] == shards
        model = result.load(into=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        numbers = result.return_value[0]
        assert [p.detach().sum().item() for p in model.parameters()] == pytest.approx(numbers[:4])
        notebook.run("earlier = result")
        for into in (True, False):
            again = start(notebook, "-n 2 --resume earlier", SHARDED, sharded=into)
            assert again.return_value[0] == pytest.approx(numbers)
            assert again.return_value[1:] == (4, {"names": ["a"]})


def test_a_failure_on_s3_goes_on_from_there(notebook: Any, s3: str) -> None:
    address = f"s3://key:secret@bucket/runs?endpoint_override={s3}&scheme=http"
    options = f'-n 2 --storage-path "{address}" --max-failures 1 --best held_out:min'
    result = start(notebook, options + " --name far", epochs=1, fail=True, tag="far")
    assert result.return_value[:3] == [0, "far", 15]
    best = min(m["held_out"] for _, m in result.best_checkpoints)
    assert held_out(result.load(into=plain())) == pytest.approx(best, abs=1e-6)
    again = start(notebook, f'-n 1 --resume "{address.replace("runs?", "runs/far?")}"', epochs=1)
    assert again.return_value[:3] == [1, "far", 30]
    assert again.record["options"]["resume"].startswith("s3://bucket/runs/far/checkpoint_")


def test_local_mode_saves_too(notebook: Any) -> None:
    result = start(notebook, "--local --best held_out:min", epochs=1, spoil=False)
    value = result.best_checkpoints[0][1]["held_out"]
    assert held_out(result.load(into=plain())) == pytest.approx(float(value), abs=1e-6)
