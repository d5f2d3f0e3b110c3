"""Telemetry facts and their columnar form: what one worker tells the supervisor in one message."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A metric's text is cut here; it is a label for people, not a place to keep data.
MAX_TEXT = 500

#: Items and characters in a container whose text is made, and how deep they may lie.
MAX_ITEMS, MAX_DEPTH = 20_000, 20
_CONTAINERS = (dict, list, tuple, set, frozenset)

Floats = NDArray[np.float64]
Value = float | str


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank logged or reported at one moment.

    Attributes
    ----------
    step : float
        The caller's step, or the rank's own count.
    time : float
        UNIX seconds on the worker's clock.
    values : dict of str to float or str
        Numbers as floats (NaN and infinities kept); what is no number as text.
    epoch : float
        Epochs of the training loader done by then, fractional; NaN when unknown.
    """

    step: float
    time: float
    values: Mapping[str, Value]
    epoch: float = math.nan


@dataclass(slots=True)
class RecordBatch:
    """Records of one rank, column by column.

    Attributes
    ----------
    steps, times, epochs : ndarray of float64, shape (n,)
    metrics : dict of str to (rows, values)
        ``rows`` (uint32) are the records that have the metric, ``values`` (float64) its values.
    texts : list of (row, name, text)
    """

    steps: Floats
    times: Floats
    epochs: Floats
    metrics: dict[str, tuple[NDArray[np.uint32], Floats]]
    texts: list[tuple[int, str, str]]

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def of(cls, records: Sequence[Record]) -> RecordBatch:
        rows: dict[str, list[int]] = {}
        values: dict[str, list[float]] = {}
        texts: list[tuple[int, str, str]] = []
        for row, record in enumerate(records):
            for name, value in record.values.items():
                if isinstance(value, str):
                    texts.append((row, name, value))
                else:
                    rows.setdefault(name, []).append(row)
                    values.setdefault(name, []).append(value)
        return cls(
            np.array([r.step for r in records], dtype=np.float64),
            np.array([r.time for r in records], dtype=np.float64),
            np.array([r.epoch for r in records], dtype=np.float64),
            {
                name: (np.array(rows[name], dtype=np.uint32), np.array(values[name], np.float64))
                for name in rows
            },
            texts,
        )


@dataclass(slots=True)
class Batch:
    """Everything one rank has to tell since its last message.

    Attributes
    ----------
    rank, attempt, seq : int
        Who speaks, in which attempt of the run, and the message's number.
    records : RecordBatch or None
    sample : dict or None
        The latest device sample (see :mod:`raynb.telemetry.samplers`).
    shards : list of dict or None
        The latest progress of each shard, the one trained on first (see
        :mod:`raynb.telemetry.shards`).
    timing : dict or None
        Where a step's time goes, and where the train function stands (see
        :mod:`raynb.telemetry.timing`).
    logs : list of (seq, stream, text)
        Log lines; the same ``seq`` again replaces the line (progress bars).
    status : str or None
        ``running``, ``waiting`` (in ``report()``), ``finished`` or ``failed``.
    failure : dict or None
        The exception that ended this rank, as ``describe_exception`` tells it.
    dropped : dict of str to int
        What was dropped in total since the rank started, by kind (``logs``, ``samples``,
        ``metrics``, ``refused``).
    sent : float or None
        UNIX seconds on the worker's clock, when the message was made.
    run : str or None
        The name of the run that it is for.
    """

    rank: int
    attempt: int
    seq: int
    records: RecordBatch | None = None
    sample: dict[str, Any] | None = None
    shards: list[dict[str, Any]] | None = None
    timing: dict[str, Any] | None = None
    logs: list[tuple[int, str, str]] = field(default_factory=list)
    status: str | None = None
    failure: dict[str, Any] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    sent: float | None = None
    run: str | None = None


def to_value(value: Any) -> Value:
    """A metric's value as a float, or as text where it is no number; never raises.

    0-d tensors and NumPy scalars become floats, bools 0.0 or 1.0. A CUDA tensor is read here, so
    call this off the training thread for those.
    """
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool:
        try:
            return float(value)
        except OverflowError:
            return _text(value)
    if value is None or isinstance(value, str):
        return _text(value)
    try:
        size = getattr(value, "shape", None)
        if size is not None and math.prod(size) != 1:
            return f"{kind.__name__} of shape {tuple(size)}: log a scalar, such as .mean()"
        item = value.item() if hasattr(value, "item") else value
        # float() would read a number out of text, and fail on a complex number.
        return _text(item) if isinstance(item, (str, bytes, complex)) else float(item)
    except Exception:
        return _text(value)


def _text(value: Any) -> str:
    return clean_text(short_text(value, MAX_TEXT))


def short_text(value: Any, limit: int) -> str:
    """A value's text, cut to ``limit`` characters; never raises.

    Of a container that holds much, what it is and how much: its text might fill the memory.
    """
    try:
        if isinstance(value, (bytes, bytearray)):
            value = value[:limit]
        elif isinstance(value, _CONTAINERS) and _left_of(MAX_ITEMS, value, 0) < 0:
            value = f"a {type(value).__name__} of {len(value):,}"
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its text raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _left_of(room: int, value: Any, depth: int) -> int:
    """What is left of ``room`` items and characters after a value; negative: it has more."""
    if isinstance(value, (str, bytes, bytearray)):
        return room - len(value)
    if not isinstance(value, _CONTAINERS):
        return room - 1
    if depth > MAX_DEPTH:
        return -1
    parts = itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value
    for part in parts:
        room = _left_of(room - 1, part, depth + 1)
        if room < 0:
            break
    return room


def clean_text(text: str) -> str:
    """Text without lone surrogates, which neither Parquet nor the browser's JSON can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


# Colour and cursor sequences of terminals, then what is left of control characters.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text without terminal sequences and controls, which a terminal would obey."""
    plain = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", plain)


def to_values(metrics: Mapping[Any, Any]) -> dict[str, Value]:
    """:func:`to_value` over a dict; keys become text too."""
    return {_text(k): to_value(v) for k, v in metrics.items()}


def shard_totals(ranks: Iterable[Mapping[str, int | None]]) -> dict[str, int] | None:
    """Rows over all ranks by shard name, of the names whose rows every rank knows.

    Parameters
    ----------
    ranks : iterable of dict of str to int or None
        Each rank's rows by shard name.

    Examples
    --------
    >>> shard_totals([{"train": 30, "val": None}, {"train": 31, "val": 9}])
    {'train': 61}
    """
    known = list(ranks)
    totals: dict[str, int] = {}
    for name in known[0] if known else ():
        rows = [of_rank.get(name) for of_rank in known]
        if None not in rows:
            totals[name] = sum(n for n in rows if n is not None)
    return totals or None
