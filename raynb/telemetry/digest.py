"""The digest: a bounded picture of a run for the panel, and its updates for those who watch."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from raynb.telemetry.events import Batch, Floats, RecordBatch, shard_totals

#: Buckets of a series; past it, neighbours are merged and each bucket stands for twice as many.
MAX_BUCKETS = 1_000
MAX_LOG_LINES = 300
MAX_EVENTS = 200
#: A log line is cut here in the panel; the file on storage has all of it.
MAX_LINE = 2_000
#: Seconds that a worker's rate is taken over.
RATE_S = 10.0

#: Rows of a series' array.
STEP, TIME, LAST, MIN, MAX = range(5)

SeriesKey = tuple[str, int, int]  # metric, rank, attempt
Line = TypeVar("Line")


@dataclass
class Update:
    """What changed since a watcher's last look.

    Attributes
    ----------
    content : dict
        JSON-able; the wire schema's fields ``run``, ``workers``, ``series``, ``logs``, ``events``,
        each present only when something changed.
    buffers : list of ndarray, shape (5, n), float64
        A series' new buckets: step, time (UNIX seconds), last, min, max.
    whole : bool
        The update holds everything, and what a watcher knew before is void.
    """

    content: dict[str, Any] = field(default_factory=dict)
    buffers: list[Floats] = field(default_factory=list)
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.content)


class Series:
    """One metric of one rank in one attempt as min/max/last buckets, bounded in memory."""

    def __init__(self) -> None:
        self._data = np.empty((5, 16), dtype=np.float64)  # grows: most series are short
        self.n = 0
        self._width = 1  # records a bucket stands for
        self._filled = 0  # records in the newest bucket
        self.generation = 0  # counts the merges, so that a watcher knows to start over

    def append(self, steps: Floats, times: Floats, values: Floats) -> None:
        at = 0
        while at < len(values):
            if not self.n or self._filled >= self._width:
                self._open_bucket()
            upto = min(at + self._width - self._filled, len(values))
            bucket, part = self._data[:, self.n - 1], values[at:upto]
            bucket[STEP], bucket[TIME], bucket[LAST] = steps[upto - 1], times[upto - 1], part[-1]
            # fmin: a NaN must not swallow the range of the numbers beside it.
            bucket[MIN] = np.fmin.reduce(part, initial=bucket[MIN])
            bucket[MAX] = np.fmax.reduce(part, initial=bucket[MAX])
            self._filled += upto - at
            at = upto

    def _open_bucket(self) -> None:
        if self.n == MAX_BUCKETS:
            self._merge()
        if self.n == self._data.shape[1]:
            grown = np.empty((5, min(2 * self.n, MAX_BUCKETS)), dtype=np.float64)
            grown[:, : self.n] = self._data
            self._data = grown
        self._data[:, self.n] = np.nan
        self.n += 1
        self._filled = 0

    def _merge(self) -> None:
        left, right = self._data[:, 0 : self.n : 2], self._data[:, 1 : self.n : 2]
        merged = right.copy()
        merged[MIN] = np.fmin(left[MIN], right[MIN])
        merged[MAX] = np.fmax(left[MAX], right[MAX])
        self.n = merged.shape[1]
        self._data[:, : self.n] = merged
        self._width *= 2
        self.generation += 1

    def since(self, generation: int, seen: int) -> tuple[int, Floats]:
        """First changed bucket and the buckets from there, shape (5, k)."""
        start = max(0, seen - 1) if generation == self.generation else 0
        return start, self._data[:, start : self.n].copy()


@dataclass
class Cursor:
    """How far a watcher has seen; a new one gets everything."""

    version: int = 0
    event: int = 0
    series: dict[SeriesKey, tuple[int, int]] = field(default_factory=dict)


def new_worker(rank: int) -> dict[str, Any]:
    """A worker's row before anything is known of it: unknown is None, never 0."""
    return {
        "rank": rank,
        "attempt": 0,
        "node": None,
        "ip": None,
        "pid": None,
        "device": None,
        "device_kind": "CPU",
        "util": None,
        "mem_used": None,
        "mem_total": None,
        "note": None,
        "step": None,
        "rate": None,
        "last_report": None,
        "records": 0,
        "status": "starting",
        "shard": None,
    }


class Digest:
    """Bounded picture of one run. Not thread-safe: its owner holds a lock around each call.

    Parameters
    ----------
    name : str
        The run's name.
    best : tuple of (metric, mode), optional
        Which metric to keep the best of; ``mode`` is ``min`` or ``max``.
    """

    def __init__(self, name: str, best: tuple[str, str] | None = None, **run: Any) -> None:
        self._best = best
        self.run: dict[str, Any] = {
            "name": name,
            "state": "preflight",
            "message": "",
            "started": None,
            "ended": None,
            "now": None,
            "world_size": None,
            "storage": None,
            "attempt": 0,
            "blocking": False,
            "stoppable": True,
            "shard_totals": None,
            "error": None,
            "dropped": {"metrics": 0, "samples": 0, "logs": 0},
            "best": None,
            **run,
        }
        self.workers: dict[int, dict[str, Any]] = {}
        self.series: dict[SeriesKey, Series] = {}
        self.logs: dict[int, OrderedDict[int, tuple[str, str, int]]] = {}
        self.events: list[dict[str, Any]] = []
        self._events_cut = 0
        self._version = 1
        self._run_version = 1
        self._worker_version: dict[int, int] = {}
        self._log_version: dict[int, int] = {}
        self._series_version: dict[SeriesKey, int] = {}
        self._dropped: dict[tuple[int, int], dict[str, int]] = {}
        self._rate: dict[tuple[int, int], deque[tuple[float, float]]] = {}

    @property
    def version(self) -> int:
        """Grows with each change; a watcher that has this version has seen all."""
        return self._version

    # -- what happens ----------------------------------------------------------------------------

    def set_run(self, **changes: Any) -> None:
        if any(self.run.get(k) != v for k, v in changes.items()):
            self.run.update(changes)
            self._version += 1
            self._run_version = self._version

    def event(self, text: str, level: str = "info", at: float | None = None) -> None:
        self.events.append({"t": at or time.time(), "level": level, "text": text})
        if len(self.events) > MAX_EVENTS:
            self.events.pop(0)
            self._events_cut += 1
        self._version += 1

    def set_worker(self, rank: int, **changes: Any) -> None:
        row = self.workers.setdefault(rank, new_worker(rank))
        row.update(changes)
        self._touch(rank)

    def _touch(self, rank: int) -> None:
        self._version += 1
        self._worker_version[rank] = self._version

    def apply(self, batch: Batch) -> None:
        """Take one worker's message."""
        row = self.workers.setdefault(batch.rank, new_worker(batch.rank))
        # What a worker of an earlier attempt still had to tell is no news of the one there now.
        if batch.attempt >= row["attempt"]:
            self._row(row, batch)
        if batch.records is not None and len(batch.records):
            row["records"] += len(batch.records)
            self._records(batch.rank, batch.attempt, batch.records)
        for seq, stream, text in batch.logs:
            self._log(batch.rank, seq, stream, text)
        if batch.dropped:
            self._dropped[batch.rank, batch.attempt] = batch.dropped
            total = {"metrics": 0, "samples": 0, "logs": 0}
            for counts in self._dropped.values():
                for kind, n in counts.items():
                    total[kind] = total.get(kind, 0) + n
            self.set_run(dropped=total)
        self._touch(batch.rank)

    def _row(self, row: dict[str, Any], batch: Batch) -> None:
        if batch.attempt > row["attempt"]:
            row.update(attempt=batch.attempt, rate=None)
        if batch.sample:
            row.update({k: batch.sample[k] for k in batch.sample if k in row})
        if batch.shard is not None:
            row["shard"] = batch.shard
            size = self.run["world_size"]
            # An elastic group that shrank leaves rows of ranks that are no more.
            group = [w for rank, w in self.workers.items() if size is None or rank < size]
            totals = shard_totals(w["shard"] for w in group)
            if totals and len(group) == size:
                self.set_run(shard_totals=totals)
        if batch.status and row["status"] not in ("finished", "failed", "stopped"):
            row["status"] = batch.status
        if batch.failure:
            row["status"] = "failed"
        if batch.records is not None and len(batch.records):
            step, at = float(batch.records.steps[-1]), float(batch.records.times[-1])
            window = self._rate.setdefault((batch.rank, batch.attempt), deque())
            rate = _steps_per_second(window, step, at) or row["rate"]
            row.update(step=step, last_report=at, rate=rate)

    def _records(self, rank: int, attempt: int, records: RecordBatch) -> None:
        for metric, (rows, values) in records.metrics.items():
            key = (metric, rank, attempt)
            series = self.series.setdefault(key, Series())
            series.append(records.steps[rows], records.times[rows], values)
            self._series_version[key] = self._version + 1
            if self._best and metric == self._best[0]:
                self._keep_best(rank, records.steps[rows], values)

    def _keep_best(self, rank: int, steps: Floats, values: Floats) -> None:
        assert self._best is not None
        metric, mode = self._best
        values = np.where(np.isfinite(values), values, np.nan)
        if np.isnan(values).all():
            return
        at = int(np.nanargmax(values) if mode == "max" else np.nanargmin(values))
        best = self.run["best"]
        value = float(values[at])
        if best is None or (value > best["value"] if mode == "max" else value < best["value"]):
            self.set_run(
                best={"metric": metric, "value": value, "step": float(steps[at]), "rank": rank}
            )

    def _log(self, rank: int, seq: int, stream: str, text: str) -> None:
        text = text if len(text) <= MAX_LINE else text[:MAX_LINE] + " … (cut)"
        lines = self.logs.setdefault(rank, OrderedDict())
        _keep_line(lines, seq, (stream, text, self._version + 1))
        self._log_version[rank] = self._version + 1

    # -- who watches -----------------------------------------------------------------------------

    def since(self, cursor: Cursor) -> Update:
        """What changed after ``cursor``, which moves on to now."""
        update = Update()
        content = update.content
        if self._run_version > cursor.version:
            content["run"] = dict(self.run)
            lost: dict[int, int] = {}
            for (rank, _), counts in self._dropped.items():
                lost[rank] = lost.get(rank, 0) + counts.get("logs", 0)
            content["logs_dropped"] = {rank: n for rank, n in lost.items() if n}
        workers = [
            dict(row)
            for rank, row in sorted(self.workers.items())
            if self._worker_version.get(rank, 0) > cursor.version
        ]
        if workers:
            content["workers"] = workers
        series = []
        for key, version in self._series_version.items():
            if version <= cursor.version:
                continue
            one = self.series[key]
            start, data = one.since(*cursor.series.get(key, (one.generation, 0)))
            cursor.series[key] = (one.generation, one.n)
            metric, rank, attempt = key
            series.append(
                {
                    "metric": metric,
                    "rank": rank,
                    "attempt": attempt,
                    "start": start,
                    "n": data.shape[1],
                    "buf": len(update.buffers),
                }
            )
            update.buffers.append(data)
        if series:
            content["series"] = series
        logs = [
            {"rank": rank, "seq": seq, "stream": stream, "text": text}
            for rank, lines in sorted(self.logs.items())
            if self._log_version[rank] > cursor.version
            for seq, (stream, text, version) in lines.items()
            if version > cursor.version
        ]
        if logs:
            content["logs"] = logs
        events = self.events[max(0, cursor.event - self._events_cut) :]
        if events:
            content["events"] = list(events)
            cursor.event = self._events_cut + len(self.events)
        cursor.version = self._version
        return update


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


def _keep_line(lines: OrderedDict[int, Line], seq: int, line: Line) -> None:
    """Add or replace a line; ``lines`` are ordered by ``seq`` and the newest stay.

    Depends on the numbers alone, not on when a line came: so a watcher that sees only some of the
    states in between ends with the same lines.
    """
    late = seq not in lines and lines and seq < next(reversed(lines))
    lines[seq] = line
    if late:
        for earlier in sorted(lines):
            lines.move_to_end(earlier)
    if len(lines) > MAX_LOG_LINES:
        lines.popitem(last=False)


class Mirror:
    """A watcher's own copy of a digest, kept by applying its updates.

    Attributes
    ----------
    run : dict
    workers : dict of int to dict
    series : dict of (metric, rank, attempt) to ndarray, shape (5, n)
    logs : dict of int to dict of seq to (stream, text)
    logs_dropped : dict of int to int
    events : list of dict
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, for an update that is whole."""
        self.run: dict[str, Any] = Digest("").run
        self.workers: dict[int, dict[str, Any]] = {}
        self.series: dict[SeriesKey, Floats] = {}
        self.logs: dict[int, OrderedDict[int, tuple[str, str]]] = {}
        self.logs_dropped: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []

    def apply(self, update: Update) -> None:
        if update.whole:
            self.clear()
        content = update.content
        self.logs_dropped = content.get("logs_dropped", self.logs_dropped)
        self.run = content.get("run", self.run)
        for row in content.get("workers", ()):
            self.workers[row["rank"]] = row
        for one in content.get("series", ()):
            key = (one["metric"], one["rank"], one["attempt"])
            old = self.series.get(key, np.empty((5, 0)))
            self.series[key] = np.concatenate(
                [old[:, : one["start"]], update.buffers[one["buf"]]], axis=1
            )
        for line in content.get("logs", ()):
            lines = self.logs.setdefault(line["rank"], OrderedDict())
            _keep_line(lines, line["seq"], (line["stream"], line["text"]))
        self.events.extend(content.get("events", ()))
        del self.events[:-MAX_EVENTS]

    def snapshot(self) -> Update:
        """Everything, as one update for a view that opens now."""
        update = Update(
            {
                "run": self.run,
                "workers": [row for _, row in sorted(self.workers.items())],
                "series": [],
                "logs": [
                    {"rank": rank, "seq": seq, "stream": stream, "text": text}
                    for rank, lines in sorted(self.logs.items())
                    for seq, (stream, text) in lines.items()
                ],
                "logs_dropped": self.logs_dropped,
                "events": self.events,
            }
        )
        for (metric, rank, attempt), data in self.series.items():
            update.content["series"].append(
                {
                    "metric": metric,
                    "rank": rank,
                    "attempt": attempt,
                    "start": 0,
                    "n": data.shape[1],
                    "buf": len(update.buffers),
                }
            )
            update.buffers.append(data)
        return update

    def metrics(self) -> list[str]:
        """Names of the metrics seen, losses first, in order of appearance."""
        names = dict.fromkeys(metric for metric, _, _ in self.series)
        return sorted(names, key=lambda name: "loss" not in name.lower())

    def latest(self, metric: str) -> dict[int, float]:
        """Each rank's latest value of a metric, from its latest attempt."""
        out: dict[int, float] = {}
        for (name, rank, _), data in sorted(self.series.items(), key=lambda kv: kv[0][2]):
            if name == metric and data.shape[1]:
                out[rank] = float(data[LAST, -1])
        return out
