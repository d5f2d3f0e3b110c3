"""The mirror: a watcher's own copy of a digest, kept by applying its updates."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from raynb.telemetry.bands import COUNT, MEDIAN, BandKey
from raynb.telemetry.bands import ROWS as BAND_ROWS
from raynb.telemetry.clock import Clock
from raynb.telemetry.events import Floats
from raynb.telemetry.loglines import keep_line, trim
from raynb.telemetry.rows import new_worker
from raynb.telemetry.series import LAST, MAX, MIN, ROWS, SeriesKey
from raynb.telemetry.update import MAX_ATTEMPTS, MAX_EVENTS, Update, new_focus, new_run


class Mirror:
    """A watcher's own copy of a digest.

    Attributes
    ----------
    run : dict
    workers : dict of int to dict
    series : dict of (metric, rank, attempt) to ndarray, shape (6, n)
        Of every rank, or where there are bands of those in focus.
    bands : dict of (metric, attempt) to ndarray, shape (7, n)
    focus : dict
        ``pinned`` (ranks) and ``worst`` (rank by metric).
    logs : dict of int to dict of seq to (stream, text)
    logs_dropped : dict of int to int
    events, hints : list of dict
    clock : Clock
        The time now, for what is told in seconds since.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, for an update that is whole."""
        self.run: dict[str, Any] = new_run()
        self.workers: dict[int, dict[str, Any]] = {}
        self.series: dict[SeriesKey, Floats] = {}
        self.bands: dict[BandKey, Floats] = {}
        self.focus: dict[str, Any] = new_focus()
        self.logs: dict[int, OrderedDict[int, tuple[str, str]]] = {}
        self.logs_dropped: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []
        self.hints: list[dict[str, Any]] = []

    def apply(self, update: Update) -> None:
        if update.whole:
            self.clear()
        content = update.content
        run = content.get("run", self.run)
        if run["log_lines"] < self.run["log_lines"]:
            for lines in self.logs.values():
                trim(lines, run["log_lines"])
        self.run = run
        self.logs_dropped = content.get("logs_dropped", self.logs_dropped)
        self.hints = content.get("hints", self.hints)
        for row in content.get("workers", ()):
            self.workers.setdefault(row["rank"], new_worker(row["rank"])).update(row)
        self.focus = content.get("focus", self.focus)
        for part in content.get("series", ()):
            key = (part["metric"], part["rank"], part["attempt"])
            old = self.series.get(key, np.empty((ROWS, 0)))
            self.series[key] = _joined(old, part, update)
        for part in content.get("bands", ()):
            band = (part["metric"], part["attempt"])
            old = self.bands.get(band, np.empty((BAND_ROWS, 0)))
            self.bands[band] = _joined(old, part, update)
        if not content.keys().isdisjoint(("run", "series", "bands", "focus")):
            self._forget()
        for line in content.get("logs", ()):
            lines = self.logs.setdefault(line["rank"], OrderedDict())
            keep_line(lines, line["seq"], (line["stream"], line["text"]), self.run["log_lines"])
        self.events.extend(content.get("events", ()))
        del self.events[:-MAX_EVENTS]

    def _forget(self) -> None:
        """Drop the series that are out of focus, and the curves of attempts long past."""
        attempts = [b[1] for b in self.bands] + [key[2] for key in self.series]
        newest = max(attempts, default=0)
        for band in [b for b in self.bands if b[1] <= newest - MAX_ATTEMPTS]:
            del self.bands[band]
        pinned, worst = set(self.focus["pinned"]), self.focus["worst"]
        for key in list(self.series):
            metric, rank, attempt = key
            in_focus = rank in pinned or worst.get(metric) == rank
            if attempt <= newest - MAX_ATTEMPTS or (self.run["detail"] == "bands" and not in_focus):
                del self.series[key]

    def snapshot(self) -> Update:
        """Everything, as one update for a view that opens now."""
        update = Update(
            {
                "run": self.run,
                "workers": [row for _, row in sorted(self.workers.items())],
                "series": [],
                "bands": [],
                "focus": self.focus,
                "logs": [
                    {"rank": rank, "seq": seq, "stream": stream, "text": text}
                    for rank, lines in sorted(self.logs.items())
                    for seq, (stream, text) in lines.items()
                ],
                "logs_dropped": self.logs_dropped,
                "events": self.events,
                "hints": self.hints,
            }
        )
        for (metric, rank, attempt), data in self.series.items():
            who = {"metric": metric, "rank": rank, "attempt": attempt}
            update.add_part("series", who, 0, data)
        for (metric, attempt), data in self.bands.items():
            update.add_part("bands", {"metric": metric, "attempt": attempt}, 0, data)
        return update

    def metrics(self) -> list[str]:
        """Names of the metrics seen, losses first, in order of appearance."""
        names = [band[0] for band in self.bands] + [key[0] for key in self.series]
        return sorted(dict.fromkeys(names), key=lambda name: "loss" not in name.lower())

    def latest(self, metric: str) -> dict[int, float]:
        """Each rank's latest value of a metric, from its latest attempt.

        Where there are bands, of the ranks in focus alone.
        """
        out: dict[int, float] = {}
        for (name, rank, _), data in sorted(self.series.items(), key=lambda kv: kv[0][2]):
            if name == metric and data.shape[1]:
                out[rank] = float(data[LAST, -1])
        return out

    def spread(self, metric: str) -> tuple[float, float, float, int] | None:
        """Least, median and greatest value and how many ranks, in the newest full bucket.

        None where there are no bands of the metric.
        """
        attempts = [attempt for name, attempt in self.bands if name == metric]
        data = self.bands[metric, max(attempts)] if attempts else np.empty((BAND_ROWS, 0))
        if not data.shape[1]:
            return None
        # The ranks that are ahead are few: the newest bucket that at least half of them reached.
        reached = np.flatnonzero(data[COUNT] >= data[COUNT].max() / 2)
        low, middle, high, count = data[[MIN, MEDIAN, MAX, COUNT], reached[-1]]
        return float(low), float(middle), float(high), int(count)


def _joined(old: Floats, part: dict[str, Any], update: Update) -> Floats:
    """The buckets before a part's start, and the part."""
    return np.concatenate([old[:, : part["start"]], update.buffers[part["buf"]]], axis=1)
