"""Messages and saved files that nobody would write, for the fuzzers of what reads them."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import raynb
from raynb.engine.collector import Collector, RunFacts
from raynb.engine.spec import filesystem_of, read_record, write_record
from raynb.errors import RaynbError
from raynb.panel.wire import encode
from raynb.telemetry import gate
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.history import HistoryWriter, to_frame
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.update import MAX_EVENTS

RANKS = 4


class Odd:
    """An object that does nothing that it is asked."""

    def _raises(self, *args: Any) -> Any:
        raise RuntimeError("odd")

    __bool__ = __len__ = __iter__ = __str__ = __repr__ = __eq__ = __lt__ = __float__ = _raises
    __int__ = __index__ = __getitem__ = __contains__ = __array__ = _raises

    def __hash__(self) -> int:
        return 7

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")


class Text(str):
    """Text that says it is something else."""

    def __len__(self) -> int:
        return 1 << 60

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("text")

    __hash__ = str.__hash__


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


GARBAGE: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 2**70, lambda: 10**400,
    lambda: 10**5000, lambda: math.nan, lambda: -math.inf, lambda: 1e300, lambda: "",
    lambda: "x" * 100_000, lambda: "\ud800<b>\x1b[31m\x00", lambda: b"\xff" * 1000, list, dict,
    tuple, set, lambda: deep(5_000), Odd, lambda: Text("odd"), lambda: object, lambda: [Odd()] * 3,
    lambda: {Odd(): Odd()}, lambda: {math.nan: 1.0}, lambda: {1: 2, (): []},
    lambda: {f"k{i}": i for i in range(2_000)}, lambda: ["a"] * 5_000, lambda: range(10**9),
    lambda: np.float32("nan"), lambda: np.int64(3), lambda: np.zeros((2, 2)),
    lambda: np.full(1, None, dtype=object), lambda: np.array(["a", "b"]), lambda: np.zeros(0),
    lambda: np.array([np.nan, np.inf, 1e308]), lambda: np.zeros(3, complex),
    lambda: np.array(7.0), lambda: np.zeros(30_000), lambda: np.arange(5, dtype=np.uint64) + 2**63,
    lambda: ("rows", "values"), lambda: (np.array([99]), np.array([1.0])),
    lambda: (np.array([-1]), np.array([1.0])), lambda: RecordBatch.of([]), lambda: Batch(0, 0, 0),
]  # fmt: skip
garbage = st.sampled_from(GARBAGE).map(lambda make: make())


def _whole(rank: int, attempt: int, k: int) -> Batch:
    """A message as a rank would send it."""
    numbers = {"loss": 1.0 / (k + 1), "acc": float(k), "nan": math.nan, "note": "text"}
    records = [Record(float(k * 3 + i), 1e9 + k, numbers) for i in range(3)]
    return Batch(
        rank, attempt, k,
        records=RecordBatch.of(records),
        sample={"util": 5.0, "device": "CPU", "rss": 1, "note": None, "cpu": 2.5},
        shards=[{"name": "train", "kind": "map", "rows_total": 10, "rows_seen": k}],
        timing={"step_s": 0.1, "reports": k, "still_since": None, "where": None, "lr": 0.1},
        logs=[(k, "out", f"line {k}"), (k + 1, "err", "more")],
        status="running",
        failure={"type": "E", "message": "m", "traceback": "t", "at": 1.0,
                 "cell": {"label": "Cell In[1]", "line": 1, "text": "x"}} if k % 7 == 0 else None,
        dropped={"logs": k},
        sent=1e9 + k,
    )  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a message that something else may be put into."""
    if dataclasses.is_dataclass(value):
        parts = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    else:
        parts = []
    if len(path) > 6 or len(parts) > 100:
        return [path]
    places = [path]
    for key, part in parts:
        places += _places(part, (*path, key))
    return places


def put(value: Any, path: tuple[Any, ...], what: Any) -> Any:
    """The value with something else at a place."""
    if not path:
        return what
    key, rest = path[0], path[1:]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        setattr(value, key, put(getattr(value, key), rest, what))
        return value
    if isinstance(value, tuple):
        return tuple(put(v, rest, what) if i == key else v for i, v in enumerate(value))
    value[key] = put(value[key], rest, what)
    return value


@st.composite
def messages(draw: Any) -> Any:
    """A message of a rank of the run, of which none or some parts are something else."""
    message: Any = _whole(draw(st.integers(0, RANKS - 1)), 0, draw(st.integers(0, 40)))
    for _ in range(draw(st.integers(0, 3))):
        places = _places(message)
        # Rather deep in it than the whole.
        path = draw(st.sampled_from(places[1:] or places))
        message = put(message, path, draw(garbage))
        if draw(st.integers(0, 5)) == 0 and isinstance(message, Batch):
            key = draw(garbage)
            for part in (message.sample, message.failure, message.dropped):
                if isinstance(part, dict):
                    try:
                        part[key] = draw(garbage)
                    except Exception:
                        part["more"] = key
        if not isinstance(message, Batch):
            break
    return message


class Listener:
    """A collector with a watcher, which takes messages and must stand them."""

    def __init__(self, directory: Path) -> None:
        self.collector = Collector(RunFacts("fuzz", str(directory / "fuzz"), ("loss", "min")))
        self.collector.group_starting(RANKS)
        for rank in range(RANKS):
            self.collector.hello({"rank": rank, "world_size": RANKS, "node": "n", "ip": "i",
                                  "pid": rank})  # fmt: skip
        self.mirror = Mirror()
        self.seen = 0

    def take(self, message: Any) -> None:
        self.collector.ingest(message)
        self.seen += 1
        if self.seen % 5 == 0:
            self.look()

    def look(self) -> None:
        """What a panel does with it: the wire holds JSON whatever came."""
        update = self.collector.poll("w", 0)
        self.mirror.apply(update)
        content, buffers = encode(update, "delta", self.seen, 1e9)
        json.dumps(content, allow_nan=False)
        assert all(isinstance(one, bytes) for one in buffers)

    def check(self) -> None:
        """Nothing grew past its bound, and all of it can be read again."""
        self.look()
        collector, digest = self.collector, self.collector._digest
        assert set(digest.workers) == set(range(RANKS)) and len(digest.logs) <= RANKS
        assert all(len(lines) <= 300 for lines in digest.logs.values())
        assert len(digest.events) <= MAX_EVENTS and len(collector.failures) <= RANKS
        assert len(collector._gate._names) <= gate.MAX_NAMES and len(collector._told_cut) < 100
        assert set(digest.run["dropped"]) <= {"metrics", "samples", "logs", "series", "refused"}
        table = collector.history_table()
        assert table.num_rows == collector.history.rows
        to_frame(table)
        collector.set_state("finished")
        collector.close()
        assert collector.history.error is None and not digest.nonfinite.keys() - {
            (m, r, a) for m in collector._gate._names for r in range(RANKS) for a in (0,)
        }
        record = read_record(*collector.storage)
        assert record is not None and record["rows"] == table.num_rows


# --- saved files ------------------------------------------------------------------------------

JSON_GARBAGE: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, "", "x" * 5_000, "<script>alert(1)</script>\x1b[31m\u202e",
    "\ud800", [], {}, [[]], {"a": {"b": [1, "c", None]}}, [None] * 50, {"": ""}, [1, "a", {}],
    "nan", "9999999999", -1e308, {"rank": "x"}, {"metric": [], "value": {}},
]  # fmt: skip


@st.composite
def mutations(draw: Any) -> Callable[[bytes], bytes]:
    """A change of a file's bytes: pieces overwritten, cut out, doubled or put in."""
    seed, times = draw(st.integers(0, 2**32)), draw(st.integers(1, 6))

    def change(content: bytes) -> bytes:
        rng, data = random.Random(seed), bytearray(content)
        for _ in range(times):
            at, n = rng.randrange(len(data) + 1), rng.choice([1, 1, 4, 64])
            match rng.randrange(5):
                case 0:
                    data[at : at + n] = rng.randbytes(n)
                case 1:
                    del data[at : at + n]
                case 2:
                    data[at:at] = data[at : at + n]
                case 3:
                    del data[at:]
                case _:
                    for i in range(at, min(at + n, len(data))):
                        data[i] ^= 1 << rng.randrange(8)
        return bytes(data)

    return change


def saved_run(directory: Path, name: str = "saved") -> Path:
    """A run on storage, with all that a record may have."""
    run = directory / name
    collector = Collector(RunFacts(name, str(run), ("loss", "min"), {"CPU": 1.0}, {
        "options": {"num_workers": 2, "env": {"A": "•••"}, "config": {"lr": 0.1}},
        "capture": [{"name": "a", "kind": "int", "size": 3, "via": "value", "line": 1, "note": ""}],
        "source": "print(1)", "label": "Cell In[1]", "versions": {"python": "3.11", "ray": "2.60"},
        "submitted": 1e9,
    }))  # fmt: skip
    collector.group_starting(2)
    for rank in (0, 1):
        collector.hello({"rank": rank, "world_size": 2, "node": "n", "ip": "i", "pid": rank})
        for k in range(3):
            collector.ingest(_whole(rank, 0, k))
            collector.history.flush()
    collector.set_state("failed", "why", error={"title": "t", "rank": 0, "text": "x", "line": "l"})
    collector.close()
    return run


def saved_search(directory: Path) -> Path:
    """A search on storage."""
    from test_tune_result import record, taken

    run = directory / "grid"
    filesystem, path = filesystem_of(str(run))
    write_record(filesystem, path, record())
    writer = HistoryWriter(filesystem, f"{path}/raynb/history")
    for rank, attempt, records in taken():
        writer.add(rank, attempt, records)
    writer.flush()
    return run


@st.composite
def changed_files(draw: Any, record: bytes, part: bytes) -> tuple[str, bytes, bytes]:
    """What was changed, and the run's record and the part of its history then."""
    which = draw(st.sampled_from(["json", "json", "record", "part", "part"]))
    if which == "json":
        record = json.dumps(change_json(json.loads(record), draw)).encode()
    elif which == "record":
        record = draw(mutations())(record)
    else:
        part = draw(mutations())(part)
    return which, record, part


def change_json(record: Any, draw: Any) -> Any:
    """A record of which some parts are something else."""
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(_places(record)))
        record = put(record, path, json.loads(json.dumps(draw(st.sampled_from(JSON_GARBAGE)))))
        if not isinstance(record, dict):
            break
    return record


def read_saved(run: Path, *, whole: bool = False) -> str:
    """Open a run and show it; gives what was shown.

    Raises
    ------
    AssertionError
        When it shows that its display broke.
    """
    try:
        result = raynb.open(run)
        shown = repr(result)
        shown += "".join(str(part) for part in result._repr_mimebundle_().values()) if whole else ""
        assert [result.history, result.state, result.duration]
        if isinstance(result, raynb.TuneResult):
            assert [result.rows, result.results, result.params, result.dataframe, result.best]
        else:
            assert [result.checkpoints]
        shown += repr(raynb.runs(run.parent))
    except RaynbError as error:
        return str(error)
    for broken in ("can't be made", "can't be drawn"):
        assert broken not in shown, shown[:2_000]
    assert "<script>" not in (result._repr_mimebundle_().get("text/html", "") if whole else "")
    return shown


def parts_of(run: Path) -> list[Path]:
    return sorted((run / "raynb" / "history").glob("*.parquet"))
