"""The digest: bounded, and whoever watches it ends with the same picture at any cut."""

from __future__ import annotations

import json
import math
from pprint import pformat
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raynb.telemetry.digest as digest_module
from raynb.telemetry.digest import (
    LAST,
    MAX,
    MAX_BUCKETS,
    MAX_EVENTS,
    MAX_LINE,
    MAX_LOG_LINES,
    MIN,
    STEP,
    TIME,
    Cursor,
    Digest,
    Mirror,
    Series,
)
from raynb.telemetry.events import Batch, Record, RecordBatch


def records(values: list[float], metric: str = "loss", first: int = 0) -> RecordBatch:
    return RecordBatch.of(
        [Record(first + k, 100.0 + first + k, {metric: v}) for k, v in enumerate(values)]
    )


def picture(digest: Digest) -> dict[str, Any]:
    """Everything a digest holds, read off without its updates."""
    return {
        "run": digest.run,
        "workers": digest.workers,
        "series": {k: s._data[:, : s.n].tolist() for k, s in digest.series.items()},
        "logs": {
            rank: [(seq, stream, text) for seq, (stream, text, _) in lines.items()]
            for rank, lines in digest.logs.items()
        },
        "events": digest.events,
    }


def seen(mirror: Mirror) -> dict[str, Any]:
    return {
        "run": mirror.run,
        "workers": mirror.workers,
        "series": {k: d.tolist() for k, d in mirror.series.items()},
        "logs": {
            rank: [(seq, *line) for seq, line in lines.items()]
            for rank, lines in mirror.logs.items()
        },
        "events": mirror.events,
    }


def same(mirror: Mirror, digest: Digest) -> bool:
    # pformat sorts the keys, and in text a NaN is equal to itself.
    return pformat(seen(mirror)) == pformat(picture(digest))


# -- updates -------------------------------------------------------------------------------------

values = st.one_of(st.floats(-100, 100), st.just(math.nan), st.just(math.inf))
batches = st.builds(
    Batch,
    rank=st.integers(0, 1),
    attempt=st.integers(0, 1),
    seq=st.just(0),
    records=st.one_of(
        st.none(),
        st.builds(
            records, st.lists(values, min_size=1, max_size=9), st.sampled_from(["loss", "acc"])
        ),
    ),
    sample=st.one_of(st.none(), st.just({"util": 3.0, "unknown key": 1})),
    logs=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["out", "err"]), st.text(max_size=2)),
        max_size=5,
    ),
    status=st.sampled_from([None, "running", "waiting", "finished"]),
    dropped=st.sampled_from([{}, {"logs": 2}, {"samples": 1}]),
)
actions = st.lists(
    st.one_of(
        batches,
        st.sampled_from(["poll 0", "poll 1", "event", "state"]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_a_mirror_equals_its_digest_at_any_cut(what: list[Any]) -> None:
    with (
        patch.object(digest_module, "MAX_BUCKETS", 8),
        patch.object(digest_module, "MAX_LOG_LINES", 4),
        patch.object(digest_module, "MAX_EVENTS", 3),
    ):
        digest = Digest("run", best=("loss", "min"))
        watchers = [(Cursor(), Mirror()), (Cursor(), Mirror())]

        def poll(k: int) -> None:
            cursor, mirror = watchers[k]
            mirror.apply(digest.since(cursor))
            assert same(mirror, digest)

        for n, action in enumerate(what):
            if isinstance(action, Batch):
                digest.apply(action)
            elif action == "event":
                digest.event(f"event {n}", at=float(n + 1))
            elif action == "state":
                digest.set_run(state=f"s{n % 3}")
            else:
                poll(int(action[-1]))
        poll(0)
        poll(1)
        late = Mirror()
        late.apply(digest.since(Cursor()))
        copied = Mirror()
        copied.apply(late.snapshot())
        for mirror in (watchers[0][1], watchers[1][1], late, copied):
            assert same(mirror, digest)
            assert len(mirror.events) <= 3
            assert all(len(lines) <= 4 for lines in mirror.logs.values())
        assert not digest.since(watchers[0][0])  # nothing new is nothing


def test_updates_hold_only_what_changed() -> None:
    digest, cursor = Digest("run"), Cursor()
    digest.since(cursor)
    assert digest.since(cursor).content == {}
    digest.set_worker(0, node="a")
    assert list(digest.since(cursor).content) == ["workers"]
    digest.event("x")
    assert [e["text"] for e in digest.since(cursor).content["events"]] == ["x"]
    digest.apply(Batch(0, 0, 1, records=records([1.0, 2.0])))
    digest.since(cursor)
    digest.apply(Batch(0, 0, 2, records=records([3.0], first=2)))
    update = digest.since(cursor)
    [one] = update.content["series"]
    # The newest bucket may have changed, so it is sent again.
    assert (one["start"], one["n"]) == (1, 2)
    assert update.buffers[one["buf"]][LAST].tolist() == [2.0, 3.0]
    json.dumps(update.content)


def test_an_update_does_not_change_afterwards() -> None:
    digest = Digest("run")
    digest.apply(Batch(0, 0, 1, records=records([1.0])))
    update = digest.since(Cursor())
    before = repr(update)
    digest.apply(Batch(0, 0, 2, records=records([9.0], first=1), status="finished"))
    digest.set_run(state="finished")
    assert repr(update) == before


# -- series --------------------------------------------------------------------------------------


def test_a_series_is_bounded_and_keeps_its_extremes() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=10_000)
    numbers[777], numbers[7_777] = 1e6, -1e6
    steps = np.arange(10_000.0)
    series = Series()
    at = 0
    while at < len(numbers):  # in messages of all sizes
        upto = at + int(rng.integers(1, 700))
        series.append(steps[at:upto], steps[at:upto] + 50, numbers[at:upto])
        at = upto
        assert series.n <= MAX_BUCKETS
    start, data = series.since(-1, 0)
    assert start == 0 and data.shape == (5, series.n) and series.n > MAX_BUCKETS / 2
    assert data[MAX].max() == 1e6 and data[MIN].min() == -1e6
    assert series.generation == 4
    width = 16
    for bucket in range(series.n):
        part = numbers[bucket * width : (bucket + 1) * width]
        assert data[MIN, bucket] == part.min() and data[MAX, bucket] == part.max()
        assert data[LAST, bucket] == part[-1]
    assert data[STEP, -1] == 9_999 and data[TIME, -1] == 10_049
    assert (np.diff(data[STEP]) > 0).all()


@pytest.mark.parametrize("sizes", [[1] * 3000, [3000], [1, 999, 1, 999, 1000]])
def test_a_series_does_not_depend_on_the_messages_sizes(sizes: list[int]) -> None:
    numbers, series, at = np.sin(np.arange(3000.0)), Series(), 0
    for size in sizes:
        part = slice(at, at + size)
        series.append(numbers[part], numbers[part], numbers[part])
        at += size
    whole = Series()
    whole.append(numbers, numbers, numbers)
    np.testing.assert_array_equal(series.since(0, 0)[1], whole.since(0, 0)[1])


def test_nan_inside_a_bucket_keeps_the_numbers_range() -> None:
    series = Series()
    ramp = np.arange(float(MAX_BUCKETS))
    series.append(ramp, ramp, ramp)
    nan = np.array([math.nan, 5.0, math.nan, math.nan])
    series.append(nan * 0 + 1, nan * 0 + 1, nan)
    data = series.since(0, 0)[1]
    assert data[MIN, -2] == data[MAX, -2] == 5.0 and data[LAST, -2] == 5.0
    assert np.isnan(data[[MIN, MAX, LAST], -1]).all()


def test_a_merge_makes_watchers_start_over() -> None:
    digest, cursor, mirror = Digest("run"), Cursor(), Mirror()
    digest.apply(Batch(0, 0, 1, records=records([1.0] * MAX_BUCKETS)))
    mirror.apply(digest.since(cursor))
    digest.apply(Batch(0, 0, 2, records=records([2.0], first=MAX_BUCKETS)))
    update = digest.since(cursor)
    assert update.content["series"][0]["start"] == 0
    mirror.apply(update)
    assert mirror.series["loss", 0, 0].shape == (5, MAX_BUCKETS // 2 + 1)


# -- logs and events -----------------------------------------------------------------------------


def test_log_lines_are_replaced_by_number_bounded_and_cut() -> None:
    digest, cursor, mirror = Digest("run"), Cursor(), Mirror()
    digest.apply(Batch(0, 0, 1, logs=[(1, "err", "10 %"), (2, "out", "x" * 9_000)]))
    mirror.apply(digest.since(cursor))
    digest.apply(Batch(0, 0, 2, logs=[(1, "err", "20 %")]))
    update = digest.since(cursor)
    assert update.content["logs"] == [{"rank": 0, "seq": 1, "stream": "err", "text": "20 %"}]
    mirror.apply(update)
    assert list(mirror.logs[0]) == [1, 2]
    assert mirror.logs[0][2][1] == "x" * MAX_LINE + " … (cut)"
    digest.apply(Batch(0, 0, 3, logs=[(k, "out", str(k)) for k in range(3, 2_000)]))
    digest.apply(Batch(0, 0, 4, logs=[(1, "err", "too late")]))
    mirror.apply(digest.since(cursor))
    assert list(mirror.logs[0]) == list(digest.logs[0]) == list(range(2_000 - MAX_LOG_LINES, 2_000))


def test_lines_of_an_earlier_attempt_stay_in_front() -> None:
    digest = Digest("run")
    digest.apply(Batch(0, 1, 1, logs=[((1 << 32) + 1, "out", "second")]))
    digest.apply(Batch(0, 0, 9, logs=[(5, "out", "first, late")]))
    assert [text for _, text, _ in digest.logs[0].values()] == ["first, late", "second"]


def test_a_quiet_rank_costs_nothing() -> None:
    digest, cursor = Digest("run"), Cursor()
    digest.apply(Batch(0, 0, 1, logs=[(1, "out", "a")]))
    digest.since(cursor)

    class Untouchable(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError("read though nothing is new")

    digest.logs[0] = Untouchable(digest.logs[0])  # type: ignore[assignment]
    digest.apply(Batch(1, 0, 1, logs=[(1, "out", "b")]))
    assert [line["rank"] for line in digest.since(cursor).content["logs"]] == [1]


def test_events_are_bounded_also_for_an_old_watcher() -> None:
    digest, cursor, mirror = Digest("run"), Cursor(), Mirror()
    digest.event("first", "warn", at=5.0)
    mirror.apply(digest.since(cursor))
    assert mirror.events == [{"t": 5.0, "level": "warn", "text": "first"}]
    for k in range(MAX_EVENTS * 2):
        digest.event(str(k))
    mirror.apply(digest.since(cursor))
    assert [e["text"] for e in mirror.events] == [str(k) for k in range(MAX_EVENTS, 2 * MAX_EVENTS)]
    digest.event("last")
    assert [e["text"] for e in digest.since(cursor).content["events"]] == ["last"]


# -- the run -------------------------------------------------------------------------------------


def test_only_a_change_is_news() -> None:
    digest = Digest("run")
    version = digest.version
    digest.set_run(state="preflight", message="")
    assert digest.version == version
    digest.set_run(state="training")
    assert digest.version > version


@pytest.mark.parametrize(("mode", "value", "step"), [("min", -2.0, 3), ("max", 4.0, 1)])
def test_best_is_of_numbers(mode: str, value: float, step: float) -> None:
    digest = Digest("run", best=("loss", mode))
    digest.apply(Batch(0, 0, 1, records=records([math.nan, math.inf, -math.inf])))
    assert digest.run["best"] is None
    digest.apply(Batch(1, 0, 1, records=records([math.nan, 4.0, 1.0, -2.0])))
    digest.apply(Batch(0, 0, 2, records=records([0.0, math.nan])))
    digest.apply(Batch(0, 0, 3, records=records([99.0, -99.0], metric="other")))
    assert digest.run["best"] == {"metric": "loss", "value": value, "step": step, "rank": 1}


def test_dropped_counts_add_up_over_ranks_and_attempts() -> None:
    digest, mirror = Digest("run"), Mirror()
    digest.apply(Batch(0, 0, 1, dropped={"logs": 3}))
    digest.apply(Batch(0, 0, 2, dropped={"logs": 5}))  # a total, not one more
    digest.apply(Batch(0, 1, 1, dropped={"logs": 2, "samples": 1}))
    digest.apply(Batch(1, 0, 1, dropped={"samples": 4}))
    assert digest.run["dropped"] == {"metrics": 0, "samples": 5, "logs": 7}
    mirror.apply(digest.since(Cursor()))
    assert mirror.logs_dropped == {0: 7}


# -- workers -------------------------------------------------------------------------------------


def test_a_row_before_and_after_its_first_message() -> None:
    digest = Digest("run")
    digest.set_worker(0, status="starting")
    row = digest.workers[0]
    assert row["util"] is row["step"] is row["rate"] is row["last_report"] is None
    digest.apply(
        Batch(
            0,
            0,
            1,
            records=records([1.0, 2.0]),
            sample={"util": 55.0, "device": "CPU", "note": None, "rank": 0},
            status="running",
        )
    )
    assert (row["util"], row["step"], row["last_report"]) == (55.0, 1.0, 101.0)
    assert row["records"] == 2 and row["status"] == "running"
    digest.apply(Batch(0, 0, 2, records=RecordBatch.of([])))
    assert row["records"] == 2


def moments(*points: tuple[float, float]) -> Digest:
    digest = Digest("run")
    for step, at in points:
        digest.apply(Batch(0, 0, 1, records=RecordBatch.of([Record(step, at, {"a": 1.0})])))
    return digest


def test_rate_is_steps_a_second_of_the_last_seconds() -> None:
    assert moments((5, 100.0)).workers[0]["rate"] is None
    assert moments((0, 100.0), (10, 105.0)).workers[0]["rate"] == 2.0
    slow, fast = [(k, 100.0 + k) for k in range(60)], [(60 + 5 * k, 160.0 + k) for k in range(30)]
    assert moments(*slow, *fast).workers[0]["rate"] == pytest.approx(5.0)
    # Once a minute: the last two messages, however old.
    assert moments((1, 0.0), (2, 60.0), (3, 180.0)).workers[0]["rate"] == pytest.approx(1 / 120)


def test_rate_survives_counters_that_go_back() -> None:
    # A second counter in between (an epoch's number) is no speed, nor is starting over.
    per_step = [(k, k / 10) for k in range(100, 200)]
    mixed = [*per_step, (1, 20.0), *((k, k / 10) for k in range(201, 250))]
    assert moments(*mixed).workers[0]["rate"] == pytest.approx(10.0)
    again = [*per_step, *((k, 20 + k / 5) for k in range(50))]
    assert moments(*again).workers[0]["rate"] == pytest.approx(5.0)
    assert moments((1, 1.0), (math.nan, 2.0), (3, 3.0), (4, 4.0)).workers[0]["rate"] == 1.0


def test_a_late_message_of_an_earlier_attempt_is_no_news_of_the_worker() -> None:
    digest = Digest("run")
    digest.apply(Batch(0, 0, 1, records=records([1.0]), status="running"))
    digest.set_worker(0, attempt=1, status="starting", rate=None)
    digest.apply(
        Batch(0, 0, 2, records=records([2.0], first=50), failure={"type": "E"}, status="failed")
    )
    row = digest.workers[0]
    assert (row["attempt"], row["status"], row["step"]) == (1, "starting", 0.0)
    assert digest.series["loss", 0, 0].n == 2 and row["records"] == 2


@pytest.mark.parametrize("ended", ["finished", "failed", "stopped"])
def test_an_ended_worker_does_not_run_again(ended: str) -> None:
    digest = Digest("run")
    digest.set_worker(0, status=ended)
    digest.apply(Batch(0, 0, 1, status="running"))
    assert digest.workers[0]["status"] == ended
    digest.apply(Batch(0, 0, 1, failure={"type": "E"}))
    assert digest.workers[0]["status"] == "failed"


def test_shard_totals_are_there_once_every_rank_told() -> None:
    digest = Digest("run", world_size=2)
    shard = {"name": "train", "rows_total": 30, "rows_seen": 1}
    digest.set_worker(2, status="stopped")  # of a group that was larger
    digest.apply(Batch(0, 0, 1, shard=shard))
    assert digest.run["shard_totals"] is None
    digest.apply(Batch(1, 0, 1, shard=shard))
    assert digest.run["shard_totals"] == {"train": 60}


def test_mirror_tells_names_and_latest_values() -> None:
    digest, mirror = Digest("run"), Mirror()
    digest.apply(Batch(0, 0, 1, records=records([0.5], metric="acc")))
    digest.apply(Batch(0, 0, 2, records=records([3.0], metric="val_loss")))
    digest.apply(Batch(0, 1, 1, records=records([2.0], metric="val_loss")))
    digest.apply(Batch(1, 0, 1, records=records([7.0, math.nan], metric="val_loss")))
    mirror.apply(digest.since(Cursor()))
    assert mirror.metrics() == ["val_loss", "acc"]
    latest = mirror.latest("val_loss")
    assert latest[0] == 2.0 and math.isnan(latest[1])
    assert mirror.latest("none") == {}


def test_a_whole_update_voids_what_was_known() -> None:
    digest = Digest("run")
    digest.event("one")
    digest.set_worker(0, status="running")
    mirror = Mirror()
    mirror.apply(digest.since(Cursor()))
    again = digest.since(Cursor())
    again.whole = True
    mirror.apply(again)
    assert [e["text"] for e in mirror.events] == ["one"]
    assert list(mirror.workers) == [0]
