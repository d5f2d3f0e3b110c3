"""The wire: what the kernel sends is JSON the browser reads, kept as golden messages."""

from __future__ import annotations

import base64
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynb.panel.wire import encode, file_message
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.update import Update

GOLDEN = Path(__file__).parent.parent / "golden"


class Loud:
    def __str__(self) -> str:
        raise RuntimeError


def test_anything_odd_becomes_json() -> None:
    odd = {
        "nan": math.nan,
        "inf": -math.inf,
        "float32": np.float32(0.5),
        "float64": np.float64("nan"),
        "int64": np.int64(2**60),
        "bool": np.bool_(True),
        "tuple": (1, [math.nan]),
        "nested": {1: {"a": math.inf}, (1, 2): None, None: 1},
        "set": {3},
        "array": np.zeros(2),
        "surrogate": "a\udce9",
        "loud": Loud(),
        Loud(): "\udce9",
    }
    content, _ = encode(Update({"run": odd, "workers": [odd]}), "delta", 3, 0.0)
    text = json.dumps(content, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    run = json.loads(text)["run"]
    assert run["nan"] is run["inf"] is run["float64"] is None
    assert (run["float32"], run["int64"], run["bool"]) == (0.5, 2**60, True)
    assert run["tuple"] == [1, [None]]
    assert run["nested"] == {"1": {"a": None}, "(1, 2)": None, "None": 1}
    assert run["set"] == "{3}" and run["surrogate"] == "a\\udce9"
    assert run["loud"] == "<Loud: its text raises RuntimeError>"
    assert (content["v"], content["kind"], content["seq"]) == (2, "delta", 3)


def test_encoding_leaves_the_update_alone() -> None:
    data = np.arange(12.0).reshape(6, 2)
    update = Update({"run": {"x": math.nan}}, [data])
    encode(update, "delta", 1, 100.0)
    assert math.isnan(update.content["run"]["x"])
    assert data.tolist() == np.arange(12.0).reshape(6, 2).tolist()


def test_buffers_are_little_endian_rows() -> None:
    data = np.array(
        [[1.0, 2.0], [150.0, 151.0], [0.5, math.nan], [0.25, math.nan], [1.0, 1.0], [2.0, math.inf]]
    )
    _, [buffer] = encode(Update({}, [data]), "delta", 1, 100.0)
    assert len(buffer) == 6 * 2 * 8
    back = np.frombuffer(buffer, dtype="<f8").reshape(6, 2)
    np.testing.assert_array_equal(back[1], [50.0, 51.0])  # seconds since the start
    np.testing.assert_array_equal(back[[0, 2, 3, 4, 5]], data[[0, 2, 3, 4, 5]])
    _, [empty] = encode(Update({}, [np.empty((6, 0))]), "delta", 1, 0.0)
    assert empty == b""


# -- golden messages -----------------------------------------------------------------------------

STARTED = 1_750_000_000.0


def _shards(seen: int) -> list[dict[str, Any]]:
    return [
        {
            "name": "Digits",
            "kind": "map",
            "rows_seen": seen,
            "rows_total": 900,
            "batches_seen": seen // 32,
            "batches_total": 29,
            "batch_size": 32,
            "rows_dropped": 0,
            "rows_repeated": 1,
            "epoch": 1,
            "shuffle": True,
            "set_epoch": "ok",
            "eta_s": 12.5,
        },
        {
            "name": "<b>stream</b>",
            "kind": "iterable",
            "rows_seen": seen // 2,
            "rows_total": None,
            "batches_seen": 2,
            "batches_total": None,
            "batch_size": None,
            "rows_dropped": None,
            "rows_repeated": None,
            "epoch": 0,
            "shuffle": None,
            "set_epoch": None,
            "eta_s": None,
        },
    ]


def _sample(rank: int) -> dict[str, Any]:
    gpu = {
        "device": f"GPU {rank} · NVIDIA H200",
        "device_kind": "GPU",
        "util": None,
        "mem_used": 2**34,
        "mem_total": 2**37,
        "mem_process": 2**33,
        "temperature": 61.0,
        "power": 412.5,
        "device_wide": True,
        "note": "NVML: utilization is not supported",
    }
    cpu = {"device": "CPU", "device_kind": "CPU", "util": 87.5, "mem_used": 2**30}
    return {
        **(gpu if rank else cpu),
        "cpu": 87.5 + rank,
        "rss": 2**30,
        "threads": 4,
        "cores": 8.0,
        "net_in": 1.5e6,
        "net_out": 2.5e6,
        "disk_read": 0.0,
        "disk_write": None,
        "net_speed": 1.25e9,
    }


def _timing(rank: int) -> dict[str, Any]:
    return {
        "reports": 1 + rank,
        "step_s": 0.1,
        "wait_s": 0.02,
        "report_s": 0.0,
        "sync_s": None if rank else 0.03,
        "rows_rate": 320.0,
        "lr": 0.001,
        "waiting_since": None,
        "still_since": None,
        "where": None,
    }


def _records(rank: int, steps: range) -> RecordBatch:
    return RecordBatch.of(
        [
            Record(
                step,
                STARTED + 1 + step / 10,
                {
                    "loss": math.nan if (rank, step) == (1, 2) else 2.0 / (step + 1) + rank / 10,
                    "accuracy": step / 10,
                },
                math.nan if rank == 1 else step / 4,
            )
            for step in steps
        ]
    )


HINT = {
    "id": "straggler",
    "kind": "straggler",
    "level": "warn",
    "title": "rank 1 is slower than the others",
    "ranks": [1],
    "evidence": "0.31 s a step, the others 0.10 s",
    "threshold": "1.5 times the median of the others",
    "fix": "look at its node:\n    ray status",
    "since": STARTED + 4,
    "until": None,
}


def small_run() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """A snapshot and the delta after it, of a small run that fails."""
    digest = Digest("golden", ("accuracy", "max"), storage="/data/golden", started=STARTED)
    mirror, cursor = Mirror(), Cursor()
    digest.set_run(state="training", world_size=2, now=STARTED + 5)
    digest.event("training", at=STARTED + 1)
    digest.set_hints([HINT])
    for rank in (0, 1):
        digest.set_worker(rank, node="node-a", ip="10.0.0.1", pid=4_000 + rank)
        digest.apply(
            Batch(
                rank,
                0,
                1,
                records=_records(rank, range(4)),
                sample=_sample(rank),
                shards=_shards(128),
                timing=_timing(rank),
                logs=[
                    (1, "out", f"\x1b[32mrank {rank}\x1b[0m is ready"),
                    (2, "err", "<b>not bold</b> & <script>alert(1)</script>"),
                ],
                status="running",
                dropped={"logs": 3} if rank else {},
            )
        )
    mirror.apply(digest.since(cursor))
    snapshot = encode(mirror.snapshot(), "snapshot", 1, STARTED)

    still = {
        "waiting_since": STARTED + 5.5,
        "still_since": STARTED + 5.5,
        "where": "Cell In[3], line 12: loss.backward() (in torch/_tensor.py:581 backward)",
    }
    digest.apply(Batch(0, 0, 2, records=_records(0, range(4, 6)), status="waiting", timing=still))
    digest.apply(
        Batch(
            1,
            0,
            2,
            shards=_shards(160),
            logs=[(2, "err", "epoch 1: 50%|█████     |"), (3, "out", "é 🙂")],
            failure={"type": "ValueError"},
        )
    )
    digest.event("rank 1 raised ValueError: bad <batch>", "error", at=STARTED + 6)
    digest.set_hints([{**HINT, "until": STARTED + 6}])
    digest.set_run(
        state="failed",
        message="ValueError: bad <batch>",
        ended=STARTED + 7,
        now=STARTED + 7,
        stoppable=False,
        error={
            "title": "ValueError: bad <batch>",
            "rank": 1,
            "text": "Traceback (most recent call last):\n  Cell In[3], line 9\n"
            '    raise ValueError("bad <batch>")\nValueError: bad <batch>\n',
            "line": 'Cell In[3], line 9: raise ValueError("bad <batch>")',
        },
    )
    return {
        "wire_snapshot.json": snapshot,
        "wire_delta.json": encode(digest.since(cursor), "delta", 2, STARTED),
    }


def large_run() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """A snapshot and the delta after it, of a run whose ranks are shown as bands."""
    digest = Digest("golden-bands", storage="/data/golden-bands", started=STARTED)
    mirror, cursor = Mirror(), Cursor(pinned=(2,))
    digest.set_run(state="training", world_size=20, now=STARTED + 5)
    for rank in range(20):
        digest.set_worker(rank, node=f"node-{rank // 8}", ip="10.0.0.1", pid=4_000 + rank)
        digest.apply(Batch(rank, 0, 1, records=_records(rank, range(5)), status="running"))
    mirror.apply(digest.since(cursor, now=10.0))
    snapshot = encode(mirror.snapshot(), "snapshot", 1, STARTED)
    cursor.pin([2, 7])
    for rank in range(12):  # the others are behind
        digest.apply(Batch(rank, 0, 2, records=_records(rank, range(5, 7))))
    return {
        "wire_bands_snapshot.json": snapshot,
        "wire_bands_delta.json": encode(digest.since(cursor, now=11.0), "delta", 2, STARTED),
    }


def golden_messages() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    whole = b"epoch 1\nloss 0.5 \xc3\xa9\n"
    return {
        **small_run(),
        **large_run(),
        "wire_file.json": (file_message(3, "rank-00003.log", True, None), [whole]),
    }


@pytest.mark.parametrize("name", list(golden_messages()))
def test_golden_messages(name: str) -> None:
    """The browser's tests read the same files; RAYNB_WRITE_GOLDEN=1 writes them anew."""
    content, buffers = golden_messages()[name]
    message = {"content": content, "buffers": [base64.b64encode(b).decode() for b in buffers]}
    path = GOLDEN / name
    if os.environ.get("RAYNB_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(message, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(message))


def test_golden_messages_hold_what_is_hard() -> None:
    (snapshot, buffers), (delta, _) = small_run().values()
    assert len(buffers) == len(snapshot["series"]) == 4
    assert any(np.isnan(np.frombuffer(b, dtype="<f8")).any() for b in buffers)
    assert snapshot["logs_dropped"] == {"1": 3} and snapshot["run"]["best"]["value"] == 0.3
    assert delta["run"]["error"]["rank"] == 1 and delta["series"][0]["start"] == 3
    assert [line["seq"] for line in delta["logs"]] == [2, 3]
    waiting, failed = delta["workers"]
    assert "util" not in waiting and "node" not in failed  # only what changed
    assert waiting["status"] == "waiting" and waiting["where"] and failed["status"] == "failed"
    assert delta["hints"][0]["until"] is not None

    (snapshot, buffers), (delta, _) = large_run().values()
    assert [b["metric"] for b in snapshot["bands"]] == ["loss", "accuracy"]
    band = np.frombuffer(buffers[snapshot["bands"][0]["buf"]], dtype="<f8").reshape(7, -1)
    assert band.shape[1] == 5 and band[6].tolist() == [20.0] * 5
    assert snapshot["focus"] == {"pinned": [2], "worst": {"loss": 19, "accuracy": 0}}
    assert delta["focus"] == {"pinned": [2, 7], "worst": {"loss": 19, "accuracy": 0}}
    assert {(s["metric"], s["rank"], s["start"]) for s in delta["series"]} == {
        ("loss", 2, 5),
        ("loss", 7, 0),
        ("accuracy", 0, 5),
        ("accuracy", 2, 5),
        ("accuracy", 7, 0),
    }
