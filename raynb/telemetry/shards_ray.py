"""Shards of Ray Data: a ``DataIterator`` that counts what it hands out keeps its type too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from raynb.telemetry.shards import Counting, ShardMeter, become, subclass


@dataclass(frozen=True)
class Share:
    """A rank's part of a dataset, where Ray can tell it before the rows are read.

    Attributes
    ----------
    rows : int
        Rows of the whole dataset.
    ranks, rank : int
        Among how many the dataset is split, and which part this is.
    """

    rows: int
    ranks: int
    rank: int

    @property
    def own(self) -> int:
        """Rows that fall to this rank, when each n-th goes to it."""
        return len(range(self.rank, self.rows, self.ranks))

    @property
    def read(self) -> int:
        """Rows that the rank gets: Ray gives each the same number, and drops the rest."""
        return self.rows // self.ranks


class RayMeter(ShardMeter):
    """A shard of Ray Data, whose size depends on how a pass reads it.

    Parameters
    ----------
    name : str
        The dataset's name.
    share : callable, optional
        Tells the fields of a :class:`Share`, or None as long as Ray has not answered; raises when
        Ray can't know.
    """

    def __init__(
        self, name: str, share: Callable[[], tuple[int, int, int] | None] | None = None
    ) -> None:
        super().__init__(name, "ray")
        self._share: Share | None = None
        self._how: tuple[Any, ...] = ()
        if share is not None:
            self.ask = functools.partial(self._learn, share)

    def read_by(self, size: int | None, drop_last: bool, shuffle: bool | None) -> None:
        """Tell how the next pass reads: rows a batch, and whether a last smaller one is left."""
        how = size, drop_last
        if how == self._how:
            return
        # What an earlier pass showed holds for its way of reading only.
        self.rows_total = self.batches_total = None
        self._how, self.batch_size, self.shuffle = how, size, shuffle
        self._plan()

    def _learn(self, share: Callable[[], tuple[int, int, int] | None]) -> bool:
        found = share()
        if found is None:
            return False
        self._share = Share(*found)
        self._plan()
        return True

    def _plan(self) -> None:
        if self._share is None or not self._how:
            return
        self.rows_own = self._share.own
        if self.rows_total is not None:
            return  # counted in a whole pass
        rows, (size, drop_last) = self._share.read, self._how
        self.rows_total = rows - rows % size if size and drop_last else rows
        self.batches_total = -(-self.rows_total // size) if size else None


def meter_iterator(
    iterator: Any, name: str, share: Callable[[], tuple[int, int, int] | None] | None = None
) -> ShardMeter:
    """Make a Ray Data ``DataIterator`` count the rows it yields; its type stays too.

    Parameters
    ----------
    iterator : ray.data.DataIterator
        Or in local mode the ``Dataset``.
    name, share
        As of :class:`RayMeter`.
    """
    if hasattr(iterator, "_raynb_meter"):  # asked for twice
        known: ShardMeter = iterator._raynb_meter
        return known
    meter = RayMeter(name, share)
    become(iterator, _counting, meter)
    return meter


#: What hands out a dataset's rows; none of them calls another.
_PASSES = ("iter_rows", "iter_batches", "iter_torch_batches", "iter_tf_batches")


@functools.cache
def _counting(base: type) -> type:
    def wrap(method: str) -> Callable[..., Any]:
        original = getattr(base, method)
        parameters = inspect.signature(original).parameters
        defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
        by_row = method == "iter_rows"

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**defaults, **kwargs}
            size = 1 if by_row else given.get("batch_size")
            how = (
                size if isinstance(size, int) and size > 0 else None,
                bool(given.get("drop_last")),
                bool(given.get("local_shuffle_buffer_size")) or None,
            )
            # A row's first array does not tell how many rows it is.
            rows = 1 if by_row else None
            return _Counted(original(self, *args, **kwargs), self._raynb_meter, how, rows)

        return call

    return subclass(base, {m: wrap(m) for m in _PASSES if hasattr(base, m)})


class _Counted:
    """An iterable of Ray Data whose passes are counted."""

    def __init__(
        self,
        found: Any,
        meter: RayMeter,
        how: tuple[int | None, bool, bool | None],
        rows: int | None,
    ) -> None:
        self._found, self._meter, self._how, self._rows = found, meter, how, rows

    def __iter__(self) -> Iterator[Any]:
        self._meter.read_by(*self._how)
        return Counting(lambda: iter(self._found), self._meter, self._rows)

    def __getattr__(self, name: str) -> Any:
        if name == "_found":  # not there yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self._found, name)
