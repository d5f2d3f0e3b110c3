"""Curves: the history's metrics as one series a rank and attempt, with logged NaNs kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raynb.telemetry.events import Floats
from raynb.telemetry.history import BASE_COLUMNS, to_frame
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.series import LAST, STEP, TIME

#: Rows of a history, by metric, in which NaN was logged; elsewhere its NaN means "absent".
NanRows = Mapping[str, NDArray[np.intp]]


@dataclass(frozen=True)
class Curve:
    """One metric of one rank in one attempt, in the order of logging.

    Attributes
    ----------
    metric : str
    rank, attempt : int
    step, time, value : ndarray of float64, shape (n,)
        ``value`` may hold NaN and infinities: they were logged.
    """

    metric: str
    rank: int
    attempt: int
    step: Floats
    time: Floats
    value: Floats


def frame_with_nans(table: pa.Table) -> tuple[pd.DataFrame, dict[str, NDArray[np.intp]]]:
    """History as users see it, and where its NaN is a value and not an absent one.

    Parameters
    ----------
    table : pyarrow.Table
        As :func:`raynb.telemetry.history.read_history` returns it: absent is null.

    Returns
    -------
    frame : DataFrame
    nan_rows : dict of str to ndarray
        Row positions in ``frame`` by metric; metrics without a logged NaN are left out.
    """
    frame = to_frame(table)
    # to_frame's own order: stable by attempt and rank.
    order = np.lexsort((table["rank"].to_numpy(), table["attempt"].to_numpy()))
    nan_rows = {}
    for name in table.column_names:
        if name in BASE_COLUMNS or not pa.types.is_floating(table[name].type):
            continue
        logged = pc.fill_null(pc.is_nan(table[name]), False).to_numpy(zero_copy_only=False)
        if logged.any():
            nan_rows[name] = np.flatnonzero(logged[order])
    return frame, nan_rows


def metric_names(frame: pd.DataFrame) -> list[str]:
    """The history's numeric metrics in order of appearance."""
    return [
        str(name)
        for name in frame.columns
        if name not in BASE_COLUMNS and pd.api.types.is_numeric_dtype(frame[name])
    ]


def curves_of(
    frame: pd.DataFrame,
    nan_rows: NanRows | None = None,
    *,
    metrics: Sequence[str] | None = None,
    ranks: Iterable[int] | None = None,
) -> list[Curve]:
    """Cut a history into curves, ordered by metric, attempt and rank.

    Parameters
    ----------
    frame : DataFrame
        The history.
    nan_rows : mapping of str to ndarray, optional
        What :func:`frame_with_nans` found.
    metrics : sequence of str, optional
        All numeric ones by default.
    ranks : iterable of int, optional
        All by default.
    """
    if not len(frame) or any(name not in frame.columns for name in BASE_COLUMNS):
        return []
    wanted = None if ranks is None else set(ranks)
    attempt_of, rank_of = frame["attempt"].to_numpy(), frame["rank"].to_numpy()
    order = np.lexsort((rank_of, attempt_of))
    # Each group's first row in that order.
    new = np.flatnonzero((np.diff(attempt_of[order]) != 0) | (np.diff(rank_of[order]) != 0)) + 1
    groups = [rows for rows in np.split(order, new) if wanted is None or rank_of[rows[0]] in wanted]
    steps = frame["step"].to_numpy(dtype=np.float64)
    times = frame["time"].to_numpy(dtype=np.float64)
    curves = []
    for metric in metric_names(frame) if metrics is None else metrics:
        values = frame[metric].to_numpy(dtype=np.float64)
        present = ~np.isnan(values)
        logged = (nan_rows or {}).get(metric)
        if logged is not None:
            present[logged] = True
        for rows in groups:
            kept = rows[present[rows]]
            if len(kept):
                rank, attempt = int(rank_of[rows[0]]), int(attempt_of[rows[0]])
                curves.append(Curve(metric, rank, attempt, steps[kept], times[kept], values[kept]))
    return curves


def curves_of_mirror(mirror: Mirror) -> list[Curve]:
    """The bounded series of a live picture as curves; a bucket stands with its last value."""
    names = {name: k for k, name in enumerate(mirror.metrics())}
    return [
        Curve(metric, rank, attempt, data[STEP], data[TIME], data[LAST])
        for (metric, rank, attempt), data in sorted(
            mirror.series.items(), key=lambda item: (names[item[0][0]], item[0][2], item[0][1])
        )
        if data.shape[1]
    ]


def default_metric(metrics: Iterable[str]) -> str | None:
    """The metric to show where none was asked for: the first loss, else the first."""
    names = list(metrics)
    return next((name for name in names if "loss" in name.lower()), names[0] if names else None)


def last_values(curves: Iterable[Curve], metric: str) -> dict[int, float]:
    """Each rank's last value of a metric in the last attempt that logged it."""
    found = [c for c in curves if c.metric == metric]
    if not found:
        return {}
    attempt = max(c.attempt for c in found)
    return {
        c.rank: float(c.value[-1])
        for c in sorted(found, key=lambda c: c.rank)
        if c.attempt == attempt
    }


def last_texts(frame: pd.DataFrame, rank: int = 0) -> dict[str, str]:
    """The last text that a rank logged under each name that holds text."""
    out: dict[str, str] = {}
    if "rank" not in frame.columns:
        return out
    for name in frame.columns:
        if name in BASE_COLUMNS or pd.api.types.is_numeric_dtype(frame[name]):
            continue
        texts = frame.loc[frame["rank"] == rank, name].dropna()
        if len(texts):
            out[str(name)] = str(texts.iloc[-1])
    return out
