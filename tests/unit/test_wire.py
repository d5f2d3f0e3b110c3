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

from raynb.panel.wire import encode
from raynb.telemetry.digest import Cursor, Digest, Mirror, Update
from raynb.telemetry.events import Batch, Record, RecordBatch

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
    assert (content["v"], content["kind"], content["seq"]) == (1, "delta", 3)


def test_encoding_leaves_the_update_alone() -> None:
    data = np.arange(10.0).reshape(5, 2)
    update = Update({"run": {"x": math.nan}}, [data])
    encode(update, "delta", 1, 100.0)
    assert math.isnan(update.content["run"]["x"])
    assert data.tolist() == np.arange(10.0).reshape(5, 2).tolist()


def test_buffers_are_little_endian_rows() -> None:
    data = np.array([[1.0, 2.0], [150.0, 151.0], [0.5, math.nan], [0.25, 0.0], [1.0, 1.0]])
    _, [buffer] = encode(Update({}, [data]), "delta", 1, 100.0)
    assert len(buffer) == 5 * 2 * 8
    back = np.frombuffer(buffer, dtype="<f8").reshape(5, 2)
    np.testing.assert_array_equal(back[1], [50.0, 51.0])  # seconds since the start
    np.testing.assert_array_equal(back[[0, 2, 3, 4]], data[[0, 2, 3, 4]])
    _, [empty] = encode(Update({}, [np.empty((5, 0))]), "delta", 1, 0.0)
    assert empty == b""


# -- golden messages -----------------------------------------------------------------------------


def _shard(seen: int) -> dict[str, Any]:
    return {
        "name": "Digits",
        "rows_seen": seen,
        "rows_total": 900,
        "batches_seen": seen // 32,
        "batches_total": 29,
        "batch_size": 32,
        "epoch": 1,
    }


def _records(rank: int, steps: range, started: float) -> RecordBatch:
    return RecordBatch.of(
        [
            Record(
                step,
                started + 1 + step / 10,
                {
                    "loss": math.nan if (rank, step) == (1, 2) else 2.0 / (step + 1) + rank / 10,
                    "accuracy": step / 10,
                },
            )
            for step in steps
        ]
    )


def golden_messages() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """A snapshot and the delta after it, of a small run that fails."""
    started = 1_750_000_000.0
    digest = Digest("golden", ("accuracy", "max"), storage="/data/golden", started=started)
    mirror, cursor = Mirror(), Cursor()
    digest.set_run(state="training", world_size=2, now=started + 5)
    digest.event("training", at=started + 1)
    for rank in (0, 1):
        digest.set_worker(rank, node="node-a", ip="10.0.0.1", pid=4_000 + rank)
        digest.apply(
            Batch(
                rank,
                0,
                1,
                records=_records(rank, range(4), started),
                sample={
                    "device": f"GPU {rank} · NVIDIA H200" if rank else "CPU",
                    "device_kind": "GPU" if rank else "CPU",
                    "util": None if rank else 87.5,
                    "mem_used": None if rank else 2**30,
                    "mem_total": None if rank else 2**34,
                    "note": "NVML: not supported" if rank else None,
                },
                shard=_shard(128),
                logs=[
                    (1, "out", f"\x1b[32mrank {rank}\x1b[0m is ready"),
                    (2, "err", "<b>not bold</b> & <script>alert(1)</script>"),
                ],
                status="running",
                dropped={"logs": 3} if rank else {},
            )
        )
    mirror.apply(digest.since(cursor))
    snapshot = encode(mirror.snapshot(), "snapshot", 1, started)

    digest.apply(Batch(0, 0, 2, records=_records(0, range(4, 6), started), status="waiting"))
    digest.apply(
        Batch(
            1,
            0,
            2,
            shard=_shard(160),
            logs=[(2, "err", "epoch 1: 50%|█████     |"), (3, "out", "é 🙂")],
            failure={"type": "ValueError"},
        )
    )
    digest.event("rank 1 raised ValueError: bad <batch>", "error", at=started + 6)
    digest.set_run(
        state="failed",
        message="ValueError: bad <batch>",
        ended=started + 7,
        now=started + 7,
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
        "wire_delta.json": encode(digest.since(cursor), "delta", 2, started),
    }


@pytest.mark.parametrize("name", ["wire_snapshot.json", "wire_delta.json"])
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
    (snapshot, buffers), (delta, _) = golden_messages().values()
    assert len(buffers) == len(snapshot["series"]) == 4
    assert any(np.isnan(np.frombuffer(b, dtype="<f8")).any() for b in buffers)
    assert snapshot["logs_dropped"] == {"1": 3} and snapshot["run"]["best"]["value"] == 0.3
    assert delta["run"]["error"]["rank"] == 1 and delta["series"][0]["start"] == 3
    assert [line["seq"] for line in delta["logs"]] == [2, 3]
