"""``raynb.open``: a run's result again from its storage, in a fresh kernel."""

from __future__ import annotations

import difflib
import os
import posixpath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from raynb._ray.snapshot import CHECKPOINT, SNAPSHOT
from raynb.engine.collector import TERMINAL
from raynb.engine.spec import (
    RAYNB_DIR,
    UNREADABLE,
    absolute_storage,
    filesystem_of,
    record_content,
    without_secrets,
)
from raynb.errors import OptionError, StorageError
from raynb.results.left import is_run
from raynb.results.run_result import RunResult
from raynb.results.text import clean_line, plural
from raynb.telemetry.history import concat, salvage_history

_MAX_TOLD = 4


def open(path: str | os.PathLike[str]) -> Any:
    """Build a run's result from what lies on storage.

    Parameters
    ----------
    path : str or path
        The run's directory: a local path, or a URI such as ``s3://bucket/runs/demo``. A run of
        plain Ray Train opens too, with what it has.

    Returns
    -------
    RunResult or TuneResult
        With the history of every rank, the record and the checkpoints; of a search its trials.
        What can't be read is left out and told in its display.

    Raises
    ------
    StorageError
        When the storage can't be read, or there is no run.
    OptionError
        For what is no path.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        what = repr(path) if path == "" else type(path).__name__
        raise OptionError(
            f"a run is opened from its directory's path or URI, not from {what}",
            hint="of a result, it is result.path",
        )
    source = absolute_storage(path)
    filesystem, inner = filesystem_of(source)
    inner = inner.rstrip("/")
    names = _names_in(filesystem, inner, source)
    record, told = load_record(filesystem, inner)
    if record is None and not told and SNAPSHOT not in names and RAYNB_DIR not in names:
        raise _no_run(filesystem, inner, source, names)
    notes = [told]
    history: pa.Table = concat([])
    if RAYNB_DIR in names:
        try:
            history, unread = salvage_history(filesystem, f"{inner}/{RAYNB_DIR}/history")
        except Exception as error:
            unread = [f"history: {type(error).__name__}: {clean_line(error, 200)}"]
        notes.append(_unread_note(unread, history.num_rows, record))
    else:
        notes.append("A run of plain Ray Train: there is no raynb record, and no history.")
    kind: Any = RunResult
    if record is not None and record.get("kind") == "tune":
        from raynb.results.tune.result import TuneResult

        kind = TuneResult
    result: Any = kind.of(
        None,
        record=record or {"name": posixpath.basename(inner)},
        history=history,
        filesystem=filesystem,
        path=inner,
        uri=source,
    )
    if result.state == "running":
        result.written = last_written(filesystem, inner)
    result.add_notes(*notes)
    return result


def load_record(filesystem: pafs.FileSystem, run_dir: str) -> tuple[dict[str, Any] | None, str]:
    """A run's record, and why it can't be read where there is one that can't."""
    try:
        record = record_content(filesystem, run_dir)
    except FileNotFoundError:
        return None, ""
    except UNREADABLE as error:
        why = f"{type(error).__name__}: {clean_line(error, 200)}"
        return None, f"The run's record can't be read ({why}): options and workers aren't known."
    if not isinstance(record, dict):
        return None, "The run's record holds no JSON object: options and workers aren't known."
    return record, ""


def last_written(filesystem: pafs.FileSystem, run_dir: str) -> float | None:
    """UNIX time at which the run last wrote something of raynb's; None when it isn't known."""
    try:
        infos = filesystem.get_file_info(
            pafs.FileSelector(f"{run_dir}/{RAYNB_DIR}", recursive=True)
        )
    except OSError:
        return None
    times = [i.mtime.timestamp() for i in infos if i.type == pafs.FileType.File and i.mtime]
    return max(times, default=None)


def names_below(filesystem: pafs.FileSystem, path: str) -> list[str]:
    """Names of what lies directly in a directory."""
    return [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(path))]


def unreadable(source: str, error: Exception) -> StorageError:
    """The error for storage that can't be read."""
    return StorageError(
        f"the storage {without_secrets(source)} can't be read: {without_secrets(str(error))}",
        hint="check the address, the credentials and that this machine reaches it"
        if "://" in source
        else "check the path and its permissions",
    )


def _names_in(filesystem: pafs.FileSystem, inner: str, source: str) -> list[str]:
    try:
        kind = filesystem.get_file_info(inner).type
        if kind == pafs.FileType.Directory:
            return names_below(filesystem, inner)
    except Exception as error:
        raise unreadable(source, error) from error
    shown = without_secrets(source)
    if kind == pafs.FileType.File:
        raise StorageError(f"{shown} is a file", hint="give the run's directory")
    parent, name = posixpath.split(inner)
    hint = "raynb.runs(storage_path) lists the runs of a storage path"
    try:
        near = difflib.get_close_matches(name, names_below(filesystem, parent), _MAX_TOLD)
    except Exception:
        near = []
    if near:
        hint = f"beside it {'lies' if len(near) == 1 else 'lie'} {', '.join(near)}"
    raise StorageError(f"there is nothing at {shown}", hint=hint, topic="no-run")


def _no_run(filesystem: pafs.FileSystem, inner: str, source: str, names: list[str]) -> StorageError:
    shown = without_secrets(source)
    runs = [name for name in names[:200] if is_run(filesystem, f"{inner}/{name}")]
    if runs:
        told = ", ".join(runs[:_MAX_TOLD]) + (", …" if len(runs) > _MAX_TOLD else "")
        return StorageError(
            f"{shown} is no run, but holds {plural(len(runs), 'run')}: {told}",
            hint=f"raynb.runs({shown!r}) lists them; open one by its own path",
            topic="no-run",
        )
    parent = posixpath.basename(inner)
    if parent == RAYNB_DIR or parent.startswith(CHECKPOINT):
        return StorageError(
            f"{shown} is part of a run and no run",
            hint="give the directory above it",
            topic="no-run",
        )
    return StorageError(
        f"{shown} is no run: it has neither {RAYNB_DIR}/record.json nor Ray's {SNAPSHOT}",
        hint="give the directory that `result.path` told, or see raynb.runs(storage_path)",
        topic="no-run",
    )


def _unread_note(unread: list[str], rows: int, record: dict[str, Any] | None) -> str:
    record = record or {}
    of = record.get("rows")
    more_were = isinstance(of, int) and of > rows
    if unread:
        told = "; ".join(unread[:_MAX_TOLD])
        more = f"; and {len(unread) - _MAX_TOLD} more" if len(unread) > _MAX_TOLD else ""
        what = f"Parts of the history can't be read ({told}{more})"
    elif more_were and record.get("state") in TERMINAL:
        # Of a run that goes on the last ones aren't written yet.
        what = "Parts of the history are missing"
    else:
        return ""
    return f"{what}: {rows:,}{f' of {of:,}' if more_were else ''} records are here."
