"""Records: what a logged value becomes, and the columns that carry it."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raynb.telemetry.events import (
    MAX_TEXT,
    Record,
    RecordBatch,
    clean_text,
    shard_totals,
    to_value,
    to_values,
)


class Colour(IntEnum):
    RED = 3


class NoText:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class BadItem:
    shape = ()

    def item(self) -> float:
        raise RuntimeError("device lost")

    def __str__(self) -> str:
        return "bad item"


class BadAttributes:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        return "touchy"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3.0),
        (True, 1.0),
        (False, 0.0),
        (2**63 + 1, float(2**63)),
        (Colour.RED, 3.0),
        (math.inf, math.inf),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int8(-4), -4.0),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([[7]]), 7.0),
        (torch.tensor(1.25), 1.25),
        (torch.tensor([4], dtype=torch.int32), 4.0),
        (torch.tensor(2.0, requires_grad=True) * 2, 4.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        ("1.5", "1.5"),
        (np.str_("2"), "2"),
        (np.array(["1.5"]), "1.5"),
        (b"1.5", "b'1.5'"),
        (None, "None"),
        ({"a": 1}, "{'a': 1}"),
        (1 + 2j, "(1+2j)"),
        (np.complex64(1j), "1j"),
        (torch.tensor(1j), "1j"),
        (BadItem(), "bad item"),
        (BadAttributes(), "touchy"),
        (NoText(), "<NoText: its text raises RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_to_value(value: Any, expected: float | str) -> None:
    found = to_value(value)
    assert type(found) is type(expected)
    assert found == expected


@pytest.mark.parametrize("value", [math.nan, np.float16("nan"), torch.tensor(math.nan)])
def test_nan_stays_a_number(value: Any) -> None:
    found = to_value(value)
    assert isinstance(found, float) and math.isnan(found)


def test_an_int_beyond_floats_is_text() -> None:
    assert to_value(10**309) == "1" + "0" * 309
    assert to_value(10**5000) == "<int: its text raises ValueError>"


@pytest.mark.parametrize("value", [torch.zeros(3, 2), np.zeros((3, 2))])
def test_vectors_say_what_to_do(value: Any) -> None:
    assert (
        to_value(value) == f"{type(value).__name__} of shape (3, 2): log a scalar, such as .mean()"
    )


def test_text_is_bounded_and_clean() -> None:
    long = to_value("x" * 10_000)
    assert isinstance(long, str) and len(long) == MAX_TEXT and long.endswith("…")
    # Neither Parquet nor JSON in UTF-8 holds a lone surrogate.
    assert to_value("a\udce9") == "a\\udce9"
    assert clean_text("é 🙂") == "é 🙂"
    assert to_values({"\udce9": 1, 3: 2, NoText(): 3}) == {
        "\\udce9": 1.0,
        "3": 2.0,
        "<NoText: its text raises RuntimeError>": 3.0,
    }


def test_columns() -> None:
    batch = RecordBatch.of(
        [
            Record(0, 10.0, {"loss": 1.0, "note": "warm"}),
            Record(1, 11.0, {"acc": 0.5}),
            Record(2, 12.0, {"loss": math.nan, "acc": 0.75}),
        ]
    )
    assert len(batch) == 3
    assert batch.steps.tolist() == [0, 1, 2] and batch.times.tolist() == [10, 11, 12]
    assert batch.steps.dtype == batch.times.dtype == np.float64
    assert list(batch.metrics) == ["loss", "acc"]
    rows, values = batch.metrics["loss"]
    assert rows.dtype == np.uint32 and values.dtype == np.float64
    assert rows.tolist() == [0, 2] and values[0] == 1.0 and math.isnan(values[1])
    assert batch.metrics["acc"][0].tolist() == [1, 2]
    assert batch.texts == [(0, "note", "warm")]
    assert len(RecordBatch.of([])) == 0


numbers = st.floats(allow_nan=True, allow_infinity=True)
values = st.dictionaries(st.text(max_size=4), st.one_of(numbers, st.text(max_size=5)), max_size=4)
records = st.lists(
    st.builds(Record, st.floats(0, 1e9), st.floats(0, 2e9), values), min_size=0, max_size=20
)


@settings(max_examples=60, deadline=None)
@given(records)
def test_records_survive_the_columns(given_records: list[Record]) -> None:
    batch = pickle.loads(pickle.dumps(RecordBatch.of(given_records)))
    back: list[dict[str, Any]] = [{} for _ in given_records]
    for name, (rows, column) in batch.metrics.items():
        for row, value in zip(rows, column, strict=True):
            back[row][name] = float(value)
    for row, name, text in batch.texts:
        back[row][name] = text
    assert batch.steps.tolist() == [r.step for r in given_records]
    assert batch.times.tolist() == [r.time for r in given_records]
    for record, found in zip(given_records, back, strict=True):
        # repr: NaN is equal to itself and 0.0 differs from -0.0
        assert {k: repr(v) for k, v in found.items()} == {
            k: repr(v) for k, v in record.values.items()
        }


def test_shard_totals() -> None:
    assert shard_totals([{"train": 30, "val": 5}, {"val": 6, "train": 31}]) == {
        "train": 61,
        "val": 11,
    }
    # Of the names whose rows every rank knows.
    assert shard_totals([{"train": 30, "val": None}, {"train": 30, "val": 5}]) == {"train": 60}
    assert shard_totals([{"train": 30}, {}]) is None
    assert shard_totals([{"train": None}]) is None
    assert shard_totals([{}]) is None and shard_totals([]) is None
