"""TuneResult from a record and a history alone: tables, plots, display, and hostile content."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from ray.tune import ResultGrid

import raynb
from raynb.errors import OptionError
from raynb.telemetry.events import Record, RecordBatch
from raynb.telemetry.history import HistoryWriter, to_table
from raynb.telemetry.trials import lane_of, new_trial, result_lane

LRS = (0.1, 0.01, 0.001, 1.0)
#: Accuracy by iteration of each trial; the third is pruned, the last one fails.
CURVES = ((0.5, 0.9, 0.7), (0.4, 0.6, 0.8), (0.1,), ())


def record(**changes: Any) -> dict[str, Any]:
    trials = []
    for trial, (lr, values) in enumerate(zip(LRS, CURVES, strict=True)):
        row = new_trial(trial) | {
            "id": f"t{trial}",
            "state": ("finished", "finished", "pruned", "failed")[trial],
            "reason": ("ended by itself", "ended by itself", "pruned by ASHA at iteration 1",
                       "ValueError: <b>bad</b>")[trial],
            "config": {"lr": lr, "opt/name": ("sgd", "adam")[trial % 2]},
            "iterations": len(values) or None,
            "latest": values[-1] if values else None,
            "best": max(values) if values else None,
            "best_step": values.index(max(values)) + 1 if values else None,
            "time_s": 2.0 * len(values) or None,
            "started": 1000.0,
            "ended": 1010.0,
            "details": {
                "directory": f"trial_{trial}",
                "config": {"lr": lr, "opt": {"name": ("sgd", "adam")[trial % 2]}},
                "last_result": {"acc": values[-1] if values else "nan", "done": True},
                "checkpoints": [
                    {"name": f"checkpoint_{k:06d}", "metrics": {"acc": v}}
                    for k, v in enumerate(values)
                ],
            },
        }  # fmt: skip
        if trial == 3:
            row["error"] = {"title": "ValueError: <b>bad</b>", "rank": 0, "text": "Traceback",
                            "line": "Cell In[3], line 4: raise"}  # fmt: skip
        trials.append(row)
    return {
        "format": 1, "kind": "tune", "name": "grid", "state": "finished", "metric": "acc",
        "mode": "max", "metrics": ["acc"], "lanes": 1, "started": 1000.0, "ended": 1020.0,
        "options": {"scheduler": "asha", "search": "random"}, "trials": trials, "workers": [],
        "params": [
            {"name": "lr", "kind": "float", "log": True, "low": 1e-3, "high": 1.0,
             "choices": None, "text": ""},
            {"name": "opt/name", "kind": "choice", "log": False, "low": None, "high": None,
             "choices": ["sgd", "adam"], "text": ""},
        ],
        **changes,
    }  # fmt: skip


def taken() -> list[tuple[int, int, RecordBatch]]:
    found = []
    for trial, values in enumerate(CURVES):
        results = [
            Record(k, 1000.0 + k, {"acc": v, "time_total_s": 2.0 * k})
            for k, v in enumerate(values, 1)
        ]
        steps = [Record(k, 1000.0 + k, {"loss": 1 / k}) for k in range(1, 5)]
        if results:
            found.append((result_lane(trial), 0, RecordBatch.of(results)))
        found.append((lane_of(trial, 0, 1), 0, RecordBatch.of(steps)))
    return found


def result(table: pa.Table | None = None, **changes: Any) -> raynb.TuneResult:
    history = to_table(taken()) if table is None else table
    return raynb.TuneResult.of(None, record=record(**changes), history=history, path="/data/grid")


def test_a_result_grid_without_rays_state() -> None:
    grid = result()
    assert isinstance(grid, ResultGrid)
    assert (len(grid), grid.num_errors, grid.num_terminated) == (4, 1, 3)
    assert grid.best_index == 0 and grid.best_config == {"lr": 0.1, "opt": {"name": "sgd"}}
    # Best at any iteration; by Ray's default the last values count.
    assert grid.get_best_result().config["lr"] == 0.01
    assert grid.get_best_result(scope="all").config["lr"] == 0.1
    assert grid.get_best_result(mode="min").config["lr"] == 0.001
    assert [type(e).__name__ for e in grid.errors] == ["TrainingError"]
    with pytest.raises(RuntimeError, match="has reported 'loss'"):
        grid.get_best_result("loss", "min")
    with pytest.raises(OptionError, match="scope"):
        grid.get_best_result(scope="first")
    with pytest.raises(IndexError):
        grid[4]
    assert len(list(grid)) == 4 and grid[-1].error is not None


def test_a_trial_is_a_run_result() -> None:
    grid = result()
    trial = grid[0]
    assert trial.path == "/data/grid/trial_0" and trial.state == "finished"
    assert trial.metrics == {"acc": 0.7, "done": True, "config": grid.best_config}
    assert trial.checkpoint.path == "/data/grid/trial_0/checkpoint_000002"
    assert trial.history["loss"].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert "acc" not in trial.history  # the results are apart
    assert trial.metrics_dataframe["acc"].tolist() == [0.5, 0.9, 0.7]
    assert trial.metrics_dataframe["training_iteration"].tolist() == [1, 2, 3]
    assert grid[2].state == "stopped" and "pruned by ASHA" in grid[2].record["message"]
    assert grid[3].metrics["acc"] != grid[3].metrics["acc"]  # NaN again
    assert "trial 0" in repr(trial) and trial._repr_mimebundle_()["text/html"]


def test_ranks_of_worker_groups_come_apart() -> None:
    parts = [
        (lane_of(trial, rank, 2), 0, RecordBatch.of([Record(0, 1.0, {"loss": trial * 10 + rank})]))
        for trial in range(4)
        for rank in range(2)
    ]
    grid = result(to_table(parts), lanes=2)
    assert grid[3].history[["rank", "loss"]].values.tolist() == [[0, 30], [1, 31]]
    assert grid[3].path == "/data/grid/trial_3/train"
    assert grid.history["trial"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_tables() -> None:
    grid = result()
    frame = grid.dataframe
    assert frame["lr"].tolist() == list(LRS) and frame["best acc"].tolist()[:3] == [0.9, 0.8, 0.1]
    ray_frame = grid.get_dataframe("acc", "max")
    assert ray_frame["acc"].tolist()[:3] == [0.9, 0.8, 0.1]
    assert ray_frame["config/opt/name"].tolist() == ["sgd", "adam", "sgd", "adam"]
    assert grid.results["trial"].tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_display_is_a_table_like_a_papers() -> None:
    shown = result()._repr_mimebundle_()
    text, html = shown["text/plain"], shown["text/html"]
    lines = [line.split() for line in text.splitlines()]
    top = next(k for k, line in enumerate(lines) if line[:2] == ["trial", "lr"])
    assert lines[top + 1][:3] == ["★", "0", "0.1"] and lines[top + 3][:2] == ["3", "2"]
    assert "4 trials: 2 finished, 1 pruned, 1 failed" in text
    assert "best         acc 0.9 (max) in trial 0: lr = 0.1, opt/name = sgd" in text
    assert "Cell In[3], line 4: raise" in text
    assert "&lt;b&gt;bad" in html and "<b>bad" not in html
    assert shown["image/png"] and len(html) < 200_000


@pytest.mark.parametrize("kind", ["curves", "parallel", "scatter"])
def test_plots(kind: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    grid = result()
    for param in grid.params:
        ax = grid.plot(kind, param=param)
        drawn = len(ax.lines) if kind != "scatter" else len(ax.collections)
        assert drawn >= 3
        ax.figure.canvas.draw()
    with pytest.raises(OptionError, match="no trial reported 'loss'"):
        grid.plot(kind, metric="loss")
    with pytest.raises(OptionError, match="kind must be"):
        grid.plot("pie")


def test_parallel_coordinates_are_of_trials_with_a_value() -> None:
    ax = result().plot("parallel")
    assert sum(len(line.get_xdata()) == 3 for line in ax.lines) == 3  # the fourth never reported


def test_iterations_are_whole_numbers() -> None:
    ax = result().plot("curves")
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    ticks = [t for t in ax.get_xticks() if low <= t <= high]
    assert ticks and all(t == int(t) for t in ticks)


@pytest.mark.parametrize("span", [(1e-6, 1.0), (1e-4, 1e-2), (1e-4, 1.1e-3), (0.02, 0.05), (3, 7)])
def test_labels_of_a_log_axis_have_room(span: tuple[float, float]) -> None:
    grid = result()
    for row, share in zip(grid.record["trials"], (0.0, 0.4, 0.7, 1.0), strict=True):
        row["config"]["lr"] = span[0] * (span[1] / span[0]) ** share
    ax = grid.plot("scatter", param="lr")
    ax.figure.canvas.draw()
    shown = [t.get_window_extent() for t in ax.get_xticklabels(which="both") if t.get_text()]
    inside = [b for b in shown if ax.bbox.x0 - 1 <= (b.x0 + b.x1) / 2 <= ax.bbox.x1 + 1]
    assert len(inside) >= 2
    boxes = sorted((b.x0, b.x1) for b in inside)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(boxes))


def test_open_makes_it_again(tmp_path: Path) -> None:
    import pyarrow.fs as pafs

    home = tmp_path / "grid"
    writer = HistoryWriter(pafs.LocalFileSystem(), f"{home}/raynb/history")
    for lane, attempt, records in taken():
        writer.add(lane, attempt, records)
    writer.flush()
    (home / "raynb" / "record.json").write_text(json.dumps(record()))
    checkpoint = home / "trial_0" / "checkpoint_000001"
    checkpoint.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, checkpoint / "model.pt")
    # Ray's own state is pickled: opening must not read it.
    (home / "tuner.pkl").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    grid = raynb.open(home)
    assert isinstance(grid, raynb.TuneResult) and grid.best_index == 0
    assert grid.best.load("best")["w"].tolist() == [1.0, 1.0]
    assert grid.results["acc"].tolist() == [v for values in CURVES for v in values]
    assert list(raynb.runs(tmp_path)) == ["grid"]
    assert len(raynb.compare(grid[0], grid[1]).results) == 2
    for search in (grid, home):
        with pytest.raises(OptionError, match=r"compare its trials: raynb\.compare\(result\[0\]"):
            raynb.compare(search, grid[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": None},
        {"trials": [None, 3, {}, {"trial": "x"}]},
        {"trials": [{"trial": 0, "config": 3, "details": "x", "best": "y", "state": {}}]},
        {"metric": 3, "mode": "x", "params": 7, "metrics": 5},
        {"metric": None, "mode": None},
        {"lanes": "many", "workers": {"a": 1}, "options": None},
        {"state": "running", "ended": None},
    ],
)
def test_a_broken_record_is_shown_all_the_same(changes: dict[str, Any]) -> None:
    grid = result(**changes)
    shown = grid._repr_mimebundle_()
    assert "can't be made" not in shown["text/plain"], shown["text/plain"]
    for trial in grid:
        assert "can't be made" not in repr(trial)
    grid.dataframe, grid.get_dataframe(), grid.results, grid.history, grid.errors


def test_names_of_directories_stay_inside() -> None:
    rows = record()["trials"]
    rows[0]["details"] |= {
        "directory": "../../etc",
        "checkpoints": [{"name": "../../../passwd"}, {"name": ".."}],
    }
    trial = result(trials=rows)[0]
    assert trial.path == "/data/grid/etc"
    assert [c.path for c, _ in trial.best_checkpoints] == ["/data/grid/etc/passwd"]


def test_no_value_at_all() -> None:
    rows = record()["trials"]
    for row in rows:
        row |= {"best": None, "latest": math.nan}
    grid = result(to_table([]), trials=rows)
    assert grid.best is None and grid.best_config is None
    shown = grid._repr_mimebundle_()
    assert "No trial reported the metric." in shown["text/html"] and "image/png" not in shown
