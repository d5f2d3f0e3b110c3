"""Shards: loaders count what they yield and stay what they were."""

from __future__ import annotations

import collections
import copy
import math
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)

from raynb.telemetry.shards import ShardMeter, Shards, rows_of
from raynb.telemetry.shards_ray import meter_iterator
from raynb.telemetry.shards_torch import meter_loader


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, at: int) -> int:
        return at


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(k)]) for k in range(10))


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3, 4], [5]])

    def __len__(self) -> int:
        return 3


def totals(meter: ShardMeter) -> tuple[Any, ...]:
    return meter.rows_total, meter.batches_total, meter.batch_size


def seen(meter: ShardMeter) -> tuple[int, int, int]:
    return meter.epoch, meter.batches_seen, meter.rows_seen


@pytest.mark.parametrize(
    ("loader", "expected_totals", "expected_seen"),
    [
        (DataLoader(Numbers(), batch_size=5), (23, 5, 5), (1, 5, 23)),
        (DataLoader(Numbers(), batch_size=5, drop_last=True), (20, 4, 5), (1, 4, 20)),
        (DataLoader(Numbers()), (23, 23, 1), (1, 23, 23)),
        (
            DataLoader(
                Numbers(), batch_size=5, sampler=DistributedSampler(Numbers(), 2, 1, shuffle=True)
            ),
            (12, 3, 5),
            (1, 3, 12),
        ),
        (DataLoader(Subset(Numbers(), range(7)), batch_size=4), (7, 2, 4), (1, 2, 7)),
        (DataLoader(Numbers(), batch_sampler=Pairs()), (None, 3, None), (1, 3, 6)),
        (DataLoader(Stream(), batch_size=4), (None, None, 4), (1, 3, 10)),
        (DataLoader(Numbers(), batch_size=None), (None, 23, None), (1, 23, 23)),
        (DataLoader(Numbers(), batch_size=6, num_workers=2), (23, 4, 6), (1, 4, 23)),
        (DataLoader(Numbers(), batch_size=6, collate_fn=str), (23, 4, 6), (1, 4, 23)),
        (DataLoader(Numbers(), batch_size=6, collate_fn=np.array), (23, 4, 6), (1, 4, 23)),
        (
            # Detection: a list of images, whose first dimension is their channels.
            DataLoader(
                TensorDataset(torch.zeros(9, 3, 2, 2)),
                batch_size=4,
                collate_fn=lambda rows: tuple(zip(*rows, strict=True)),
            ),
            (9, 3, 4),
            (1, 3, 9),
        ),
    ],
    ids=[
        "plain",
        "drop_last",
        "batch of one",
        "distributed",
        "subset",
        "batch_sampler",
        "stream",
        "no batching",
        "workers",
        "text batches",
        "numpy batches",
        "detection",
    ],
)
def test_numbers_add_up(loader: Any, expected_totals: Any, expected_seen: Any) -> None:
    plain = [repr(batch) for batch in loader] if loader.num_workers == 0 else None
    if isinstance(loader.sampler, DistributedSampler):
        plain = None  # its order is the epoch's
    kind, size = type(loader), len(loader) if expected_totals[1] is not None else None
    meter = meter_loader(loader)
    assert totals(meter) == expected_totals
    yielded = list(loader)
    if plain is not None:
        assert [repr(batch) for batch in yielded] == plain
    assert seen(meter) == expected_seen
    # It stays what it was.
    assert isinstance(loader, kind) and type(loader).__name__ == kind.__name__
    assert type(loader).__qualname__ == kind.__qualname__
    if size is not None:
        assert len(loader) == size
    assert loader.dataset is not None and loader.num_workers >= 0


def test_persistent_workers_over_epochs() -> None:
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1, persistent_workers=True)
    meter = meter_loader(loader)
    first = [batch.tolist() for batch in loader]
    assert [batch.tolist() for batch in loader] == first
    assert seen(meter) == (2, 3, 23)
    del loader


def test_names() -> None:
    assert meter_loader(DataLoader(Numbers())).name == "Numbers"
    assert meter_loader(DataLoader(Subset(Numbers(), [1]))).name == "Subset of Numbers"


def watched(*loaders: Any) -> Shards:
    shards = Shards()
    for loader in loaders:
        shards.add(meter_loader(loader))
    return shards


def rows(shards: Shards) -> list[dict[str, Any]]:
    news = shards.news(time.perf_counter())
    assert news is not None
    return news


def test_news_tell_the_row_for_the_panel() -> None:
    loader = DataLoader(Numbers(), batch_size=5)
    shards = watched(loader)
    for _ in loader:
        break
    assert rows(shards) == [
        {
            "name": "Numbers",
            "kind": "map",
            "rows_seen": 5,
            "rows_total": 23,
            "batches_seen": 1,
            "batches_total": 5,
            "batch_size": 5,
            "rows_dropped": 0,
            "rows_repeated": 0,
            "epoch": 1,
            "shuffle": False,
            "set_epoch": None,
            "eta_s": None,
        }
    ]
    assert shards.news(time.perf_counter()) is None
    list(loader)
    assert rows(shards)[0]["eta_s"] == 0.0
    iter(loader)
    (row,) = rows(shards)
    assert (row["epoch"], row["rows_seen"], row["eta_s"]) == (2, 0, None)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler_drops", [False, True])
@pytest.mark.parametrize(("size", "ranks"), [(23, 2), (24, 4), (21, 8), (3, 8), (100, 3)])
def test_dropped_and_repeated_rows_add_up(
    drop_last: bool, sampler_drops: bool, size: int, ranks: int
) -> None:
    """Counted rank by rank against what the loaders really gave."""
    data = TensorDataset(torch.arange(size))
    given: collections.Counter[int] = collections.Counter()
    told = []
    for rank in range(ranks):
        sampler: Any = DistributedSampler(data, ranks, rank, drop_last=sampler_drops, shuffle=True)
        loader: Any = DataLoader(data, batch_size=4, sampler=sampler, drop_last=drop_last)
        shards = watched(loader)
        for (batch,) in loader:
            given.update(batch.tolist())
        (row,) = rows(shards)
        assert row["rows_seen"] == row["rows_total"]
        told.append(row)
    read = sum(row["rows_total"] for row in told)
    assert read == sum(given.values())
    dropped = sum(row["rows_dropped"] for row in told)
    repeated = sum(row["rows_repeated"] for row in told)
    assert read == size - dropped + repeated
    if not drop_last:
        assert dropped == size - len(given) and repeated == read - len(given)


def test_a_forgotten_set_epoch_is_noticed() -> None:
    def run(**kwargs: Any) -> list[str | None]:
        sampler: Any = DistributedSampler(Numbers(), 2, 0, **kwargs)
        loader = DataLoader(Numbers(), batch_size=4, sampler=sampler)
        shards, told = watched(loader), []
        next(iter(loader))  # a look at the first batch is no epoch
        for epoch in range(4):
            if epoch == 3:
                sampler.set_epoch(epoch)
            list(loader)
            told.append(rows(shards)[0]["set_epoch"])
        return told

    assert run(shuffle=True) == [None, "missing", "missing", "ok"]
    assert run(shuffle=False) == [None] * 4


@pytest.mark.parametrize(
    ("loader", "shuffle"),
    [
        (DataLoader(Numbers(), shuffle=True), True),
        (DataLoader(Numbers()), False),
        (DataLoader(Numbers(), batch_sampler=Pairs()), None),
        (DataLoader(Stream()), None),
        (DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), 2, 0)), True),
        (DataLoader(Numbers(), batch_size=None, shuffle=True), True),
    ],
)
def test_whether_it_shuffles(loader: Any, shuffle: bool | None) -> None:
    assert rows(watched(loader))[0]["shuffle"] is shuffle


def test_the_loader_trained_on_comes_first() -> None:
    validation, training = DataLoader(Numbers(), batch_size=6), DataLoader(Stream(), batch_size=2)
    shards = watched(validation, training)
    assert [row["name"] for row in rows(shards)] == ["Numbers", "Stream"]
    list(validation)  # a check before training
    for _ in training:
        shards.stepped()
    list(validation)
    shards.stepped()
    assert [row["name"] for row in rows(shards)] == ["Stream", "Numbers"]
    assert shards.training is meter_loader(training)


def test_names_tell_apart_and_few_are_shown() -> None:
    loaders = [DataLoader(Numbers(), batch_size=k + 1) for k in range(80)]
    shards = watched(*loaders)
    names = [row["name"] for row in rows(shards)]
    assert names[0] == "Numbers" and len(set(names)) == len(names) == 8
    assert shards.training is meter_loader(loaders[0])


def test_a_new_loader_each_epoch_is_one_shard() -> None:
    shards = Shards()
    loader: Any = None
    for epoch in range(3):
        sampler: Any = DistributedSampler(Numbers(), 2, 0)
        loader = DataLoader(Numbers(), batch_size=4, sampler=sampler)
        shards.add(meter_loader(loader))
        for _ in loader:
            shards.stepped()
        (row,) = rows(shards)
        assert (row["name"], row["epoch"], row["rows_seen"]) == ("Numbers", epoch + 1, 12)
        assert row["set_epoch"] == ("missing" if epoch else None)
        assert shards.training is meter_loader(loader)
    assert meter_loader(loader).rows_all == 36


def test_a_pass_tells_the_next_one_its_size() -> None:
    loader = DataLoader(Stream(), batch_size=4)
    shards = watched(loader)
    meter = meter_loader(loader)
    assert math.isnan(meter.epochs_done)
    list(loader)
    (row,) = rows(shards)
    assert (row["kind"], row["rows_total"], row["batches_total"]) == ("iterable", 10, 3)
    assert row["rows_dropped"] is None and meter.epochs_done == 1.0
    batches = iter(loader)
    next(batches)
    assert meter.epochs_done == pytest.approx(1 + 1 / 3)


def test_the_time_left_and_the_time_waited() -> None:
    class Slow(Numbers):
        def __getitem__(self, at: int) -> int:
            time.sleep(0.002)
            return at

    loader = DataLoader(Slow(), batch_size=1)
    shards, meter = watched(loader), meter_loader(loader)
    began = time.perf_counter()
    left = []
    for _ in loader:
        time.sleep(0.008)
        left.append((rows(shards)[0]["eta_s"], time.perf_counter()))
    end = time.perf_counter()
    for eta, at in left[5:20]:
        assert eta == pytest.approx(end - at, rel=0.5, abs=0.03)
    assert 23 * 0.002 < meter.waited < (end - began) / 2 and meter.waits_here


def test_a_thread_that_reads_ahead_is_no_wait() -> None:
    loader = DataLoader(Numbers(), batch_size=5)
    meter = meter_loader(loader)
    reader = threading.Thread(target=lambda: list(loader))
    reader.start()
    reader.join()
    assert meter.waited == 0 and not meter.waits_here and seen(meter) == (1, 5, 23)


def test_an_early_break_starts_over_next_time() -> None:
    loader = DataLoader(Numbers(), batch_size=5)
    meter = meter_loader(loader)
    for k, _ in enumerate(loader):
        if k == 1:
            break
    assert seen(meter) == (1, 2, 10)
    list(loader)
    assert seen(meter) == (2, 5, 23)


def test_nested_passes_do_not_mix() -> None:
    loader = DataLoader(Numbers(), batch_size=12)
    meter = meter_loader(loader)
    for _ in loader:
        assert meter.batches_seen <= 2  # the outer pass does not add to the inner one's
        for _ in loader:
            assert meter.rows_seen <= 23
    assert seen(meter) == (2, 2, 23)


def test_an_iterator_begins_when_it_is_made() -> None:
    # With workers, iter() is what starts them: a train function may count on it.
    loader = DataLoader(Numbers(), batch_size=12, num_workers=1)
    meter_loader(loader)
    batches: Any = iter(loader)
    assert len(batches._workers) == 1  # torch's own iterator shows through
    assert iter(batches) is batches
    assert next(batches).tolist() == list(range(12))


def test_metered_twice_counts_once() -> None:
    loader = DataLoader(Numbers(), batch_size=5)
    meter = meter_loader(loader)
    assert meter_loader(loader) is meter
    list(loader)
    assert seen(meter) == (1, 5, 23)


def test_pickled_and_copied_as_what_it_was() -> None:
    loader = DataLoader(Numbers(), batch_size=5)
    meter = meter_loader(loader)
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert type(other) is DataLoader and not hasattr(other, "_raynb_meter")
        assert [b.tolist() for b in other] == [b.tolist() for b in DataLoader(Numbers(), 5)]
    assert seen(meter) == (0, 0, 0)


def test_a_loader_of_the_users_own_class() -> None:
    class Doubled(DataLoader[int]):
        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            for batch in super().__iter__():
                yield batch * 2

    loader = Doubled(Numbers(), batch_size=12)
    meter = meter_loader(loader)
    assert [b.max().item() for b in loader] == [22, 44]
    assert isinstance(loader, Doubled) and seen(meter) == (1, 2, 23)


def test_rays_own_wrapper_is_its_own_iterator() -> None:
    from ray.train.torch.train_loop_utils import _WrappedDataLoader

    wrapped = _WrappedDataLoader(DataLoader(Numbers(), batch_size=5), torch.device("cpu"), True)
    meter = meter_loader(wrapped)
    for epoch in (1, 2):
        assert [b.tolist() for b in wrapped] == [b.tolist() for b in DataLoader(Numbers(), 5)]
        assert seen(meter) == (epoch, 5, 23)
    for _ in wrapped:
        break
    assert seen(meter) == (3, 1, 5) and len(wrapped) == 5
    # Prepared again: what was metered is inside, and counts once.
    again = _WrappedDataLoader(wrapped, torch.device("cpu"), True)
    assert meter_loader(again) is meter


def test_a_loader_that_cannot_be_counted_is_left_alone() -> None:
    class Slotted:
        __slots__ = ("dataset",)

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    loader = Slotted()
    meter = meter_loader(loader)
    assert type(loader) is Slotted and list(loader) == [1, 2] and seen(meter) == (0, 0, 0)


# -- rows of a batch -----------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "x y")


class Broken:
    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("lazy")


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(4, 3), 4),
        (np.zeros((5, 2)), 5),
        (torch.tensor(1.0), 99),
        ([torch.zeros(4, 3), torch.zeros(4)], 4),
        ((torch.zeros(6), "name"), 6),
        (Pair(torch.zeros(2), torch.zeros(2)), 2),
        ({"image": torch.zeros(7, 3), "label": torch.zeros(7)}, 7),
        (collections.UserDict(ids=torch.zeros(8, 2)), 8),
        ({"a": {"b": [torch.zeros(3)]}}, 3),
        ((["a", "b", "c"], torch.zeros(3)), 3),
        (["a", "b"], 2),
        ([], 0),
        ({}, 0),
        ("text", 99),
        (None, 99),
        (3, 99),
        (Broken(), 99),
    ],
)
def test_rows_of(batch: Any, rows: int) -> None:
    assert rows_of(batch, 99) == rows


def test_rows_of_an_arrow_table() -> None:
    import pandas as pd
    import pyarrow as pa

    assert rows_of(pa.table({"a": [1, 2, 3]}), 1) == 3
    assert rows_of(pd.DataFrame({"a": [1, 2]}), 1) == 2


# -- Ray Data ------------------------------------------------------------------------------------


class Passes:
    """As Ray gives them: iterable again and again, with attributes of its own."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.stats = items, "fast"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class FakeDataIterator:
    """Stands in for ``ray.data.DataIterator``, which needs a cluster."""

    def __init__(self, name: str = "x") -> None:
        self.name = name

    def iter_batches(self, *, batch_size: int = 256) -> Passes:
        """Batches of NumPy arrays."""
        return Passes([{"a": np.zeros(4)}, {"a": np.zeros(4)}, {"a": np.zeros(1)}])

    def iter_torch_batches(self, *, batch_size: int = 256) -> Passes:
        return Passes([{"a": torch.zeros(5, 2)}])

    def iter_rows(self) -> Passes:
        return Passes([{"a": np.zeros(7)}, {"a": np.zeros(7)}])

    def world_size(self) -> int:
        return 2


def test_a_data_iterator_counts_each_pass() -> None:
    shard: Any = FakeDataIterator()
    meter = meter_iterator(shard, "train")
    assert meter_iterator(shard, "train") is meter
    assert isinstance(shard, FakeDataIterator) and shard.world_size() == 2
    assert type(shard).__qualname__ == "FakeDataIterator"
    assert shard.iter_batches.__doc__ == "Batches of NumPy arrays."
    batches = shard.iter_batches(batch_size=4)
    assert seen(meter) == (0, 0, 0) and batches.stats == "fast"
    assert len(list(batches)) == 3 and seen(meter) == (1, 3, 9)
    assert len(list(batches)) == 3 and seen(meter) == (2, 3, 9)
    list(shard.iter_torch_batches())
    assert seen(meter) == (3, 1, 5)
    list(shard.iter_rows())
    assert seen(meter) == (4, 2, 2)
    assert meter.name == "train" and meter.kind == "ray"


def test_a_data_iterator_pickles_as_what_it_was() -> None:
    shard: Any = FakeDataIterator("mine")
    meter_iterator(shard, "train")
    other = pickle.loads(pickle.dumps(shard))
    assert type(other) is FakeDataIterator and other.name == "mine"
    assert [type(b) for b in other.iter_rows()] == [dict, dict]
    assert copy.copy(shard.iter_rows()).stats == "fast"


def test_an_iterator_has_the_length_that_it_had() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    meter_loader(loader)
    batches = iter(loader)
    assert len(batches) == 3 and [len(b[0]) for b in batches] == [4, 4, 2]
    assert len(list(loader)) == 3
    stream = DataLoader(Stream(), batch_size=4)
    meter_loader(stream)
    with pytest.raises(TypeError):
        len(iter(stream))
    assert list(stream)
