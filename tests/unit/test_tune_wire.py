"""A search's picture: what the digest tells, what a mirror makes of it, and the golden messages."""

from __future__ import annotations

import base64
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynb.panel.wire import encode
from raynb.telemetry.digest import Cursor
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.trials import SearchDigest, SearchMirror, lane_of, new_trial, numeric

GOLDEN = Path(__file__).parent.parent / "golden"
STARTED = 1_750_000_000.0
FACTS: dict[str, Any] = {
    "metric": "val_accuracy",
    "mode": "max",
    "planned": 4,
    "num_samples": 4,
    "scheduler": "asha",
    "search": "random",
    "max_concurrent": None,
    "time_budget_s": 600.0,
    "stop": "val_accuracy >= 0.95",
    "workers": 2,
    "params": [
        {"name": "lr", "kind": "float", "log": True, "low": 1e-4, "high": 0.1, "choices": None,
         "text": "float from 0.0001 to 0.1, log scale"},
        {"name": "model/width", "kind": "choice", "log": False, "low": None, "high": None,
         "choices": [64, 128, "<b>wide</b>"], "text": "choice of [64, 128, '<b>wide</b>']"},
    ],
}  # fmt: skip


def search() -> SearchDigest:
    digest = SearchDigest("golden-search", FACTS, storage="/data/golden-search", started=STARTED)
    digest.set_run(state="searching", now=STARTED + 5)
    digest.event("searching", at=STARTED + 1)
    for trial in range(3):
        digest.set_trial(
            trial,
            id=f"ab12_{trial:05d}",
            name=f"trial_ab12_{trial:05d}",
            config={"lr": 0.01 / (trial + 1), "model/width": (64, 128, "<b>wide</b>")[trial]},
        )
    for trial in range(2):
        digest.set_trial(trial, state="running", started=STARTED + 2)
        for rank in range(2):
            lane = lane_of(trial, rank, 2)
            digest.set_worker(lane, node="node-a", ip="10.0.0.1", pid=4_000 + lane)
            digest.apply(
                Batch(
                    lane,
                    0,
                    1,
                    records=RecordBatch.of([Record(0.0, STARTED + 2, {"step_loss": 1.0}, 0.1)]),
                    logs=[(1, "out", f"trial {trial} rank {rank} <script>alert(1)</script>")],
                    status="running",
                )
            )
        for step in (1, 2):
            values = {"val_accuracy": 0.2 * step + trial / 10, "loss": math.nan if step == 2 else 1}
            digest.add_result(trial, step, STARTED + 2 + step, values, 1.5 * step)
    return digest


def golden_messages() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    digest, mirror, cursor = search(), SearchMirror(), Cursor()
    mirror.apply(digest.since(cursor))
    snapshot = encode(mirror.snapshot(), "snapshot", 1, STARTED)
    digest.add_result(0, 3, STARTED + 6, {"val_accuracy": 0.9, "loss": 0.25}, 4.5)
    digest.set_trial(0, state="finished", reason="ended by itself", reason_kind="finished",
                     ended=STARTED + 6.5, checkpoint=3)  # fmt: skip
    digest.set_trial(
        1,
        state="failed",
        reason="out of memory: <8 GiB>",
        reason_kind="oom",
        ended=STARTED + 6.5,
        error={"title": "torch.OutOfMemoryError: <8 GiB>", "rank": 1, "text": "Traceback …",
               "line": "Cell In[3], line 9: model(x)"},
    )  # fmt: skip
    digest.set_run(cluster={"CPU": {"used": 2.0, "total": 4.0}}, now=STARTED + 7)
    return {
        "wire_tune_snapshot.json": snapshot,
        "wire_tune_delta.json": encode(digest.since(cursor), "delta", 2, STARTED),
    }


@pytest.mark.parametrize("name", list(golden_messages()))
def test_golden_messages(name: str) -> None:
    """The browser's tests read the same files; RAYNB_WRITE_GOLDEN=1 writes them anew."""
    content, buffers = golden_messages()[name]
    message = {"content": content, "buffers": [base64.b64encode(b).decode() for b in buffers]}
    path = GOLDEN / name
    if os.environ.get("RAYNB_WRITE_GOLDEN"):
        text = json.dumps(message, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(message))


def test_a_delta_holds_what_changed() -> None:
    (snapshot, _), (delta, buffers) = golden_messages().values()
    assert [row["trial"] for row in snapshot["trials"]] == [0, 1, 2]
    assert set(snapshot["trials"][2]) == set(new_trial(2))
    assert snapshot["run"]["best_trial"] == {
        "trial": 1, "id": "ab12_00001", "value": 0.5, "step": 2,
        "config": {"lr": 0.005, "model/width": 128},
    }  # fmt: skip
    assert snapshot["run"]["counts"]["running"] == 2 and snapshot["run"]["counts"]["pending"] == 1
    assert snapshot["run"]["metrics"] == ["val_accuracy", "loss"]
    assert snapshot["trials"][0]["last"]["loss"] is None  # NaN
    # Curves are Tune's results, one a trial, and not what its ranks logged besides.
    assert {(s["metric"], s["rank"]) for s in snapshot["series"]} == {
        ("val_accuracy", 0), ("loss", 0), ("val_accuracy", 1), ("loss", 1),
    }  # fmt: skip
    finished, failed = delta["trials"]
    assert "config" not in finished and "latest" not in failed
    assert (finished["best"], finished["best_step"], finished["state"]) == (0.9, 3, "finished")
    assert failed["error"]["line"] and failed["reason_kind"] == "oom"
    assert delta["run"]["best_trial"]["trial"] == 0
    part = delta["series"][0]
    data = np.frombuffer(buffers[part["buf"]], "<f8").reshape(6, -1)
    assert (part["rank"], part["start"]) == (0, 1) and data[0].tolist() == [2.0, 3.0]


def test_a_mirror_that_joins_late_has_the_same() -> None:
    digest, early, cursor = search(), SearchMirror(), Cursor()
    early.apply(digest.since(cursor))
    digest.add_result(2, 1, STARTED + 9, {"val_accuracy": 0.1}, 2.0)
    digest.set_trial(2, state="pruned", reason="pruned by ASHA at iteration 1")
    early.apply(digest.since(cursor))
    late = SearchMirror()
    late.apply(digest.since(Cursor()))
    assert early.trials == late.trials == digest.trials
    assert early.run == late.run
    assert early.series.keys() == late.series.keys()
    view = SearchMirror()
    view.apply(early.snapshot())
    assert view.trials == late.trials


@pytest.mark.parametrize(("mode", "best"), [("max", (1, 0.9)), ("min", (0, 0.2)), (None, None)])
def test_best_by_mode_and_never_nan(mode: str | None, best: tuple[int, float] | None) -> None:
    digest = SearchDigest("s", {"metric": "m", "mode": mode})
    for trial, values in enumerate(([0.2, 0.5], [0.9, math.nan], [math.nan, math.inf])):
        for step, value in enumerate(values, 1):
            digest.add_result(trial, step, STARTED, {"m": value}, None)
    found = digest.run["best_trial"]
    assert (found and (found["trial"], found["value"])) == best


def test_500_trials_stay_small() -> None:
    digest = SearchDigest("s", {"metric": "m", "mode": "max"})
    for trial in range(500):
        for step in range(1, 21):
            digest.add_result(trial, step, STARTED, {"m": step / 20, "loss": 1 / step}, step)
        digest.set_trial(trial, state="pruned")
    update = digest.since(Cursor())
    assert len(update.content["trials"]) == 500 and len(update.buffers) == 1000
    assert sum(b.nbytes for b in update.buffers) < 2_000_000
    cursor = Cursor()
    digest.since(cursor)
    digest.set_trial(7, reason="again")
    assert digest.since(cursor).content == {"trials": [{"trial": 7, "reason": "again"}]}
    assert digest.run["counts"]["pruned"] == 500
    assert digest.run["log_lines"] < 300


def test_numbers_of_a_result() -> None:
    result = {"a": 1, "b": np.float32(0.5), "c": True, "d": "text", "e": np.zeros(3), "f": math.nan,
              "config/lr": 0.1, "pid": 5}  # fmt: skip
    found = numeric(result, {"pid"})
    assert list(found) == ["a", "b", "f"] and found["a"] == 1.0 and math.isnan(found["f"])
