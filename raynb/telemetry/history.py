"""History: every metric of every rank, as Parquet parts on the run's storage."""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raynb.telemetry.events import RecordBatch

#: Columns that every history has, in this order, before one column a metric.
BASE_COLUMNS = ("rank", "attempt", "step", "time")
#: Suffix of the column that holds a metric's text where it was no number.
TEXT_SUFFIX = ".text"
#: Seconds between parts; a supervisor that dies loses at most what came since the last one.
FLUSH_S = 2.0
#: The same while records wait in local files because storage does not take them.
SPOOLED_FLUSH_S = 10.0
#: Parts of one size are merged into one past this many, and those into larger ones, so that a long
#: run neither ends in a swarm of files nor is written anew all the time.
MAX_PARTS = 24
#: Parts that hold more rows together are not merged again, and values that a merge holds at a time.
MAX_MERGED_ROWS, MERGE_CELLS = 20_000_000, 200_000
#: Rows that a merge writes at a time, at least.
MERGE_ROWS = 100
#: Rows times columns of one part, and of a table that is read: what is absent takes room too. Past
#: it, a table leaves out the metrics with the fewest values.
MAX_PART_CELLS, MAX_CELLS = 5_000_000, 100_000_000
#: Rows times columns of a part that is read, and bytes of one of its texts.
MAX_READ_CELLS, MAX_READ_TEXT = 1_000_000_000, 20_000
#: In a table's schema: how many metrics were left out.
_LEFT_OUT = b"raynb.left_out"
#: Rows that wait for storage in memory; past them, they wait in local files.
MAX_PENDING = 1_000_000

#: ``part-000007.parquet``, or ``part-000000-000064.parquet`` where those were merged.
_PART = re.compile(r"part-(\d+)(?:-(\d+))?\.parquet")
_Part = tuple[int, int]  # numbers of the first and the last part that it holds


def _free(name: str) -> str:
    """A metric's column name; one that would shadow another column gets a trailing underscore.

    So does one that is already of that form: two metrics never share a column.
    """
    bare = name.rstrip("_")
    return name + "_" if bare in BASE_COLUMNS or bare.endswith(TEXT_SUFFIX) else name


#: One rank's records: rank, attempt, records.
Taken = tuple[int, int, RecordBatch]


def to_table(taken: Sequence[Taken]) -> pa.Table:
    """Batches of any ranks as one Arrow table: base columns, then one float64 column a metric."""
    if not taken:
        return _EMPTY
    sizes = [len(records) for _, _, records in taken]
    n = sum(sizes)
    columns: dict[str, Any] = {
        "rank": np.repeat(np.array([rank for rank, _, _ in taken], np.int32), sizes),
        "attempt": np.repeat(np.array([attempt for _, attempt, _ in taken], np.int32), sizes),
        "step": np.concatenate([records.steps for _, _, records in taken]),
        "time": np.concatenate([records.times for _, _, records in taken]),
    }
    metrics: dict[str, tuple[list[Any], list[Any]]] = {}
    texts: dict[str, list[str | None]] = {}
    first = 0
    for (_, _, records), size in zip(taken, sizes, strict=True):
        for name, (rows, values) in records.metrics.items():
            places, found = metrics.setdefault(name, ([], []))
            places.append(rows + np.int64(first))
            found.append(values)
        for row, name, text in records.texts:
            texts.setdefault(name, [None] * n)[first + row] = text
        first += size
    for name, (places, found) in metrics.items():
        # The mask keeps "absent" apart from a NaN that was logged.
        column, absent, at = np.zeros(n), np.ones(n, dtype=bool), np.concatenate(places)
        column[at], absent[at] = np.concatenate(found), False
        columns[_free(name)] = pa.array(column, mask=absent)
    for name, column_text in texts.items():
        columns[_free(name) + TEXT_SUFFIX] = pa.array(column_text, pa.string())
    return pa.table(columns)


_EMPTY = pa.table(
    {
        "rank": pa.array([], pa.int32()),
        "attempt": pa.array([], pa.int32()),
        "step": pa.array([], pa.float64()),
        "time": pa.array([], pa.float64()),
    }
)


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables with different metrics as one; a metric is null where it is absent.

    Of more than :data:`MAX_CELLS`, the metrics with the most values; :func:`left_out` counts the
    others.
    """
    rows = sum(table.num_rows for table in tables)
    missing = sum(left_out(table) for table in tables)
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    if rows * len(names) > MAX_CELLS:
        found = dict.fromkeys((name for name in names if name not in BASE_COLUMNS), 0)
        for table in tables:
            for name in found.keys() & set(table.column_names):
                found[name] += table.num_rows - table[name].null_count
        fullest = sorted(found, key=lambda name: -found[name])[: MAX_CELLS // rows]
        kept = {*BASE_COLUMNS, *fullest}
        missing += len(found) - len(fullest)
        tables = [table.select([n for n in table.column_names if n in kept]) for table in tables]
    whole = pa.concat_tables([_EMPTY, *tables], promote_options="default")
    return whole.replace_schema_metadata({_LEFT_OUT: str(missing)} if missing else None)


def left_out(table: pa.Table) -> int:
    """Metrics that a table is without because it would have been too large."""
    return int((table.schema.metadata or {}).get(_LEFT_OUT, 0))


def _portions(pending: Sequence[Taken]) -> Iterator[list[Taken]]:
    """What is pending, in parts of bounded size."""
    part: list[Taken] = []
    rows, names = 0, set[str]()
    for one in pending:
        # A text's column has as many cells as a number's.
        own = one[2].metrics.keys() | {name for _, name, _ in one[2].texts}
        more = names | own
        if part and (rows + len(one[2])) * len(more) > MAX_PART_CELLS:
            yield part
            part, rows, more = [], 0, set(own)
        part.append(one)
        rows, names = rows + len(one[2]), more
    if part:
        yield part


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

    Memory is bounded while storage takes the parts, however long a run is. While it does not,
    records wait in memory and past :data:`MAX_PENDING` of them in local files.

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
        Why the last write failed; the rows are kept and tried again.
    """

    def __init__(self, filesystem: pafs.FileSystem, directory: str) -> None:
        self._fs = filesystem
        self._dir = directory
        self._lock = threading.Lock()
        self._io_lock = threading.Lock()
        self._pending: list[Taken] = []
        self._spool: deque[IO[bytes]] = deque()
        #: Parts by how often they were merged; what a run left here before is not touched.
        self._levels: list[list[_Part]] = [[]]
        self._rows_of: dict[_Part, int] = {}
        self._written_at = time.monotonic()
        self.rows = 0
        self.error: str | None = None
        self._next_part = 1 + max((last for _, last in _parts(filesystem, directory)), default=-1)

    def add(self, rank: int, attempt: int, records: RecordBatch) -> None:
        with self._lock:
            self._pending.append((rank, attempt, records))
            self.rows += len(records)

    @property
    def waiting(self) -> bool:
        """Whether there is something that is not on storage."""
        return bool(self._pending or self._spool)

    def due(self) -> bool:
        # To try what waits in files again means to read it.
        pause = SPOOLED_FLUSH_S if self._spool else FLUSH_S
        return self.waiting and time.monotonic() - self._written_at >= pause

    def flush(self) -> None:
        """Write what is pending; on failure keep it and remember why."""
        with self._io_lock:
            with self._lock:
                pending, self._pending = self._pending, []
            self._written_at = time.monotonic()
            written = 0
            try:
                while self._spool:
                    self._write_next(_read_spooled(self._spool[0]))
                    self._spool.popleft().close()
                for part in _portions(pending):
                    self._write_next(to_table(part))
                    written += len(part)
                self.error = None
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                pending = pending[written:]
                if not self._put_aside(pending):
                    with self._lock:
                        self._pending = pending + self._pending
                return
            # Its parts are there all the same when a merge fails; the next flush tries again.
            with contextlib.suppress(Exception):
                self._merge()

    def _put_aside(self, pending: list[Taken]) -> bool:
        """Move what waits for storage to a local file once memory holds too much of it."""
        if sum(len(records) for _, _, records in pending) < MAX_PENDING:
            return False
        with contextlib.ExitStack() as undo:
            try:
                file = tempfile.TemporaryFile(prefix="raynb-history-")  # noqa: SIM115
                undo.callback(file.close)
                pq.write_table(concat([to_table(part) for part in _portions(pending)]), file)
            except Exception:  # the disk is full, or there is none: memory has to do
                return False
            undo.pop_all()
        self._spool.append(file)
        return True

    def _write_next(self, table: pa.Table) -> None:
        part = (self._next_part, self._next_part)
        with self._writing(part, table.schema) as writer:
            writer.write_table(table)
        self._next_part += 1
        self._levels[0].append(part)
        self._rows_of[part] = table.num_rows

    @contextlib.contextmanager
    def _writing(self, part: _Part, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        path = _path(self._dir, part)
        self._fs.create_dir(self._dir, recursive=True)
        # Written aside and moved: a reader or a crash never meets half a part. Numbers hardly
        # repeat, so that dictionaries of them would only cost time.
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        try:
            with pq.ParquetWriter(
                path + ".tmp",
                schema,
                filesystem=self._fs,
                use_dictionary=["rank", "attempt", *texts],
            ) as writer:
                yield writer
            self._fs.move(path + ".tmp", path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.delete_file(path + ".tmp")
            raise

    def _merge(self) -> None:
        for level, parts in enumerate(self._levels):
            if len(parts) <= MAX_PARTS:
                return
            rows = sum(self._rows_of[part] for part in parts)
            self._levels[level] = []
            if rows > MAX_MERGED_ROWS:
                for part in parts:  # large enough to stay
                    del self._rows_of[part]
                continue
            if level + 1 == len(self._levels):
                self._levels.append([])
            whole = (parts[0][0], parts[-1][1])
            try:
                self._copy_into(whole, parts)
            except Exception:
                self._levels[level] = parts
                raise
            self._levels[level + 1].append(whole)
            self._rows_of[whole] = rows
            for part in parts:
                del self._rows_of[part]
                # One that stays is no harm: a reader takes the larger part instead.
                with contextlib.suppress(Exception):
                    self._fs.delete_file(_path(self._dir, part))

    def _copy_into(self, whole: _Part, parts: Sequence[_Part]) -> None:
        """Write one part of many, a bounded number of rows at a time."""
        paths = [_path(self._dir, part) for part in parts]
        schema = concat(
            [pq.read_schema(path, filesystem=self._fs).empty_table() for path in paths]
        ).schema
        with self._writing(whole, schema) as writer:
            some: list[pa.Table] = []
            for path in paths:
                with pq.ParquetFile(path, filesystem=self._fs) as file:
                    for group in range(file.num_row_groups):
                        # Each thread of a pool would keep memory after it.
                        some.append(file.read_row_group(group, use_threads=False))
                        cells = len(schema) * sum(table.num_rows for table in some)
                        # Each group of rows costs something a column, however few it has.
                        if cells >= max(MERGE_CELLS, MERGE_ROWS * len(schema)):
                            writer.write_table(_as(schema, some))
                            some = []
            if some:
                writer.write_table(_as(schema, some))

    def unwritten(self) -> tuple[pa.Table, int]:
        """What is not on storage after a last try, and the number of the next part.

        The whole history is that and the parts with smaller numbers.
        """
        self.flush()
        with self._io_lock:
            with self._lock:
                pending = list(self._pending)
            waiting = [_read_spooled(file) for file in self._spool]
            return concat([*waiting, to_table(pending)]), self._next_part

    def table(self) -> pa.Table:
        """Everything taken so far: what is on storage, as far as it can be read, and the rest."""
        pending, upto = self.unwritten()
        try:
            stored = read_history(self._fs, self._dir, upto)
        except Exception:  # it fails just now, and what waits for it is here
            stored = concat([])
        return concat([stored, pending])


def _as(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    return concat([schema.empty_table(), *tables]).select(schema.names).combine_chunks()


def _read_spooled(file: IO[bytes]) -> pa.Table:
    file.seek(0)
    return pq.read_table(file)


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


def _read(filesystem: pafs.FileSystem, directory: str, upto: float) -> pa.Table:
    parts = [part for part in _parts(filesystem, directory) if part[0] < upto]
    return concat([_read_part(filesystem, _path(directory, part)) for part in parts])


def _read_part(filesystem: pafs.FileSystem, path: str) -> pa.Table:
    """One part; a small file may stand for more than the memory holds, and is not read then."""
    with pq.ParquetFile(path, filesystem=filesystem) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        if rows * len(schema) > MAX_READ_CELLS:
            raise ValueError(f"{rows:,} rows of {len(schema):,} columns are more than is read")
        odd = [field.name for field in schema if not _is_known(field.type)]
        if odd:
            raise ValueError(f"column {odd[0][:60]!r} holds what no history does")
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        if not texts:
            return file.read()
    # Each text once, however often a row repeats it.
    with pq.ParquetFile(path, filesystem=filesystem, read_dictionary=texts) as file:
        table = file.read()
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if pa.types.is_dictionary(column.type):
            held = [chunk.dictionary for chunk in column.chunks]
            if any((pc.max(pc.binary_length(one)).as_py() or 0) > MAX_READ_TEXT for one in held):
                raise ValueError(f"column {name[:60]!r} holds text that no history does")
            table = table.set_column(place, name, column.cast(pa.string()))
    return table


def _is_known(kind: pa.DataType) -> bool:
    is_any = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_boolean)
    return pa.types.is_null(kind) or any(is_one(kind) for is_one in is_any)


def read_history(filesystem: pafs.FileSystem, directory: str, upto: float = math.inf) -> pa.Table:
    """Read the parts under ``directory``; an empty table when there are none.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    directory : str
    upto : float
        Parts with this number and larger ones are left out.
    """
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):  # merged while this read them
            return _read(filesystem, directory, upto)
    return _read(filesystem, directory, upto)


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
            part_table = _sound(_read_part(filesystem, path))
            whole = concat([whole, part_table])
        except Exception as error:
            why = str(error).partition("\n")[0][:160]
            unread.append(f"{path.rpartition('/')[2]}: {why}")
    return whole, unread
