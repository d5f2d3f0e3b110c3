"""Whole searches on a real cluster: what a user writes, and what comes back."""

from __future__ import annotations

import os
import signal
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray.train
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator

import raynb
from raynb.errors import OptionError, TrainingError
from raynb.tuning.algorithms import SEARCHES

pytestmark = pytest.mark.usefixtures("cluster")


def wait(condition: Callable[[], bool], seconds: float = 90) -> None:
    """Wait until something is true; fails when it never is."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


DIGITS = textwrap.dedent(
    """
    import torch
    from torch.utils.data import DataLoader
    from raynb.demo import Digits

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    held_out = DataLoader(Digits(train=False), batch_size=500)
    for epoch in range(4):
        for images, labels in DataLoader(Digits(train=True), batch_size=50, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            raynb.log({"loss": loss})
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
        print("epoch", epoch, "with", config["lr"])
        raynb.checkpoint(model, metrics={"val_accuracy": right / len(held_out.dataset)})
    """
)


def test_a_search_on_digits(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run("import raynb\nfrom ray import tune")
    notebook.run("space = {'lr': tune.grid_search([1e-4, 1e-2, 3e-2, 1e-1])}")
    notebook.run(
        "%%distributed_tune --space space --metric val_accuracy --mode max --name digits "
        "--scheduler asha --scheduler-arg grace_period=2 --num-to-keep 2 --max-concurrent 2\n"
        + DIGITS
    )
    result = notebook["result"]
    assert isinstance(result, tune.ResultGrid) and isinstance(result, raynb.TuneResult)
    assert result.state == "finished" and len(result) == 4 and result.num_errors == 0
    assert result.best_config["lr"] in (3e-2, 1e-1)
    best = result.best
    assert isinstance(best, raynb.RunResult) and isinstance(best, ray.train.Result)
    assert best.metrics["config"] == result.best_config
    assert 1 <= len(best.best_checkpoints) <= 2  # --num-to-keep

    import torch

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    best.load(into=model)
    from raynb.demo import Digits

    images, labels = zip(*Digits(train=False), strict=True)
    with torch.no_grad():
        right = (model(torch.stack(images)).argmax(1) == torch.tensor(labels)).float().mean()
    row = result.rows[result.best_index]
    assert abs(float(right) - row["best"]) < 1e-6

    # Every step's loss is in the trial's history, the reports in the table of results.
    assert best.history["loss"].notna().sum() == 30 * row["iterations"]
    assert len(best.metrics_dataframe) == row["iterations"]
    assert result.results.groupby("trial").size().tolist() == [r["iterations"] for r in result.rows]
    log = Path(result.experiment_path, "raynb", "logs", "rank-00001.log").read_text()
    assert "epoch 0 with 0.01" in log
    ended = {row["reason_kind"] for row in result.rows}
    assert ended <= {"finished", "pruned"}
    shown = result._repr_mimebundle_()
    assert {"text/plain", "text/html", "image/png"} <= set(shown)
    assert "★" in shown["text/html"] and "top trials" in shown["text/plain"]

    again = raynb.open(result.uri)
    assert isinstance(again, raynb.TuneResult)
    assert again.rows == result.rows and again.results.equals(result.results)
    assert again.best.load()["model"].keys() == model.state_dict().keys()
    assert list(raynb.runs(notebook.directory / "storage")) == ["digits"]
    nothing_left([row["pid"] for row in result.rows])


def bare_search(tuner: tune.Tuner) -> tune.ResultGrid:
    """``tuner.fit()``, whose handler of SIGINT stays otherwise."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        return tuner.fit()
    finally:
        signal.signal(signal.SIGINT, handler)


def score(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"score": config["a"] * 10 + config["b"] + step / 10})


def test_a_grid_of_8_equals_a_hand_written_tuner(tmp_path: Path) -> None:
    space = {"a": tune.grid_search([1, 2]), "b": tune.grid_search([0.1, 0.2, 0.3, 0.4])}
    result = raynb.tune(
        score, space, metric="score", mode="max", storage_path=str(tmp_path), show=False
    )
    bare = bare_search(
        tune.Tuner(
            score,
            param_space=space,
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(storage_path=str(tmp_path / "bare"), verbose=0),
        )
    )
    configs = [(r.config["a"], r.config["b"]) for r in result]
    assert sorted(configs) == sorted((a, b) for a in (1, 2) for b in (0.1, 0.2, 0.3, 0.4))
    assert configs == [(r.config["a"], r.config["b"]) for r in bare]
    assert [r.metrics["score"] for r in result] == [r.metrics["score"] for r in bare]
    assert [r.metrics["training_iteration"] for r in result] == [3] * 8
    for scope in ("last", "all", "avg"):
        ours, rays = result.get_best_result(scope=scope), bare.get_best_result(scope=scope)
        assert ours.config == rays.config and ours.metrics["score"] == rays.metrics["score"]
    assert result.num_terminated == bare.num_terminated == 8
    frame, rays_frame = result.get_dataframe(), bare.get_dataframe()
    assert frame["score"].tolist() == rays_frame["score"].tolist()
    assert frame["config/b"].tolist() == rays_frame["config/b"].tolist()


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    space = {"a": tune.uniform(0, 1), "b": tune.loguniform(1e-3, 1)}
    common = {"metric": "score", "mode": "min", "num_samples": 3}
    result = raynb.tune(score, space, seed=5, storage_path=str(tmp_path), show=False, **common)
    bare = bare_search(
        tune.Tuner(
            score,
            param_space=space,
            tune_config=tune.TuneConfig(search_alg=BasicVariantGenerator(random_state=5), **common),
            run_config=tune.RunConfig(storage_path=str(tmp_path / "bare"), verbose=0),
        )
    )
    assert [r.config for r in result] == [r.config for r in bare]
    assert [r.metrics["score"] for r in result] == [r.metrics["score"] for r in bare]


def test_trials_that_fail_are_told_and_the_rest_goes_on(
    notebook: Any, nothing_left: Callable[..., None]
) -> None:
    notebook.run("import raynb, os, signal\nfrom ray import tune")
    notebook.run("how = ['raise', 'memory', 'cuda', 'killed', 'fine']")
    notebook.run("space = {'how': tune.grid_search(how)}")
    notebook.run(
        textwrap.dedent(
            """
            %%distributed_tune --space space --metric score --mode max --name failing
            import time, torch
            raynb.log({"loss": 1.0})
            if config["how"] == "raise":
                raise ValueError("bad <b>batch</b>")
            if config["how"] == "memory":
                raise MemoryError("no room for a list")
            if config["how"] == "cuda":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")
            if config["how"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raynb.log({"score": 1.0})
            """
        ).strip()
    )
    result = notebook["result"]
    rows = {row["config"]["how"]: row for row in result.rows}
    assert result.state == "finished" and result.num_errors == 4
    assert rows["fine"]["state"] == "finished" and rows["fine"]["best"] == 1.0
    assert {how: (row["state"], row["reason_kind"]) for how, row in rows.items()} == {
        "raise": ("failed", "error"),
        "memory": ("failed", "oom"),
        "cuda": ("failed", "oom"),
        "killed": ("failed", "killed"),
        "fine": ("finished", "finished"),
    }
    assert rows["raise"]["reason"] == "ValueError: bad <b>batch</b>"
    assert "raise ValueError" in rows["raise"]["error"]["line"]
    assert "8 GiB" in rows["cuda"]["reason"]
    html = result._repr_mimebundle_()["text/html"]
    assert "bad &lt;b&gt;batch" in html and "<b>batch" not in html
    failed = result[result.rows.index(rows["raise"])]
    assert isinstance(failed.error, TrainingError) and "ValueError" in str(failed.error)
    nothing_left([])


def test_a_metric_that_is_not_reported_ends_the_search(notebook: Any) -> None:
    notebook.run("import raynb, ray.train, time\nfrom ray import tune")
    notebook.run("space = {'a': tune.grid_search(list(range(6)))}")
    error = notebook.error(
        "%%distributed_tune --space space --metric val_acc --mode max\n"
        "for step in range(100):\n"
        "    ray.train.report({'val_accuracy': 0.5, 'loss': 1.0})\n"
        "    time.sleep(1)"
    )
    assert isinstance(error, TrainingError)
    assert "'val_acc' is not reported" in str(error) and "'val_accuracy', 'loss'" in str(error)
    assert "did you mean --metric val_accuracy?" in str(error)
    result = notebook["result"]
    assert result.state == "failed" and {r["state"] for r in result.rows} == {"stopped"}
    # Nothing starts for what can be seen before.
    for options, words in (
        ("--space space --metric a", "--mode is missing"),
        ("--space nothing --metric a --mode max", "no variable `nothing`"),
        ("--metric a --mode max", "--space is missing"),
        ("--space space --metric a --mode max --scheduler ahsa", "did you mean asha?"),
        ("--space space --metric a --mode max -n 64", "asked for"),
    ):
        refused = notebook.error(f"%%distributed_tune {options}\npass")
        assert words in str(refused), refused


def test_worker_groups_as_trials(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run("import raynb\nfrom ray import tune\nspace = {'lr': tune.grid_search([0.1, 0.2])}")
    notebook.run(
        textwrap.dedent(
            """
            %%distributed_tune -n 2 --space space --metric score --mode max --name groups
            import os, tempfile, torch, torch.distributed as dist, ray.train
            rank = ray.train.get_context().get_world_rank()
            total = torch.ones(1)
            dist.all_reduce(total)
            for step in range(2):
                raynb.log({"loss": rank + step})
                with tempfile.TemporaryDirectory() as directory:
                    if rank == 0:
                        weights = {"w": torch.tensor(config["lr"])}
                        torch.save(weights, os.path.join(directory, "model.pt"))
                    checkpoint = None
                    if rank == 0:
                        checkpoint = ray.train.Checkpoint.from_directory(directory)
                    score = config["lr"] * total.item() + step
                    ray.train.report({"score": score}, checkpoint=checkpoint)
            """
        ).strip()
    )
    result = notebook["result"]
    assert result.state == "finished" and [r["iterations"] for r in result.rows] == [2, 2]
    assert [round(r["best"], 6) for r in result.rows] == [1.2, 1.4]
    best = result.best
    assert best.num_workers == 2 and sorted(best.history["rank"].unique()) == [0, 1]
    assert round(float(best.load()["w"]), 6) == 0.2
    assert best.metrics["score"] == 1.4
    nothing_left([])


def test_stop_one_stop_all_and_resume(tmp_path: Path, nothing_left: Callable[..., None]) -> None:
    def steady(config: dict[str, Any]) -> None:
        import torch

        model = torch.nn.Linear(1, 1)
        before = raynb.resume(model)
        start = 0 if before is None else before.epoch + 1
        for step in range(start, 100 if config["a"] < 2 else 3):
            raynb.checkpoint(model, epoch=step, metrics={"score": step + config["a"]})
            time.sleep(0.3)

    def reached(search: Any, trial: int, steps: int) -> bool:
        rows = search.trials
        return len(rows) > trial and (rows[trial]["iterations"] or 0) >= steps

    options: dict[str, Any] = {"metric": "score", "mode": "max", "show": False}
    search = raynb.tune(
        steady,
        {"a": tune.grid_search([0, 1, 2])},
        name="steady",
        storage_path=str(tmp_path),
        block=False,
        **options,
    )
    wait(lambda: reached(search, 0, 2) and reached(search, 1, 2))
    search.stop_trial(0)
    wait(lambda: search.trials[0]["state"] == "stopped")
    assert search.trials[0]["reason"] == "stopped on request"
    wait(lambda: search.trials[2]["state"] == "finished")
    with pytest.raises(OptionError, match="there is no trial 9"):
        search.stop_trial(9)
    assert search.state == "searching"
    search.stop(60)
    result = search.wait(60)
    assert result.state == "stopped"
    states = [row["state"] for row in result.rows]
    assert states == ["stopped", "stopped", "finished"]
    done = result.rows[1]["iterations"]
    assert 2 <= done < 80
    nothing_left([row["pid"] for row in result.rows])

    resumed = raynb.tune(
        steady, {"a": tune.grid_search([0, 1, 2])}, resume=result, block=False, **options
    )
    wait(lambda: reached(resumed, 1, done + 2))
    resumed.stop(60)
    rows = resumed.wait(60).rows
    assert [row["id"] for row in rows] == [row["id"] for row in result.rows]
    assert rows[1]["iterations"] >= done + 2 and rows[0]["state"] == "stopped"
    assert rows[2]["state"] == "finished"


def test_a_users_own_tuner(tmp_path: Path) -> None:
    def own(config: dict[str, Any]) -> None:
        print("a is", config["a"], "in", os.getcwd())
        raynb.log({"extra": config["a"]})
        score(config)

    tuner = tune.Tuner(
        own,
        param_space={"a": tune.grid_search([1, 2]), "b": 0.5},
        tune_config=tune.TuneConfig(metric="score", mode="min"),
        run_config=tune.RunConfig(
            name="own", storage_path=str(tmp_path), stop={"training_iteration": 2}
        ),
    )
    result = raynb.fit(tuner, show=False)
    assert isinstance(result, raynb.TuneResult) and result.name == "own"
    assert [r["iterations"] for r in result.rows] == [2, 2]
    assert [r["reason"] for r in result.rows] == ["reached training_iteration >= 2"] * 2
    assert result.best_config == {"a": 1, "b": 0.5} and result.params == ["a"]
    assert result.best.history["score"].dropna().tolist() == [10.5, 10.6]
    assert result[1].history["extra"].dropna().tolist() == [2]
    # Its output is told, and it ran where Tune puts it.
    log = Path(result.experiment_path, "raynb", "logs", "rank-00001.log").read_text()
    assert "a is 2 in" in log and "working_dirs" in log


def test_criteria_and_budget(notebook: Any) -> None:
    notebook.run(
        "import raynb, time\nfrom ray import tune\nspace = {'a': tune.grid_search([0, 1])}"
    )
    notebook.run(
        "%%distributed_tune --space space --metric score --mode max --stop score>=3 "
        "--time-budget-s 18 --num-to-keep 1\n"
        "import ray.train, tempfile\n"
        "for step in range(200):\n"
        "    with tempfile.TemporaryDirectory() as empty:\n"
        "        ray.train.report({'score': step * config['a']},\n"
        "                         checkpoint=ray.train.Checkpoint.from_directory(empty))\n"
        "    time.sleep(0.2)"
    )
    slow, quick = notebook["result"].rows
    assert (quick["state"], quick["reason"]) == ("finished", "reached score >= 3")
    assert quick["best"] == 3.0
    assert slow["state"] == "stopped" and "time budget of 18 s" in slow["reason"]
    assert notebook["result"].state == "finished"
    # Each has one checkpoint, its last, and that is there.
    for trial in notebook["result"]:
        assert len(trial.best_checkpoints) == 1 and os.path.isdir(trial.checkpoint.path)
        told, last = trial.best_checkpoints[0][1], trial.metrics["training_iteration"]
        assert told["training_iteration"] in (last, last - 1)


def test_interrupt_keeps_what_came(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run(
        "import raynb, time\nfrom ray import tune\nspace = {'a': tune.grid_search([0, 1])}"
    )
    at_work = notebook.directory / "at-work"

    def interrupt() -> None:
        wait(at_work.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    error = notebook.error(
        "%%distributed_tune --space space --metric score --mode max --name stopped\n"
        "for step in range(300):\n"
        "    raynb.log({'score': step})\n"
        "    if step == 5:\n"
        f"        open({str(at_work)!r}, 'w').close()\n"
        "    time.sleep(0.2)"
    )
    assert isinstance(error, KeyboardInterrupt) and "--resume result" in str(error)
    result = notebook["result"]
    assert result.state == "stopped" and result.best is not None
    assert {row["state"] for row in result.rows} == {"stopped"}
    nothing_left([row["pid"] for row in result.rows])


@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bohb"])
def test_searches_of_other_packages(search: str, tmp_path: Path) -> None:
    for module, _ in SEARCHES[search]:
        pytest.importorskip(module)

    def steady(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = 0 if checkpoint is None else int(Path(checkpoint.path, "step").read_text()) + 1
        for step in range(start, 3):
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "step").write_text(str(step))
                tune.report(
                    {"score": config["a"] * config["b"]["c"] + step},
                    checkpoint=tune.Checkpoint.from_directory(directory),
                )

    space = {"a": tune.loguniform(1e-3, 1), "b": {"c": tune.choice([1, 2])}}
    result = raynb.tune(
        steady, space, metric="score", mode="max", search=search, seed=3, num_samples=4,
        max_concurrent=2, storage_path=str(tmp_path), show=False,
    )  # fmt: skip
    assert result.state == "finished" and len(result) == 4 and result.num_errors == 0
    assert all(1e-3 <= r.config["a"] <= 1 and r.config["b"]["c"] in (1, 2) for r in result)
    assert result.rows[result.best_index]["best"] == max(row["best"] for row in result.rows)
