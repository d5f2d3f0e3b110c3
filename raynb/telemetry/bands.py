"""Bands: one metric over many ranks as median, min and max by step, bounded in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raynb.telemetry.events import Floats
from raynb.telemetry.series import EPOCH, LAST, MAX, MIN, STEP, TIME
from raynb.telemetry.series import ROWS as SERIES_ROWS

#: Buckets of a band; past it, each stands for twice as many steps.
MAX_BUCKETS = 500
#: Rows of a band's array, beside those it shares with a series'.
MEDIAN, COUNT = 3, 6
ROWS = 7
#: Steps that a bucket spans at first: less than any step that is counted in fractions of an epoch.
_WIDTH = 2.0**-10
#: Steps past it have no number of a bucket that a float can hold.
_MAX_STEP = 1e15

BandKey = tuple[str, int]  # metric, attempt


class Bands:
    """One metric of every rank in one attempt: each rank's last value in each bucket of steps.

    Where a rank's steps go back, the value of the larger step may stand for both.

    Parameters
    ----------
    ranks : int
        Ranks to expect; more are taken.
    cap : int
        Buckets at most; two at least, for steps below and above 0.

    Attributes
    ----------
    generation : int
        Counts the merges, so that a watcher knows to start over.
    latest : ndarray, shape (ranks,)
        Each rank's newest value; NaN also where there is none.
    heard : ndarray of bool, shape (ranks,)
        Which ranks have one.
    """

    def __init__(self, ranks: int, cap: int = MAX_BUCKETS) -> None:
        self._cap = cap
        self._width = _WIDTH
        self._first = 0  # number of the first bucket, counted from step 0
        self._n = 0  # buckets from the first to the last one, empty ones among them
        self._values = np.full((cap, ranks), np.nan)
        self._there = np.zeros((cap, ranks), dtype=bool)  # a NaN may have been logged
        self._table = np.full((ROWS, cap), np.nan)
        self._stale = np.zeros(cap, dtype=bool)  # buckets whose median is not of now
        self._version = np.zeros(cap, dtype=np.int64)
        self.generation = 0
        self.latest = np.full(ranks, np.nan)
        self.heard = np.zeros(ranks, dtype=bool)

    @property
    def cells(self) -> int:
        """Values there is room for, which is what its memory goes by."""
        return self._values.size

    def add(
        self,
        rank: int,
        steps: Floats,
        times: Floats,
        epochs: Floats,
        values: Floats,
        version: int,
    ) -> None:
        """Take a rank's records, in the order of logging."""
        if rank >= len(self.latest):
            self._widen(rank + 1)
        placed = np.abs(steps) <= _MAX_STEP
        if not placed.all():
            steps, times, epochs, values = (a[placed] for a in (steps, times, epochs, values))
        if not len(values):
            return
        self._make_room(float(steps.min()), float(steps.max()))
        at = np.floor(steps / self._width).astype(np.int64) - self._first
        self._values[at, rank] = values  # of several in one bucket the last one stays
        self._there[at, rank] = True
        for row, new in ((STEP, steps), (TIME, times), (EPOCH, epochs)):
            np.fmax.at(self._table[row], at, new)
        self._stale[at] = True
        self._version[at] = version
        self.latest[rank], self.heard[rank] = values[-1], True

    def _widen(self, ranks: int) -> None:
        more = ranks - len(self.latest)
        self._values = np.pad(self._values, ((0, 0), (0, more)), constant_values=np.nan)
        self._there = np.pad(self._there, ((0, 0), (0, more)))
        self.latest = np.pad(self.latest, (0, more), constant_values=np.nan)
        self.heard = np.pad(self.heard, (0, more))

    def _make_room(self, low: float, high: float) -> None:
        """Let the buckets span the steps from ``low`` to ``high`` as well."""
        while True:
            first, last = math.floor(low / self._width), math.floor(high / self._width)
            if self._n:
                first, last = min(first, self._first), max(last, self._first + self._n - 1)
            if last - first < self._cap:
                break
            self._merge()
        if self._n and first < self._first:
            self._move(self._first - first)
        self._first, self._n = first, last - first + 1

    def _move(self, by: int) -> None:
        """Make room for ``by`` buckets in front."""
        n = self._n
        arrays: list[NDArray[Any]] = [self._values, self._there, self._stale, self._version]
        for array in (*arrays, self._table.T):
            array[by : by + n] = array[:n].copy()
            array[:by] = np.nan if array.dtype == np.float64 else 0

    def _merge(self) -> None:
        """Merge neighbours; buckets are counted from step 0, so it matters not when this is."""
        self._width *= 2
        if not self._n:
            return
        n, odd = self._n, self._first % 2
        half = (n + odd + 1) // 2

        def pairs(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
            empty = np.nan if array.dtype == np.float64 else 0
            padded = np.full((2 * half, *array.shape[1:]), empty, dtype=array.dtype)
            padded[odd : odd + n] = array[:n]
            return padded[0::2], padded[1::2]

        left, right = pairs(self._values)
        there_left, there_right = pairs(self._there)
        self._values[:half] = np.where(there_right, right, left)
        self._there[:half] = there_left | there_right
        self._table.T[:half] = np.fmax(*pairs(self._table.T))
        self._version[:half] = np.maximum(*pairs(self._version))
        for array in (self._values, self._table.T):
            array[half:n] = np.nan
        self._there[half:n], self._version[half:n] = False, 0
        self._first //= 2
        self._n = half
        self._stale[:half], self._stale[half:] = True, False
        self.generation += 1

    def shrink(self, cap: int) -> None:
        """Keep to fewer buckets from now on."""
        self._cap = cap
        while self._n > cap:
            self._merge()
        self._values, self._there = self._values[:cap].copy(), self._there[:cap].copy()
        self._stale, self._version = self._stale[:cap].copy(), self._version[:cap].copy()
        self._table = self._table[:, :cap].copy()

    def _aggregate(self) -> None:
        stale = np.flatnonzero(self._stale[: self._n])
        if not len(stale):
            return
        ordered = np.sort(self._values[stale], axis=1)  # NaN, logged or absent, come last
        count = np.count_nonzero(~np.isnan(ordered), axis=1)
        pick = np.arange(len(stale)), np.maximum(count - 1, 0)
        middle = ordered[pick[0], pick[1] // 2], ordered[pick[0], np.minimum(count // 2, pick[1])]
        with np.errstate(invalid="ignore", over="ignore"):
            self._table[MEDIAN, stale] = np.where(
                middle[0] == middle[1], middle[0], middle[0] / 2 + middle[1] / 2
            )
        self._table[MIN, stale] = ordered[:, 0]
        self._table[MAX, stale] = ordered[pick]
        self._table[COUNT, stale] = np.count_nonzero(self._there[stale], axis=1)
        self._stale[stale] = False

    def since(self, generation: int, version: int) -> tuple[int, Floats]:
        """First changed bucket and the buckets from there, shape (7, k); empty ones left out."""
        self._aggregate()
        used = self._table[COUNT, : self._n] > 0
        first = self._first_changed(generation, version)
        return int(np.count_nonzero(used[:first])), self._table[:, first : self._n][:, used[first:]]

    def of_rank(self, rank: int, generation: int, version: int) -> tuple[int, Floats]:
        """One rank's part as :meth:`Series.since` tells it, with the buckets' steps and times."""
        if rank >= len(self.latest):
            return 0, np.empty((SERIES_ROWS, 0))
        there = self._there[: self._n, rank]
        first = self._first_changed(generation, version)
        kept = np.flatnonzero(there[first:]) + first
        data = np.empty((SERIES_ROWS, len(kept)))
        data[: EPOCH + 1] = self._table[: EPOCH + 1, kept]
        data[LAST] = data[MIN] = data[MAX] = self._values[kept, rank]
        return int(np.count_nonzero(there[:first])), data

    def _first_changed(self, generation: int, version: int) -> int:
        if generation != self.generation:
            return 0
        changed = self._version[: self._n] > version
        return int(changed.argmax()) if changed.any() else self._n

    def farthest(self, worst: str | None) -> int | None:
        """The rank that is worst now; None while no rank has a value.

        Parameters
        ----------
        worst : str or None
            ``max`` or ``min``, whichever is bad; None: the farthest from the median.
        """
        ranks = np.flatnonzero(self.heard)
        if not len(ranks):
            return None
        latest = self.latest[ranks]
        broken = np.flatnonzero(np.isnan(latest))
        if len(broken):
            return int(ranks[broken[0]])
        if worst is None:
            with np.errstate(invalid="ignore"):
                away = np.abs(latest - np.median(latest))
            return int(ranks[np.nan_to_num(away, posinf=np.inf).argmax()])
        return int(ranks[latest.argmax() if worst == "max" else latest.argmin()])


def worst_is(metric: str, best: tuple[str, str] | None) -> str | None:
    """``max`` or ``min``, whichever is bad for a metric; None where its name does not tell."""
    if best is not None and metric == best[0]:
        return "max" if best[1] == "min" else "min"
    name = metric.lower()
    words = set("".join(c if c.isalnum() else " " for c in name).split())
    if words & _BAD or any(word in name for word in _BAD_PARTS):
        return "max"
    if words & _GOOD or any(word in name for word in _GOOD_PARTS):
        return "min"
    return None


_BAD, _BAD_PARTS = {"err", "wer"}, ("loss", "error", "perplexity")
_GOOD = {"acc", "f1", "auc", "bleu", "map", "iou"}
_GOOD_PARTS = ("accuracy", "precision", "recall", "score")
