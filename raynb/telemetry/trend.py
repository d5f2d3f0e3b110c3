"""Trend: one rank's samples over an attempt's whole life, thinned, and the newest ones in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from raynb.telemetry import clock
from raynb.telemetry.events import Floats

#: Points that stand for the attempt's whole life.
MAX_POINTS = 300
#: The newest samples, kept as they are.
RECENT = 60

COLUMNS = (
    "time",
    "util",
    "cpu",
    "mem_used",
    "mem_process",
    "rss",
    "private",
    "net_in",
    "net_out",
    "disk_read",
    "disk_write",
)


class Trend(Mapping[str, Floats]):
    """Samples of one rank by column, oldest first; NaN where a sample did not have it.

    Parameters
    ----------
    attempt : int
        The attempt that it is of.

    Attributes
    ----------
    samples : int
        How many there were.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        # Half the size, for there are many ranks; times are counted from the first one.
        self._whole = np.empty((len(COLUMNS), MAX_POINTS), dtype=np.float32)
        self._n = 0
        self._every = 1  # samples that a point of the whole stands for
        self._recent = np.empty((len(COLUMNS), RECENT), dtype=np.float32)  # a ring
        self._start = 0.0
        self.samples = 0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a sample; its time is now where it does not tell."""
        row = [_number(sample.get(name)) for name in COLUMNS]
        if row[0] != row[0]:
            row[0] = clock.now()
        if not self.samples:
            self._start = row[0]
        row[0] -= self._start
        with np.errstate(over="ignore"):  # what half the size can't hold is infinite
            self._add(row)

    def _add(self, row: list[float]) -> None:
        self._recent[:, self.samples % RECENT] = row
        if self.samples % self._every == 0:
            if self._n == MAX_POINTS:
                kept = self._whole[:, ::2].copy()
                self._n = kept.shape[1]
                self._whole[:, : self._n] = kept
                self._every *= 2
            if self.samples % self._every == 0:
                self._whole[:, self._n] = row
                self._n += 1
        self.samples += 1

    def __getitem__(self, name: str) -> Floats:
        column = COLUMNS.index(name) if name in COLUMNS else None
        if column is None:
            raise KeyError(name)
        recent = self._recent[column, : self.samples]
        if self.samples > RECENT:
            recent = np.roll(recent, -self.samples)
        # Points of the whole that the recent ones hold as well are told once.
        older = -(-max(0, self.samples - RECENT) // self._every)
        out = np.concatenate([self._whole[column, :older], recent]).astype(np.float64)
        return out + self._start if name == "time" else out

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMNS)

    def __len__(self) -> int:
        return len(COLUMNS)


def _number(value: Any) -> float:
    # A sampler may be anybody's.
    return float(value) if isinstance(value, (int, float)) else np.nan
