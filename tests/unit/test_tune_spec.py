"""A search's options: what is refused before anything starts, and what the space becomes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from raynb._ray.tune import most_of_a_trial
from raynb.errors import OptionError, StorageError
from raynb.tuning.algorithms import make_scheduler, make_search
from raynb.tuning.space import describe, flat_config, grid_size, leaves
from raynb.tuning.spec import Criterion, TuneSpec

SPACE = {"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([64, 128])}
GRID = {"lr": tune.grid_search([0.1, 0.01]), "width": tune.grid_search([1, 2, 3, 4])}


def spec(tmp_path: Path, **changes: Any) -> TuneSpec:
    given = {"space": SPACE, "metric": "val_accuracy", "mode": "max"} | changes
    return TuneSpec(storage_path=str(tmp_path), **given)


def refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(OptionError) as found:
        spec(tmp_path, **changes).check()
    assert not list(tmp_path.iterdir()), "something was written before the check"
    return str(found.value)


def test_what_is_filled_in(tmp_path: Path) -> None:
    checked = spec(tmp_path).check()
    assert checked.name.startswith("tune-") and checked.num_samples == 10
    assert not checked.distributed and checked.lanes == 1 and checked.planned == 10
    assert spec(tmp_path, space=GRID).check().planned == 8
    assert spec(tmp_path, space=GRID, num_samples=2).check().planned == 16
    assert spec(tmp_path, num_workers=(1, 3)).check().lanes == 3
    assert spec(tmp_path, num_samples=-1, time_budget_s=60).check().planned is None
    summary = checked.summary()
    json.dumps(summary), json.dumps(checked.facts())
    assert summary["best"] == "val_accuracy:max"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": ""}, ["--mode is missing", "--mode max"]),
        ({"mode": "", "metric": "val_loss"}, ["--mode min"]),
        ({"mode": "most"}, ["--mode 'most' is none of min, max"]),
        ({"metric": ""}, ["metric"]),
        ({"space": {}}, ["the space is empty"]),
        ({"space": None}, ["the space must be a dict", "NoneType"]),
        ({"space": {"lr": 0.1}}, ["nothing to search", "lr"]),
        ({"space": {1: tune.choice([1])}}, ["names must be text"]),
        ({"scheduler": "ahsa"}, ["--scheduler 'ahsa'", "did you mean asha?"]),
        ({"search": "grd"}, ["--search 'grd'", "did you mean grid?"]),
        (
            {"scheduler": "asha", "scheduler_args": {"grace_perod": 2}},
            ["no option", "grace_period?"],
        ),
        ({"scheduler_args": {"max_t": 2}}, ["none has no option 'max_t'"]),
        (
            {"scheduler": "asha", "scheduler_args": {"max_t": 1, "grace_period": 5}},
            ["does not take max_t=1, grace_period=5"],
        ),
        ({"num_samples": 0}, ["--num-samples"]),
        ({"num_samples": -1}, ["never ends", "--time-budget-s"]),
        ({"max_concurrent": 0}, ["--max-concurrent"]),
        ({"time_budget_s": 0}, ["--time-budget-s"]),
        ({"config": {"lr": 1}}, ["both config and space give 'lr'"]),
        ({"search": "grid"}, ["--search grid", "'lr'", "log scale", "grid_search"]),
        ({"num_workers": 0}, ["needs workers"]),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    told = refused(tmp_path, **changes)
    assert all(word in told for word in words), told


def test_what_does_not_pickle_is_named(tmp_path: Path) -> None:
    guard = threading.Lock()
    told = refused(
        tmp_path, space={"lr": tune.uniform(0, 1), "model": {"lock": tune.choice([1, guard])}}
    )
    assert "model/lock" in told and "lock" in told and "space['lr']" not in told


@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bohb"])
def test_missing_packages_are_named(
    tmp_path: Path, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    optional = {"optuna", "hyperopt", "hpbandster", "ConfigSpace"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in optional else found(name)
    )
    told = refused(tmp_path, search=search)
    assert f"--search {search} needs" in told and "pip install" in told


@pytest.mark.parametrize("scheduler", ["asha", "median", "pbt", "hyperband", "none"])
def test_schedulers_are_rays(tmp_path: Path, scheduler: str) -> None:
    made = make_scheduler(spec(tmp_path, scheduler=scheduler).check())
    assert type(made).__module__.startswith("ray.tune.schedulers")


@pytest.mark.parametrize(
    ("scheduler", "args", "most"),
    [("asha", {"max_t": 7}, ("training_iteration", 7.0)),
     ("hyperband", {"max_t": 9}, ("training_iteration", 9.0)),
     ("asha", {"max_t": 60, "time_attr": "time_total_s"}, ("time_total_s", 60.0)),
     ("median", {}, None), ("pbt", {}, None), ("none", {}, None)],
)  # fmt: skip
def test_how_far_a_scheduler_lets_trials_come(
    tmp_path: Path, scheduler: str, args: dict[str, Any], most: tuple[str, float] | None
) -> None:
    made = make_scheduler(spec(tmp_path, scheduler=scheduler, scheduler_args=args).check())
    assert most_of_a_trial(made) == most


def test_scheduler_options_arrive(tmp_path: Path) -> None:
    args = {"grace_period": 2, "max_t": 9, "reduction_factor": 3}
    made = make_scheduler(spec(tmp_path, scheduler="asha", scheduler_args=args).check())
    assert (made._max_t, made._reduction_factor) == (9, 3)


def test_grid_takes_choices(tmp_path: Path) -> None:
    space = {"a": tune.choice([1, 2]), "b": {"c": tune.grid_search([3, 4])}, "d": 5}
    checked = spec(tmp_path, space=space, search="grid").check()
    assert checked.space == {
        "a": {"grid_search": [1, 2]}, "b": {"c": {"grid_search": [3, 4]}}, "d": 5,
    }  # fmt: skip
    assert grid_size(checked.space) == 4 and checked.planned == 4
    assert type(make_search(checked)).__name__ == "BasicVariantGenerator"


def test_parameters_as_plain_data() -> None:
    space = {
        "lr": tune.qloguniform(1e-4, 1e-1, 5e-5),
        "n": tune.randint(1, 9),
        "opt": {"name": tune.choice(["sgd", "adam"]), "beta": tune.normal(0, 1) if 0 else 0.9},
        "f": tune.sample_from(lambda: 1),
    }
    rows = {name: describe(name, value) for name, value in leaves(space)}
    assert rows["lr"]["kind"] == "float" and rows["lr"]["log"] and rows["lr"]["high"] == 0.1
    assert rows["n"]["kind"] == "int" and not rows["n"]["log"]
    assert rows["opt/name"]["choices"] == ["sgd", "adam"]
    assert rows["opt/beta"]["kind"] == "fixed" and rows["f"]["kind"] == "other"
    json.dumps(rows)
    assert flat_config({"a": {"b": 1}, "c": object()})["a/b"] == 1


@pytest.mark.parametrize(
    ("text", "met", "not_met"),
    [
        ("val_accuracy>=0.95", {"val_accuracy": 0.95}, {"val_accuracy": 0.9}),
        (" loss < 1e-3 ", {"loss": 1e-4}, {"loss": 1}),
        ("training_iteration>=3", {"training_iteration": 3}, {}),
    ],
)
def test_stop_criteria(text: str, met: dict[str, float], not_met: dict[str, float]) -> None:
    criterion = Criterion.parse(text)
    assert criterion.met(met) and not criterion.met(not_met)
    assert Criterion.parse(str(criterion)) == criterion


@pytest.mark.parametrize("text", ["", "loss", "loss=1", "loss>=", ">=1", "a>=b", "loss>=nan"])
def test_bad_stop_criteria(text: str) -> None:
    with pytest.raises(OptionError, match="METRIC>=NUMBER"):
        Criterion.parse(text)


def test_resume_finds_the_search(tmp_path: Path) -> None:
    home = tmp_path / "first"
    (home / "raynb").mkdir(parents=True)
    with pytest.raises(StorageError, match="no search to resume"):
        spec(tmp_path, resume=str(home)).check()
    (home / "tuner.pkl").write_bytes(b"")
    checked = spec(tmp_path / "elsewhere", resume=home).check()
    assert (checked.name, checked.storage_path) == ("first", str(tmp_path))
    assert checked.restore == str(home)
    with pytest.raises(OptionError, match="contradicts --resume"):
        spec(tmp_path, resume=home, name="other").check()
    (home / "raynb" / "record.json").write_text('{"state": "finished"}')
    with pytest.raises(StorageError, match="has finished"):
        spec(tmp_path, resume=home).check()


def test_a_resumed_search_keeps_its_options(tmp_path: Path) -> None:
    asha = {"scheduler": "asha", "scheduler_args": {"grace_period": 2}, "num_samples": 7}
    first = spec(tmp_path, **asha, stop=(Criterion.parse("loss<1"),), seed=3).check()
    home = tmp_path / first.name
    (home / "raynb").mkdir(parents=True)
    (home / "tuner.pkl").write_bytes(b"")
    record = {
        **first.facts(), "state": "stopped", "options": first.summary(), "lanes": first.lanes,
    }  # fmt: skip
    (home / "raynb" / "record.json").write_text(json.dumps(record))

    # Without options, and with those of before: the search's own.
    for again in ({}, asha):
        resumed = spec(tmp_path, resume=home, **again).check()
        assert (resumed.scheduler, resumed.num_samples, resumed.seed) == ("asha", 7, 3)
        assert resumed.scheduler_args == {"grace_period": 2} and resumed.planned == 7
        assert list(resumed.stop) == [Criterion("loss", "<", 1.0)]
    for changes, words in (
        ({"scheduler": "median"}, "--scheduler median contradicts --resume"),
        ({"scheduler_args": {"grace_period": 3}}, "--scheduler-arg {'grace_period': 3}"),
        ({"stop": (Criterion.parse("loss<0.5"),)}, "started with loss < 1"),
        ({"metric": "loss"}, "--metric loss contradicts"),
        ({"num_samples": 8}, "leave out --num-samples"),
        ({"num_workers": 2}, "use -n 1"),
        ({"space": {"lr": SPACE["lr"]}}, "'width' as nothing in the space"),
        ({"space": SPACE | {"width": tune.choice([1])}}, "started with choice of [64, 128]"),
    ):
        with pytest.raises(OptionError) as found:
            spec(tmp_path, **({"resume": home} | changes)).check()
        assert words in str(found.value), found.value


def test_a_search_of_a_users_tuner_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "own" / "raynb").mkdir(parents=True)
    (tmp_path / "own" / "tuner.pkl").write_bytes(b"")
    record = {"state": "stopped", "options": {"scheduler": "ASHAScheduler"}}
    (tmp_path / "own" / "raynb" / "record.json").write_text(json.dumps(record))
    with pytest.raises(OptionError, match=r"raynb\.fit\(tune\.Tuner\.restore"):
        spec(tmp_path, resume=tmp_path / "own").check()
