"""History: every metric of every rank, as Parquet parts on the run's storage."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raynb.telemetry.events import RecordBatch

#: Columns that every history has, in this order, before one column a metric.
BASE_COLUMNS = ("rank", "attempt", "step", "time")
#: Suffix of the column that holds a metric's text where it was no number.
TEXT_SUFFIX = ".text"
#: Seconds between parts; a supervisor that dies loses at most what came since the last one.
FLUSH_S = 2.0
#: Parts of one size are merged into one past this many, and those into larger ones, so that a long
#: run neither ends in a swarm of files nor is written anew all the time.
MAX_PARTS = 64

#: ``part-000007.parquet``, or ``part-000000-000064.parquet`` where those were merged.
_PART = re.compile(r"part-(\d+)(?:-(\d+))?\.parquet")
_Part = tuple[int, int]  # numbers of the first and the last part that it holds


def _free(name: str) -> str:
    """A metric's column name; one that would shadow another column gets a trailing underscore.

    So does one that is already of that form: two metrics never share a column.
    """
    bare = name.rstrip("_")
    return name + "_" if bare in BASE_COLUMNS or bare.endswith(TEXT_SUFFIX) else name


def to_table(rank: int, attempt: int, records: RecordBatch) -> pa.Table:
    """One rank's batch as an Arrow table: base columns, then one float64 column a metric."""
    n = len(records)
    columns: dict[str, Any] = {
        "rank": np.full(n, rank, np.int32),
        "attempt": np.full(n, attempt, np.int32),
        "step": records.steps,
        "time": records.times,
    }
    for name, (rows, values) in records.metrics.items():
        # The mask keeps "absent" apart from a NaN that was logged.
        column, absent = np.zeros(n), np.ones(n, dtype=bool)
        column[rows] = values
        absent[rows] = False
        columns[_free(name)] = pa.array(column, mask=absent)
    texts: dict[str, list[str | None]] = {}
    for row, name, text in records.texts:
        texts.setdefault(name, [None] * n)[row] = text
    for name, column_text in texts.items():
        columns[_free(name) + TEXT_SUFFIX] = pa.array(column_text, pa.string())
    return pa.table(columns)


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables with different metrics as one; a metric is null where it is absent."""
    if not tables:
        return pa.table(
            {
                "rank": pa.array([], pa.int32()),
                "attempt": pa.array([], pa.int32()),
                "step": pa.array([], pa.float64()),
                "time": pa.array([], pa.float64()),
            }
        )
    return pa.concat_tables(tables, promote_options="default")


def to_frame(table: pa.Table) -> pd.DataFrame:
    """History as users see it: sorted by attempt and rank, in the order of logging.

    Returns
    -------
    DataFrame
        Columns ``rank``, ``attempt``, ``step``, ``time`` (UNIX seconds), then one a metric; NaN
        where a record does not have it. Steps are integers where all are whole.
    """
    # NumPy-backed, as the rest of a notebook's frames: absent becomes NaN.
    frame: pd.DataFrame = table.to_pandas()
    frame = frame.sort_values(["attempt", "rank"], kind="stable", ignore_index=True)
    whole = (frame["step"] % 1 == 0) & (frame["step"].abs() <= 2**53)
    if len(frame) and whole.all():
        frame["step"] = frame["step"].astype("int64")
    metrics = [c for c in frame.columns if c not in BASE_COLUMNS]
    # A metric that was only ever text is shown under its own name.
    alone = {c: c[: -len(TEXT_SUFFIX)] for c in metrics if c.endswith(TEXT_SUFFIX)}
    frame = frame.rename(columns={c: n for c, n in alone.items() if n not in metrics})
    return frame


class HistoryWriter:
    """Collects records and writes them to ``directory`` as ``part-*.parquet``.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    directory : str
        Path on that filesystem; made when the first part is written.

    Attributes
    ----------
    rows : int
        Records taken so far.
    error : str or None
        Why the last write failed; the rows stay in memory and are tried again.
    """

    def __init__(self, filesystem: pafs.FileSystem, directory: str) -> None:
        self._fs = filesystem
        self._dir = directory
        self._lock = threading.Lock()
        self._io_lock = threading.Lock()
        self._pending: list[pa.Table] = []
        #: Parts by how often they were merged; what a run left here before is not touched.
        self._levels: list[list[_Part]] = [[]]
        self._written_at = time.monotonic()
        self.rows = 0
        self.error: str | None = None
        self._next_part = 1 + max((last for _, last in _parts(filesystem, directory)), default=-1)

    def add(self, rank: int, attempt: int, records: RecordBatch) -> None:
        table = to_table(rank, attempt, records)
        with self._lock:
            self._pending.append(table)
            self.rows += len(records)

    def due(self) -> bool:
        return bool(self._pending) and time.monotonic() - self._written_at >= FLUSH_S

    def flush(self) -> None:
        """Write what is pending as one part; on failure keep it and remember why."""
        with self._io_lock:
            with self._lock:
                pending, self._pending = self._pending, []
            self._written_at = time.monotonic()
            if not pending:
                return
            try:
                part = (self._next_part, self._next_part)
                self._write(part, concat(pending))
                self._next_part += 1
                self._levels[0].append(part)
                self.error = None
            except Exception as error:
                with self._lock:
                    self._pending = pending + self._pending
                self.error = f"{type(error).__name__}: {error}"
                return
            # Its parts are there all the same when a merge fails; the next flush tries again.
            with contextlib.suppress(Exception):
                self._merge()

    def _write(self, part: _Part, table: pa.Table) -> None:
        path = _path(self._dir, part)
        self._fs.create_dir(self._dir, recursive=True)
        # Written aside and moved: a reader or a crash never meets half a part.
        pq.write_table(table, path + ".tmp", filesystem=self._fs)
        self._fs.move(path + ".tmp", path)

    def _merge(self) -> None:
        for level, parts in enumerate(self._levels):
            if len(parts) <= MAX_PARTS:
                return
            whole = (parts[0][0], parts[-1][1])
            self._write(whole, _read(self._fs, self._dir, parts))
            self._levels[level] = []
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(whole)
            for part in parts:
                # One that stays is no harm: a reader takes the larger part instead.
                with contextlib.suppress(Exception):
                    self._fs.delete_file(_path(self._dir, part))

    def table(self) -> pa.Table:
        """Everything taken so far, what is on storage and what is pending."""
        with self._io_lock:
            with self._lock:
                pending = list(self._pending)
            return concat([read_history(self._fs, self._dir), *pending])


def _path(directory: str, part: _Part) -> str:
    first, last = part
    number = f"{first:06d}" if first == last else f"{first:06d}-{last:06d}"
    return f"{directory}/part-{number}.parquet"


def _parts(filesystem: pafs.FileSystem, directory: str) -> list[_Part]:
    """The parts that make up the history, oldest first."""
    infos = filesystem.get_file_info(pafs.FileSelector(directory, allow_not_found=True))
    names = [m for info in infos if (m := _PART.fullmatch(info.base_name))]
    found = sorted((int(m[1]), -int(m[2] or m[1])) for m in names)
    parts: list[_Part] = []
    for first, last in found:
        # A merge that was cut short leaves parts beside the one that holds them.
        if not parts or -last > parts[-1][1]:
            parts.append((first, -last))
    return parts


def _read(filesystem: pafs.FileSystem, directory: str, parts: Sequence[_Part]) -> pa.Table:
    return concat([pq.read_table(_path(directory, p), filesystem=filesystem) for p in parts])


def read_history(filesystem: pafs.FileSystem, directory: str) -> pa.Table:
    """Read the parts under ``directory``; an empty table when there are none."""
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):  # merged while this read them
            return _read(filesystem, directory, _parts(filesystem, directory))
    return _read(filesystem, directory, _parts(filesystem, directory))


def _sound(table: pa.Table) -> pa.Table:
    """The table, if each row tells which rank and attempt it is of."""
    for name in ("rank", "attempt"):
        if name not in table.column_names or table[name].null_count:
            raise ValueError(f"rows without {name}")
    return table


def salvage_history(filesystem: pafs.FileSystem, directory: str) -> tuple[pa.Table, list[str]]:
    """Read what can be read of the parts under ``directory``.

    Returns
    -------
    table : pyarrow.Table
    unread : list of str
        Each part that can't be read, and why.
    """
    with contextlib.suppress(Exception):
        return _sound(read_history(filesystem, directory)), []
    whole: pa.Table = concat([])
    unread = []
    for part in _parts(filesystem, directory):
        path = _path(directory, part)
        try:
            # Also a part of another form, which none would take, is left out.
            part_table = _sound(pq.read_table(path, filesystem=filesystem))
            whole = concat([whole, part_table])
        except Exception as error:
            why = str(error).partition("\n")[0][:160]
            unread.append(f"{path.rpartition('/')[2]}: {why}")
    return whole, unread
