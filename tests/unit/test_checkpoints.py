"""raynb.checkpoint and raynb.resume outside of runs, and what a run may resume from."""

from __future__ import annotations

import collections
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raynb
from raynb.engine.resume import checkpoint_to_resume
from raynb.engine.spec import RunSpec
from raynb.errors import CheckpointError, OptionError, UnsafeCheckpointError
from raynb.magics.config import RayNB
from raynb.magics.options import TRAIN_GROUPS, build_spec, options, parse
from raynb.telemetry.history import concat
from raynb.worker import checkpoints

from .canary import Canary


def test_outside_of_a_run_nothing_is_saved_or_loaded_and_it_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_told", set())
    model = nn.Linear(2, 1)
    for _ in range(3):
        raynb.checkpoint(model, torch.optim.SGD(model.parameters()), epoch=1, metrics={"loss": 1})
        assert raynb.resume(model) is None
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "raynb.checkpoint: not inside a run, so nothing is saved",
        "raynb.resume: not inside a run, so nothing is loaded",
    ]


class Text(str):
    """By its type it would be pickled as a class of this module."""


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"path": Path("x")}, "keep path: a pathlib.PosixPath"),
        ({"config": {"lr": np.float64(0.1)}}, "keep config['lr']: a numpy.float64"),
        ({"rows": [1, np.zeros(2)]}, "keep rows[1]: a numpy.ndarray"),
        ({"net": nn.Linear(1, 1)}, "keep net: a torch.nn.modules.linear.Linear"),
        ({"run": lambda: 1}, "keep run: a function"),
        ({"counts": collections.defaultdict(int)}, "keep counts: a collections.defaultdict"),
        ({"name": Text("x")}, "Text would have to run code"),
        ({"pair": Pair(1, 2)}, "Pair would have to run code"),
        ({"by": {Path("x"): 1}}, "keep a key of by: a pathlib.PosixPath"),
        ({"spread": range(3)}, "keep spread: a range"),
    ],
)
def test_what_could_not_be_read_back_is_refused_by_name(extra: dict[str, Any], says: str) -> None:
    """Outside of a run too, so that it shows before a long training."""
    with pytest.raises(CheckpointError, match=re.escape(says)):
        raynb.checkpoint(nn.Linear(1, 1), **extra)


def test_what_is_kept_reads_back_weights_only() -> None:
    kept = {
        "numbers": [None, True, 3, 2**70, 1.5, float("inf"), 2j, "text", b"bytes"],
        "tensors": (torch.ones(2), nn.Parameter(torch.ones(1)), torch.float16, torch.device("cpu")),
        "containers": [{1, 2}, collections.Counter("ab"), collections.OrderedDict(a=[2])],
        "shape": torch.Size([2]),
        "keys": {1: 2, (3, "x"): 4, None: 5},
        "generator": torch.get_rng_state(),
    }
    checkpoints._check_plain(kept, "")
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert back["numbers"] == kept["numbers"] and back["keys"] == kept["keys"]
    assert back["containers"] == kept["containers"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "net"}, "model must be a torch.nn.Module, not str"),
        ({"model": nn.Linear(1, 1), "optimizer": 3}, "optimizer must have a state_dict, which int"),
        ({"model": nn.Linear(1, 1), "metrics": [1]}, "metrics must be a dict, not list"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        raynb.checkpoint(**arguments)


def test_resume_runs_no_code_of_the_checkpoint(tmp_path: Path) -> None:
    sign = tmp_path / "canary"
    content = {"raynb_checkpoint": 1, "extra": {"x": Canary(sign)}}
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(UnsafeCheckpointError, match="mkdir"):
        checkpoints._read(str(tmp_path), "x", "cpu")
    assert not sign.exists()


# -- which of a result's -------------------------------------------------------------------------


def result_with(tmp_path: Path, metrics: list[dict[str, Any]], best: str | None = None) -> Any:
    import ray.train

    kept = []
    for number, reported in enumerate(metrics):
        directory = tmp_path / f"checkpoint_{number}"
        directory.mkdir()
        torch.save({"number": torch.tensor(number)}, directory / "model.pt")
        kept.append((ray.train.Checkpoint(directory), reported))
    latest = kept[-1][0] if kept else None
    found = ray.train.Result(
        metrics=None, checkpoint=latest, error=None, path=str(tmp_path), best_checkpoints=kept
    )
    record = {"name": "first", "state": "finished", "options": {"best": best}}
    return raynb.RunResult.of(found, record=record, history=concat([]))


def test_which_checkpoint_of_a_result(tmp_path: Path) -> None:
    metrics = [{"loss": 2.0}, {"loss": 1.0, "f1": 0.5}, {"loss": float("nan")}, {"loss": 3.0}]
    result = result_with(tmp_path, metrics, "loss:min")

    def number(*which: Any) -> int:
        return int(result.load(*which)["number"])

    assert number() == number("best") == number("loss:min") == 1
    assert number("loss:max") == number("latest") == number(-1) == 3
    assert number(0) == number(np.int64(0)) == 0
    for which, says in (
        (4, "has 4 checkpoints, so there is none of index 4"),
        (-5, "use 0 to 3"),
        ("acc:max", "with a number 'acc'\nWay out: they have f1, loss"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(says)):
            result.load(which)
    for which in ("newest", True, 1.5, "loss", "loss:lowest"):
        with pytest.raises(OptionError, match='"best", "latest"'):
            result.load(which)


def test_without_best_the_latest_is_loaded_and_none_is_best(tmp_path: Path) -> None:
    result = result_with(tmp_path, [{"loss": 1.0}, {"loss": 2.0}])
    assert int(result.load()["number"]) == 1
    with pytest.raises(CheckpointError, match=r"'first' was started without --best"):
        result.load("best")


def test_a_result_without_checkpoints_says_how_to_save_some(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'first' has no checkpoint\n.*raynb.checkpoint"):
        result_with(tmp_path, []).load()


def test_a_checkpoint_that_was_deleted_since(tmp_path: Path) -> None:
    result = result_with(tmp_path, [{"loss": 1.0}])
    shutil.rmtree(tmp_path / "checkpoint_0")
    with pytest.raises(CheckpointError, match="--num-to-keep may have"):
        result.load()


# -- --resume ------------------------------------------------------------------------------------


def saved(directory: Path) -> Path:
    directory.mkdir(parents=True)
    torch.save(nn.Linear(1, 1).state_dict(), directory / "model.pt")
    return directory


def test_what_a_run_resumes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.train

    run = tmp_path / "run"
    older, newer = saved(run / "checkpoint_2026-01"), saved(run / "checkpoint_2026-02")
    (run / "raynb").mkdir()
    (run / "checkpoint_manager_snapshot.json").write_text("{}")
    checkpoint = ray.train.Checkpoint(older)
    result = ray.train.Result(
        metrics=None, checkpoint=checkpoint, error=None, path=str(run), best_checkpoints=[]
    )
    assert checkpoint_to_resume(checkpoint).path == str(older)
    assert checkpoint_to_resume(result).path == str(older)
    assert checkpoint_to_resume(older).path == str(older)
    assert checkpoint_to_resume(run.as_uri()).path == str(newer)
    monkeypatch.chdir(tmp_path)
    assert checkpoint_to_resume("run/").path == str(newer)
    spec = RunSpec(name="x", storage_path=str(tmp_path), resume="run").check()
    assert spec.summary()["resume"] == str(newer)


def test_what_a_run_can_not_resume_from(tmp_path: Path) -> None:
    import ray.train

    empty = tmp_path / "empty"
    empty.mkdir()
    file = saved(tmp_path / "some") / "model.pt"
    nothing = ray.train.Result(
        metrics=None, checkpoint=None, error=None, path="/runs/a", best_checkpoints=[]
    )
    for source, says in (
        (tmp_path / "gone", "there is no checkpoint"),
        (ray.train.Checkpoint(tmp_path / "gone"), "there is no checkpoint"),
        (empty, "is empty"),
        (file, f"Way out: give {file.parent}"),
        (nothing, "the run '/runs/a' has no checkpoint"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(says)):
            RunSpec(name="x", storage_path=str(tmp_path), resume=source).check()
    with pytest.raises(OptionError, match="not from int"):
        checkpoint_to_resume(3)
    if os.geteuid():
        file.chmod(0)
        with pytest.raises(CheckpointError, match="can't be read"):
            checkpoint_to_resume(file.parent)


def test_resume_in_the_magic_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @options("%%train", TRAIN_GROUPS)
    def train(self: Any, line: str, cell: str) -> None:
        """Train."""

    monkeypatch.chdir(tmp_path)
    marker = object()

    class Kept:
        checkpoint = marker

    def resume(line: str) -> Any:
        return build_spec(parse(train, line), {"result": marker, "kept": Kept()}, RayNB()).resume

    assert resume("--resume result") is marker
    assert resume("--resume kept.checkpoint") is marker
    assert resume("--resume runs/a") == "runs/a"
    assert resume("--resume ~/runs") == "~/runs"
    assert resume("--resume s3://bucket/a") == "s3://bucket/a"
    assert resume("") is None
    with pytest.raises(OptionError, match=r"no variable `resul`(.|\n)*did you mean `result`"):
        resume("--resume resul")
    (tmp_path / "resul").mkdir()
    assert resume("--resume resul") == "resul"
