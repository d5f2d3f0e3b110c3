"""Where a step's time goes: the whole, waiting for data, in ``report()``, waiting for peers.

The train function's thread only counts; what the counts mean is worked out on other threads.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from raynb.telemetry import clock
from raynb.telemetry.shards import ShardMeter, Shards

#: Seconds that the means look back.
WINDOW_S = 10.0
#: Seconds without a step, batch, log or report after which the train function stands still.
STILL_S = 5.0
#: Seconds between two rows of news, where nothing is urgent.
NEWS_S = 0.5

# What a step is, best first: of an optimizer, else of the training loader, else a record.
_RECORD, _BATCH, _OPTIMIZER = 1, 2, 3


class _Mark(NamedTuple):
    """The counts at the end of a step. Marks of different series can't be compared."""

    series: int
    at: float
    steps: int
    waited: float
    reported: float
    rows: int
    passes: int  # backward passes
    synced: float  # seconds of those that were measured
    measured: int


class StepMeter:
    """Counts a rank's steps and the time that goes into other things than computing.

    It is made on the train function's thread. All methods but :meth:`news`, :meth:`stand` and
    :meth:`epoch` are called there, cost about a microsecond, and never raise.
    """

    def __init__(self) -> None:
        self.shards = Shards(self._batch)
        #: Time of the last sign of life, by ``perf_counter``.
        self.active = perf_counter()
        self.reports = 0
        #: Called after optimizer steps, for what watches the backward passes.
        self.on_step: list[Callable[[], None]] = []
        # Read more of what happens on the device, off the train function's thread.
        self.readers: list[Callable[[], None]] = []
        self.passes = self.measured = 0
        self.synced = 0.0
        self._reported = 0.0
        self._reporting: tuple[float, float] | None = None  # since when: perf_counter, UNIX
        self._steps = 0
        self._kind = self._series = 0
        self._loader: ShardMeter | None = None
        self._mark: _Mark | None = None
        self._first: _Mark | None = None
        self._lead: Callable[[], Any] = lambda: None
        self._led = 0
        self._lr: Any = None
        # Off the train function's thread:
        self._marks: deque[_Mark] = deque()
        self._still: tuple[float, str | None] | None = None
        self._told: tuple[Any, dict[str, Any] | None] = (None, None)
        self._told_at = -math.inf

    # -- the train function's thread -------------------------------------------------------------

    def step(self, optimizer: Any) -> None:
        """An optimizer has stepped.

        Where several take turns, as for a GAN, or one wraps another, one of them counts.
        """
        # Kept as it is, maybe a tensor of the GPU: reading that would wait for it.
        self._lr = optimizer.param_groups[0]["lr"]
        lead = self._lead()
        if lead is not optimizer:
            self._led += 1
            if lead is not None and self._led < 20:
                return
            self._lead = weakref.ref(optimizer)
        self._led = 0
        self.shards.stepped()
        self._boundary(_OPTIMIZER)
        for call in list(self.on_step):  # one may leave
            call()

    def record(self) -> None:
        """Something was logged."""
        if self._kind <= _RECORD:
            self._boundary(_RECORD)
        else:
            self.active = perf_counter()

    def report_begins(self) -> None:
        """``ray.train.report()`` was called."""
        self.reports += 1
        self.active = now = perf_counter()
        self._reporting = now, clock.now()

    def report_ends(self) -> None:
        """``ray.train.report()`` returned or raised."""
        self.active = now = perf_counter()
        if self._reporting is not None:
            self._reported += now - self._reporting[0]
        self._reporting = None

    def _batch(self, meter: ShardMeter) -> None:
        if self._kind <= _BATCH and meter is self.shards.training:
            self._boundary(_BATCH)
        else:
            self.active = perf_counter()

    def _boundary(self, kind: int) -> None:
        loader = self.shards.training
        if kind != self._kind or loader is not self._loader:
            self._kind, self._loader = kind, loader
            self._series += 1
            self._first = None
        self._steps += 1
        self.active = now = perf_counter()
        self._mark = _Mark(
            self._series,
            now,
            self._steps,
            loader.waited if loader is not None else 0.0,
            self._reported,
            loader.rows_all if loader is not None else 0,
            self.passes,
            self.synced,
            self.measured,
        )
        if self._first is None:
            self._first = self._mark

    # -- any thread ------------------------------------------------------------------------------

    def epoch(self) -> float:
        """Epochs of the training loader done so far, fractional; NaN when unknown."""
        training = self.shards.training
        return math.nan if training is None else training.epochs_done

    @property
    def waiting_since(self) -> float | None:
        """UNIX time since which the train function is inside ``report()``, or None."""
        reporting = self._reporting
        return None if reporting is None else reporting[1]

    def stand(self, look: Callable[[], str | None]) -> None:
        """Note where the train function stands, when it has shown no sign of life for a while.

        Parameters
        ----------
        look : callable
            Tells the line; asked only then.
        """
        active, now = self.active, perf_counter()
        if now - active < STILL_S:
            self._still = None
        else:
            since = self._still[0] if self._still else clock.now() - (now - active)
            self._still = since, look()

    def news(
        self, final: bool = False
    ) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
        """The shards' rows and the timing, each None when there is nothing new to tell.

        Parameters
        ----------
        final : bool
            Whether the train function is done: then nothing waits for later.
        """
        now = perf_counter()
        urgent = self.reports, self.waiting_since, self._still
        if not final and urgent == self._told[0] and now - self._told_at < NEWS_S:
            return None, None
        self._told_at = now
        timing = self._timing()
        if timing == self._told[1]:
            told = None
        else:
            told, self._told = timing, (urgent, timing)
        return self.shards.news(now), told

    def _timing(self) -> dict[str, Any]:
        for read in self.readers:
            with contextlib.suppress(Exception):  # a device that is gone tells nothing
                read()
        since, where = self._still or (None, None)
        return {
            **self._means(),
            "lr": _finite(self._lr),
            "reports": self.reports,
            "waiting_since": self.waiting_since,
            "still_since": since,
            "where": where,
        }

    def _means(self) -> dict[str, float | None]:
        means: dict[str, float | None] = dict.fromkeys(
            ("step_s", "wait_s", "report_s", "sync_s", "rows_rate")
        )
        first, mark, marks, loader = self._first, self._mark, self._marks, self._loader
        if mark is None or first is None or first.series != mark.series:
            return means
        if marks and marks[-1].series != mark.series:
            marks.clear()
        if not marks:
            marks.append(first)
        if marks[-1] is not mark:
            marks.append(mark)
        while len(marks) > 2 and mark.at - marks[1].at > WINDOW_S:
            marks.popleft()
        old = marks[0]
        steps, seconds = mark.steps - old.steps, mark.at - old.at
        if not steps or seconds <= 0:
            return means
        means["step_s"] = seconds / steps
        means["report_s"] = (mark.reported - old.reported) / steps
        if loader is not None and loader.batches_all:
            means["rows_rate"] = (mark.rows - old.rows) / seconds
            if loader.waits_here:
                means["wait_s"] = (mark.waited - old.waited) / steps
        measured = mark.measured - old.measured
        if measured:
            each = (mark.synced - old.synced) / measured
            means["sync_s"] = each * (mark.passes - old.passes) / steps
        return means


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except Exception:  # none, or of an optimizer of the user's own
        return None
    return number if math.isfinite(number) else None
