"""What the last run of each function was scaled to, in this process: the next one is compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_scales: dict[str, dict[str, Any]] = {}
#: Functions remembered; notebooks have few.
MAX_FUNCTIONS = 200


def function_key(fn: Callable[..., Any] | None, source: str | None) -> str:
    """What tells a train function from others, run after run.

    Parameters
    ----------
    fn : callable or None
    source : str or None
        Of the cell, where it is one. Its numbers do not count: they are what is tried out.

    Examples
    --------
    >>> function_key(None, "batch = 64") == function_key(None, "batch = 128")
    True
    """
    if source is not None:
        return re.sub(r"\b\d[\w.]*", "0", source.strip())
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"


def previous(key: str) -> dict[str, Any]:
    """``lr`` and ``global_batch`` of the last run of a function; empty when there was none."""
    return dict(_scales.get(key, {}))


def remember(key: str, record: Mapping[str, Any]) -> None:
    """Keep what a run's record tells of its scale."""
    scale = record.get("scale")
    if isinstance(scale, Mapping) and scale:
        _scales.pop(key, None)
        _scales[key] = dict(scale)
        while len(_scales) > MAX_FUNCTIONS:
            del _scales[next(iter(_scales))]
