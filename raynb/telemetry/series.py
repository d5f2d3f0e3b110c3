"""Series: one metric of one rank as min/max/last buckets, bounded in memory."""

from __future__ import annotations

import numpy as np

from raynb.telemetry.events import Floats

#: Buckets of a series; past it, neighbours are merged and each bucket stands for twice as many.
MAX_BUCKETS = 1_000

#: Rows of a series' array. The first three are those of bands too (:mod:`raynb.telemetry.bands`).
STEP, TIME, EPOCH, LAST, MIN, MAX = range(6)
ROWS = 6

SeriesKey = tuple[str, int, int]  # metric, rank, attempt


class Series:
    """One metric of one rank in one attempt.

    Parameters
    ----------
    cap : int
        Buckets at most.

    Attributes
    ----------
    n : int
        Buckets so far.
    generation : int
        Counts the merges, so that a watcher knows to start over.
    """

    def __init__(self, cap: int = MAX_BUCKETS) -> None:
        self._data = np.empty((ROWS, 16), dtype=np.float64)  # grows: most series are short
        self._cap = cap
        self._width = 1  # records a bucket stands for
        self._filled = 0  # records in the newest bucket
        self.n = 0
        self.generation = 0

    @property
    def data(self) -> Floats:
        """The buckets, shape (6, n): step, time (UNIX seconds), epoch, last, min, max."""
        return self._data[:, : self.n]

    def append(self, steps: Floats, times: Floats, epochs: Floats, values: Floats) -> None:
        at = 0
        while at < len(values):
            room = (self._cap - self.n) * self._width
            room += self._width - self._filled if self.n else 0
            if not room:
                self._merge()
                continue
            part = slice(at, at + room)
            self._fill(steps[part], times[part], epochs[part], values[part])
            at += room

    def _fill(self, steps: Floats, times: Floats, epochs: Floats, values: Floats) -> None:
        """Append what fits without a merge."""
        into_open = min(self._width - self._filled, len(values)) if self.n else 0
        starts = np.arange(into_open, len(values), self._width)
        if into_open:
            starts = np.concatenate([[0], starts])
        first = self.n - bool(into_open)
        self.n = first + len(starts)
        if self.n > self._data.shape[1]:
            grown = np.empty((ROWS, min(max(self.n, 2 * first), self._cap)), dtype=np.float64)
            grown[:, :first] = self._data[:, :first]
            if into_open:
                grown[:, first] = self._data[:, first]
            self._data = grown
        # fmin: a NaN must not swallow the range of the numbers beside it.
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        new = self._data[:, first : self.n]
        if into_open:
            low[0] = np.fmin(low[0], new[MIN, 0])
            high[0] = np.fmax(high[0], new[MAX, 0])
        ends = np.append(starts[1:], len(values)) - 1
        new[STEP], new[TIME], new[EPOCH] = steps[ends], times[ends], epochs[ends]
        new[LAST], new[MIN], new[MAX] = values[ends], low, high
        self._filled = (
            len(values) - int(starts[-1]) + (self._filled if into_open and len(starts) == 1 else 0)
        )

    def _merge(self) -> None:
        paired = self.n // 2 * 2
        left, right = self._data[:, 0:paired:2], self._data[:, 1:paired:2]
        merged = right.copy()
        merged[MIN] = np.fmin(left[MIN], right[MIN])
        merged[MAX] = np.fmax(left[MAX], right[MAX])
        if paired == self.n:
            self._filled += self._width  # the newest one had a full one before it
        half = merged.shape[1]
        self._data[:, half : half + self.n - paired] = self._data[:, paired : self.n]
        self._data[:, :half] = merged
        self.n = half + self.n - paired
        self._width *= 2
        self.generation += 1

    def shrink(self, cap: int) -> None:
        """Keep to fewer buckets from now on."""
        self._cap = cap
        while self.n > cap:
            self._merge()
        self._data = self._data[:, :cap].copy()

    def since(self, generation: int, seen: int) -> tuple[int, Floats]:
        """First changed bucket and the buckets from there, shape (6, k)."""
        start = max(0, seen - 1) if generation == self.generation else 0
        return start, self._data[:, start : self.n].copy()
