"""The digest: a bounded picture of a run for the panel, and its updates for those who watch."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raynb.telemetry import clock
from raynb.telemetry.bands import BandKey
from raynb.telemetry.curves import Curves, CurveSeen
from raynb.telemetry.events import Batch, Floats, shard_totals
from raynb.telemetry.loglines import cut, keep_line, lines_a_rank, trim
from raynb.telemetry.rows import ENDED, SAMPLED, TIMED, Rows
from raynb.telemetry.series import Series, SeriesKey
from raynb.telemetry.trend import Trend
from raynb.telemetry.update import MAX_EVENTS, MAX_HINTS, Update, new_run

#: Past so many ranks, rows and curves are told twice a second instead of at once.
MANY_RANKS, MANY_S = 64, 0.5
#: Past so many ranks, curves are bands over all ranks instead of one a rank.
MAX_CURVE_RANKS = 16
#: First NaN or infinity of so many series.
MAX_NONFINITE = 10_000
MAX_PINNED = 16
#: Seconds that a worker's rate is taken over.
RATE_S = 10.0
#: Messages that it is taken over, at most: a worker's clock may stand, or be no number.
MAX_RATED = 1_000
#: Seconds by which a worker's clock may be off before its times are put right.
CLOCK_S = 2.0


@dataclass
class Cursor:
    """How far a watcher has seen; a new one gets everything.

    Attributes
    ----------
    pinned : tuple of int
        Ranks whose series the watcher wants with many ranks.
    """

    version: int = 0
    #: The same of rows, curves and counts, which are told less often with many ranks, and when.
    bulk: int = 0
    bulk_at: float = -math.inf
    event: int = 0
    curves: CurveSeen = field(default_factory=CurveSeen)
    pinned: tuple[int, ...] = ()

    def pin(self, ranks: Iterable[Any]) -> None:
        """Look at these ranks' series; what is no rank is passed over."""
        pinned = tuple(dict.fromkeys(r for r in ranks if type(r) is int and r >= 0))[:MAX_PINNED]
        if pinned != self.pinned:
            self.pinned = pinned
            self.bulk_at = -math.inf


class Digest:
    """Bounded picture of one run. Not thread-safe: its owner holds a lock around each call.

    Parameters
    ----------
    name : str
        The run's name.
    best : tuple of (metric, mode), optional
        Which metric to keep the best of; ``mode`` is ``min`` or ``max``.

    Attributes
    ----------
    run : dict
    workers : dict of int to dict
    logs : dict of int to dict of seq to (stream, text, version)
    events, hints : list of dict
    trends : dict of int to Trend
        Each rank's samples in its newest attempt.
    nonfinite : dict of (metric, rank, attempt) to (step, value)
        The first NaN or infinity of each series.
    """

    def __init__(self, name: str, best: tuple[str, str] | None = None, **run: Any) -> None:
        self._best = best
        self.run: dict[str, Any] = {**new_run(name), **run}
        self.logs: dict[int, OrderedDict[int, tuple[str, str, int]]] = {}
        self.events: list[dict[str, Any]] = []
        self.hints: list[dict[str, Any]] = []
        self.trends: dict[int, Trend] = {}
        self.nonfinite: dict[SeriesKey, tuple[float, float]] = {}
        self._rows = Rows()
        self._curves = Curves(best)
        self._events_cut = 0
        self._version = 1
        self._light = 1  # of the last change that is told at once
        self._run_version = 1
        self._hints_version = 0
        self._dropped_version = 0
        self._log_version: dict[int, int] = {}
        self._dropped: dict[int, tuple[int, dict[str, int]]] = {}
        self._logs_dropped: dict[int, int] = {}
        self._rate: dict[int, tuple[int, deque[tuple[float, float]]]] = {}
        self._shard_rows: dict[int, dict[str, int | None]] = {}
        self._behind: dict[int, tuple[int, float]] = {}
        if self.run["world_size"]:
            self.set_run(world_size=self.run["world_size"])

    @property
    def workers(self) -> dict[int, dict[str, Any]]:
        return self._rows.rows

    @property
    def series(self) -> dict[SeriesKey, Series]:
        """Each rank's series; empty where there are bands."""
        return self._curves.series

    @property
    def bands(self) -> Mapping[BandKey, Any]:
        return self._curves.bands

    @property
    def version(self) -> int:
        """Grows with each change; a watcher that has this version has seen all."""
        return self._version

    # -- what happens ----------------------------------------------------------------------------

    def _news(self, *, bulk: bool = False) -> int:
        self._version += 1
        if not (bulk and len(self.workers) > MANY_RANKS):
            self._light = self._version
        return self._version

    def set_run(self, **changes: Any) -> None:
        size = changes.get("world_size")
        if size:
            limit = min(self.run["log_lines"], lines_a_rank(size))
            if limit < self.run["log_lines"]:
                changes["log_lines"] = limit
                for lines in self.logs.values():
                    trim(lines, limit)
            if size > MAX_CURVE_RANKS or self.run["detail"] == "bands":
                changes["detail"] = "bands"
                self._curves.use_bands(size, self._version + 1)
        if any(self.run.get(k) != v for k, v in changes.items()):
            self.run.update(changes)
            self._run_version = self._news()

    def event(self, text: str, level: str = "info", at: float | None = None) -> None:
        self.events.append({"t": at or clock.now(), "level": level, "text": text})
        if len(self.events) > MAX_EVENTS:
            self.events.pop(0)
            self._events_cut += 1
        self._news()

    def set_hints(self, hints: Sequence[Mapping[str, Any]]) -> None:
        """Replace the hints; each watcher is told the whole list when it changed."""
        kept = [dict(hint) for hint in hints[:MAX_HINTS]]
        if kept != self.hints:
            self.hints = kept
            self._hints_version = self._news()

    def set_worker(self, rank: int, **changes: Any) -> None:
        self._rows.set(rank, changes, self._news())

    def apply(self, batch: Batch) -> None:
        """Take one worker's message."""
        rank, attempt = batch.rank, batch.attempt
        version = self._news(bulk=not batch.logs)
        row = self._rows.row(rank, version)
        changes: dict[str, Any] = {}
        # What a worker of an earlier attempt still had to tell is no news of the one there now.
        if attempt >= row["attempt"]:
            changes = self._changes(row, batch)
        if batch.records is not None and len(batch.records):
            changes["records"] = row["records"] + len(batch.records)
            self._take_records(batch, version)
        self._rows.set(rank, changes, version)
        limit = self.run["log_lines"]
        for seq, stream, text in batch.logs:
            lines = self.logs.setdefault(rank, OrderedDict())
            keep_line(lines, seq, (stream, cut(text), version), limit)
            self._log_version[rank] = version
        if batch.dropped:
            self._count_dropped(rank, attempt, batch.dropped)

    def _changes(self, row: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """What a message changes in its worker's row."""
        rank, attempt = batch.rank, batch.attempt
        changes: dict[str, Any] = {"attempt": attempt}
        ended = row["status"] in ENDED and attempt == row["attempt"]
        if batch.status and not ended:
            changes["status"] = batch.status
        if batch.failure:
            changes["status"] = "failed"
        if batch.sample:
            changes |= {k: batch.sample[k] for k in SAMPLED if k in batch.sample}
            trend = self.trends.get(rank)
            if trend is None or trend.attempt != attempt:
                trend = self.trends[rank] = Trend(attempt)
            trend.add(batch.sample)
        if batch.timing:
            changes |= {k: batch.timing[k] for k in TIMED if k in batch.timing}
            behind = self._clock_behind(batch)
            for name in ("waiting_since", "still_since"):
                if behind and changes.get(name) is not None:
                    changes[name] += behind
        if ended:
            changes.setdefault("status", row["status"])  # it waits for nothing any more
        if batch.shards is not None:
            changes["shards"] = batch.shards
            self._count_shards(rank, batch.shards)
        if batch.records is not None and len(batch.records):
            step, at = float(batch.records.steps[-1]), float(batch.records.times[-1])
            if rank not in self._rate or self._rate[rank][0] != attempt:
                self._rate[rank] = attempt, deque(maxlen=MAX_RATED)
            rate = _steps_per_second(self._rate[rank][1], step, at)
            changes |= {"step": step, "last_report": at}
            if rate is not None:
                changes["rate"] = rate
        return changes

    def _clock_behind(self, batch: Batch) -> float:
        """Seconds that a worker's clock is behind this one; 0 where it may as well be the way."""
        if batch.sent is None:
            return 0.0
        attempt, least = self._behind.get(batch.rank, (batch.attempt, math.inf))
        # A message is never faster than no time at all: the quickest one tells the clock best.
        least = min(clock.now() - batch.sent, least if attempt == batch.attempt else math.inf)
        self._behind[batch.rank] = batch.attempt, least
        return least if abs(least) > CLOCK_S else 0.0

    def _count_shards(self, rank: int, shards: Sequence[Mapping[str, Any]]) -> None:
        rows = {str(s.get("name")): s.get("rows_total") for s in shards}
        if self._shard_rows.get(rank) == rows:
            return
        self._shard_rows[rank] = rows
        size = self.run["world_size"]
        # An elastic group that shrank leaves rows of ranks that are no more.
        group = [r for k, r in self._shard_rows.items() if size is None or k < size]
        if len(group) == size and (totals := shard_totals(group)):
            self.set_run(shard_totals=totals)

    def _take_records(self, batch: Batch, version: int) -> None:
        records = batch.records
        assert records is not None
        if self.run["detail"] != "bands" and batch.rank >= MAX_CURVE_RANKS:
            self._curves.use_bands(batch.rank + 1, version)
            self.set_run(detail="bands")
        refused = self._curves.refused
        for metric, (rows, values) in records.metrics.items():
            steps = records.steps[rows]
            key = (metric, batch.rank, batch.attempt)
            self._curves.add(key, steps, records.times[rows], records.epochs[rows], values, version)
            finite = np.isfinite(values)
            if not finite.all():
                self._keep_nonfinite(key, steps, values)
            if self._best and metric == self._best[0]:
                self._keep_best(batch.rank, steps[finite], values[finite])
        if self._curves.refused != refused:
            self.set_run(dropped={**self.run["dropped"], "series": self._curves.refused})

    def _keep_nonfinite(self, key: SeriesKey, steps: Floats, values: Floats) -> None:
        if key in self.nonfinite:
            return
        if len(self.nonfinite) >= MAX_NONFINITE:
            # Those of the newest attempt are asked for; the first one is of the oldest.
            if next(iter(self.nonfinite))[2] >= key[2]:
                return
            self.nonfinite = {k: v for k, v in self.nonfinite.items() if k[2] >= key[2]}
        at = int(np.isfinite(values).argmin())
        self.nonfinite[key] = (float(steps[at]), float(values[at]))

    def _keep_best(self, rank: int, steps: Floats, values: Floats) -> None:
        assert self._best is not None
        if not len(values):
            return
        metric, mode = self._best
        at = int(values.argmax() if mode == "max" else values.argmin())
        best = self.run["best"]
        value = float(values[at])
        if best is None or (value > best["value"] if mode == "max" else value < best["value"]):
            self.set_run(
                best={"metric": metric, "value": value, "step": float(steps[at]), "rank": rank}
            )

    def _count_dropped(self, rank: int, attempt: int, dropped: Mapping[str, int]) -> None:
        """Add what is new in a rank's counts, which are totals of its attempt."""
        known, counts = self._dropped.get(rank, (attempt, {}))
        if attempt < known:
            return
        before = counts if attempt == known else {}
        more = {k: n - before.get(k, 0) for k, n in dropped.items() if n > before.get(k, 0)}
        self._dropped[rank] = (attempt, dict(dropped))
        if not more:
            return
        total = self.run["dropped"]
        self.set_run(dropped={**total, **{k: total.get(k, 0) + n for k, n in more.items()}})
        if "logs" in more:
            self._logs_dropped[rank] = self._logs_dropped.get(rank, 0) + more["logs"]
            self._dropped_version = self._version

    # -- who watches -----------------------------------------------------------------------------

    def due(self, cursor: Cursor, now: float) -> float | None:
        """Seconds until there is something to tell a watcher; None when nothing has changed."""
        if cursor.version == 0 or self._light > cursor.version:
            return 0.0
        if self._version > cursor.bulk or cursor.curves.pinned != cursor.pinned:
            return max(0.0, cursor.bulk_at + MANY_S - now)
        return None

    def since(self, cursor: Cursor, now: float | None = None) -> Update:
        """What changed after ``cursor``, which moves on to now.

        Parameters
        ----------
        cursor : Cursor
        now : float, optional
            Of the clock that :meth:`due` gets too; a monotonic one by default.
        """
        now = time.monotonic() if now is None else now
        update = Update(whole=cursor.version == 0)
        content = update.content
        seen, ended = cursor.version, self.run["state"] in ENDED
        if self._run_version > seen:
            content["run"] = dict(self.run)
        if len(self.workers) <= MANY_RANKS or ended or now >= cursor.bulk_at + MANY_S:
            self._bulk_since(cursor, update, now)
        logs = [
            {"rank": rank, "seq": seq, "stream": stream, "text": text}
            for rank, newest in sorted(self._log_version.items())
            if newest > seen
            for seq, (stream, text, version) in self.logs[rank].items()
            if version > seen
        ]
        if logs:
            content["logs"] = logs
        events = self.events[max(0, cursor.event - self._events_cut) :]
        if events:
            content["events"] = list(events)
            cursor.event = self._events_cut + len(self.events)
        if self._hints_version > seen:
            content["hints"] = list(self.hints)
        cursor.version = self._version
        return update

    def _bulk_since(self, cursor: Cursor, update: Update, now: float) -> None:
        """Rows, curves and counts, which are much with many ranks."""
        workers = self._rows.since(cursor.bulk)
        if workers:
            update.content["workers"] = workers
        if self._dropped_version > cursor.bulk:
            update.content["logs_dropped"] = dict(self._logs_dropped)
        self._curves.since(cursor.curves, cursor.bulk, cursor.pinned, update, now)
        cursor.bulk, cursor.bulk_at = self._version, now


def _steps_per_second(window: deque[tuple[float, float]], step: float, at: float) -> float | None:
    """The speed over ``window``, the (step, time) of recent messages, which takes this one in."""
    if window and not step >= window[-1][0]:
        # A counter that starts over, or another one in between: neither is a speed.
        window.clear()
        return None
    window.append((step, at))
    # Two stay however long ago, for those who log once an epoch.
    while len(window) > 2 and at - window[0][1] > RATE_S:
        window.popleft()
    steps, seconds = step - window[0][0], at - window[0][1]
    return steps / seconds if seconds > 0 and steps > 0 else None
