"""The collector: a run's life as workers, controller and watchers see it, without Ray."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynb.engine.collector import Collector, RunFacts
from raynb.engine.spec import read_record
from raynb.engine.supervisor import Supervisor
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.history import to_frame
from raynb.telemetry.mirror import Mirror


def who(rank: int, world_size: int = 2) -> dict[str, Any]:
    return {
        "rank": rank,
        "world_size": world_size,
        "node": "node-a",
        "ip": "10.0.0.1",
        "pid": 4000 + rank,
        "node_id": "x",
    }


def records(*losses: float) -> RecordBatch:
    return RecordBatch.of([Record(k, 100.0 + k, {"loss": v}) for k, v in enumerate(losses)])


def failure(kind: str, at: float | None = None) -> dict[str, Any]:
    more = {} if at is None else {"at": at}
    return {"type": kind, "message": "m" * 500, "traceback": "…", "cell": None, **more}


@pytest.fixture
def facts(tmp_path: Path) -> RunFacts:
    return RunFacts("run", str(tmp_path / "run"), ("loss", "min"), {"CPU": 1.0}, {"spec": {"a": 1}})


@pytest.fixture
def collector(facts: RunFacts) -> Iterator[Collector]:
    one = Collector(facts)
    yield one
    one.close()


def record_of(collector: Collector) -> dict[str, Any]:
    record = read_record(*collector.storage)
    assert record is not None
    return record


def test_a_run_that_finishes(collector: Collector) -> None:
    assert record_of(collector)["state"] == "running"
    mirror = Mirror()
    mirror.apply(collector.poll("w", 0))
    assert mirror.run["state"] == "preflight" and mirror.run["started"]
    collector.group_starting(2)
    mirror.apply(collector.poll("w", 0))
    assert [row["status"] for row in mirror.workers.values()] == ["starting", "starting"]
    assert [collector.hello(who(r)) for r in (0, 1)] == [0, 0]
    collector.set_state("training")
    for rank in (0, 1):
        shard = {"name": "train", "rows_total": 10}
        collector.ingest(Batch(rank, 0, 1, records=records(3.0, 1.0 + rank), shards=[shard]))
        collector.ingest(Batch(rank, 0, 2, logs=[(1, "out", f"hi {rank}")], status="finished"))
    collector.set_state("finished")
    collector.close()
    mirror.apply(collector.poll("w", 0))
    assert mirror.run["state"] == "finished" and not mirror.run["stoppable"]
    assert mirror.run["shard_totals"] == {"train": 20}
    assert mirror.latest("loss") == {0: 1.0, 1: 2.0}
    assert [row["status"] for row in mirror.workers.values()] == ["finished"] * 2
    assert mirror.logs[1][1] == ("out", "hi 1")
    frame = to_frame(collector.history_table())
    assert frame["loss"].tolist() == [3.0, 1.0, 3.0, 2.0]
    record = record_of(collector)
    assert record["spec"] == {"a": 1} and record["format"] == 1
    assert (record["state"], record["attempts"], record["rows"]) == ("finished", 1, 4)
    assert record["world_size"] == 2 and record["ended"] >= record["started"]
    assert record["best_seen"] == {"metric": "loss", "value": 1.0, "step": 1.0, "rank": 0}
    assert [row["pid"] for row in record["workers"]] == [4000, 4001]
    assert [e["text"] for e in record["events"]][-1] == "finished"


def test_the_first_failure_is_the_earliest_of_the_last_attempt(collector: Collector) -> None:
    assert collector.first_failure() is None
    collector.group_starting(2)
    collector.ingest(Batch(1, 0, 1, failure=failure("Old", at=1.0)))
    collector.group_starting(2)
    collector.ingest(Batch(0, 1, 1, failure=failure("Secondary", at=51.0)))  # arrives first
    collector.ingest(Batch(1, 1, 1, failure=failure("Cause", at=50.0)))
    collector.ingest(Batch(0, 0, 9, failure=failure("Late", at=0.5)))  # of the attempt before
    first = collector.first_failure()
    assert first is not None
    assert (first["type"], first["rank"], first["attempt"]) == ("Cause", 1, 1)
    texts = [e["text"] for e in collector._digest.events]
    assert "rank 1 raised Cause: " + "m" * 200 in texts


def test_a_failure_without_a_time_gets_one(collector: Collector) -> None:
    collector.ingest(Batch(0, 0, 1, failure=failure("E")))
    first = collector.first_failure()
    assert first is not None and abs(first["at"] - time.time()) < 5


@pytest.mark.parametrize(("state", "status"), [("failed", "stopped"), ("finished", "finished")])
def test_a_terminal_state_sticks(collector: Collector, state: str, status: str) -> None:
    collector.group_starting(2)
    collector.hello(who(0))
    collector.ingest(Batch(1, 0, 1, failure=failure("E")))
    collector.set_state(state, "why", error={"title": "t"})
    ended = collector._digest.run["ended"]
    collector.set_state("training")
    collector.set_state("stopped", "later")
    collector.ingest(Batch(0, 0, 2, status="running"))  # was still on its way
    run = collector._digest.run
    assert (collector.state, run["message"], run["ended"]) == (state, "why", ended)
    rows = collector.workers()
    assert (rows[0]["status"], rows[1]["status"]) == (status, "failed")
    events = [e for e in collector._digest.events if e["text"] == f"{state}: why"]
    assert [e["level"] for e in events] == ["error" if state == "failed" else "info"]


def test_a_restart_is_a_new_attempt(collector: Collector) -> None:
    collector.group_starting(2)
    collector.hello(who(0))
    collector.ingest(Batch(0, 0, 1, records=records(1.0, 2.0), sample={"util": 5.0}))
    collector.group_starting(1)  # elastic: smaller now
    rows = collector.workers()
    assert (rows[0]["status"], rows[0]["attempt"], rows[0]["util"]) == ("starting", 1, None)
    assert rows[0]["rate"] is None and rows[1]["status"] == "stopped"
    assert collector.hello(who(0, 1)) == 1
    assert collector._digest.run["attempt"] == 1 and collector._digest.run["world_size"] == 1
    collector.ingest(Batch(0, 1, 1, records=records(5.0)))
    assert to_frame(collector.history_table())["attempt"].tolist() == [0, 0, 1]


def test_a_run_that_goes_on_in_its_directory(facts: RunFacts) -> None:
    first = Collector(facts)
    first.group_starting(1)
    first.group_starting(1)
    first.ingest(Batch(0, 1, 1, records=records(1.0)))
    first.set_state("failed")
    first.close()
    second = Collector(facts)
    second.group_starting(1)
    assert second.hello(who(0, 1)) == 2
    assert second._digest.run["attempt"] == 0  # of this run
    second.ingest(Batch(0, 2, 1, records=records(2.0)))
    second.close()
    frame = to_frame(second.history_table())
    assert frame["attempt"].tolist() == [1, 2] and frame["loss"].tolist() == [1.0, 2.0]
    assert record_of(second)["attempts"] == 3


def test_hello_without_a_group(collector: Collector) -> None:
    # Where the controller does not tell of its groups.
    assert collector.hello(who(0)) == 0
    assert collector.workers()[0]["status"] == "running"


def test_poll_waits_for_news(collector: Collector) -> None:
    collector.poll("w", 0)
    start = time.monotonic()
    assert not collector.poll("w", 0.2)
    assert 0.15 < time.monotonic() - start < 2
    threading.Timer(0.1, collector.event, ["hello"]).start()
    start = time.monotonic()
    update = collector.poll("w", 10)
    assert [e["text"] for e in update.content["events"]] == ["hello"]
    assert time.monotonic() - start < 5
    # Another watcher begins at the beginning.
    assert "run" in collector.poll("other", 0).content


def test_poll_waits_for_what_is_due(facts: RunFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raynb.telemetry.digest.MANY_RANKS", 1)
    collector = Collector(facts)
    collector.group_starting(2)
    collector.poll("w", 0)
    collector.ingest(Batch(0, 0, 1, sample={"util": 1.0}))
    assert not collector.poll("w", 0.05)  # with many ranks, rows wait
    start = time.monotonic()
    assert collector.poll("w", 10).content["workers"] == [{"rank": 0, "util": 1.0}]
    assert time.monotonic() - start < 1.0
    collector.close()


def test_each_watcher_has_its_own_pins(collector: Collector) -> None:
    collector.group_starting(20)
    for rank in range(20):
        collector.ingest(Batch(rank, 0, 1, records=records(float(rank))))
    one, other = Mirror(), Mirror()
    one.apply(collector.poll("one", 0, [4]))
    other.apply(collector.poll("other", 0, []))
    assert set(one.series) == {("loss", 4, 0), ("loss", 19, 0)}
    assert set(other.series) == {("loss", 19, 0)}
    one.apply(collector.poll("one", 5, [5, "odd"]))
    assert set(one.series) == {("loss", 5, 0), ("loss", 19, 0)}
    assert one.bands["loss", 0][3].tolist() == other.bands["loss", 0][3].tolist() == [9.5]


def test_watchers_are_bounded_and_told_everything_when_they_come_back(
    collector: Collector,
) -> None:
    assert collector.poll("first", 0).whole
    assert not collector.poll("first", 0).whole
    for k in range(100):
        collector.poll(str(k), 0)
    assert len(collector._cursors) == 32
    mirror = Mirror()
    mirror.apply(collector.poll("99", 0))
    again = collector.poll("first", 0)
    assert again.whole and "run" in again.content


def test_log_files_are_read_from_storage(collector: Collector, tmp_path: Path) -> None:
    assert collector.log_file(3, 100) is None
    logs = tmp_path / "run" / "raynb" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-00003.log").write_bytes(b"0123456789")
    assert collector.log_file(3, 100) == (b"0123456789", True)
    assert collector.log_file(3, 10) == (b"0123456789", True)
    assert collector.log_file(3, 4) == (b"6789", False)
    (logs / "rank-00004.log").mkdir()
    assert collector.log_file(4, 100) is None


def test_history_is_written_while_the_run_goes_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("raynb.telemetry.history.FLUSH_S", 0.0)
    history = tmp_path / "run" / "raynb" / "history"
    history.write_text("in the way")
    collector.ingest(Batch(0, 0, 1, records=records(1.0)))

    def until(text: str) -> None:
        deadline = time.monotonic() + 10
        while not any(text in e["text"] for e in collector._digest.events):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    until("history can't be written")
    history.unlink()
    until("history is written again")
    assert [p.suffix for p in history.iterdir()] == [".parquet"]


def test_history_that_could_not_be_written_is_told_at_the_end(
    facts: RunFacts, tmp_path: Path
) -> None:
    collector = Collector(facts)
    (tmp_path / "run" / "raynb" / "history").write_text("in the way")
    collector.ingest(Batch(0, 0, 1, records=records(1.0)))
    collector.close()
    assert any("history could not be written" in e["text"] for e in record_of(collector)["events"])


def test_a_record_with_odd_values_is_still_written(collector: Collector, tmp_path: Path) -> None:
    sample = {"util": np.float32(5.0), "note": {1, 2}, "mem_used": np.int64(3)}
    collector.ingest(Batch(0, 0, 1, sample=sample, records=records(float("nan"))))
    collector.write_record()
    text = (tmp_path / "run" / "raynb" / "record.json").read_text()
    [row] = json.loads(text, parse_constant=lambda n: pytest.fail(n))["workers"]
    assert (row["util"], row["mem_used"], row["note"]) == (5.0, 3, None)


def test_records_written_at_once_do_not_collide(collector: Collector) -> None:
    threads = [threading.Thread(target=collector.write_record) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [e for e in collector._digest.events if "record.json" in e["text"]]


def test_a_row_that_no_hint_can_read_ends_nothing(collector: Collector) -> None:
    collector.group_starting(1)
    collector.hello(who(0, 1))
    collector.set_state("training")
    # A worker's message would not get in with it.
    collector._digest.set_worker(0, shards=[{"name": "train", "batches_seen": Odd()}])
    collector.ingest(Batch(0, 0, 1, records=records(1.0, 0.5)))
    time.sleep(1.2)  # the thread that looks for hints writes the history as well
    assert collector._thread.is_alive()
    collector.set_state("finished")
    assert collector.state == "finished"
    said = [e["text"] for e in collector.poll("w", 0.0).content["events"]]
    assert sum("can't be told: RuntimeError: odd" in text for text in said) == 1


class Odd:
    """A value that nothing can be asked of."""

    def __bool__(self) -> bool:
        raise RuntimeError("odd")


def test_a_run_ends_even_when_its_end_fails(
    facts: RunFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor.__ray_metadata__.modified_class(facts, {})
    collector = supervisor._collector

    def broken() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(collector.history, "flush", broken)
    supervisor._end(object(), None)
    monkeypatch.undo()
    outcome = supervisor.outcome(timeout=0)
    assert outcome.state == collector.state == "failed"
    assert "no more" in str(outcome.error)
    collector.close()


def test_a_supervisor_stays_while_storage_does_not_take_its_rows(
    facts: RunFacts, tmp_path: Path
) -> None:
    supervisor = Supervisor.__ray_metadata__.modified_class(facts, {})
    supervisor._collector.ingest(Batch(0, 0, 1, records=records(1.0)))
    history = tmp_path / "run" / "raynb" / "history"
    history.write_text("in the way")
    supervisor.release("w")  # would end this process, or say that it is no actor
    assert supervisor._released and not supervisor._all_written()
    history.unlink()
    assert supervisor._all_written()
    supervisor._collector.close()
    assert len(supervisor._collector.history_table()) == 1
