"""RunResult: Ray's Result kept as it is, the rest joined, and a display that never raises."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import pickle
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray
import ray.train

from raynb._ray import snapshot
from raynb.engine.spec import RunSpec
from raynb.errors import CheckpointError, OptionError, TrainingError
from raynb.results import run_result
from raynb.results.checkpoints import best_index
from raynb.results.curves import curves_of, frame_with_nans, last_values
from raynb.results.run_result import RunResult
from raynb.telemetry.events import Record, RecordBatch
from raynb.telemetry.history import concat, to_frame, to_table
from raynb.telemetry.rows import new_worker

START = 1_790_000_000.0


def table(ranks: int = 2, n: int = 5, attempt: int = 0, **more: Any) -> pa.Table:
    parts = [
        to_table(
            [(rank, attempt, RecordBatch.of(
                [Record(k, START + k, {"acc": k / 10, "loss": 1 / (k + 1) + rank, **more})
                 for k in range(n)]
            ))]
        )
        for rank in range(ranks)
    ]  # fmt: skip
    return concat(parts)


def record(state: str = "finished", **more: Any) -> dict[str, Any]:
    spec = RunSpec(name="demo", num_workers=2, best=("acc", "max"))
    return {
        "name": "demo",
        "state": state,
        "started": START,
        "ended": START + 42.5,
        "world_size": 2,
        "options": spec.summary(),
        "workers": [new_worker(0), new_worker(1)],
        **more,
    }


def checkpoint(directory: Path, name: str = "model.pt", size: int = 2048) -> ray.train.Checkpoint:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(b"x" * size)
    return ray.train.Checkpoint(str(directory))


@pytest.fixture
def ray_result(tmp_path: Path) -> ray.train.Result:
    kept = [
        (checkpoint(tmp_path / f"checkpoint_00000{k}"), {"acc": acc})
        for k, acc in enumerate((math.nan, 0.5, 0.9))
    ]
    return ray.train.Result(
        metrics={"acc": 0.7},
        checkpoint=kept[-1][0],
        error=None,
        path=str(tmp_path),
        metrics_dataframe=pd.DataFrame([m for _, m in kept]),
        best_checkpoints=kept,
        return_value="back",
    )


def test_it_is_rays_result_with_rays_fields(ray_result: ray.train.Result) -> None:
    result = RunResult.of(ray_result, record=record(), history=table())
    assert isinstance(result, ray.train.Result)
    for name in ("metrics", "checkpoint", "error", "path", "metrics_dataframe",
                 "best_checkpoints", "return_value", "_storage_filesystem"):  # fmt: skip
        assert getattr(result, name) is getattr(ray_result, name)
    assert result.get_best_checkpoint("acc", "max") is ray_result.get_best_checkpoint("acc", "max")
    assert (result.name, result.state) == ("demo", "finished")
    assert (result.duration, result.num_workers) == (42.5, 2)
    assert list(result.history.columns) == ["rank", "attempt", "step", "time", "acc", "loss"]
    assert len(result.history) == 10
    assert result.record["options"]["best"] == "acc:max"


def test_it_travels(ray_result: ray.train.Result) -> None:
    result = RunResult.of(ray_result, record=record("failed"), history=table())
    result.error.result = result
    back = pickle.loads(pickle.dumps(result))
    assert isinstance(back, RunResult)
    assert back.error.result is back
    assert back.history.equals(result.history)


def test_a_failed_run_without_checkpoints(tmp_path: Path) -> None:
    error = {"title": "ValueError: no", "rank": 1, "text": "Traceback", "line": None}
    result = RunResult.of(
        None, record=record("failed", error=error), history=table(), path=str(tmp_path)
    )
    assert result.state == "failed"
    assert isinstance(result.error, TrainingError)
    assert result.error.rank == 1
    assert "ValueError: no" in str(result.error)
    assert result.checkpoint is None
    assert result.path == str(tmp_path)
    assert len(result.history) == 10
    assert "ValueError: no" in repr(result)
    # Ray's error names no cause; the record does.
    headline = RunResult.of(None, record=record("failed", error=error), history=table(),
                            error=RuntimeError("failed due to worker errors:\n1/0"))  # fmt: skip
    assert "error        ValueError: no" in repr(headline)
    given = RuntimeError("mine")
    assert RunResult.of(None, record=record("failed"), history=table(), error=given,
                        path=str(tmp_path / "none")).error is given  # fmt: skip


def test_a_stopped_run_is_no_error(tmp_path: Path) -> None:
    result = RunResult.of(None, record=record("stopped"), history=table(), path=str(tmp_path))
    assert (result.state, result.error) == ("stopped", None)
    assert "stopped" in repr(result)


def test_a_run_whose_supervisor_died() -> None:
    dead = RunResult.of(None, record=record("running", ended=None), history=table(),
                        error=RuntimeError("gone"), path="/nowhere/x")  # fmt: skip
    assert dead.state == "failed"
    assert dead.duration is None
    assert "gone" in dead._repr_mimebundle_()["text/html"]


def test_what_a_failed_run_left_on_storage_is_used(
    ray_result: ray.train.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def from_path(path: str, storage_filesystem: object = None) -> ray.train.Result:
        asked.append((path, storage_filesystem))
        return ray_result

    monkeypatch.setattr(run_result.Result, "from_path", from_path)
    filesystem = pa.fs.LocalFileSystem()
    result = RunResult.of(
        None, record=record("failed"), history=table(), filesystem=filesystem, path="/runs/demo"
    )
    assert asked == [("/runs/demo", filesystem)]
    assert result.checkpoint is ray_result.checkpoint
    assert result.state == "failed"
    assert result.error is not None


def test_a_broken_snapshot_is_told_not_raised(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_manager_snapshot.json").write_text("{")
    result = RunResult.of(None, record=record("stopped"), history=table(), path=str(tmp_path))
    assert result.best_checkpoints is None
    assert "can't be read" in result._repr_mimebundle_()["text/plain"]


def left(run: Path, *checkpoints: tuple[str, dict[str, Any]], latest: str = "checkpoint_3") -> Path:
    """A run's directory as Ray leaves it, with Ray's list of its checkpoints."""
    listed = []
    for name, metrics in checkpoints:
        (run / name).mkdir(parents=True)
        (run / name / "model.pt").write_bytes(b"x")
        listed.append({"version": 0, "checkpoint_dir_name": name, "metrics": metrics})
    content = {
        "ray_version": ray.__version__,
        "checkpoint_results": listed,
        "checkpoint_report_indices": list(range(len(listed))),
        "latest_checkpoint_result": next(e for e in listed if e["checkpoint_dir_name"] == latest),
        "pending_training_results": [],
        "pending_validation_specs": [],
        "current_report_index": len(listed),
        "validated_checkpoint_dir_names": [],
        "timed_out_validation_checkpoint_dir_names": [],
        "failed_validation_checkpoint_dir_names": [],
    }
    (run / "checkpoint_manager_snapshot.json").write_text(json.dumps(content))
    return run


#: Ray's order: the best last; the latest, kept for being that, is the worst.
LEFT = (
    ("checkpoint_3", {"acc": 0.3}),
    ("checkpoint_1", {"acc": 0.7}),
    ("checkpoint_2", {"acc": 0.9}),
)


def names_in(result: RunResult) -> list[str]:
    return [Path(c.path).name for c, _ in result.best_checkpoints or ()]


def opened(run: Path, **options: Any) -> RunResult:
    given = record()
    given["options"] |= options
    return RunResult.of(None, record=given, history=table(), path=str(run))


@pytest.mark.parametrize("other_version", [False, True])
def test_a_latest_checkpoint_beside_the_kept_ones(tmp_path: Path, other_version: bool) -> None:
    """Ray's result of a run has ``num_to_keep`` checkpoints, its list on storage the latest too."""
    run = left(tmp_path, *LEFT)
    if other_version:
        listed = run / "checkpoint_manager_snapshot.json"
        listed.write_text(
            json.dumps({**json.loads(listed.read_text()), "current_report_index": "?"})
        )
    result = opened(run, num_to_keep=2)
    assert names_in(result) == ["checkpoint_1", "checkpoint_2"]
    assert result.metrics_dataframe is not None
    assert result.metrics_dataframe["acc"].tolist() == [0.7, 0.9]
    assert result.checkpoint is not None and result.metrics == {"acc": 0.3}
    assert Path(result.checkpoint.path).name == "checkpoint_3"
    for keep in (None, 0, True, "2", 3, 9):
        assert len(names_in(opened(run, num_to_keep=keep))) == 3


def test_a_checkpoint_that_is_gone_takes_no_other_with_it(tmp_path: Path) -> None:
    run = left(tmp_path, *LEFT)
    shutil.rmtree(run / "checkpoint_2")
    result = opened(run, num_to_keep=2)
    assert names_in(result) == ["checkpoint_3", "checkpoint_1"]
    told = "checkpoint_2, can't be found: 2 of 3 listed checkpoints can be used"
    assert told in repr(result) and told in result._repr_mimebundle_()["text/plain"]
    assert [row.best for row in result._checkpoint_rows()] == [False, True]
    # The best of what is left isn't passed off as the best.
    with pytest.warns(UserWarning, match="can't be found"), pytest.raises(CheckpointError):
        result.load()
    shutil.rmtree(run / "checkpoint_3")
    result = opened(run)
    assert result.checkpoint is not None and result.metrics == {"acc": 0.7}


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"checkpoint_results": 3}', "[" * 100_000]
)
def test_without_rays_list_the_directories_are_used(tmp_path: Path, content: str | None) -> None:
    run = left(tmp_path, *LEFT)
    (run / "checkpoint_manager_snapshot.json").unlink()
    if content is not None:
        (run / "checkpoint_manager_snapshot.json").write_text(content)
    result = opened(run, num_to_keep=2)
    assert names_in(result) == ["checkpoint_1", "checkpoint_2", "checkpoint_3"]
    assert result.checkpoint is not None and Path(result.checkpoint.path).name == "checkpoint_3"
    assert (result.metrics, result.metrics_dataframe) == (None, None)
    assert "3 checkpoints found" in repr(result)
    assert "only with a checkpoint" not in repr(result)
    result._repr_mimebundle_()


def test_names_in_rays_list_lead_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run = left(tmp_path / "run", *LEFT)
    listed = run / "checkpoint_manager_snapshot.json"
    listed.write_text(listed.read_text().replace("checkpoint_2", "../outside"))
    assert names_in(opened(run)) == ["checkpoint_3", "checkpoint_1"]


def test_opening_a_run_is_no_news_of_rays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ray tells of a list that it finds as if training were to begin in its directory."""
    log = logging.getLogger(snapshot._LOGGER)
    with caplog.at_level(logging.INFO, log.name):
        log.addHandler(caplog.handler)
        try:
            opened(left(tmp_path, *LEFT))
            assert not caplog.records
            # The same of Ray's own, so that the test knows what it looks for.
            run_result.Result.from_path(str(tmp_path))
            assert "A run snapshot was found" in caplog.text
        finally:
            log.removeHandler(caplog.handler)


def test_the_display_lists_checkpoints(ray_result: ray.train.Result) -> None:
    bundle = RunResult.of(ray_result, record=record(), history=table())._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    text = bundle["text/plain"]
    lines = [line.split()[:-3] for line in text.splitlines() if line.startswith("  [")]
    # index, name, step (of the history's only record with this metric), metric, size
    assert lines == [
        ["[0]", "checkpoint_000000", "n/a", "NaN", "2.0", "kiB"],
        ["[1]", "checkpoint_000001", "n/a", "0.5", "2.0", "kiB"],
        ["[2]", "checkpoint_000002", "★", "best", "n/a", "0.9", "2.0", "kiB"],
    ]
    path = ray_result.best_checkpoints[2][0].path
    assert f'weights = raynb.load_checkpoint("{path}")  # [2] ★ best' in text
    assert "import raynb  # [2] ★ best\nweights = " in bundle["text/html"]
    assert bundle["text/html"].count("raynb.load_checkpoint") == 3
    assert "class=" not in bundle["text/html"], "no place for controls without a kernel"
    assert "metrics is None" not in text


def test_the_checkpoints_as_a_frame(ray_result: ray.train.Result) -> None:
    ray_result.best_checkpoints[1][1]["acc"] = 0.3  # as at step 3
    result = RunResult.of(ray_result, record=record(), history=table())
    frame = result.checkpoints
    assert frame["name"].tolist() == [f"checkpoint_00000{k}" for k in range(3)]
    assert frame["best"].tolist() == [False, False, True]
    assert frame["size"].tolist() == [2048] * 3
    assert frame["files"].tolist() == [["model.pt"]] * 3
    assert math.isnan(frame["step"][0]) and frame["step"][1] == 3
    assert frame["acc"].tolist()[1:] == [0.3, 0.9]
    assert (abs(frame["saved"] - time.time()) < 60).all()


def test_storage_is_listed_once(ray_result: ray.train.Result, tmp_path: Path) -> None:
    result = RunResult.of(ray_result, record=record(), history=table())
    first = result.checkpoints
    for kept, _ in ray_result.best_checkpoints:
        shutil.rmtree(kept.path)
    pd.testing.assert_frame_equal(result.checkpoints, first)
    unread = RunResult.of(ray_result, record=record(), history=table())
    assert unread.checkpoints["size"].isna().all()


@pytest.mark.parametrize(
    ("metrics", "best", "found"),
    [
        ([{"a": 1}, {"a": 3}, {"a": 2}], ("a", "max"), 1),
        ([{"a": 1}, {"a": 3}, {"a": 2}], ("a", "min"), 0),
        ([{"e": {"a": 1}}, {"e": {"a": 3}}], ("e/a", "max"), 1),
        ([{"e/a": 1}, {"e/a": 3}], ("e/a", "min"), 0),
        ([{"a": math.nan}, {"a": "high"}, {}, None, {"a": True}, {"a": 1}], ("a", "min"), 5),
        ([{"a": 1}], ("b", "min"), None),
        ([{"a": 1}], None, None),
        ([], ("a", "min"), None),
    ],
)
def test_best_also_of_nested_and_absent_metrics(metrics: Any, best: Any, found: Any) -> None:
    assert best_index(metrics, best) == found


def test_a_step_is_told_only_where_it_is_sure() -> None:
    twice = concat([table(), table(attempt=1)])  # a restart at the same steps: one step each
    kept = [(ray.train.Checkpoint("/gone/checkpoint_0"), {"acc": 0.3, "loss": 0.25}),
            (ray.train.Checkpoint("/gone/checkpoint_1"), {"acc": 0.3, "loss": 7}),
            (ray.train.Checkpoint("/gone/checkpoint_2"), {"phase": "warm"}),
            (ray.train.Checkpoint("/gone/checkpoint_3"), None)]  # fmt: skip
    ended = ray.train.Result(None, None, None, "/gone", best_checkpoints=kept)
    steps = RunResult.of(ended, record=record(), history=twice).checkpoints["step"]
    assert steps.fillna(-1).tolist() == [3, -1, -1, -1]
    same = table(const=1.0).select(["rank", "attempt", "step", "time", "const"])
    kept[:] = [(ray.train.Checkpoint("/gone/checkpoint_0"), {"const": 1.0})]
    assert RunResult.of(ended, record=record(), history=same).checkpoints["step"].isna().all()


def test_no_key_in_an_address_is_shown(ray_result: ray.train.Result) -> None:
    result = RunResult.of(
        ray_result, record=record(), history=table(), uri="s3://key:se%2Fcret@bucket/runs/demo?x=1"
    )
    bundle = result._repr_mimebundle_()
    for text in (bundle["text/plain"], bundle["text/html"], repr(result)):
        assert "cret" not in text and "s3://bucket/runs/demo" in text
    assert 'raynb.load_checkpoint("s3://bucket/runs/demo/checkpoint_000002?x=1")' in str(bundle)


def test_without_option_best_none_is_marked(ray_result: ray.train.Result) -> None:
    plain = record()
    plain["options"] = {**plain["options"], "best": None}
    text = RunResult.of(ray_result, record=plain, history=table())._repr_mimebundle_()["text/plain"]
    assert "★" not in text


def test_many_files_are_counted(tmp_path: Path) -> None:
    for name in ("b.json", "c/d.bin", "weights.safetensors", "a.txt", "z.txt"):
        kept = checkpoint(tmp_path / "checkpoint_000000", name)
    result = RunResult.of(
        ray.train.Result(None, kept, None, str(tmp_path), best_checkpoints=[(kept, {})]),
        record=record(),
        history=table(),
    )
    assert "a.txt, b.json, c/d.bin and 2 more" in result._repr_mimebundle_()["text/html"]
    assert result.checkpoints["size"].tolist() == [5 * 2048]


def test_the_environment_and_the_code_with_its_hash(ray_result: ray.train.Result) -> None:
    workers = [new_worker(0) | {"device": "Fast <CPU>", "node": "n1"}, new_worker(1)]
    told = record(source="import torch", label="Cell In[3]", workers=workers,
                  versions={"python": "3.11.7", "ray": "2.60.0"})  # fmt: skip
    html = RunResult.of(ray_result, record=told, history=table())._repr_mimebundle_()["text/html"]
    digest = hashlib.sha256(b"import torch").hexdigest()[:16]
    for text in ("1 × Fast &lt;CPU&gt;, 1 × n/a", "n1", "2.60.0", f"Cell In[3], sha256 {digest}"):
        assert text in html


def test_metrics_none_is_explained(tmp_path: Path) -> None:
    result = RunResult.of(
        ray.train.Result(None, None, None, str(tmp_path)), record=record(), history=table()
    )
    assert result.metrics is None
    text = result._repr_mimebundle_()["text/plain"]
    assert "metrics is None: Ray keeps metrics only with a checkpoint" in text
    assert "all 10 records are in .history" in text


def test_no_display_raises_when_storage_or_all_else_is_broken(
    ray_result: ray.train.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ray.train.Checkpoint(str(tmp_path / "gone" / "checkpoint_000007"))
    ray_result.best_checkpoints.append((gone, None))
    result = RunResult.of(ray_result, record=record(), history=table())
    text = result._repr_mimebundle_()["text/plain"]
    assert re.search(r"\[3\] +checkpoint_000007 +n/a +n/a +n/a +n/a +n/a", text)
    assert "can't be read" in text

    def broken(*_: object) -> None:
        raise OSError("storage is away")

    monkeypatch.setattr(run_result, "bundle", broken)
    assert "storage is away" in result._repr_mimebundle_()["text/plain"]
    result.history = None  # type: ignore[assignment]
    result.best_checkpoints = 7
    assert "RunResult" in repr(result)
    assert "RunResult" in result._repr_mimebundle_()["text/plain"]


def test_repr_is_short_and_plain(ray_result: ray.train.Result) -> None:
    result = RunResult.of(ray_result, record=record(name="a\x1b[31m\nb"), history=table())
    lines = repr(result).splitlines()
    assert lines[0] == "RunResult 'a b' · finished in 42 s · 2 workers"
    assert lines[2] == "  history      10 records of 2 ranks: acc, loss"
    assert len(lines) == 5


def nan_table() -> pa.Table:
    records = [Record(0, START, {"loss": 1.0, "lr": 0.1}), Record(1, START, {"loss": math.nan}),
               Record(2, START, {"lr": 0.2})]  # fmt: skip
    later = to_table([(1, 0, RecordBatch.of([Record(0, START, {"loss": 5.0})]))])
    # Rank 1 was written first: the history's order is another one.
    return concat([later, to_table([(0, 0, RecordBatch.of(records))])])


def test_a_logged_nan_is_told_from_an_absent_value() -> None:
    frame, nan_rows = frame_with_nans(nan_table())
    assert {k: v.tolist() for k, v in nan_rows.items()} == {"loss": [1]}
    pd.testing.assert_frame_equal(frame, to_frame(nan_table()))
    curves = curves_of(frame, nan_rows)
    loss = next(c for c in curves if (c.metric, c.rank) == ("loss", 0))
    assert loss.step.tolist() == [0, 1]
    assert math.isnan(last_values(curves, "loss")[0])
    assert last_values(curves, "lr") == {0: 0.2}
    text = RunResult.of(None, record=record("stopped"), history=nan_table(), path="/none/x")
    assert "NaN" in text._repr_mimebundle_()["text/plain"]


def test_an_empty_history_and_an_empty_record() -> None:
    empty = RunResult.of(None, record={}, history=concat([]), path="/none/x")
    assert (empty.name, empty.num_workers, empty.duration) == ("x", None, None)
    assert "0 records" in repr(empty)
    assert "No metrics" in empty._repr_mimebundle_()["text/html"]
    assert len(RunResult(metrics=None, checkpoint=None, error=None, path="").history) == 0


def test_text_metrics_are_shown() -> None:
    result = RunResult.of(
        None, record=record("stopped"), history=table(phase="warm"), path="/none/x"
    )
    assert "phase" in result._repr_mimebundle_()["text/plain"]
    assert "warm" in result._repr_mimebundle_()["text/plain"]


@pytest.fixture
def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def plotted() -> RunResult:
    history = concat([table(), table(attempt=1), table(ranks=1, n=2, attempt=2, extra=1.0)])
    return RunResult.of(None, record=record("stopped"), history=history, path="/none/x")


def test_plot_draws_the_loss_of_each_rank_and_attempt(axes: Any) -> None:
    assert plotted().plot(ax=axes) is axes
    drawn = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert len(drawn) == 5  # 2 + 2 + 1
    assert axes.get_ylabel() == "loss"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["rank 0", "rank 1"]


def test_plot_takes_metrics_ranks_and_time(axes: Any) -> None:
    plotted().plot(["acc", "loss"], ranks=[1], x="time", ax=axes)
    drawn = [line for line in axes.get_lines() if line.get_linewidth() > 1]
    assert len(drawn) == 4
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert sorted(labels) == ["acc · rank 1", "loss · rank 1"]
    assert min(line.get_xdata().min() for line in drawn) == 0
    assert "seconds" in axes.get_xlabel()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"metrics": "los"}, "no metric 'los'(.|\n)*it has acc, loss"),
        ({"metrics": 3}, "metrics must be one or a list"),
        ({"metrics": [["loss"]]}, r"no metric \['loss'\]"),
        ({"metrics": "note"}, "'note' is no number(.|\n)*numbers are acc, loss"),
        ({"ranks": [7]}, "no rank 7(.|\n)*it has 0, 1"),
        ({"ranks": "0"}, "no rank '0'"),
        ({"ranks": 1.5}, "ranks must be one or a list"),
        ({"ranks": [[0]]}, r"no rank \[0\]"),
        ({"x": "epoch"}, "x must be"),
    ],
)
def test_plot_says_what_there_is(wrong: dict[str, Any], said: str, axes: Any) -> None:
    result = RunResult.of(None, record=record(), history=table(note="text"), path="/none/x")
    with pytest.raises(OptionError, match=said):
        result.plot(ax=axes, **wrong)


@pytest.mark.parametrize("rank", [1, np.int64(1), [1], range(1, 2)])
def test_plot_takes_one_rank(rank: Any, axes: Any) -> None:
    plotted().plot("loss", rank, ax=axes)
    # Rank 1 alone, of two attempts.
    assert len([line for line in axes.get_lines() if line.get_linewidth() > 1]) == 2
