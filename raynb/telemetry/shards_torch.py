"""Shards of torch: a ``DataLoader`` that counts what it yields stays the object it was."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from raynb.telemetry.shards import Counting, ShardMeter, become, subclass


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
    meter = _describe(loader, name)
    become(loader, _counting, meter)
    return meter


def _describe(loader: Any, name: str) -> ShardMeter:
    """Rows and batches of a pass, as far as torch's own samplers tell."""
    from torch.utils.data import BatchSampler, IterableDataset

    batches = _size(loader)
    batching = getattr(loader, "batch_sampler", None)
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        size = getattr(loader, "batch_size", None)
        return ShardMeter(name, "iterable", None, batches, size)
    shuffle = _shuffle(_sampler(loader))
    # A user's own batch sampler, or none, may put any rows into a batch.
    if type(batching) is not BatchSampler:
        return ShardMeter(name, "map", None, batches, None, shuffle=shuffle)
    rows, size = _size(batching.sampler), int(batching.batch_size)
    own = _own_rows(batching.sampler, rows)
    if rows is not None and batching.drop_last:
        rows -= rows % size
    return ShardMeter(name, "map", rows, batches, size, rows_own=own, shuffle=shuffle)


def _size(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _sampler(loader: Any) -> Any:
    """What decides the order of rows; a user's own batch sampler may hold it."""
    batching = getattr(loader, "batch_sampler", None)
    return getattr(batching, "sampler", None) or batching or getattr(loader, "sampler", None)


def _shuffle(sampler: Any) -> bool | None:
    from torch.utils.data import RandomSampler, SequentialSampler

    if isinstance(sampler, (RandomSampler, SequentialSampler)):
        return isinstance(sampler, RandomSampler)
    shuffle = getattr(sampler, "shuffle", None)
    return shuffle if isinstance(shuffle, bool) else None


def _own_rows(sampler: Any, rows: int | None) -> int | None:
    """Rows of the dataset that fall to this rank: every n-th, where ranks share it."""
    from torch.utils.data import DistributedSampler

    if not isinstance(sampler, DistributedSampler):
        return rows
    size = _size(sampler.dataset)
    if type(sampler).__iter__ is not DistributedSampler.__iter__ or size is None:
        return None  # a user's own way to share the rows
    return len(range(sampler.rank, size, sampler.num_replicas))


@functools.cache
def _counting(base: type) -> type:
    def __iter__(self: Any) -> Iterator[Any]:
        # Ray's own wrapper is its own iterator, so what it gives is only asked for the next.
        meter = self._raynb_meter
        batches = Counting(lambda: base.__iter__(self), meter)  # type: ignore[attr-defined]
        _note_order(self, meter)
        return batches

    return subclass(base, {"__iter__": __iter__})


def _note_order(loader: Any, meter: ShardMeter) -> None:
    """Tell the meter, as a pass begins, the epoch that the loader's sampler shuffles by.

    ``set_epoch`` is to change it before each pass; without it each pass has the same order.
    """
    with contextlib.suppress(Exception):  # the sampler may be the user's own
        sampler = _sampler(loader)
        if callable(getattr(sampler, "set_epoch", None)) and getattr(sampler, "shuffle", False):
            meter.order(sampler.epoch)
