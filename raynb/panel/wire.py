"""The wire: updates as messages to the browser, whose twin is ``frontend/src/wire.ts``."""

from __future__ import annotations

import math
from typing import Any

from raynb.telemetry.digest import TIME, Update

VERSION = 1


def encode(
    update: Update, kind: str, seq: int, started: float
) -> tuple[dict[str, Any], list[bytes]]:
    """An update as message content and binary buffers.

    Parameters
    ----------
    update : Update
    kind : str
        ``snapshot`` or ``delta``.
    seq : int
        The message's number.
    started : float
        UNIX seconds that times in the buffers are relative to.

    Returns
    -------
    content : dict
        JSON-able, without NaN (JSON has none): such values are None.
    buffers : list of bytes
        float64, little endian, 5 rows x n: step, seconds since ``started``, last, min, max.
    """
    buffers = []
    for data in update.buffers:
        rows = data.copy()
        rows[TIME] -= started
        buffers.append(rows.astype("<f8", copy=False).tobytes())
    return {"v": VERSION, "kind": kind, "seq": seq, **_finite(update.content)}, buffers


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
