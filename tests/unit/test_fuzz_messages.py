"""Garbage where messages, records and histories belong: refused, counted, told; never raised."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from garbage import (
    RANKS,
    Listener,
    Odd,
    changed_files,
    deep,
    messages,
    parts_of,
    read_saved,
    saved_run,
    saved_search,
)
from hypothesis import HealthCheck, given, seed, settings

from raynb.engine.collector import Collector, RunFacts
from raynb.engine.spec import MAX_RECORD
from raynb.engine.supervisor import shown_error
from raynb.results.page import Page, dropped_line
from raynb.telemetry import gate, history
from raynb.telemetry.channel import MAX_VALUES, Channel
from raynb.telemetry.events import Batch, Record, RecordBatch, to_value
from raynb.telemetry.gate import Gate
from raynb.tuning.collector import SearchCollector


def quick(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def collector(tmp_path: Path) -> Any:
    one = Collector(RunFacts("run", str(tmp_path / "run")))
    one.group_starting(2)
    yield one
    one.close()


def refused(collector: Collector) -> int:
    return int(collector._digest.run["dropped"].get("refused", 0))


def said(collector: Collector) -> str:
    return "\n".join(e["text"] for e in collector._digest.events)


def records(**values: Any) -> RecordBatch:
    return RecordBatch.of([Record(0.0, 1.0, values)])


def test_a_collector_stands_any_message(tmp_path: Path) -> None:
    listener = Listener(tmp_path)

    @seed(6)
    @quick(200)
    @given(messages())
    def run(message: Any) -> None:
        listener.take(message)

    run()
    assert refused(listener.collector) > 30, "what was refused is counted"
    listener.check()


def test_a_sound_message_passes_as_it_is() -> None:
    from garbage import _whole

    message = _whole(1, 0, 7)
    passed, cut = Gate("run").check(message, RANKS, range(1))
    assert not cut and passed is not None
    expected = _whole(1, 0, 7)
    for name in Batch.__slots__:
        if name not in ("records", "failure"):
            assert getattr(passed, name) == getattr(expected, name), name
    assert passed.failure == expected.failure
    assert passed.records is not None and expected.records is not None
    assert passed.records.texts == expected.records.texts
    assert passed.records.metrics.keys() == expected.records.metrics.keys()
    for name, (rows, values) in expected.records.metrics.items():
        np.testing.assert_array_equal(passed.records.metrics[name][0], rows)
        np.testing.assert_array_equal(passed.records.metrics[name][1], values)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Batch(0, 0, 1, records=records(a=1.0), run="another"), "another run"),
        (Batch(2, 0, 1, records=records(a=1.0)), "a rank or an attempt"),
        (Batch(-1, 0, 1, records=records(a=1.0)), "a rank or an attempt"),
        (Batch(0, 1, 1, records=records(a=1.0)), "a rank or an attempt"),
        (Batch(0, -1, 1, records=records(a=1.0)), "a rank or an attempt"),
        (Batch(True, 0, 1, records=records(a=1.0)), "a rank or an attempt"),
        (b"\x80\x05garbage", "what is no message"),
        ({"rank": 0}, "what is no message"),
        (Odd(), "what is no message"),
        (Batch.__new__(Batch), "can't be read"),
    ],
    ids=range(10),
)
def test_only_messages_of_its_own_ranks_come_in(collector: Collector, batch: Any, why: str) -> None:
    for _ in range(3):
        collector.ingest(batch)
    assert refused(collector) == 3 and collector.history.rows == 0
    assert said(collector).count(why) == 1, "each kind is told once"
    collector.set_state("finished")
    collector.close()
    page = Page(record=json.loads(json.dumps(collector._record(), default=str)))
    assert "3 pieces of messages that were refused" in dropped_line(page)


def test_ranks_of_another_run_are_turned_away(collector: Collector) -> None:
    who = {"rank": 0, "world_size": 2, "node": "n", "ip": "i", "pid": 1}
    assert collector.hello({**who, "run": "run"}) == 0
    for wrong in ({"run": "other"}, {"rank": 2}, {"rank": -1}, {"rank": "0"}, {"rank": True},
                  {"world_size": 10**9}, {"world_size": None}):  # fmt: skip
        with pytest.raises(ValueError):
            collector.hello({**who, **wrong})
    with pytest.raises(ValueError):
        collector.hello("rank 0")  # type: ignore[arg-type]
    collector.hello({**who, "node": Odd(), "ip": 7, "pid": "x"})
    assert collector.workers()[0]["pid"] is None


def test_a_million_names_are_bounded_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MAX_NAMES", 50)
    for k in range(100):
        names = {f"metric {k * 100 + i}": 1.0 for i in range(100)} | {"metric 0": float(k)}
        collector.ingest(Batch(0, 0, k, records=RecordBatch.of([Record(k, 1.0, names)])))
    table = collector.history_table()
    assert table.num_rows == 100 and len(table.column_names) == 4 + 50
    assert table["metric 0"].null_count == 0, "a name that is known is taken as ever"
    assert refused(collector) == 100 * 100 + 99 - 50 - 99
    assert "metrics past the first 50 names" in said(collector)


def test_texts_count_as_names_and_as_cells(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MAX_NAMES", 20)
    monkeypatch.setattr(history, "MAX_PART_CELLS", 100)
    for k in range(30):
        texts = {f"text {k}": "x", "again": "y" * 10_000}
        collector.ingest(Batch(0, 0, k, records=RecordBatch.of([Record(k, 1.0, texts)])))
    collector.history.flush()
    assert collector.history._next_part >= 3, "parts are cut where texts have many columns"
    table = collector.history_table()
    assert len(table.column_names) == 4 + 20 and refused(collector) == 11
    assert max(map(len, table["again.text"].to_pylist())) <= gate.MAX_CLEAN


def test_too_many_values_in_a_record_are_counted(channel_of: Any) -> None:
    channel, sent = channel_of
    huge = {f"m{i}": 1.0 for i in range(MAX_VALUES + 5)}
    began = time.monotonic()
    channel.log(huge)
    assert time.monotonic() - began < 2
    channel.flush()
    [batch] = [b for b in sent if b.records is not None]
    assert len(batch.records.metrics) == MAX_VALUES and batch.dropped == {"refused": 5}
    assert batch.run == "run"


@pytest.fixture
def channel_of() -> Any:
    class Taken:
        lost = 0

        def __init__(self) -> None:
            self.sent: list[Batch] = []

        def send(self, batch: Batch) -> bool:
            self.sent.append(batch)
            return True

        def drain(self, timeout: float) -> bool:
            return True

    transport = Taken()
    channel = Channel(transport, 0, 0, run="run")
    yield channel, transport.sent
    channel.close()


@pytest.mark.parametrize(
    "value",
    [
        b"\xff" * 50_000_000,
        "x" * 50_000_000,
        ["x" * 1_000] * 1_000_000,
        {"deep": {i: [0] * 100 for i in range(100_000)}},
        deep(100_000),
        {1.5: {2: {"x"}}},
        10**6_000,
    ],
    ids=["bytes", "text", "list", "dict", "deep", "small", "int"],
)
def test_a_huge_value_is_a_short_text_at_once(value: Any) -> None:
    began = time.monotonic()
    text = to_value(value)
    assert isinstance(text, str) and len(text) <= 500 and time.monotonic() - began < 1
    assert text == str(value) if value == {1.5: {2: {"x"}}} else text


def test_times_that_stand_still_fill_no_memory(collector: Collector) -> None:
    for at in (math.nan, 5.0):
        for k in range(1_500):
            one = RecordBatch.of([Record(float(k), at, {"a": 1.0})])
            collector._digest.apply(Batch(0, 0, k, records=one))
    assert all(len(window) <= 1_000 for _, window in collector._digest._rate.values())


def test_a_rank_fails_once_in_an_attempt(collector: Collector) -> None:
    failure = {"type": "E", "message": "m" * 100_000, "traceback": "t", "cell": None, "at": 1.0}
    for k in range(1_000):
        collector.ingest(Batch(0, 0, k, failure={**failure, "at": float(k)}))
    assert len(collector.failures) == 1 and len(collector.failures[0]["message"]) <= 11_000
    collector.ingest(Batch(1, 0, 1, failure=failure))
    assert len(collector.failures) == 2


def test_an_error_of_a_worker_holds_nothing_that_a_terminal_obeys(collector: Collector) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\u202ebad\x00\x9b5n\r\nnext"
    cell = {"label": evil, "line": 3, "text": evil}
    failure = {"type": evil, "message": evil, "traceback": evil, "cell": cell, "at": 1.0}
    collector.ingest(Batch(0, 0, 1, failure=failure))
    shown = shown_error(collector.first_failure(), ValueError())
    assert shown["text"] == "redbad5n\nnext" and shown["line"].count("redbad5n\nnext") == 2
    raised = shown_error(None, ValueError(evil))
    assert raised["text"] == "redbad5n\nnext" and raised["title"] == "ValueError: next"


# --- saved files ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [saved_run, saved_search])
def test_a_run_whose_files_were_changed_opens_or_says_why(tmp_path: Path, make: Any) -> None:
    run = make(tmp_path)
    record, parts = run / "raynb" / "record.json", parts_of(run)
    whole, first = record.read_bytes(), parts[0].read_bytes()
    assert "records" in read_saved(run, whole=True)

    @seed(6)
    @quick(20)
    @given(changed_files(whole, first))
    def run_one(changed: tuple[str, bytes, bytes]) -> None:
        record.write_bytes(changed[1])
        parts[0].write_bytes(changed[2])
        read_saved(run)

    run_one()


@pytest.mark.parametrize("tune", [False, True])
def test_a_run_goes_on_in_a_directory_whose_record_is_garbage(tmp_path: Path, tune: bool) -> None:
    from test_tune_collector import FACTS

    run = (saved_search if tune else saved_run)(tmp_path)
    record = run / "raynb" / "record.json"
    whole = record.read_bytes()

    @seed(6)
    @quick(25)
    @given(changed_files(whole, b""))
    def run_one(changed: tuple[str, bytes, bytes]) -> None:
        record.write_bytes(changed[1])
        facts = RunFacts("again", str(run))
        one = SearchCollector(facts, FACTS) if tune else Collector(facts)
        one.group_starting(1)
        one.set_state("finished")
        one.close()

    run_one()


def test_small_files_that_stand_for_much_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(tmp_path)
    part = parts_of(run)[-1].with_name("part-000099.parquet")
    n = 20_000
    zeros = pa.array(np.zeros(n))
    base = {"rank": pa.array(np.zeros(n, np.int32)), "attempt": pa.array(np.zeros(n, np.int32)),
            "step": zeros, "time": zeros}  # fmt: skip

    def told(more: dict[str, Any]) -> str:
        pq.write_table(pa.table({**base, **more}), part, compression="zstd", store_schema=False)
        assert part.stat().st_size < 1_000_000
        return read_saved(run)

    # One text of 2 MB, which all rows share: 40 GB as plain text.
    long = pa.array(["x" * 2_000_000]).dictionary_encode()
    shared = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), long.dictionary)
    assert "holds text that no history does" in told({"t.text": shared})
    monkeypatch.setattr(history, "MAX_READ_CELLS", 1_000)
    assert "20,000 rows of 5 columns are more than is read" in told({"a": zeros})
    monkeypatch.undo()
    assert "holds what no history does" in told({"a": pa.array([[1.0]] * n)})
    assert "part-000099" not in told({"a": zeros})


def test_a_huge_record_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path)
    assert MAX_RECORD >= 100_000_000
    monkeypatch.setattr("raynb.engine.spec.MAX_RECORD", 100)
    assert "it has more than 100 bytes" in read_saved(run)
