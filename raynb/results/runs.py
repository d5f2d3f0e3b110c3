"""``raynb.runs``: the runs on a storage path, as a table."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pyarrow.fs as pafs

from raynb._ray.snapshot import SNAPSHOT
from raynb.engine.collector import TERMINAL
from raynb.engine.spec import (
    absolute_storage,
    default_storage,
    filesystem_of,
    join_storage,
    without_secrets,
)
from raynb.errors import OptionError, StorageError
from raynb.results.left import is_run
from raynb.results.mount import mount, shell
from raynb.results.open import last_written, load_record, unreadable
from raynb.results.open import open as open_run
from raynb.results.page import Table, best_of, duration_of, state_of, told_best, workers_of
from raynb.results.static import boxed_table, render_table, text_table
from raynb.results.text import UNKNOWN, clean_line, format_moment, number, plural
from raynb.telemetry.units import human_seconds

#: Runs that a table shows; ``frame`` has them all.
MAX_ROWS = 200
#: Seconds in which a run that goes on writes something: three signs of life.
_FRESH_S = 15.0
#: Records that are read at a time: storage far away answers slowly, and to many at once.
_READERS = 16
COLUMNS = ("name", "state", "started", "duration", "best", "metric", "mode", "workers", "records",
           "written", "path")  # fmt: skip


def runs(storage_path: str | os.PathLike[str] | None = None) -> RunsTable:
    """List the runs on a storage path.

    Parameters
    ----------
    storage_path : str or path, optional
        Local path or URI; by default where this notebook's runs go (``%config
        RayNB.storage_path``), else Ray's own default.

    Returns
    -------
    RunsTable
        Shown as a table, newest first. ``table["name"]`` opens a run.

    Raises
    ------
    StorageError
        When it can't be read.
    OptionError
        For what is no path.

    Examples
    --------
    >>> raynb.runs("s3://bucket/runs").sort("best")["demo"]  # doctest: +SKIP
    """
    if storage_path is not None and not isinstance(storage_path, str | os.PathLike):
        raise OptionError(f"runs are listed on a path or URI, not on {type(storage_path).__name__}")
    source = absolute_storage(storage_path or _configured() or default_storage())
    filesystem, inner = filesystem_of(source)
    inner = inner.rstrip("/")
    try:
        infos = filesystem.get_file_info(pafs.FileSelector(inner))
    except FileNotFoundError as error:
        raise StorageError(
            f"there is no storage path {without_secrets(source)}",
            hint="runs go to --storage-path, else to %config RayNB.storage_path, else to "
            f"{default_storage()}",
            topic="no-run",
        ) from error
    except Exception as error:
        raise unreadable(source, error) from error
    names = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    with ThreadPoolExecutor(_READERS, "raynb-runs") as pool:
        found = list(
            pool.map(lambda name: _row(filesystem, f"{inner}/{name}", name, source), names)
        )
    rows = [row for row in found if row is not None]
    if not rows and is_run(filesystem, inner):
        shown = without_secrets(source)
        raise StorageError(
            f"{shown} is a run itself",
            hint=f"raynb.open({shown!r}) opens it; runs are listed on the directory above",
            topic="no-run",
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for column in ("started", "duration", "best", "workers", "records", "written"):
        frame[column] = pd.to_numeric(frame[column])
    table = RunsTable(frame, source, len(names) - len(rows))
    return table.sort("started", descending=True)


@dataclass(repr=False)
class RunsTable:
    """Runs as a table that can be sorted and opened.

    Attributes
    ----------
    frame : DataFrame
        One row a run: ``name``, ``state``, ``started`` and ``written`` (UNIX seconds), ``duration``
        (seconds), ``best`` with its ``metric`` and ``mode``, ``workers``, ``records``, ``path``.
    storage_path : str
    others : int
        Directories beside them that are no runs.
    """

    frame: pd.DataFrame
    storage_path: str
    others: int = 0
    _made: float = field(default_factory=time.time)
    _live: str = ""

    def with_live(self, names: Collection[str]) -> RunsTable:
        """The same runs, where those that a cluster says are going on are told so.

        Parameters
        ----------
        names : collection of str
            Runs on the cluster; a run of the same name that has not written for long is another.
        """
        fresh = self._made - self.frame["written"] < _FRESH_S
        lives = (self.frame["state"] == "running_or_lost") & self.frame["name"].isin(names) & fresh
        frame = self.frame.assign(state=self.frame["state"].mask(lives, "running"))
        return replace(self, frame=frame)

    def sort(self, by: str, descending: bool | None = None) -> RunsTable:
        """The same runs in another order; what isn't known comes last.

        Parameters
        ----------
        by : str
            A column of ``frame``.
        descending : bool, optional
            By default the best first where ``by`` is ``best``, large numbers and late times first,
            and names from A to Z.
        """
        if by not in self.frame.columns:
            raise OptionError(
                f"the runs have no column {by!r}", hint=f"they have {', '.join(COLUMNS)}"
            )
        if descending is None:
            lower = by == "best" and (self.frame["mode"] == "min").sum() * 2 > len(self.frame)
            descending = pd.api.types.is_numeric_dtype(self.frame[by]) and not lower
        frame = self.frame.sort_values(
            by, ascending=not descending, na_position="last", kind="stable", ignore_index=True
        )
        return RunsTable(frame, self.storage_path, self.others, self._made)

    def __len__(self) -> int:
        return len(self.frame)

    def __iter__(self) -> Iterator[str]:
        return iter(self.frame["name"])

    def __getitem__(self, which: str | int) -> Any:
        """Open a run or a search by its name, or by its place in the table."""
        if isinstance(which, int):
            if not -len(self) <= which < len(self):
                raise OptionError(
                    f"there is no run {which} in a table of {plural(len(self), 'run')}"
                )
            return open_run(join_storage(self.storage_path, self.frame["name"].iloc[which]))
        if which not in set(self.frame["name"]):
            raise StorageError(
                f"no run is called {which!r} in {without_secrets(self.storage_path)}",
                hint=f"there are {', '.join(self.frame['name'][:10])}" if len(self) else "",
                topic="no-run",
            )
        return open_run(join_storage(self.storage_path, which))

    def _table(self) -> Table:
        heads = ("name", "state", "started", "duration", "best", "workers", "records")
        rows = []
        for row in self.frame[:MAX_ROWS].to_dict("records"):
            icon, word, _ = state_of(row["state"])
            state = f"{icon} {word}"
            if row["state"] == "running_or_lost":
                since = self._made - row["written"]
                ago = UNKNOWN if since != since else f"{human_seconds(max(0.0, since))} ago"
                state += f", last written {ago}"
            rows.append(
                (
                    clean_line(row["name"], 80),
                    state,
                    format_moment(_known(row["started"]))[:19],
                    human_seconds(_known(row["duration"])),
                    _best(row),
                    _count(row["workers"]),
                    _count(row["records"]),
                )
            )
        cut = [f"times are {format_moment(self._made)[20:]}"] if rows else []
        if len(self) > len(rows):
            cut.append(f"{plural(len(self) - len(rows), 'more run')} in .frame")
        if self.others:
            what = "directory that is" if self.others == 1 else "directories that are"
            cut.append(f"{self.others:,} other {what} no run")
        return Table(heads, rows, " · ".join(cut), frozenset({3, 5, 6}))

    @property
    def _title(self) -> str:
        return (
            f"{plural(len(self), 'run')} in {clean_line(without_secrets(self.storage_path), 300)}"
        )

    def __repr__(self) -> str:
        return text_table(self._title, self._table())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        self._live = mount(self._live, self._controls) if len(self) > 1 else ""
        html = boxed_table(self._title, self._table(), self._live)
        return {"text/plain": repr(self), "text/html": html}

    def _controls(self) -> dict[str, Any]:
        """Widgets for the place of the table, in a live notebook."""
        from raynb.results.controls import table_sorter

        columns = ("name", "state", "started", "duration", "best", "workers", "records")

        def render(column: str, high_first: bool) -> str:
            return render_table(self._title, self.sort(column, high_first)._table())

        return {"table": table_sorter(columns, "started", render)}


def _row(filesystem: pafs.FileSystem, path: str, name: str, source: str) -> dict[str, Any] | None:
    """One run's row; None for a directory that is no run."""
    record, told = load_record(filesystem, path)
    where = join_storage(without_secrets(source), name)
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"name": name, "path": where}
    if record is None:
        try:
            plain = filesystem.get_file_info(f"{path}/{SNAPSHOT}").type == pafs.FileType.File
        except OSError:
            plain = False
        state = "unreadable" if told else "plain"
        return row | {"state": state} if told or plain else None
    state = str(record.get("state"))
    ended = state in TERMINAL
    best = best_of(record)
    return row | {
        "state": state if ended else "running_or_lost",
        "started": number(record.get("started")),
        "duration": duration_of(record),
        "best": best[1] if best else None,
        "metric": best[0] if best else None,
        "mode": best[2] if best else None,
        "workers": workers_of(record),
        "records": number(record.get("rows")) if ended else None,
        "written": None if ended else last_written(filesystem, path),
    }


def _known(value: float | None) -> float | None:
    return None if value is None or value != value else value


def _count(value: float | None) -> str:
    known = _known(value)
    return UNKNOWN if known is None else f"{known:,.0f}"


def _best(row: Mapping[Any, Any]) -> str:
    if _known(row["best"]) is None:
        return UNKNOWN
    return told_best((row["metric"], row["best"], row["mode"]))


def _configured() -> str:
    """The notebook's own default, where raynb is loaded in one."""
    found = (c for c in getattr(shell(), "configurables", ()) if type(c).__name__ == "RayNB")
    return str(getattr(next(found, None), "storage_path", "") or "")
