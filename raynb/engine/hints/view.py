"""What a hint's rule sees of a run, and what it may find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from raynb.telemetry.events import Floats, short_text

#: Ranks that a sentence names before it counts the others.
NAMED_RANKS = 3

Made = TypeVar("Made")


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found at one look.

    Attributes
    ----------
    kind : str
        The wire's name of the hint.
    level : str
        ``info``, ``warn`` or ``error``.
    title, evidence, threshold, fix : str
        One line; what was measured; from when on it counts; what to do.
    ranks : tuple of int
    key : str
        Tells apart several findings of one kind, such as one a metric; never a changing number.
    hold : float
        Seconds for which it has to be found before it is shown.
    """

    kind: str
    level: str
    title: str
    ranks: tuple[int, ...]
    evidence: str
    threshold: str
    fix: str
    key: str = ""
    hold: float = 0.0


@dataclass
class View:
    """A run at one moment, as the rules see it; none of them changes it.

    Attributes
    ----------
    now : float
        UNIX seconds.
    run : mapping
        The digest's ``run``.
    workers : sequence of mapping
        Rows of the ranks of this attempt, by rank.
    trends : mapping of int to mapping of str to ndarray
        Samples of each rank in this attempt: ``time`` and the columns ``rss``, ``mem_process``, …
    lowest : mapping of (column, rank) to float
        The least of ``rss`` and ``mem_process`` since the rank trains: what is cheap to ask of all.
    nonfinite : mapping of (metric, rank) to (step, value)
        The first NaN or infinity of each series of this attempt.
    failures : sequence of mapping
        Of this attempt, as the collector keeps them.
    scale, previous : mapping
        ``lr`` (the largest so far) and ``global_batch`` of this run and of an earlier one of the
        same function; empty while unknown.
    usual_step : mapping of int to float
        Seconds a step took when the rank last made some.
    training_since : mapping of int to float
        When a rank was first seen to make steps, batches or records.
    heard : mapping of int to float
        When something last came from a rank, on this side's clock.
    """

    now: float
    run: Mapping[str, Any] = field(default_factory=dict)
    workers: Sequence[Mapping[str, Any]] = ()
    trends: Mapping[int, Mapping[str, Floats]] = field(default_factory=dict)
    lowest: Mapping[tuple[str, int], float] = field(default_factory=dict)
    nonfinite: Mapping[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    failures: Sequence[Mapping[str, Any]] = ()
    scale: Mapping[str, float] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)
    usual_step: Mapping[int, float] = field(default_factory=dict)
    training_since: Mapping[int, float] = field(default_factory=dict)
    heard: Mapping[int, float] = field(default_factory=dict)
    _columns: dict[str, Floats] = field(default_factory=dict, init=False, repr=False)
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def training(self) -> bool:
        return self.run.get("state") == "training"

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        return np.array([w["rank"] for w in self.workers], dtype=np.int64)

    def once(self, make: Callable[[View], Made]) -> Made:
        """What ``make`` makes of this view, made once for all rules that ask."""
        if make.__name__ not in self._made:
            self._made[make.__name__] = make(self)
        made: Made = self._made[make.__name__]
        return made

    def column(self, name: str) -> Floats:
        """A field of all workers; NaN where it is unknown."""
        if name not in self._columns:
            values = [w.get(name) for w in self.workers]
            column = np.array([v if type(v) is float else _float(v) for v in values])
            column[np.isinf(column)] = np.nan
            self._columns[name] = column
        return self._columns[name]

    @cached_property
    def step_s(self) -> Floats:
        """Seconds a step; from the records where no step was timed."""
        rate, timed = self.column("rate"), self.column("step_s")
        with np.errstate(divide="ignore", invalid="ignore"):
            by_records = np.where(rate > 0, 1 / rate, np.nan)
            return np.where(timed > 0, timed, by_records)

    @cached_property
    def stepping(self) -> NDArray[np.bool_]:
        """Which ranks make steps now: what is known of the speed of others is of the past."""
        return np.array(
            [
                w.get("still_since") is None
                and (
                    w.get("status") == "running"
                    or (
                        w.get("status") == "waiting"
                        and self.now - (number(w.get("waiting_since")) or self.now) < 5
                    )
                )
                for w in self.workers
            ],
            dtype=bool,
        )


def number(value: object) -> float | None:
    """A finite number, or None: rows come from workers and may hold anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _float(value: object) -> float:
    found = number(value)
    return math.nan if found is None else found


def text(value: object, limit: int = 160) -> str:
    """A worker's text on one line; empty for None."""
    return "" if value is None else short_text(" ".join(str(value).split()), limit)


def first_shard(worker: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shard that a rank trains on, or an empty mapping."""
    shards = worker.get("shards")
    if isinstance(shards, (list, tuple)) and shards and isinstance(shards[0], dict):
        return shards[0]
    return {}


def ranks_words(ranks: Iterable[int]) -> str:
    """Ranks as a sentence names them.

    Examples
    --------
    >>> ranks_words([3]), ranks_words([3, 7])
    ('rank 3', 'ranks 3 and 7')
    >>> ranks_words(range(12))
    'ranks 0, 1, 2 and 9 more'
    """
    found = [int(rank) for rank in ranks]
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) <= NAMED_RANKS + 1:
        return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"
    named = ", ".join(map(str, found[:NAMED_RANKS]))
    return f"ranks {named} and {len(found) - NAMED_RANKS:,} more"


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """``ranks_words`` with the verb that fits."""
    return f"{ranks_words(ranks)} {one if len(ranks) == 1 else several}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
