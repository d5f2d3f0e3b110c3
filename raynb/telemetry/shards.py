"""Shards: counts the rows and batches a rank reads, whatever hands them out."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

#: Shards shown for a rank.
MAX_SHOWN = 8
#: Loaders watched on a rank, for train functions that make new ones all the time.
MAX_KEPT = 64
#: Seconds that an estimate of the time left looks back.
WINDOW_S = 10.0


class ShardMeter:
    """Rows and batches of one loader on one rank.

    Parameters
    ----------
    name : str
        What the shard is called in the panel.
    kind : str
        ``"map"``, ``"iterable"`` or ``"ray"``.
    rows_total, batches_total, batch_size : int or None
        Per pass over the shard; None when it can't be known before a pass is over.
    rows_own : int or None
        Rows of the dataset that fall to this rank, before any are dropped or repeated.
    shuffle : bool or None
        Whether the order changes between passes; None when that can't be known.

    Attributes
    ----------
    epoch : int
        The newest pass, from 1.
    rows_all, batches_all : int
        Over all passes.
    waited : float
        Seconds that the train function's thread was blocked in asking for the next batch.
    """

    def __init__(
        self,
        name: str,
        kind: str = "map",
        rows_total: int | None = None,
        batches_total: int | None = None,
        batch_size: int | None = None,
        *,
        rows_own: int | None = None,
        shuffle: bool | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.rows_total = rows_total
        self.batches_total = batches_total
        self.batch_size = batch_size
        self.rows_own = rows_own
        self.shuffle = shuffle
        self.set_epoch: str | None = None
        self.rows_seen = self.batches_seen = self.rows_all = self.batches_all = self.epoch = 0
        self.waited = 0.0
        #: False once another thread asked for batches: that is no wait of the train function.
        self.waits_here = True
        #: Called on the train function's thread for each batch and each start of a pass.
        self.on_batch: Callable[[ShardMeter], None] | None = None
        self.on_pass: Callable[[ShardMeter], None] | None = None
        #: Asked, off the train function's thread, until it has told what it finds out.
        self.ask: Callable[[], bool] | None = None
        #: What is counted; a loader that is gone may be followed by another like it.
        self.owner: Callable[[], Any] = lambda: self
        self._thread = threading.get_ident()
        # Every batch of torch's own sampler is full but the last, whatever it looks like.
        self._full = bool(kind == "map" and rows_total is not None and batch_size)
        self._pass = 0
        self._done = False
        self._order: tuple[Any, int] | None = None
        self._marks: deque[tuple[int, float, int]] = deque()
        # Of the newest batch: its pass, when it came, and its number.
        self._newest = (0, 0.0, 0)

    # -- the train function's thread -------------------------------------------------------------

    def begin(self) -> int:
        """Begin a pass over the shard and tell its number, for :meth:`add` and :meth:`finish`."""
        # Who takes the first batch to look at it, and no more, has not begun an epoch.
        if self._done or self.batches_seen > 1 or not self.epoch:
            self.epoch += 1
        self._pass += 1
        self.rows_seen = self.batches_seen = 0
        self._done = False
        if self.on_pass is not None:
            self.on_pass(self)
        return self._pass

    def order(self, of: Any) -> None:
        """Tell, as a pass begins, what decides its order; the same again is a forgotten change.

        Parameters
        ----------
        of : object
            The sampler's ``epoch``.
        """
        before, self._order = self._order, (of, self.epoch)
        if before is not None and before[1] < self.epoch:
            self.set_epoch = "missing" if before[0] == of else "ok"

    def add(self, batch: Any, number: int, waited: float = 0.0, rows: int | None = None) -> None:
        """Count a batch of a pass; only the newest pass counts, where several are under way."""
        if number != self._pass:
            return
        rows = self._rows(batch) if rows is None else rows
        self.rows_seen += rows
        self.rows_all += rows
        self.batches_seen += 1
        self.batches_all += 1
        self.wait(waited)
        self._newest = (number, perf_counter(), self.batches_seen)
        if self.on_batch is not None:
            self.on_batch(self)

    def wait(self, seconds: float) -> None:
        """Count time blocked in asking for a batch."""
        if threading.get_ident() == self._thread:
            self.waited += seconds
        else:
            self.waits_here = False

    def finish(self, number: int) -> None:
        """A pass gave all it has: what could not be known before is known for the next one."""
        if number != self._pass:
            return
        self._done = True
        if self.batches_seen:
            if not self._full:
                self.rows_total = self.rows_seen
            self.batches_total = self.batches_seen

    def _rows(self, batch: Any) -> int:
        if self._full:
            return max(0, min(self.batch_size or 0, (self.rows_total or 0) - self.rows_seen))
        return rows_of(batch, self.batch_size or 1)

    # -- any thread ------------------------------------------------------------------------------

    @property
    def epochs_done(self) -> float:
        """Passes done, with the part of the one under way; NaN when that can't be known."""
        for seen, total in (
            (self.batches_seen, self.batches_total),
            (self.rows_seen, self.rows_total),
        ):
            if total:
                return self.epoch - 1 + min(seen / total, 1.0) if self.epoch else 0.0
        return math.nan

    @property
    def state(self) -> tuple[Any, ...]:
        """Changes when the row for the panel does."""
        known = self.rows_total, self.batches_total, self.set_epoch
        return (self.name, self.epoch, self.batches_seen, self._done, *known)

    def row(self, now: float) -> dict[str, Any]:
        """The shard's row for the panel; ``now`` is a time of ``perf_counter``."""
        own, total = self.rows_own, self.rows_total
        known = own is not None and total is not None
        return {
            "name": self.name,
            "kind": self.kind,
            "rows_seen": self.rows_seen,
            "rows_total": total,
            "batches_seen": self.batches_seen,
            "batches_total": self.batches_total,
            "batch_size": self.batch_size,
            "rows_dropped": max(0, (own or 0) - (total or 0)) if known else None,
            "rows_repeated": max(0, (total or 0) - (own or 0)) if known else None,
            "epoch": self.epoch or None,
            "shuffle": self.shuffle,
            "set_epoch": self.set_epoch,
            "eta_s": self._eta(now),
        }

    def _eta(self, now: float) -> float | None:
        """Seconds until this pass ends, from the pace of the last ten."""
        if self._done:
            return 0.0
        newest, marks = self._newest, self._marks
        number, at, batches = newest
        if number != self._pass or not self.batches_total:
            return None
        if marks and marks[-1][0] != number:
            marks.clear()
        if not marks or marks[-1] != newest:
            marks.append(newest)
        while len(marks) > 2 and at - marks[1][1] > WINDOW_S:
            marks.popleft()
        if len(marks) < 2:
            return None
        pace = (at - marks[0][1]) / (batches - marks[0][2])
        return max(0.0, pace * (self.batches_total - batches) - (now - at))

    def follows(self, other: ShardMeter) -> bool:
        """Whether ``other`` counted an earlier loader of the same data, as one made each epoch."""
        return (
            other is not self
            and other.owner() is None
            and (other.kind, other.rows_total, other.batch_size, other.rows_own)
            == (self.kind, self.rows_total, self.batch_size, self.rows_own)
        )

    def take_over(self, other: ShardMeter) -> None:
        """Go on counting where ``other`` ended."""
        self.name, self.epoch = other.name, other.epoch
        self.waited, self.rows_all, self.batches_all = (
            other.waited,
            other.rows_all,
            other.batches_all,
        )
        self.batches_seen, self._done = other.batches_seen, other._done
        self._pass = other._pass
        self._order, self.set_epoch = other._order, other.set_epoch


class Shards:
    """The shards of a rank; the one that is trained on comes first.

    That is the first whose batches are followed by optimizer steps; until there is one, the first.
    """

    def __init__(self, on_batch: Callable[[ShardMeter], None] | None = None) -> None:
        self._meters: list[ShardMeter] = []
        self._on_batch = on_batch
        self._trained: ShardMeter | None = None
        self._latest: ShardMeter | None = None
        self._told: list[tuple[Any, ...]] = []

    def add(self, meter: ShardMeter) -> None:
        """Watch another shard; one that is watched already is not added again."""
        if meter in self._meters:
            return
        names = {m.name for m in self._meters}
        if meter.name in names:
            base, n = meter.name, 2
            while f"{base} {n}" in names:
                n += 1
            meter.name = f"{base} {n}"
        meter.on_batch, meter.on_pass = self._batch, self._pass
        self._meters.append(meter)
        if len(self._meters) > MAX_KEPT:
            gone = next((m for m in self._meters if m is not self.training), meter)
            self._meters.remove(gone)

    @property
    def training(self) -> ShardMeter | None:
        """The shard that is trained on."""
        return self._trained or (self._meters[0] if self._meters else None)

    def stepped(self) -> None:
        """An optimizer stepped: the newest batch was one to train on."""
        if self._trained is None or self._trained.owner() is None:
            self._trained = self._latest

    def _batch(self, meter: ShardMeter) -> None:
        self._latest = meter
        if self._on_batch is not None:
            self._on_batch(meter)

    def _pass(self, meter: ShardMeter) -> None:
        if meter.epoch > 1 or meter.batches_all:
            return
        earlier = next((m for m in self._meters if m.epoch and meter.follows(m)), None)
        if earlier is not None:
            meter.take_over(earlier)
            self._meters.remove(meter)
            self._meters[self._meters.index(earlier)] = meter
            if self._trained is earlier:
                self._trained = meter
            meter.begin()

    def news(self, now: float) -> list[dict[str, Any]] | None:
        """The shards' rows for the panel, or None when nothing moved since the last call."""
        training = self.training
        shown = sorted(list(self._meters), key=lambda m: m is not training)[:MAX_SHOWN]
        for meter in shown:
            if meter.ask is not None:
                with contextlib.suppress(Exception):  # then it stays unknown
                    if not meter.ask():
                        continue
                meter.ask = None
        states = [meter.state for meter in shown]
        if states == self._told:
            return None
        self._told = states
        return [meter.row(now) for meter in shown]


def rows_of(batch: Any, default: int) -> int:
    """Rows in a batch: the first dimension of its first array, however it is nested.

    Parameters
    ----------
    batch : object
    default : int
        What to count for a batch that does not tell.
    """
    try:
        return _rows_of(batch, default)
    except Exception:  # the batch is the user's: it may be anything, and training must go on
        return default


def _rows_of(batch: Any, default: int) -> int:
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else default
    if isinstance(batch, Mapping):
        return _rows_of(next(iter(batch.values())), default) if batch else 0
    if isinstance(batch, (list, tuple)):
        if not batch:
            return 0
        first = batch[0]
        if hasattr(first, "shape") or isinstance(first, (list, tuple, Mapping)):
            return _rows_of(first, default)
        return len(batch)
    return int(batch.num_rows) if hasattr(batch, "num_rows") else default


class Counting:
    """An iterator over batches that counts them, and is otherwise the one it stands for."""

    def __init__(
        self, start: Callable[[], Iterator[Any]], meter: ShardMeter, rows: int | None = None
    ) -> None:
        self._meter, self._rows = meter, rows
        self._pass = meter.begin()
        began = perf_counter()
        self._batches = start()  # a loader may fetch its first batch here
        meter.wait(perf_counter() - began)

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._meter.wait(perf_counter() - began)
            self._meter.finish(self._pass)
            raise
        self._meter.add(batch, self._pass, perf_counter() - began, self._rows)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # as far as it has one

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # not there yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self._batches, name)


def become(original: Any, counting: Callable[[type], type], meter: ShardMeter) -> None:
    """Let an object count what it hands out: its class becomes a subclass of itself.

    Parameters
    ----------
    original : object
    counting : callable
        Makes the subclass of a class.
    meter : ShardMeter
    """
    kind: type = type(original)
    # A class of another layout (slots, written in C) can't be exchanged: nothing is counted then.
    with contextlib.suppress(TypeError, AttributeError):
        original._raynb_meter = meter
        original.__class__ = counting(kind)
        meter.owner = weakref.ref(original)


def subclass(base: type, methods: Mapping[str, Any]) -> type:
    """A class that is ``base`` to whoever asks, with other methods."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        # Pickled as what it was: the other process has no panel to count for.
        state = {k: v for k, v in self.__dict__.items() if k != "_raynb_meter"}
        return _restore, (base, state)

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), {**methods, "__reduce_ex__": __reduce_ex__, **names})


def _restore(base: type, state: dict[str, Any]) -> Any:
    original: Any = object.__new__(base)
    original.__dict__.update(state)
    return original
