"""A run's kept checkpoints as rows: what each is, how large and old, and the line that loads it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow.fs as pafs

from raynb.engine.spec import join_storage
from raynb.results.text import clean_line, mapping, number
from raynb.telemetry.history import BASE_COLUMNS

#: The variable that the line of code binds.
VARIABLE = "weights"
#: Checkpoints that are listed at a time.
_LISTERS = 8


@dataclass(frozen=True)
class Files:
    """What lies in a checkpoint's directory.

    Attributes
    ----------
    files : tuple of (str, int)
        Names below the directory with their sizes in bytes, sorted by name.
    saved : float or None
        UNIX time of the newest one.
    """

    files: tuple[tuple[str, int], ...]
    saved: float | None

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of a run; what isn't known of it is None.

    Attributes
    ----------
    index : int
        Its place in ``best_checkpoints``.
    name : str
    address : str
        Path or URI that ``raynb.load_checkpoint`` takes.
    step : int or float or None
        As the history has it for the record that was reported with the checkpoint.
    metrics : dict
        What was reported with it.
    best : bool
    files : Files or None
        None when the directory can't be read.
    error : str
        Why it can't be.
    """

    index: int
    name: str
    address: str
    step: float | None
    metrics: Mapping[str, Any]
    best: bool
    files: Files | None
    error: str = ""

    def code(self, variable: str = VARIABLE, into: str = "", address: str = "") -> str:
        """The line that loads it, into a new variable or a model; works in any kernel."""
        where = json.dumps(address or self.address, ensure_ascii=False)
        if into:
            return f"raynb.load_checkpoint({where}, into={into})"
        return f"{variable} = raynb.load_checkpoint({where})"


@dataclass
class Listing:
    """Files of checkpoints by path, so that storage is asked once and not at every display."""

    known: dict[str, Files] = field(default_factory=dict)

    def look(self, checkpoint: Any) -> tuple[Files | None, str]:
        """A checkpoint's files, or why they can't be listed; asked again then."""
        try:
            return self._of(checkpoint.filesystem, str(checkpoint.path).rstrip("/")), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {clean_line(error, 200)}"

    def _of(self, filesystem: pafs.FileSystem, path: str) -> Files:
        # A directory that is gone raises, so that it reads "n/a" and not "0 B".
        if path not in self.known:
            infos = [
                info
                for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
                if info.type == pafs.FileType.File
            ]
            times = [info.mtime.timestamp() for info in infos if info.mtime is not None]
            names = ((info.path[len(path) :].lstrip("/"), info.size or 0) for info in infos)
            self.known[path] = Files(tuple(sorted(names)), max(times, default=None))
        return self.known[path]


def checkpoint_rows(
    checkpoints: Sequence[tuple[Any, Any]],
    *,
    best: tuple[str, str] | None,
    uri: str,
    history: pd.DataFrame,
    listing: Listing,
) -> list[CheckpointRow]:
    """Rows in Ray's order.

    Parameters
    ----------
    checkpoints : sequence of (Checkpoint, metrics)
        A result's ``best_checkpoints``.
    best : (metric, mode), optional
        Marks the best of them.
    uri : str
        The run's path or URI, for the addresses.
    history : DataFrame
        Tells the steps.
    listing : Listing
    """
    top = best_index([metrics for _, metrics in checkpoints], best)
    rows = []
    # Storage far away answers slowly, and to many at once.
    with ThreadPoolExecutor(_LISTERS, "raynb-list") as pool:
        listed = list(pool.map(lambda pair: listing.look(pair[0]), checkpoints))
    for index, (checkpoint, metrics) in enumerate(checkpoints):
        name = posixpath.basename(str(checkpoint.path).rstrip("/"))
        files, error = listed[index]
        known = dict(mapping(metrics))
        rows.append(
            CheckpointRow(
                index=index,
                name=name,
                address=join_storage(uri, name) if uri else str(checkpoint.path),
                step=_step_of(history, known),
                metrics=known,
                best=index == top,
                files=files,
                error=error,
            )
        )
    return rows


def metric_at(metrics: object, name: str) -> float | None:
    """A metric's number; ``"eval/accuracy"`` reaches into nested metrics, as Ray does."""
    found: object = mapping(metrics)
    if name in mapping(found):
        return number(_plain(mapping(found)[name]))
    for part in name.split("/"):
        found = mapping(found).get(part)
    return number(_plain(found))


def best_index(metrics: Sequence[object], best: tuple[str, str] | None) -> int | None:
    """Which of several reported metrics is best; None when none has a number for it."""
    if best is None:
        return None
    name, mode = best
    values = ((metric_at(m, name), k) for k, m in enumerate(metrics))
    # NaN is no best.
    scored = [(value, k) for value, k in values if value is not None and value == value]
    if not scored:
        return None
    return (max if mode == "max" else min)(scored, key=lambda pair: pair[0])[1]


def _plain(value: object) -> object:
    """A NumPy scalar's or one-element tensor's number; anything else as it is."""
    if isinstance(value, (bool, int, float, str)) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception:
        return None


def _step_of(history: pd.DataFrame, metrics: Mapping[str, Any]) -> float | None:
    """The step of the history's record that has just these metrics; None when none or several."""
    given = {
        name: value
        for name in metrics
        if name in history.columns
        and name not in BASE_COLUMNS
        and pd.api.types.is_numeric_dtype(history[name])
        and (value := metric_at(metrics, name)) is not None
    }
    if not given or not set(BASE_COLUMNS) <= set(history.columns):
        return None
    found = history
    for name, value in given.items():
        same = found[name].isna() if value != value else found[name] == value
        found = found[same]
    # Ray keeps rank 0's metrics; restarts may have been at the same step twice.
    steps = found.loc[found["rank"] == 0, "step"].unique()
    return steps[0].item() if len(steps) == 1 else None
