"""Shards: counts the rows and batches a rank reads, without changing what the user's loader is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
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

    def start_epoch(self) -> int:
        """Begin a pass over the shard and tell its number."""
        self.epoch += 1
        self.rows_seen = self.batches_seen = 0
        return self.epoch

    def add(self, batch: Any, epoch: int, rows: int | None = None) -> None:
        """Count a batch of a pass; only the newest pass counts, where several are under way."""
        if epoch == self.epoch:
            self.rows_seen += self._rows(batch) if rows is None else rows
            self.batches_seen += 1

    def _rows(self, batch: Any) -> int:
        if self.rows_total is not None and self.batch_size:
            # Exact whatever the batch looks like: every batch is full but the last.
            return max(0, min(self.batch_size, self.rows_total - self.rows_seen))
        return rows_of(batch, self.batch_size or 1)

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


class _Counting:
    """An iterator over batches that counts them, and is otherwise the one it stands for."""

    def __init__(self, batches: Iterator[Any], meter: ShardMeter, rows: int | None = None) -> None:
        self._batches, self._meter, self._rows = batches, meter, rows
        self._epoch = meter.start_epoch()

    def __iter__(self) -> _Counting:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._meter.add(batch, self._epoch, self._rows)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # not there yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self._batches, name)


def _subclass(base: type, methods: Mapping[str, Any]) -> type:
    """A class that is ``base`` to whoever asks, with other methods."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        # Pickled as what it was: the other process has no panel to count for.
        state = {k: v for k, v in self.__dict__.items() if k != "_raynb_meter"}
        return _restore, (base, state)

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), {**methods, "__reduce_ex__": __reduce_ex__, **names})


def _become(original: Any, counting: Callable[[type], type], meter: ShardMeter) -> None:
    kind: type = type(original)
    # A class of another layout (slots, written in C) can't be exchanged: nothing is counted then.
    with contextlib.suppress(TypeError, AttributeError):
        original._raynb_meter = meter
        original.__class__ = counting(kind)


def _restore(base: type, state: dict[str, Any]) -> Any:
    original: Any = object.__new__(base)
    original.__dict__.update(state)
    return original


# -- torch ---------------------------------------------------------------------------------------


def meter_loader(loader: Any) -> ShardMeter:
    """Make a torch ``DataLoader`` count what it yields; it stays the object and type it was.

    The loader's class becomes a subclass of itself that counts, so ``isinstance``, ``len``,
    ``loader.sampler`` and every other attribute are the user's own.
    """
    if hasattr(loader, "_raynb_meter"):  # prepared twice
        known: ShardMeter = loader._raynb_meter
        return known
    dataset = getattr(loader, "dataset", None)
    name = type(dataset).__name__
    inner = getattr(dataset, "dataset", None)  # torch's Subset
    if inner is not None:
        name = f"{name} of {type(inner).__name__}"
    meter = ShardMeter(name, *_sizes(loader))
    _become(loader, _counting, meter)
    return meter


def _sizes(loader: Any) -> tuple[int | None, int | None, int | None]:
    """Rows and batches of a pass, and the batch size, as far as torch's own sampler tells."""
    from torch.utils.data import BatchSampler

    batches = _size(loader)
    batching = getattr(loader, "batch_sampler", None)
    # A user's own batch sampler, or none, may put any rows into a batch.
    if type(batching) is not BatchSampler:
        return None, batches, None
    rows, size = _size(batching.sampler), int(batching.batch_size)
    if rows is not None and batching.drop_last:
        rows -= rows % size
    return rows, batches, size


def _size(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


@functools.cache
def _counting(base: type) -> type:
    def __iter__(self: Any) -> Iterator[Any]:
        # Ray's own wrapper is its own iterator, so what it gives is only asked for the next.
        return _Counting(base.__iter__(self), self._raynb_meter)  # type: ignore[attr-defined]

    return _subclass(base, {"__iter__": __iter__})


# -- Ray Data ------------------------------------------------------------------------------------


def meter_iterator(iterator: Any, name: str) -> ShardMeter:
    """Make a Ray Data ``DataIterator`` count the rows it yields; its type stays too."""
    if hasattr(iterator, "_raynb_meter"):  # asked for twice
        known: ShardMeter = iterator._raynb_meter
        return known
    meter = ShardMeter(name)
    _become(iterator, _counting_iterator, meter)
    return meter


#: What hands out a dataset's rows; none of them calls another.
_PASSES = ("iter_rows", "iter_batches", "iter_torch_batches", "iter_tf_batches")


@functools.cache
def _counting_iterator(base: type) -> type:
    def wrap(method: str) -> Callable[..., Any]:
        original = getattr(base, method)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            # A row's first array does not tell how many rows it is.
            rows = 1 if method == "iter_rows" else None
            return _Counted(original(self, *args, **kwargs), self._raynb_meter, rows)

        return call

    return _subclass(base, {m: wrap(m) for m in _PASSES if hasattr(base, m)})


class _Counted:
    """An iterable of Ray Data whose passes are counted."""

    def __init__(self, found: Any, meter: ShardMeter, rows: int | None) -> None:
        self._found, self._meter, self._rows = found, meter, rows

    def __iter__(self) -> Iterator[Any]:
        return _Counting(iter(self._found), self._meter, self._rows)

    def __getattr__(self, name: str) -> Any:
        if name == "_found":  # not there yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self._found, name)
