"""The digest: bounded, and whoever watches it ends with the same picture at any cut."""

from __future__ import annotations

import json
import math
import time
from pprint import pformat
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raynb.telemetry.curves as curves_module
import raynb.telemetry.digest as digest_module
import raynb.telemetry.loglines as loglines_module
import raynb.telemetry.mirror as mirror_module
from raynb.telemetry.bands import ROWS as BAND_ROWS
from raynb.telemetry.digest import MANY_S, Cursor, Digest
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.loglines import MAX_LINE, MAX_LOG_LINES
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.series import LAST, MAX_BUCKETS
from raynb.telemetry.trend import MAX_POINTS, RECENT, Trend
from raynb.telemetry.update import MAX_EVENTS, MAX_HINTS


def records(values: list[float], metric: str = "loss", first: int = 0) -> RecordBatch:
    return RecordBatch.of(
        [Record(first + k, 100.0 + first + k, {metric: v}) for k, v in enumerate(values)]
    )


def picture(digest: Digest, cursor: Cursor) -> dict[str, Any]:
    """Everything that a watcher of a digest should know, read off without its updates."""
    bands = digest.run["detail"] == "bands"
    series = {k: s.data.tolist() for k, s in digest.series.items()}
    worst = cursor.curves.focus["worst"]
    for (metric, attempt), band in digest.bands.items():
        for rank in {*cursor.pinned, *([worst[metric]] if metric in worst else [])}:
            data = band.of_rank(rank, -1, 0)[1].tolist()
            if data[0]:
                series[metric, rank, attempt] = data
    return {
        "run": digest.run,
        "workers": digest.workers,
        "series": series,
        "bands": {k: band.since(-1, 0)[1].tolist() for k, band in digest.bands.items()},
        "focus": {"pinned": list(cursor.pinned) if bands else [], "worst": worst},
        "logs": {
            rank: [(seq, stream, text) for seq, (stream, text, _) in lines.items()]
            for rank, lines in digest.logs.items()
        },
        "events": digest.events,
        "hints": digest.hints,
    }


def seen(mirror: Mirror) -> dict[str, Any]:
    return {
        "run": mirror.run,
        "workers": mirror.workers,
        "series": {k: d.tolist() for k, d in mirror.series.items()},
        "bands": {k: d.tolist() for k, d in mirror.bands.items()},
        "focus": mirror.focus,
        "logs": {
            rank: [(seq, *line) for seq, line in lines.items()]
            for rank, lines in mirror.logs.items()
        },
        "events": mirror.events,
        "hints": mirror.hints,
    }


def same(mirror: Mirror, digest: Digest, cursor: Cursor) -> bool:
    # pformat sorts the keys, and in text a NaN is equal to itself.
    return pformat(seen(mirror)) == pformat(picture(digest, cursor))


# -- updates -------------------------------------------------------------------------------------

values = st.one_of(st.floats(-100, 100), st.just(math.nan), st.just(math.inf))
batches = st.builds(
    Batch,
    rank=st.integers(0, 3),
    attempt=st.integers(0, 3),
    seq=st.just(0),
    records=st.one_of(
        st.none(),
        st.builds(
            records,
            st.lists(values, min_size=1, max_size=9),
            st.sampled_from(["loss", "acc", "other"]),
            st.sampled_from([0, 3, 50, -7]),
        ),
    ),
    sample=st.one_of(
        st.none(), st.builds(lambda u: {"util": u, "unknown key": 1}, st.sampled_from([1.0, 2.0]))
    ),
    shards=st.one_of(st.none(), st.just([{"name": "train", "rows_total": 3}])),
    timing=st.one_of(
        st.none(),
        st.sampled_from([{"step_s": 0.5}, {"waiting_since": 3.0, "where": "x"}, {"where": None}]),
    ),
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
        st.sampled_from(["poll 0", "poll 1", "event", "state", "hint", "grow", "pin 0", "pin 1"]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.booleans())
def test_a_mirror_equals_its_digest_at_any_cut(what: list[Any], many: bool) -> None:
    with (
        patch.object(curves_module, "MAX_BUCKETS", 8),
        patch.object(curves_module, "MAX_BAND_BUCKETS", 8),
        patch.object(curves_module, "MAX_POINTS", 40),
        patch.object(curves_module, "MAX_CELLS", 100),
        patch.object(curves_module, "MAX_ATTEMPTS", 2),
        patch.object(curves_module, "MAX_METRICS", 2),
        patch.object(mirror_module, "MAX_ATTEMPTS", 2),
        patch.object(loglines_module, "MAX_LOG_LINES", 4),
        patch.object(loglines_module, "MAX_ALL_LOG_LINES", 8),
        patch.object(loglines_module, "MIN_LOG_LINES", 1),
        patch.object(digest_module, "MAX_CURVE_RANKS", 3),
        patch.object(digest_module, "MANY_RANKS", 2 if many else 64),
        patch.object(digest_module, "MAX_EVENTS", 3),
        patch.object(mirror_module, "MAX_EVENTS", 3),
    ):
        digest = Digest("run", best=("loss", "min"), world_size=2)
        watchers = [(Cursor(), Mirror()), (Cursor(), Mirror())]
        now = 0.0

        def poll(k: int, *, whole: bool) -> None:
            cursor, mirror = watchers[k]
            mirror.apply(digest.since(cursor, now))
            assert not whole or same(mirror, digest, cursor)

        for n, action in enumerate(what):
            now += 0.2  # with many ranks, rows and curves come with every third look
            if isinstance(action, Batch):
                digest.apply(action)
            elif action == "event":
                digest.event(f"event {n}", at=float(n + 1))
            elif action == "state":
                digest.set_run(state=f"s{n % 3}")
            elif action == "hint":
                digest.set_hints([{"id": "a", "until": n // 2}])
            elif action == "grow":
                digest.set_run(world_size=4 - n % 2)
            elif action.startswith("pin"):
                watchers[int(action[-1])][0].pin([n % 4, (n + 1) % 3])
            else:
                poll(int(action[-1]), whole=not many)
        now += 10
        poll(0, whole=True)
        poll(1, whole=True)
        fresh, late = Cursor(pinned=watchers[0][0].pinned), Mirror()
        late.apply(digest.since(fresh, now))
        copied = Mirror()
        copied.apply(late.snapshot())
        for mirror in (watchers[0][1], late, copied):
            assert same(mirror, digest, fresh)
            assert len(mirror.events) <= 3
            assert all(len(lines) <= 4 for lines in mirror.logs.values())
            assert all(d.shape[1] <= 8 for d in (*mirror.series.values(), *mirror.bands.values()))
        assert digest.due(watchers[0][0], now) is None
        assert not digest.since(watchers[0][0], now)  # nothing new is nothing


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


# -- curves -------------------------------------------------------------------------------------


def test_a_merge_makes_watchers_start_over() -> None:
    digest, cursor, mirror = Digest("run"), Cursor(), Mirror()
    digest.apply(Batch(0, 0, 1, records=records([1.0] * MAX_BUCKETS)))
    mirror.apply(digest.since(cursor))
    digest.apply(Batch(0, 0, 2, records=records([2.0], first=MAX_BUCKETS)))
    update = digest.since(cursor)
    assert update.content["series"][0]["start"] == 0
    mirror.apply(update)
    assert mirror.series["loss", 0, 0].shape == (6, MAX_BUCKETS // 2 + 1)


def test_past_sixteen_ranks_there_are_bands_and_the_series_in_focus() -> None:
    digest, cursor, mirror = Digest("run", world_size=17), Cursor(pinned=(3, 99)), Mirror()
    for rank in range(17):
        digest.apply(Batch(rank, 0, 1, records=records([1.0, 2.0 + rank])))
    assert digest.run["detail"] == "bands" and not digest.series
    mirror.apply(digest.since(cursor, 0.0))
    assert mirror.focus == {"pinned": [3, 99], "worst": {"loss": 16}}
    assert sorted(mirror.series) == [("loss", 3, 0), ("loss", 16, 0)]
    assert mirror.series["loss", 3, 0][LAST].tolist() == [1.0, 5.0]
    assert mirror.bands["loss", 0].shape == (BAND_ROWS, 2)
    assert mirror.spread("loss") == (2.0, 10.0, 18.0, 17)
    cursor.pin([])
    mirror.apply(digest.since(cursor, 1.0))
    assert list(mirror.series) == [("loss", 16, 0)]  # out of focus is forgotten
    cursor.pin([3])
    mirror.apply(digest.since(cursor, 2.0))
    assert mirror.series["loss", 3, 0].shape[1] == 2  # and comes back whole


def test_pins_are_each_watchers_own() -> None:
    digest, one, other = Digest("run", world_size=20), Cursor(), Cursor()
    for rank in range(20):
        digest.apply(Batch(rank, 0, 1, records=records([float(rank)])))
    one.pin([1, 1, "x", -1, True, None, 2])
    other.pin(range(50))
    first, second = digest.since(one, 0.0), digest.since(other, 0.0)
    assert first.content["focus"]["pinned"] == [1, 2]
    assert second.content["focus"]["pinned"] == list(range(16))
    assert {s["rank"] for s in first.content["series"]} == {1, 2, 19}
    assert {s["rank"] for s in second.content["series"]} == {*range(16), 19}


def test_the_worst_rank_stays_for_some_seconds() -> None:
    digest, cursor = Digest("run", world_size=20), Cursor()

    def worst(now: float, **value_of: float) -> Any:
        for rank, value in value_of.items():
            digest.apply(Batch(int(rank[1:]), 0, 1, records=records([value], first=int(now))))
        digest.since(cursor, now)
        return cursor.curves.focus["worst"]["loss"]

    assert worst(10.0, r0=1.0, r1=5.0, r2=3.0) == 1
    assert worst(11.0, r2=9.0) == 1
    assert worst(13.5) == 2
    assert worst(14.0, r0=math.nan) == 2
    assert worst(17.0) == 0


def test_curves_of_ranks_become_bands_when_the_group_grows() -> None:
    digest, cursor, mirror = Digest("run", world_size=2), Cursor(), Mirror()
    for rank in range(2):
        digest.apply(Batch(rank, 0, 1, records=records([1.0, 2.0 + rank])))
    mirror.apply(digest.since(cursor, 0.0))
    assert len(mirror.series) == 2 and not mirror.bands
    digest.set_run(world_size=20)
    mirror.apply(digest.since(cursor, 1.0))
    assert mirror.bands["loss", 0][3].tolist() == [1.0, 2.5]
    assert list(mirror.series) == [("loss", 1, 0)]
    digest.set_run(world_size=2)
    assert digest.run["detail"] == "bands"


def test_names_made_up_by_a_run_are_bounded_and_counted() -> None:
    digest = Digest("run")
    names = {f"m{k}": float(k) for k in range(curves_module.MAX_METRICS + 7)}
    for _ in range(2):
        digest.apply(Batch(0, 0, 1, records=RecordBatch.of([Record(1, 1.0, names)])))
    assert len(digest.series) == curves_module.MAX_METRICS
    assert digest.run["dropped"]["series"] == 7


def test_many_series_share_a_bounded_memory() -> None:
    digest = Digest("run", world_size=16)
    names = [f"m{k}" for k in range(60)]
    for start in range(0, 3000, 500):
        for rank in range(16):
            taken = [
                Record(start + k, float(k), dict.fromkeys(names, float(k))) for k in range(500)
            ]
            digest.apply(Batch(rank, 0, 1, records=RecordBatch.of(taken)))
    assert len(digest.series) == 960 and not digest.run["dropped"]["series"]
    assert sum(s._data.shape[1] for s in digest.series.values()) <= curves_module.MAX_POINTS


def test_attempts_long_past_are_forgotten() -> None:
    digest, cursor, mirror = Digest("run"), Cursor(), Mirror()
    for attempt in range(30):
        digest.apply(Batch(0, attempt, 1, records=records([1.0])))
        mirror.apply(digest.since(cursor, float(attempt)))
    digest.apply(Batch(0, 3, 9, records=records([2.0])))  # came late
    mirror.apply(digest.since(cursor, 40.0))
    assert {key[2] for key in digest.series} == {key[2] for key in mirror.series}
    assert {key[2] for key in digest.series} == set(range(20, 30))
    assert len(cursor.curves.series) == 10


def test_the_first_value_that_is_no_number_is_kept() -> None:
    digest = Digest("run")
    digest.apply(Batch(0, 0, 1, records=records([1.0, math.inf, math.nan])))
    digest.apply(Batch(0, 0, 2, records=records([math.nan], first=3)))
    assert digest.nonfinite == {("loss", 0, 0): (1.0, math.inf)}


def test_values_that_are_no_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_module, "MAX_NONFINITE", 3)
    digest = Digest("run")
    for attempt in (0, 1):
        for rank in range(5):
            digest.apply(Batch(rank, attempt, 1, records=records([math.nan])))
        assert list(digest.nonfinite) == [("loss", rank, attempt) for rank in range(3)]


# -- many ranks ----------------------------------------------------------------------------------


def test_with_many_ranks_rows_and_curves_come_twice_a_second() -> None:
    digest, cursor = Digest("run", world_size=100), Cursor()
    for rank in range(100):
        digest.apply(Batch(rank, 0, 1, records=records([1.0] * 10)))
    assert digest.due(cursor, 50.0) == 0.0
    first = digest.since(cursor, 50.0)
    assert first.whole and len(first.content["workers"]) == 100
    digest.apply(Batch(7, 0, 2, records=records([2.0], first=10), sample={"util": 3.0}))
    assert digest.due(cursor, 50.1) == pytest.approx(MANY_S - 0.1)
    assert not digest.since(cursor, 50.1)
    digest.apply(Batch(7, 0, 3, logs=[(1, "out", "hi")]))  # lines do not wait
    assert digest.due(cursor, 50.2) == 0.0
    assert list(digest.since(cursor, 50.2).content) == ["logs"]
    update = digest.since(cursor, 50.0 + MANY_S)
    [row] = update.content["workers"]
    assert row == {
        "rank": 7, "util": 3.0, "step": 10.0, "rate": 1.0, "last_report": 110.0, "records": 11
    }  # fmt: skip
    assert [part["start"] for part in update.content["bands"]] == [10]
    assert digest.due(cursor, 60.0) is None
    # The end does not wait: nobody asks any more after it.
    digest.set_worker(7, status="finished")
    digest.set_run(state="finished")
    last = digest.since(cursor, 50.6 + MANY_S / 2)
    assert last.content["workers"] == [{"rank": 7, "status": "finished"}]


def test_lines_a_rank_go_by_the_number_of_ranks() -> None:
    digest, cursor, mirror = Digest("run", world_size=2), Cursor(), Mirror()
    digest.apply(Batch(0, 0, 1, logs=[(k, "out", str(k)) for k in range(250)]))
    mirror.apply(digest.since(cursor))
    digest.set_run(world_size=1000)
    digest.apply(Batch(1, 0, 1, logs=[(k, "out", str(k)) for k in range(250)]))
    mirror.apply(digest.since(cursor))
    assert digest.run["log_lines"] == 20
    for rank in (0, 1):
        assert list(mirror.logs[rank]) == list(digest.logs[rank]) == list(range(230, 250))


# -- hints and trends ----------------------------------------------------------------------------


def test_hints_are_told_whole_when_they_change() -> None:
    digest, cursor = Digest("run"), Cursor()
    digest.since(cursor)
    hints = [{"id": str(k)} for k in range(MAX_HINTS + 5)]
    digest.set_hints(hints)
    assert digest.since(cursor).content == {"hints": hints[:MAX_HINTS]}
    digest.set_hints([dict(hint) for hint in hints])
    assert not digest.since(cursor)
    digest.set_hints([])
    assert digest.since(cursor).content == {"hints": []}


@pytest.mark.parametrize("n", [1, 59, 60, 61, 300, 301, 1_000, 12_345])
def test_a_trend_spans_the_whole_life(n: int) -> None:
    trend = Trend(0)
    for k in range(n):
        trend.add({"time": float(k), "rss": 2 * k, "util": None})
    times = trend["time"]
    assert len(times) <= MAX_POINTS + RECENT and (np.diff(times) > 0).all()
    assert times[0] == 0 and times[-1] == n - 1
    assert times[-min(n, RECENT) :].tolist() == list(range(max(0, n - RECENT), n))
    assert n < 2 * MAX_POINTS or len(times) > MAX_POINTS / 2
    np.testing.assert_array_equal(trend["rss"], 2 * times)
    assert np.isnan(trend["util"]).all() and trend.samples == n
    with pytest.raises(KeyError):
        trend["none"]


def test_a_trend_is_of_one_attempt() -> None:
    digest = Digest("run")
    digest.apply(Batch(0, 0, 1, sample={"rss": 1}))
    digest.apply(Batch(0, 1, 1, sample={"rss": 2}))
    digest.apply(Batch(0, 0, 2, sample={"rss": 3}))  # came late
    assert digest.trends[0].attempt == 1 and digest.trends[0]["rss"].tolist() == [2.0]


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
    assert digest.run["dropped"] == {"metrics": 0, "samples": 5, "logs": 7, "series": 0}
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
    train = {"name": "train", "rows_total": 30, "rows_seen": 1}
    streamed = {"name": "val", "rows_total": None, "rows_seen": 1}
    digest.apply(Batch(2, 0, 1, shards=[train]))  # of a group that was larger
    digest.apply(Batch(0, 0, 1, shards=[train, streamed]))
    assert digest.run["shard_totals"] is None
    digest.apply(Batch(1, 0, 1, shards=[train, {**streamed, "rows_total": 7}]))
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


@pytest.mark.parametrize(
    ("behind", "shift"), [(0.0, 0.0), (0.7, 0.0), (90.0, 90.0), (-90.0, -90.0)]
)
def test_times_of_a_worker_whose_clock_is_wrong(behind: float, shift: float) -> None:
    digest, now = Digest("run"), time.time()
    for seq, delay in enumerate((0.0, 30.0)):  # the second message was long on its way
        sent = now - delay - behind
        timing = {"waiting_since": sent - 5, "still_since": None, "reports": seq}
        digest.apply(Batch(0, 0, seq, timing=timing, sent=sent))
        row = digest.workers[0]
        assert row["waiting_since"] == pytest.approx(sent - 5 + shift, abs=1)
        assert row["still_since"] is None and row["reports"] == seq
