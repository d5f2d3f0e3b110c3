"""The gate: what a worker's message may hold; the rest is cut off, counted and told.

A worker runs anybody's code, so its message may be anything. What passes here is of the types and
within the bounds that the rest of the supervisor counts on. No method of an object from a worker is
called: an exact type is asked for, and everything else is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from raynb.telemetry.channel import MAX_LOG_LINES, MAX_RECORDS
from raynb.telemetry.events import MAX_TEXT, Batch, Floats, RecordBatch, clean_text, printable
from raynb.telemetry.loglines import MAX_LINE
from raynb.telemetry.rows import SAMPLED, TIMED
from raynb.telemetry.trend import COLUMNS

#: Ranks of a run whose size is not known, and the largest size.
MAX_RANKS = 100_000
#: Names of metrics in a run. A name is a column of the history; what is logged under one more is
#: cut off.
MAX_NAMES = 5_000
#: Numbers and texts in a message's records.
MAX_VALUES = 2_000_000
#: Shards of a rank, fields of one, and the length of such a field's name.
MAX_SHARDS, MAX_FIELDS, MAX_FIELD = 64, 40, 50
#: Characters of a text that a worker has cut and then cleaned, which may make one into six.
MAX_CLEAN = 6 * MAX_TEXT
#: Characters of a failure's type, message and traceback; a worker cuts them shorter itself.
MAX_TYPE, MAX_MESSAGE, MAX_TRACEBACK = 300, 11_000, 51_000

_STATUSES = ("running", "waiting", "finished", "failed")
_STREAMS = ("out", "err")
_KINDS = ("logs", "samples", "metrics", "refused")
_TEXTS = frozenset({"device", "device_kind", "note", "where"})
_SHARD_TEXTS = frozenset({"name", "kind", "set_epoch"})
_SAMPLE_FIELDS, _TIMING_FIELDS = frozenset((*SAMPLED, *COLUMNS)), frozenset(TIMED)
#: What of a message was cut off: why, and how many pieces.
Cut = Counter[str]


class Gate:
    """Lets in what belongs to a run, within bounds.

    Parameters
    ----------
    run : str
        The run's name; a message that says another one is refused.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._names: set[str] = set()

    def check(self, message: Any, ranks: int, attempts: range) -> tuple[Batch | None, Cut]:
        """A message without what it may not hold.

        Parameters
        ----------
        message : object
            What a worker sent.
        ranks : int
            Ranks are smaller than that.
        attempts : range
            Attempts that there were.

        Returns
        -------
        Batch or None
            None where nothing of it can be taken.
        collections.Counter
            What was cut off, and how many pieces.
        """
        cut: Cut = Counter()
        try:
            return self._checked(message, ranks, attempts, cut), cut
        except Exception:  # an object may do anything when asked
            return None, Counter({"a message that can't be read": 1})

    def named(self, values: Mapping[str, Any], cut: Cut) -> dict[str, Any]:
        """Values by name without those whose names are too many or no names."""
        return {k: v for k, v in values.items() if self._name(k, cut) is not None}

    def _checked(self, message: Any, ranks: int, attempts: range, cut: Cut) -> Batch | None:
        if type(message) is not Batch:
            cut["what is no message"] += 1
            return None
        if message.run is not None and not _is(message.run, self._run):
            cut["a message of another run"] += 1
            return None
        rank, attempt = message.rank, message.attempt
        if not (type(rank) is type(attempt) is int and 0 <= rank < ranks and attempt in attempts):
            cut["a message of a rank or an attempt that the run does not have"] += 1
            return None
        return Batch(
            rank,
            attempt,
            message.seq if _is_int(message.seq) else 0,
            self._records(message.records, cut),
            _fields(message.sample, _SAMPLE_FIELDS, "a sample", cut),
            _shards(message.shards, cut),
            _fields(message.timing, _TIMING_FIELDS, "a timing", cut),
            _logs(message.logs, cut),
            _one_of(message.status, _STATUSES, "a status", cut),
            _failure(message.failure, cut),
            _dropped(message.dropped, cut),
            message.sent if type(message.sent) is float and math.isfinite(message.sent) else None,
            message.run,
        )

    def _records(self, records: Any, cut: Cut) -> RecordBatch | None:
        if records is None:
            return None
        columns = None
        if type(records) is RecordBatch:
            columns = [_floats(a) for a in (records.steps, records.times, records.epochs)]
        if columns is None or any(a is None or len(a) > MAX_RECORDS for a in columns):
            cut["records that are none, or too many"] += 1
            return None
        steps, times, epochs = (a for a in columns if a is not None)
        n = len(steps)
        if len(times) != n or len(epochs) != n or type(records.metrics) is not dict:
            cut["records that are none, or too many"] += 1
            return None
        taken = RecordBatch(steps, times, epochs, {}, [])
        left = MAX_VALUES
        for given, column in records.metrics.items():
            name = self._name(given, cut)
            if name is None:
                continue
            found = _column(column, n)
            if found is None or len(found[1]) > left:
                cut["values that are no numbers, or too many"] += 1
                continue
            left -= len(found[1])
            taken.metrics[name] = found
        taken.texts = self._texts(records.texts, n, left, cut)
        return taken

    def _texts(self, texts: Any, n: int, left: int, cut: Cut) -> list[tuple[int, str, str]]:
        if type(texts) is not list:
            cut["texts that are none"] += 1
            return []
        taken = []
        for one in texts[:left]:
            sound = type(one) is tuple and len(one) == 3 and type(one[2]) is str
            if not sound or type(one[0]) is not int or not 0 <= one[0] < n:
                cut["texts that are none"] += 1
            elif (name := self._name(one[1], cut)) is not None:
                taken.append((one[0], name, _cut(one[2], MAX_CLEAN)))
        if len(texts) > left:
            cut["texts that are too many"] += len(texts) - left
        return taken

    def _name(self, name: Any, cut: Cut) -> str | None:
        if type(name) is not str or len(name) > MAX_CLEAN:
            cut["names that are none, or too long"] += 1
            return None
        name = clean_text(name)
        if name not in self._names:
            if len(self._names) >= MAX_NAMES:
                cut[f"metrics past the first {MAX_NAMES:,} names"] += 1
                return None
            self._names.add(name)
        return str(name)


def checked_hello(who: Any, run: str) -> dict[str, Any]:
    """What a rank says of itself when it comes.

    Raises
    ------
    ValueError
        When it is none of this run's ranks.
    """
    if not isinstance(who, Mapping):
        raise ValueError("a rank says who it is in a dict")
    if who.get("run") is not None and not _is(who.get("run"), run):
        raise ValueError("this supervisor is another run's")
    rank, size = who.get("rank"), who.get("world_size")
    if not (type(rank) is type(size) is int and 0 <= rank < size <= MAX_RANKS):
        raise ValueError(f"no rank of a group of at most {MAX_RANKS:,}")
    pid, node, ip = who.get("pid"), who.get("node"), who.get("ip")
    return {
        "rank": rank,
        "world_size": size,
        "pid": pid if _is_int(pid) else None,
        "node": _cut(node, MAX_TEXT) if type(node) is str else None,
        "ip": _cut(ip, MAX_TEXT) if type(ip) is str else None,
    }


def _is(value: Any, text: str) -> bool:
    return type(value) is str and value == text


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _cut(text: str, limit: int) -> str:
    return clean_text(text if len(text) <= limit else text[: limit - 1] + "…")


def _floats(values: Any) -> Floats | None:
    """A column of numbers as float64; None for what is none."""
    if type(values) is not np.ndarray or values.ndim != 1 or values.dtype.kind not in "fiub":
        return None
    return values.astype(np.float64, copy=False)


def _column(column: Any, n: int) -> tuple[Any, Floats] | None:
    if type(column) is not tuple or len(column) != 2:
        return None
    rows, values = column[0], _floats(column[1])
    if values is None or type(rows) is not np.ndarray or rows.ndim != 1:
        return None
    if rows.dtype.kind not in "iu" or len(rows) != len(values) or len(rows) > n:
        return None
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < n):
        return None
    return rows, values


def _plain(value: Any) -> Any:
    """A number, truth or None as it is, NumPy's as Python's; a NaN for everything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) is bool or type(value) is float or _is_int(value):
        return value
    return math.nan


def _fields(row: Any, known: frozenset[str], what: str, cut: Cut) -> dict[str, Any] | None:
    """Known fields of a sample or a timing; others are none of ours and no loss."""
    if row is None:
        return None
    if type(row) is not dict:
        cut[f"{what} that is none"] += 1
        return None
    taken: dict[str, Any] = {}
    for name in known:
        if name not in row:
            continue
        value = row[name]
        if name in _TEXTS:
            sound = value is None or type(value) is str
            plain = _cut(value, MAX_TEXT) if type(value) is str else None
        else:
            plain = _plain(value)
            # A NaN of a device is as unknown as what is no number at all.
            sound = plain == plain or isinstance(value, (float, np.floating))
            plain = plain if plain == plain else None
        taken[name] = plain
        if not sound:
            cut[f"{what}'s field {name}"] += 1
    return taken


def _shards(shards: Any, cut: Cut) -> list[dict[str, Any]] | None:
    if shards is None:
        return None
    if type(shards) is not list:
        cut["shards that are none"] += 1
        return None
    taken = []
    for shard in shards[:MAX_SHARDS]:
        if type(shard) is not dict or len(shard) > MAX_FIELDS:
            cut["shards that are none"] += 1
            continue
        one: dict[str, Any] = {}
        for name, value in shard.items():
            if type(name) is not str or len(name) > MAX_FIELD:
                cut["a shard's fields"] += 1
            elif name in _SHARD_TEXTS and type(value) is str:
                one[name] = _cut(value, MAX_TEXT)
            else:
                plain = _plain(value)
                one[name] = plain if plain == plain else None
                if plain != plain and not isinstance(value, (float, np.floating)):
                    cut["a shard's fields"] += 1
        taken.append(one)
    if len(shards) > MAX_SHARDS:
        cut["shards that are too many"] += len(shards) - MAX_SHARDS
    return taken


def _logs(logs: Any, cut: Cut) -> list[tuple[int, str, str]]:
    if type(logs) is not list:
        cut["log lines that are none"] += 1
        return []
    taken = []
    for line in logs[:MAX_LOG_LINES]:
        sound = type(line) is tuple and len(line) == 3 and _is_int(line[0])
        if sound and type(line[1]) is type(line[2]) is str and line[1] in _STREAMS:
            # A little more than the panel shows, so that it tells that it cut the line.
            taken.append((line[0], line[1], line[2][: MAX_LINE + 1]))
        else:
            cut["log lines that are none"] += 1
    if len(logs) > MAX_LOG_LINES:
        cut["log lines that are too many"] += len(logs) - MAX_LOG_LINES
    return taken


def _one_of(value: Any, known: tuple[str, ...], what: str, cut: Cut) -> str | None:
    if value is None or (type(value) is str and value in known):
        return value
    cut[f"{what} that is none"] += 1
    return None


def _failure(failure: Any, cut: Cut) -> dict[str, Any] | None:
    if failure is None:
        return None
    if type(failure) is not dict:
        cut["a failure that is none"] += 1
        return None
    limits = {"type": MAX_TYPE, "message": MAX_MESSAGE, "traceback": MAX_TRACEBACK}
    taken: dict[str, Any] = {"cell": None}
    for name, limit in limits.items():
        text = failure.get(name)
        if type(text) is not str:
            cut[f"a failure's {name}"] += 1
            text = "?"
        # It goes into an error, which a terminal shows as it is.
        taken[name] = _cut(printable(text), limit)
    at, cell = failure.get("at"), failure.get("cell")
    if type(at) is float and math.isfinite(at):
        taken["at"] = at
    if type(failure.get("cwd")) is str:
        taken["cwd"] = _cut(printable(failure["cwd"]), MAX_TEXT)
    if type(cell) is dict:
        label, line, text = (cell.get(k) for k in ("label", "line", "text"))
        if type(label) is type(text) is str and _is_int(line):
            label, text = (_cut(printable(one), MAX_TEXT) for one in (label, text))
            shown = {"label": label, "text": text}
            taken["cell"] = {**shown, "line": line}
    if cell is not None and taken["cell"] is None:
        cut["a failure's cell"] += 1
    return taken


def _dropped(dropped: Any, cut: Cut) -> dict[str, int]:
    if type(dropped) is not dict:
        cut["counts that are none"] += 1
        return {}
    taken = {k: dropped[k] for k in _KINDS if _is_int(dropped.get(k)) and dropped[k] >= 0}
    if len(taken) != len(dropped):
        cut["counts that are none"] += 1
    return taken
