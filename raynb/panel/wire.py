"""The wire: updates as messages to the browser, whose twin is ``frontend/src/wire.ts``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from raynb.telemetry.events import clean_text
from raynb.telemetry.series import TIME
from raynb.telemetry.update import Update

VERSION = 2


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
        JSON-able whatever the update holds: NaN, which JSON has not, is None, and what is no
        JSON value at all is its text.
    buffers : list of bytes
        float64, little endian. A series' has 6 rows x n: step, seconds since ``started``, epoch,
        last, min, max; a band's 7: step, seconds, epoch, median, min, max, ranks in the bucket.
    """
    buffers = []
    for data in update.buffers:
        rows = data.copy()
        rows[TIME] -= started
        buffers.append(rows.astype("<f8", copy=False).tobytes())
    return {"v": VERSION, "kind": kind, "seq": seq, **_plain(update.content)}, buffers


def file_message(rank: int, name: str, whole: bool, note: str | None) -> dict[str, Any]:
    """Content of the message that carries a rank's log file in its one buffer.

    Parameters
    ----------
    rank : int
    name : str
        What the file is called when it is saved.
    whole : bool
        False where the buffer holds only a part of what was written.
    note : str or None
        Why it is only a part.
    """
    return {
        "v": VERSION,
        "kind": "file",
        "rank": rank,
        "name": name,
        "whole": whole,
        "note": note,
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {_key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    # A sampler or a summary may hold NumPy's scalars and anything else.
    return _plain(value.item()) if isinstance(value, np.generic) else _text(value)


def _key(key: Any) -> str:
    return clean_text(key) if isinstance(key, str) else _text(key)


def _text(value: Any) -> str:
    try:
        return clean_text(str(value))
    except Exception as error:
        return f"<{type(value).__name__}: its text raises {type(error).__name__}>"
