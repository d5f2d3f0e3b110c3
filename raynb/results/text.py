"""Numbers and untrusted text as a page or a terminal can show them; what is unknown is "n/a"."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from raynb.telemetry.events import printable

UNKNOWN = "n/a"


def clean(value: object, limit: int = 200) -> str:
    """Text without terminal sequences and controls, cut to ``limit`` characters.

    Parameters
    ----------
    value : object
        Anything; an object whose ``__str__`` fails is named by its type.
    limit : int
        Characters to keep, the "…" of a cut included.

    Returns
    -------
    str
        Text that UTF-8 can hold.
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its text raises {type(error).__name__}>"
    # Cut first: what is thrown away needs no work.
    text = printable(text[: 2 * limit + 1])
    # Lone surrogates are legal in str, but neither in UTF-8 nor in a notebook's JSON.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean_line(value: object, limit: int = 200) -> str:
    """:func:`clean` on one line."""
    return " ".join(clean(value, limit).split())


def cut_middle(value: object, limit: int) -> str:
    """Cleaned text whose middle is left out, with the count of what was, past ``limit``.

    A traceback's first lines tell where it began, its last ones what happened: those get more.
    """
    text = value if isinstance(value, str) else clean(value, 4 * limit)
    if len(text) <= limit:
        return clean(text, limit)
    head, tail = limit // 4, limit - limit // 4
    cut = len(text) - head - tail
    return (
        f"{clean(text[:head], head)}\n"
        f"… {format_count(cut)} characters cut …\n"
        f"{clean(text[-tail:], tail)}"
    )


def number(value: object) -> float | None:
    """A JSON number as float; None for what is none (bool, text, missing)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list; empty for what is no list."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def trained_on(worker: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shard that a worker trains on, which is its first; empty while there is none."""
    return next(iter(mappings(worker.get("shards"))), {})


def format_count(value: object) -> str:
    """``1,234``; fractions are rounded.

    Examples
    --------
    >>> format_count(60000), format_count(None)
    ('60,000', 'n/a')
    """
    n = number(value)
    return UNKNOWN if n is None or not math.isfinite(n) else f"{n:,.0f}"


def format_of(seen: object, total: object) -> str:
    """``10 / 60``, or ``10`` alone where the total is unknown."""
    if number(total) is None:
        return format_count(seen)
    return f"{format_count(seen)} / {format_count(total)}"


def format_value(value: object) -> str:
    """A metric's value in about four digits; NaN and infinities by name, text as it is.

    Examples
    --------
    >>> [format_value(v) for v in (0.51234, 12345.6, 3.0, 1.5e-7, float("nan"), None)]
    ['0.5123', '12,346', '3', '1.50e-07', 'NaN', 'n/a']
    """
    if value is None:
        return UNKNOWN
    n = number(value)
    if n is None:
        return clean_line(value, 60)
    if math.isnan(n):
        return "NaN"
    if math.isinf(n):
        return "∞" if n > 0 else "-∞"
    size = abs(n)
    if size != 0 and (size < 1e-3 or size >= 1e7):
        return f"{n:.2e}"
    return f"{n:,.0f}" if n == int(n) or size >= 1000 else f"{n:.4g}"


def format_moment(seconds: object) -> str:
    """A UNIX time as local date and time with its offset from UTC."""
    n = number(seconds)
    if n is None:
        return UNKNOWN
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(n))
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def plural(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def json_text(value: object, limit: int = 400) -> str:
    """A value of the record on one line: text as it is, the rest as JSON."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return clean_line(value, limit)
    try:
        return clean_line(json.dumps(value, ensure_ascii=False, default=str), limit)
    except (TypeError, ValueError, RecursionError):
        return clean_line(value, limit)
