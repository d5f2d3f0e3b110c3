"""Shards: counts the rows and batches a rank reads, without changing what the user's loader is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any


class ShardMeter:
    """Rows and batches of one loader on one rank.

    Parameters
    ----------
    name : str
        What the shard is called in the panel.
    rows_total, batches_total, batch_size : int or None
        Per pass over the shard; None when it can't be known (a streaming dataset).
    """

    def __init__(
        self,
        name: str,
        rows_total: int | None = None,
        batches_total: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.name = name
        self.rows_total = rows_total
        self.batches_total = batches_total
        self.batch_size = batch_size
        self.rows_seen = 0
        self.batches_seen = 0
        self.epoch = 0
        self._told: tuple[int, int] | None = None

    def start_epoch(self) -> None:
        self.epoch += 1
        self.rows_seen = self.batches_seen = 0

    def add(self, rows: int) -> None:
        self.rows_seen += rows
        self.batches_seen += 1

    def news(self) -> dict[str, Any] | None:
        """The shard's row for the panel, or None when nothing moved since the last call."""
        state = (self.epoch, self.batches_seen)
        if state == self._told:
            return None
        self._told = state
        return {
            "name": self.name,
            "rows_seen": self.rows_seen,
            "rows_total": self.rows_total,
            "batches_seen": self.batches_seen,
            "batches_total": self.batches_total,
            "batch_size": self.batch_size,
            "epoch": self.epoch or None,
        }


def rows_of(batch: Any, default: int) -> int:
    """Rows in a batch: the first dimension of its first array, however it is nested."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else default
    if isinstance(batch, dict):
        return rows_of(next(iter(batch.values())), default) if batch else 0
    if isinstance(batch, (list, tuple)):
        if not batch:
            return 0
        first = batch[0]
        if hasattr(first, "shape") or isinstance(first, (list, tuple, dict)):
            return rows_of(first, default)
        return len(batch)
    if hasattr(batch, "num_rows"):
        return int(batch.num_rows)
    return default


# -- torch ---------------------------------------------------------------------------------------


def meter_loader(loader: Any) -> ShardMeter:
    """Make a torch ``DataLoader`` count what it yields; it stays the object and type it was.

    The loader's class becomes a subclass of itself that counts, so ``isinstance``, ``len``,
    ``loader.sampler`` and every other attribute are the user's own.
    """
    dataset = getattr(loader, "dataset", None)
    name = type(dataset).__name__
    inner = getattr(dataset, "dataset", None)  # torch's Subset
    if inner is not None:
        name = f"{name} of {type(inner).__name__}"
    batches, rows = _size(loader), _size(getattr(loader, "sampler", None))
    batch_size = getattr(loader, "batch_size", None)
    if batches is not None and batch_size and getattr(loader, "drop_last", False):
        rows = batches * batch_size
    meter = ShardMeter(name, rows, batches, batch_size)
    loader.__class__ = _counting(type(loader))
    loader._raynb_meter = meter
    return meter


def _size(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


_END = object()


@functools.cache
def _counting(base: type) -> type:
    def __iter__(self: Any) -> Iterator[Any]:
        meter: ShardMeter = self._raynb_meter
        meter.start_epoch()
        # Ray's own wrapper is its own iterator, so a for loop would call this method again.
        batches = base.__iter__(self)  # type: ignore[attr-defined]
        for batch in iter(functools.partial(next, batches, _END), _END):
            meter.add(rows_of(batch, self.batch_size or 1))
            yield batch

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        # Pickled as what it was: the other process has no panel to count for.
        state = {k: v for k, v in self.__dict__.items() if k != "_raynb_meter"}
        return _restore, (base, state)

    return type(
        base.__name__,
        (base,),
        {
            "__iter__": __iter__,
            "__reduce_ex__": __reduce_ex__,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
        },
    )


def _restore(base: type, state: dict[str, Any]) -> Any:
    loader = object.__new__(base)
    loader.__dict__.update(state)
    return loader


# -- Ray Data ------------------------------------------------------------------------------------


def meter_iterator(iterator: Any, name: str) -> ShardMeter:
    """Make a Ray Data ``DataIterator`` count the rows it yields; its type stays too."""
    meter = ShardMeter(name)
    iterator.__class__ = _counting_iterator(type(iterator))
    iterator._raynb_meter = meter
    return meter


@functools.cache
def _counting_iterator(base: type) -> type:
    def wrap(method: str) -> Callable[..., Any]:
        original = getattr(base, method)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            return _Counted(
                self, found, kwargs.get("batch_size") or 1, by_row=method == "iter_rows"
            )

        return call

    methods = {
        m: wrap(m) for m in ("iter_batches", "iter_torch_batches", "iter_rows") if hasattr(base, m)
    }
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__})


class _Counted:
    """An iterable of Ray Data whose passes are counted."""

    def __init__(self, owner: Any, found: Any, batch_size: int, *, by_row: bool) -> None:
        self._owner, self._found, self._by_row = owner, found, by_row
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        meter: ShardMeter = self._owner._raynb_meter
        meter.start_epoch()
        for batch in self._found:
            meter.add(1 if self._by_row else rows_of(batch, self._batch_size))
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)
