"""Series and bands: bounded, and what they tell is what NumPy tells of the raw data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raynb.telemetry.bands import COUNT, MEDIAN, Bands, worst_is
from raynb.telemetry.series import EPOCH, LAST, MAX, MAX_BUCKETS, MIN, STEP, TIME, Series


def test_a_series_is_bounded_and_keeps_its_extremes() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=10_000)
    numbers[777], numbers[7_777] = 1e6, -1e6
    steps = np.arange(10_000.0)
    series = Series()
    at = 0
    while at < len(numbers):  # in messages of all sizes
        upto = at + int(rng.integers(1, 700))
        part = steps[at:upto]
        series.append(part, part + 50, part / 100, numbers[at:upto])
        at = upto
        assert series.n <= MAX_BUCKETS
    start, data = series.since(-1, 0)
    assert start == 0 and data.shape == (6, series.n) and series.n > MAX_BUCKETS / 2
    assert data[MAX].max() == 1e6 and data[MIN].min() == -1e6
    assert series.generation == 4
    width = 16
    for bucket in range(series.n):
        part = numbers[bucket * width : (bucket + 1) * width]
        assert data[MIN, bucket] == part.min() and data[MAX, bucket] == part.max()
        assert data[LAST, bucket] == part[-1]
    assert data[STEP, -1] == 9_999 and data[TIME, -1] == 10_049 and data[EPOCH, -1] == 99.99
    assert (np.diff(data[STEP]) > 0).all()


@pytest.mark.parametrize("cap", [1000, 125, 7])
@pytest.mark.parametrize("sizes", [[1] * 3000, [3000], [1, 999, 1, 999, 1000], [7] * 428 + [4]])
def test_a_series_does_not_depend_on_the_messages_sizes(sizes: list[int], cap: int) -> None:
    numbers, series, at = np.sin(np.arange(3000.0)), Series(cap), 0
    for size in sizes:
        part = slice(at, at + size)
        series.append(numbers[part], numbers[part], numbers[part], numbers[part])
        at += size
    whole = Series(cap)
    whole.append(numbers, numbers, numbers, numbers)
    np.testing.assert_array_equal(series.since(0, 0)[1], whole.since(0, 0)[1])
    assert cap / 2 <= whole.n <= cap and whole.data[LAST, -1] == numbers[-1]
    assert whole.data[MAX].max() == numbers.max() and whole.data[MIN].min() == numbers.min()


def test_nan_inside_a_bucket_keeps_the_numbers_range() -> None:
    series = Series()
    ramp = np.arange(float(MAX_BUCKETS))
    series.append(ramp, ramp, ramp, ramp)
    nan = np.array([math.nan, 5.0, math.nan, math.nan])
    series.append(nan * 0 + 1, nan * 0 + 1, nan, nan)
    data = series.since(0, 0)[1]
    assert data[MIN, -2] == data[MAX, -2] == 5.0 and data[LAST, -2] == 5.0
    assert np.isnan(data[[MIN, MAX, LAST], -1]).all()


def test_a_series_that_shrinks_keeps_its_range() -> None:
    numbers = np.cos(np.arange(777.0))
    series = Series()
    series.append(numbers, numbers, numbers, numbers)
    series.shrink(125)
    series.append(numbers[:1], numbers[:1], numbers[:1], np.array([9.0]))
    assert series.n <= 125 and series.data[LAST, -1] == 9.0
    assert series.data[MIN].min() == numbers.min() and series.data[MAX].max() == 9.0


# -- bands ---------------------------------------------------------------------------------------

RANKS = 5
value = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e300])
)
message = st.tuples(
    st.integers(0, RANKS - 1),
    st.lists(
        st.tuples(st.one_of(st.integers(-5, 40).map(float), st.floats(0, 3)), value),
        min_size=1,
        max_size=6,
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(message, min_size=1, max_size=25), st.sampled_from([2, 6, 500]))
def test_bands_are_what_numpy_tells_of_the_raw_data(
    messages: list[tuple[int, list[tuple[float, float]]]], cap: int
) -> None:
    for rank in range(RANKS):  # a rank's steps go up
        ordered = iter(sorted(s for r, points in messages if r == rank for s, _ in points))
        messages = [
            (r, [(next(ordered), v) for _, v in points] if r == rank else points)
            for r, points in messages
        ]
    bands = Bands(2, cap)  # ranks beyond are taken too
    told = np.empty((7, 0))
    generation, version = -1, 0
    for k, (rank, points) in enumerate(messages):
        steps, values = (np.array(column) for column in zip(*points, strict=True))
        bands.add(rank, steps, steps + 100, steps / 10, values, k + 1)
        if k % 3 == 2:  # a watcher looks now and then
            start, data = bands.since(generation, version)
            told = np.concatenate([told[:, :start], data], axis=1)
            generation, version = bands.generation, k + 1
    start, data = bands.since(generation, version)
    told = np.concatenate([told[:, :start], data], axis=1)
    assert told.shape[1] <= cap

    width = bands._width
    raw: dict[int, dict[int, float]] = {}
    steps_in: dict[int, list[float]] = {}
    for rank, points in messages:
        for step, number in points:
            bucket = math.floor(step / width)
            raw.setdefault(bucket, {})[rank] = number
            steps_in.setdefault(bucket, []).append(step)
    assert told.shape[1] == len(raw)
    for column, bucket in zip(told.T, sorted(raw), strict=True):
        of_ranks = np.array(list(raw[bucket].values()))
        assert column[STEP] == max(steps_in[bucket]) and column[TIME] == column[STEP] + 100
        assert column[EPOCH] == column[STEP] / 10 and column[COUNT] == len(of_ranks)
        if np.isnan(of_ranks).all():
            assert np.isnan(column[[MEDIAN, MIN, MAX]]).all()
            continue
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(column[MEDIAN], np.nanmedian(of_ranks), rtol=1e-15)
        assert column[MIN] == np.nanmin(of_ranks) and column[MAX] == np.nanmax(of_ranks)
    for rank in range(RANKS):
        _, one = bands.of_rank(rank, -1, 0)
        wanted = [raw[bucket][rank] for bucket in sorted(raw) if rank in raw[bucket]]
        np.testing.assert_array_equal(one[LAST], wanted)


def test_bands_tell_only_what_changed() -> None:
    bands = Bands(3)
    steps = np.arange(100.0)
    for rank in range(3):
        bands.add(rank, steps, steps, steps, steps + rank, 1)
    start, data = bands.since(bands.generation, 1)
    assert (start, data.shape[1]) == (100, 0)
    late = np.array([90.0, 91.0])
    bands.add(1, late, late, late, late * 0, 2)
    start, data = bands.since(bands.generation, 1)
    assert (start, data.shape[1]) == (90, 10)
    assert data[MIN].tolist() == [0.0, 0.0, *range(92, 100)]


def test_bands_pass_over_steps_that_no_bucket_can_hold() -> None:
    bands = Bands(1, 8)
    steps = np.array([1.0, math.inf, math.nan, 1e300, 2.0])
    bands.add(0, steps, steps, steps, np.arange(5.0), 1)
    assert bands.since(-1, 0)[1][LAST].tolist() == [0.0, 4.0]
    bands.add(0, steps[1:2], steps[1:2], steps[1:2], steps[1:2], 2)
    assert bands.since(-1, 0)[1].shape == (7, 2)


def test_a_band_that_shrinks_keeps_its_range() -> None:
    bands, steps = Bands(2), np.arange(400.0)
    bands.add(0, steps, steps, steps, np.sin(steps), 1)
    bands.shrink(60)
    bands.add(1, steps[-1:], steps[-1:], steps[-1:], np.array([7.0]), 2)
    _, data = bands.since(-1, 0)
    assert data.shape[1] <= 60 and data[MAX, -1] == 7.0 and data[STEP, -1] == 399


@pytest.mark.parametrize(
    ("metric", "best", "bad"),
    [
        ("val_loss", None, "max"),
        ("trainError", None, "max"),
        ("top5.err", None, "max"),
        ("perry", None, None),
        ("val/acc", None, "min"),
        ("mAP", None, "min"),
        ("F1 score", None, "min"),
        ("throughput", None, None),
        ("throughput", ("throughput", "max"), "min"),
        ("loss", ("loss", "max"), "min"),
        ("loss", ("acc", "max"), "max"),
    ],
)
def test_which_end_is_bad(metric: str, best: tuple[str, str] | None, bad: str | None) -> None:
    assert worst_is(metric, best) == bad


def test_the_farthest_rank() -> None:
    bands, one = Bands(4), np.array([1.0])
    assert bands.farthest("max") is None
    for rank, number in enumerate([5.0, 1.0, 4.0, 4.5]):
        bands.add(rank, one, one, one, np.array([number]), 1)
    assert (bands.farthest("max"), bands.farthest("min"), bands.farthest(None)) == (0, 1, 1)
    bands.add(2, one, one, one, np.array([math.nan]), 2)
    assert bands.farthest("max") == bands.farthest("min") == bands.farthest(None) == 2
