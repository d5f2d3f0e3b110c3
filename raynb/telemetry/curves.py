"""Curves: every metric's series of each rank or, with many ranks, bands over all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from raynb.telemetry.bands import MAX_BUCKETS as MAX_BAND_BUCKETS
from raynb.telemetry.bands import BandKey, Bands, worst_is
from raynb.telemetry.events import Floats
from raynb.telemetry.series import MAX_BUCKETS, Series, SeriesKey
from raynb.telemetry.update import MAX_ATTEMPTS, Update, new_focus

#: Metrics that are kept; a run that makes up names must not fill the memory.
MAX_METRICS = 300
#: Buckets of all series, and values of all bands: past them, each curve gets fewer buckets.
MAX_POINTS, MAX_CELLS = 400_000, 16_000_000
#: Curves that were refused are told apart up to so many.
MAX_REFUSED = 10_000
#: Seconds that a metric's worst rank stays.
WORST_S = 3.0


@dataclass
class CurveSeen:
    """What a watcher has of the curves."""

    series: dict[SeriesKey, tuple[int, int]] = field(default_factory=dict)
    bands: dict[BandKey, int] = field(default_factory=dict)
    focus: dict[str, Any] = field(default_factory=new_focus)
    pinned: tuple[int, ...] = ()


class Curves:
    """All curves of a run, bounded in memory.

    Parameters
    ----------
    best : tuple of (metric, mode), optional
        Tells which end of a metric is bad.

    Attributes
    ----------
    series : dict of (metric, rank, attempt) to Series
        Empty once there are bands.
    bands : dict of (metric, attempt) to Bands
    refused : int
        Series that are not kept because there are too many metrics.
    """

    def __init__(self, best: tuple[str, str] | None = None) -> None:
        self.series: dict[SeriesKey, Series] = {}
        self.bands: dict[BandKey, Bands] = {}
        self._best = best
        self._ranks: int | None = None  # how many, once there are bands
        self._metrics: set[str] = set()
        self._version: dict[SeriesKey, int] = {}
        self._refused: set[SeriesKey] = set()
        self._attempt = 0
        self._series_cap, self._band_cap = MAX_BUCKETS, MAX_BAND_BUCKETS
        self._worst: dict[str, tuple[int, float]] = {}

    @property
    def refused(self) -> int:
        return len(self._refused)

    def use_bands(self, ranks: int, version: int) -> None:
        """Keep bands from now on, also of what there is, with ``ranks`` ranks."""
        first = self._ranks is None
        self._ranks = ranks
        if not first:
            return
        for (metric, rank, attempt), one in self.series.items():
            steps, times, epochs, values = one.data[:4]
            self._band(metric, attempt).add(rank, steps, times, epochs, values, version)
        self.series.clear()
        self._version.clear()

    def add(
        self,
        key: SeriesKey,
        steps: Floats,
        times: Floats,
        epochs: Floats,
        values: Floats,
        version: int,
    ) -> None:
        """Take a rank's records of one metric, in the order of logging."""
        metric, rank, attempt = key
        if attempt <= self._attempt - MAX_ATTEMPTS:
            return
        if metric not in self._metrics and len(self._metrics) >= MAX_METRICS:
            if len(self._refused) < MAX_REFUSED:
                self._refused.add(key)
            return
        # Only with a curve of its own does an attempt push out older ones: watchers, who know
        # attempts by their curves, do the same.
        if attempt > self._attempt:
            self._attempt = attempt
            self._worst.clear()
            self._forget(attempt - MAX_ATTEMPTS)
        self._metrics.add(metric)
        if self._ranks is not None:
            self._band(metric, attempt).add(rank, steps, times, epochs, values, version)
            return
        if key not in self.series:
            while (len(self.series) + 1) * self._series_cap > MAX_POINTS:
                self._series_cap //= 2
                for kept, one in self.series.items():
                    one.shrink(self._series_cap)
                    self._version[kept] = version
            self.series[key] = Series(self._series_cap)
        self.series[key].append(steps, times, epochs, values)
        self._version[key] = version

    def _band(self, metric: str, attempt: int) -> Bands:
        key = (metric, attempt)
        if key not in self.bands:
            assert self._ranks is not None
            cells = sum(band.cells for band in self.bands.values())
            while cells + self._ranks * self._band_cap > MAX_CELLS and self._band_cap > 2:
                self._band_cap //= 2
                for one in self.bands.values():
                    one.shrink(self._band_cap)
                cells = sum(band.cells for band in self.bands.values())
            self.bands[key] = Bands(self._ranks, self._band_cap)
        return self.bands[key]

    def _forget(self, upto: int) -> None:
        for key in [key for key in self.series if key[2] <= upto]:
            del self.series[key], self._version[key]
        for band in [band for band in self.bands if band[1] <= upto]:
            del self.bands[band]
        self._metrics = {metric for metric, *_ in self.series} | {name for name, _ in self.bands}

    # -- who watches -----------------------------------------------------------------------------

    def since(
        self,
        seen: CurveSeen,
        version: int,
        pinned: tuple[int, ...],
        update: Update,
        now: float,
    ) -> None:
        """Put what changed after ``version`` into ``update``; ``seen`` moves on to now."""
        seen.pinned = pinned
        if self._ranks is None:
            for key, changed in self._version.items():
                if changed > version:
                    one = self.series[key]
                    start, data = one.since(*seen.series.get(key, (one.generation, 0)))
                    seen.series[key] = (one.generation, one.n)
                    _add(update, key, start, data)
            if len(seen.series) > len(self.series):
                seen.series = {key: has for key, has in seen.series.items() if key in self.series}
            return
        if not seen.bands:
            seen.series = {}  # those of before there were bands
        focus = {"pinned": list(pinned), "worst": self._find_worst(now)}
        if focus != seen.focus:
            update.content["focus"] = seen.focus = focus
        for (metric, attempt), band in self.bands.items():
            generation = seen.bands.get((metric, attempt), -1)
            start, data = band.since(generation, version)
            if data.shape[1] or generation != band.generation:
                update.add_part("bands", {"metric": metric, "attempt": attempt}, start, data)
            seen.bands[metric, attempt] = band.generation
            self._focus_since(seen, (metric, attempt), version, update)
        if len(seen.bands) > len(self.bands):
            seen.bands = {key: g for key, g in seen.bands.items() if key in self.bands}
            seen.series = {k: has for k, has in seen.series.items() if (k[0], k[2]) in self.bands}

    def _focus_since(self, seen: CurveSeen, key: BandKey, version: int, update: Update) -> None:
        """The series of the ranks in focus."""
        metric, attempt = key
        band = self.bands[key]
        ranks = dict.fromkeys(seen.focus["pinned"])
        if metric in seen.focus["worst"]:
            ranks[seen.focus["worst"][metric]] = None
        for rank in ranks:
            generation, _ = seen.series.get((metric, rank, attempt), (-1, 0))
            start, data = band.of_rank(rank, generation, version)
            if data.shape[1]:
                _add(update, (metric, rank, attempt), start, data)
            seen.series[metric, rank, attempt] = (band.generation, 0)
        # A rank that comes back into focus is told from its start.
        for gone in [k for k in seen.series if (k[0], k[2]) == key and k[1] not in ranks]:
            del seen.series[gone]

    def _find_worst(self, now: float) -> dict[str, int]:
        for (metric, attempt), band in self.bands.items():
            if attempt != self._attempt:
                continue
            rank, since = self._worst.get(metric, (None, -math.inf))
            if now - since < WORST_S:
                continue
            worst = band.farthest(worst_is(metric, self._best))
            if worst is not None and worst != rank:
                self._worst[metric] = (worst, now)
        return {metric: rank for metric, (rank, _) in self._worst.items()}


def _add(update: Update, key: SeriesKey, start: int, data: Floats) -> None:
    metric, rank, attempt = key
    update.add_part("series", {"metric": metric, "rank": rank, "attempt": attempt}, start, data)
