"""History: every metric of every rank, as Parquet parts on the run's storage."""

from __future__ import annotations

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
#: Parts are merged into one past this many, so that a long run does not end in a swarm of files.
MAX_PARTS = 64


def _free(name: str) -> str:
    """A metric's column name; one that would shadow a base column gets a trailing underscore."""
    return name + "_" if name in BASE_COLUMNS else name


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
    frame = table.to_pandas()
    frame = frame.sort_values(["attempt", "rank"], kind="stable", ignore_index=True)
    if len(frame) and (frame["step"] % 1 == 0).all():
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
        self._parts: list[str] = []
        self._next_part = 0
        self._written_at = time.monotonic()
        self.rows = 0
        self.error: str | None = None
        self._old_parts = _parts(filesystem, directory)
        if self._old_parts:
            # A run that goes on in the same directory keeps what was there.
            self._next_part = 1 + max(
                int(p.rsplit("-", 1)[1].split(".")[0]) for p in self._old_parts
            )

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
                self._write(concat(pending))
                self.error = None
                if len(self._parts) > MAX_PARTS:
                    self._merge()
            except Exception as error:
                with self._lock:
                    self._pending = pending + self._pending
                self.error = f"{type(error).__name__}: {error}"

    def _write(self, table: pa.Table) -> None:
        path = f"{self._dir}/part-{self._next_part:06d}.parquet"
        self._fs.create_dir(self._dir, recursive=True)
        # Written aside and moved: a reader or a crash never meets half a part.
        pq.write_table(table, path + ".tmp", filesystem=self._fs)
        self._fs.move(path + ".tmp", path)
        self._next_part += 1
        self._parts.append(path)

    def _merge(self) -> None:
        merged = self._parts
        self._parts = []
        self._write(concat([pq.read_table(p, filesystem=self._fs) for p in merged]))
        for path in merged:
            self._fs.delete_file(path)

    def table(self) -> pa.Table:
        """Everything taken so far, what is on storage and what is pending."""
        with self._io_lock, self._lock:
            written = [
                pq.read_table(p, filesystem=self._fs) for p in [*self._old_parts, *self._parts]
            ]
            return concat([*written, *self._pending])


def _parts(filesystem: pafs.FileSystem, directory: str) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(directory, allow_not_found=True))
    return sorted(i.path for i in infos if i.base_name.endswith(".parquet"))


def read_history(filesystem: pafs.FileSystem, directory: str) -> pa.Table:
    """Read the parts under ``directory``; an empty table when there are none."""
    return concat([pq.read_table(p, filesystem=filesystem) for p in _parts(filesystem, directory)])
