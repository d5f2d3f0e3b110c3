"""Runs from storage: opened, listed and compared from files alone, with one clear error each."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import raynb
from raynb.engine.spec import RunSpec, write_record
from raynb.errors import OptionError, StorageError
from raynb.results.compare import Comparison
from raynb.results.runs import RunsTable
from raynb.telemetry.events import Record, RecordBatch
from raynb.telemetry.history import HistoryWriter
from raynb.telemetry.rows import new_worker

START = 1_790_000_000.0
EVIL = "<img src=x onerror=alert(1)>"


def stored(
    root: Path,
    name: str,
    *,
    state: str = "finished",
    lr: float = 0.1,
    parts: int = 3,
    metrics: tuple[str, ...] = ("loss", "acc"),
    **more: Any,
) -> Path:
    """A run as raynb's own writers leave it, without checkpoints."""
    files = pafs.LocalFileSystem()
    run = root / name
    ended = state in ("finished", "failed", "stopped")
    write_record(
        files,
        str(run),
        {
            "name": name,
            "state": state,
            "started": START + len(name),
            "ended": START + 100 if ended else None,
            "world_size": 2,
            "rows": parts * 2 * 4,
            "options": RunSpec(
                name=name, num_workers=2, config={"lr": lr, "sub": {"n": 3}}, best=("acc", "max"),
                storage_path=str(root),
            ).summary(),
            "best_seen": {"metric": "acc", "value": 1 - lr, "step": 3, "rank": 1},
            "workers": [new_worker(0), new_worker(1)],
            "versions": {"ray": "2.60.0"},
            "source": f"train({lr})",
            **more,
        },
    )  # fmt: skip
    writer = HistoryWriter(files, str(run / "raynb" / "history"))
    for part in range(parts):
        for rank in (0, 1):
            records = [
                Record(step, START + step, {m: lr / (step + 1) + rank for m in metrics})
                for step in range(part * 4, part * 4 + 4)
            ]
            writer.add(rank, 0, RecordBatch.of(records))
        writer.flush()
    return run


def test_a_run_opens_with_history_and_record(tmp_path: Path, monkeypatch: Any) -> None:
    run = stored(tmp_path, "demo")
    result = raynb.open(run)
    assert (result.name, result.state, result.duration) == ("demo", "finished", 100 - 4)
    assert result.uri == result.path == str(run)
    history = result.history
    assert len(history) == 24
    assert history.groupby("rank")["step"].apply(list).tolist() == [list(range(12))] * 2
    assert result.checkpoints.empty and result.checkpoint is None
    bundle = result._repr_mimebundle_()
    assert "image/png" in bundle and "Finished" in bundle["text/html"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for same in ("demo", "demo/", "./demo", "~/demo", f"file://{run}"):
        pd.testing.assert_frame_equal(raynb.open(same).history, history)


def test_a_corrupt_part_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = stored(tmp_path, "demo")
    (run / "raynb" / "history" / "part-000001.parquet").write_bytes(b"PAR1 not a parquet file")
    (run / "raynb" / "history" / "part-000002.parquet").write_bytes(b"")
    result = raynb.open(run)
    assert len(result.history) == 8
    text = result._repr_mimebundle_()["text/plain"]
    assert "part-000001.parquet" in text and "part-000002.parquet" in text
    assert "8 of 24 records are here" in text


def test_lost_history_is_told(tmp_path: Path) -> None:
    """Also where nothing is damaged: a record that counts more than there is."""
    for name, lost, here in (("some", "part-000001.parquet", 16), ("all", "", 0)):
        run = stored(tmp_path, name)
        history = run / "raynb" / "history"
        (history / lost).unlink() if lost else shutil.rmtree(history)
        result = raynb.open(run)
        told = f"missing: {here} of 24 records are here"
        assert len(result.history) == here
        assert told in repr(result) and told in result._repr_mimebundle_()["text/html"]
    whole = stored(tmp_path, "whole")
    assert "records are here" not in repr(raynb.open(whole))
    # What a run that goes on has counted but not yet written is not lost.
    assert "records are here" not in repr(
        raynb.open(stored(tmp_path, "on", state="running", rows=99))
    )


def test_rows_of_no_rank_are_left_out_and_told(tmp_path: Path) -> None:
    run = stored(tmp_path, "demo")
    foreign = run / "raynb" / "history" / "part-000003.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0]}), foreign)
    result = raynb.open(run)
    assert len(result.history) == 24
    assert "part-000003.parquet: rows without rank" in repr(result)
    result.plot("loss")


DEEP = "[" * 100_000


@pytest.mark.parametrize("content", ["", "{", "[1]", "7", "\x00\xff", DEEP], ids=range(6))
def test_a_corrupt_record_is_told_and_the_history_is_shown(tmp_path: Path, content: str) -> None:
    run = stored(tmp_path, "demo")
    (run / "raynb" / "record.json").write_bytes(content.encode("latin-1"))
    result = raynb.open(run)
    assert (len(result.history), result.state, result.name) == (24, "unknown", "demo")
    text = result._repr_mimebundle_()["text/plain"]
    assert "The run's record" in text and "Outcome unknown" in text
    assert "The run's record" in repr(result)
    assert raynb.runs(tmp_path).frame["state"].tolist() == ["unreadable"]
    assert "Record unreadable" in repr(raynb.runs(tmp_path))


def test_halves_of_characters_in_a_record(tmp_path: Path) -> None:
    run = stored(tmp_path, "demo")
    path = run / "raynb" / "record.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "\udc80": ["\ud800"], "message": "ok \U0001f600"}))
    record = raynb.open(run).record
    assert record["\\udc80"] == ["\\ud800"] and record["message"] == "ok \U0001f600"


def test_a_run_that_did_not_end_is_running_or_lost(tmp_path: Path) -> None:
    run = stored(tmp_path, "demo", state="running")
    ago = time.time() - 720
    for path in run.rglob("*"):
        os.utime(path, (ago, ago))
    result = raynb.open(run)
    assert result.state == "running"
    html = result._repr_mimebundle_()["text/html"]
    assert "Running or lost" in html and "last wrote to storage 12 min" in html
    table = raynb.runs(tmp_path)
    assert "Running or lost, last written 12 min" in repr(table)
    assert table.frame["duration"].isna().all()


def test_what_is_no_run_is_one_clear_error(tmp_path: Path) -> None:
    run = stored(tmp_path / "runs", "demo-1")
    (tmp_path / "other").mkdir()
    (tmp_path / "file.txt").write_text("x")
    (run / "checkpoint_0").mkdir()
    for path, said, way_out in (
        (tmp_path / "runs" / "demo-2", "nothing at", "demo-1"),
        (tmp_path / "nowhere" / "demo", "nothing at", "raynb.runs"),
        (tmp_path / "runs", "holds 1 run: demo-1", "raynb.runs"),
        (tmp_path / "other", "is no run", "record.json"),
        (tmp_path / "file.txt", "is a file", "directory"),
        (run / "raynb", "part of a run", "above"),
        (run / "checkpoint_0", "part of a run", "above"),
        ("nope://bucket/x", "can't be opened", "nope://"),
    ):
        with pytest.raises(StorageError) as found:
            raynb.open(path)
        assert said in str(found.value), found.value
        assert way_out in str(found.value), found.value
    for wrong in (None, 3, "", raynb.open(run)):
        with pytest.raises(OptionError, match="path or URI"):
            raynb.open(wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not on int"):
        raynb.runs(3)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"is a run itself(.|\n)*raynb\.open"):
        raynb.runs(run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_storage_is_one_clear_error(tmp_path: Path) -> None:
    stored(tmp_path / "runs", "demo")
    (tmp_path / "runs").chmod(0)
    try:
        for ask in (
            lambda: raynb.open(tmp_path / "runs" / "demo"),
            lambda: raynb.runs(tmp_path / "runs"),
        ):
            with pytest.raises(StorageError, match="can't be read"):
                ask()
    finally:
        (tmp_path / "runs").chmod(0o755)


def test_runs_are_listed_sorted_and_opened(tmp_path: Path) -> None:
    stored(tmp_path, "b", lr=0.3)
    stored(tmp_path, "long-name", lr=0.1, state="failed")
    stored(tmp_path, "c" + EVIL.replace("/", ""), lr=0.2, world_size=16)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "checkpoint_manager_snapshot.json").write_text("{}")
    (tmp_path / "data").mkdir()
    table = raynb.runs(str(tmp_path))
    assert isinstance(table, RunsTable)
    assert (len(table), table.others) == (4, 1)
    assert list(table)[-1] == "plain"  # when it began isn't known
    assert table.sort("name").frame["name"].tolist()[0] == "b"
    best = table.sort("best")
    assert best.frame["best"].tolist()[:3] == [0.9, 0.8, 0.7]
    assert table.sort("best", descending=False).frame["best"].tolist()[:3] == [0.7, 0.8, 0.9]
    assert best.frame["workers"].tolist()[:3] == [2, 16, 2]
    bundle = best._repr_mimebundle_()
    assert "<img" not in bundle["text/html"] and "&lt;img" in bundle["text/html"]
    for text in bundle.values():
        for word in ("4 runs", "acc 0.9 (max)", "✗ Failed", "✓ Finished", "Plain Ray run",
                     "1 other directory that is no run", "16"):  # fmt: skip
            assert word in text
    assert best[0].name == "long-name" and table["b"].record["options"]["config"]["lr"] == 0.3
    for wrong in ("best_metric", "loss"):
        with pytest.raises(OptionError, match="duration"):
            table.sort(wrong)
    with pytest.raises(StorageError, match="no run is called 'x'"):
        table["x"]
    with pytest.raises(StorageError, match="no storage path"):
        raynb.runs(tmp_path / "nowhere")
    assert len(raynb.runs(tmp_path / "data")) == 0


def test_runs_that_a_cluster_knows_are_running(tmp_path: Path) -> None:
    for name in ("lives", "another", "ended"):
        stored(tmp_path, name, state="finished" if name == "ended" else "running")
    for file in (tmp_path / "another").rglob("*"):
        os.utime(file, (1e9, 1e9))  # it is of a run that had this name long ago
    table = raynb.runs(tmp_path).with_live(["lives", "another", "ended", "elsewhere"])
    states = dict(zip(table.frame["name"], table.frame["state"], strict=True))
    assert states == {"lives": "running", "another": "running_or_lost", "ended": "finished"}
    assert "▶ Running" in str(table) and "Running or lost" in str(table)
    assert "running_or_lost" in set(raynb.runs(tmp_path).with_live([]).frame["state"])


def test_runs_of_a_loss_are_best_when_low(tmp_path: Path) -> None:
    for name, value in (("a", 0.5), ("b", 0.1), ("c", 0.3)):
        options = RunSpec(name=name, best=("loss", "min")).summary()
        stored(tmp_path, name, options=options, best_seen={"metric": "loss", "value": value})
    assert list(raynb.runs(tmp_path).sort("best")) == ["b", "c", "a"]


def test_the_notebooks_own_storage_is_the_default(tmp_path: Path, monkeypatch: Any) -> None:
    stored(tmp_path / "default", "there")
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", str(tmp_path / "default"))
    assert list(raynb.runs()) == ["there"]
    from IPython.core.interactiveshell import InteractiveShell

    stored(tmp_path / "mine", "here")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("%load_ext raynb")
        shell.run_cell(f"%config RayNB.storage_path = {str(tmp_path / 'mine')!r}")
        assert list(raynb.runs()) == ["here"]
    finally:
        shell.history_manager.end_session()
        InteractiveShell.clear_instance()


def test_compare_overlays_curves_and_shows_differing_options(tmp_path: Path) -> None:
    a = raynb.open(stored(tmp_path, "a", lr=0.1))
    stored(tmp_path, "b", lr=0.2, metrics=("loss", EVIL))
    both = raynb.compare(a, tmp_path / "b")
    assert isinstance(both, Comparison) and both.labels == ["a", "b"]
    assert both.options.loc["config.lr"].tolist() == ["0.1", "0.2"]
    assert "config.sub.n" not in both.options.index, "only what differs"
    assert set(both.options.index) == {"config.lr", "code"}
    assert both.metrics == ["loss", "acc", EVIL]
    assert both.summary["best"].tolist() == [0.9, 0.8]
    ax = both.plot("acc")
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["a", "b (has none)"]
    lines = [line for line in both.plot(x="time").get_lines() if len(line.get_xdata())]
    assert len(lines) == 2
    assert lines[0].get_ydata()[0] == pytest.approx(0.1 + 0.5), "the median of ranks 0 and 1"
    bundle = both._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    html = bundle["text/html"]
    assert "config.lr" in html and "difference of the code" in html and "-train(0.1)" in html
    assert "config.lr" in bundle["text/plain"]
    with pytest.raises(OptionError, match="acc"):
        both.plot("nothing")
    import matplotlib.pyplot as plt

    plt.close("all")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b = stored(tmp_path / "x", "demo"), stored(tmp_path / "y", "demo", lr=0.5)
    assert raynb.compare(a, b).labels == [str(a), str(b)]
    twice = raynb.compare(a, a)
    assert twice.labels == [f"{a} (1)", f"{a} (2)"]
    assert twice.options.empty
    assert "same options" in twice._repr_mimebundle_()["text/html"]


def test_compare_says_what_it_takes(tmp_path: Path) -> None:
    run = stored(tmp_path, "a")
    for wrong in ((), (run,), (run, 7), (run,) * 33):
        with pytest.raises(OptionError):
            raynb.compare(*wrong)
    with pytest.raises(StorageError, match="nothing at"):
        raynb.compare(run, tmp_path / "gone")
    empty = stored(tmp_path, "empty", parts=0)
    bundle = raynb.compare(empty, empty)._repr_mimebundle_()
    assert "No metrics" in bundle["text/html"] and "image/png" not in bundle


def test_the_record_of_another_version_opens(tmp_path: Path) -> None:
    """Fields missing, of other types, or new: shown as far as they are known."""
    odd: list[dict[str, Any]] = [
        {},
        {"state": 7, "options": [1], "rows": "many", "new": {}},
        {"name": EVIL, "state": EVIL, "best_seen": 3, "world_size": "x"},
        {"state": "finished", "started": float("nan"), "ended": 5},
    ]
    for k, record in enumerate(odd):
        run = stored(tmp_path, f"r{k}")
        (run / "raynb" / "record.json").write_text(json.dumps(record))
        html = raynb.open(run)._repr_mimebundle_()["text/html"]
        assert "<img src=x" not in html
    table = raynb.runs(tmp_path)
    assert len(table) == len(odd) and table.frame["duration"].isna().all()
    assert "<img src=x" not in table._repr_mimebundle_()["text/html"]
    raynb.compare(*(tmp_path / f"r{k}" for k in range(len(odd))))._repr_mimebundle_()
