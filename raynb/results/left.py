"""What Ray left of a run on storage: its checkpoints, also where Ray's list of them is damaged."""

from __future__ import annotations

import posixpath

import pandas as pd
import pyarrow.fs as pafs
from ray.train import Checkpoint, Result

from raynb._ray.snapshot import CHECKPOINT, SNAPSHOT, listed, result_on_storage
from raynb.engine.spec import RAYNB_DIR
from raynb.results.text import clean_line, plural

_MAX_NAMED = 3


def is_run(filesystem: pafs.FileSystem, path: str) -> bool:
    """Whether a directory is a run's, by what Ray or raynb writes into each."""
    marks = [f"{path.rstrip('/')}/{mark}" for mark in (SNAPSHOT, f"{RAYNB_DIR}/record.json")]
    return any(info.type == pafs.FileType.File for info in filesystem.get_file_info(marks))


def left_on_storage(
    path: str, filesystem: pafs.FileSystem | None, num_to_keep: object = None
) -> tuple[Result | None, str]:
    """Ray's result of a run from its directory, and what is wrong with it.

    Parameters
    ----------
    path : str
        The run's directory.
    filesystem : pyarrow.fs.FileSystem, optional
        The local one when not given.
    num_to_keep : object
        The run's option of that name, as its record has it.

    Returns
    -------
    result : ray.train.Result or None
        None where the run left no checkpoint.
    note : str
        Empty when all is well.
    """
    try:
        result = result_on_storage(path, filesystem)
        _check_names(result)
    except Exception as error:
        filesystem = filesystem or pafs.LocalFileSystem()
        return _found(path.rstrip("/"), filesystem, num_to_keep, error)
    best = result.best_checkpoints or []
    kept = best[_first_kept(len(best), num_to_keep) :]
    if len(kept) < len(best):
        result.best_checkpoints = kept
        result.metrics_dataframe = pd.DataFrame([metrics for _, metrics in kept])
    return result, ""


def _check_names(result: Result) -> None:
    """Ray goes wherever a name in its list leads; a run's checkpoints lie in its directory."""
    for checkpoint, _ in result.best_checkpoints or ():
        if posixpath.dirname(str(checkpoint.path)) != str(result.path).rstrip("/"):
            raise ValueError("it names what lies outside of the run")


def _first_kept(n: int, num_to_keep: object) -> int:
    """Where the checkpoints that Ray keeps for being the best begin, among ``n``.

    Ray's list on storage has the latest one too, where that is none of the best. The result that
    the run itself gave has not, and both are to have the same indices.
    """
    if isinstance(num_to_keep, bool) or not isinstance(num_to_keep, int) or num_to_keep < 1:
        return 0
    return max(0, n - num_to_keep)


def _found(
    path: str, filesystem: pafs.FileSystem, num_to_keep: object, error: Exception
) -> tuple[Result | None, str]:
    """The checkpoints that are there, where Ray refuses all of them for the list's sake."""
    # Ray's answer where there is no list, as in a run without checkpoints.
    missing = isinstance(error, RuntimeError)
    why = f"{type(error).__name__}: {clean_line(error, 300)}"
    try:
        there = sorted(
            info.base_name
            for info in filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
            if info.type == pafs.FileType.Directory and info.base_name.startswith(CHECKPOINT)
        )
    except Exception:
        there = []
    if not there:
        told = "" if missing else f"The checkpoints that this run left can't be read: {why}"
        return None, told
    known, latest = listed(filesystem, path)
    names = [name for name in known if name in there]
    gone = [name for name in known if name not in there]
    if gone:
        more = "" if len(gone) <= _MAX_NAMED else f" and {len(gone) - _MAX_NAMED} more"
        told = (
            f"{plural(len(gone), 'checkpoint')} of Ray's list, {', '.join(gone[:_MAX_NAMED])}"
            f"{more}, can't be found"
        )
    else:
        told = f"{SNAPSHOT} " + ("is missing" if missing else f"can't be read by Ray ({why})")
    if names:
        told += f": {len(names)} of {plural(len(known), 'listed checkpoint')} can be used."
    else:
        names = there
        told += (
            f": {plural(len(there), 'checkpoint')} found, and what was reported with them and "
            "which of them Ray would keep isn't known."
        )
    usable = {name: Checkpoint(f"{path}/{name}", filesystem) for name in names}
    latest = latest if latest in names else max(names)
    # Where some are gone, the rest are worth more than their places.
    first = 0 if gone else _first_kept(len(names), num_to_keep if known else None)
    rows = [known[name] for name in names[first:] if name in known]
    result = Result(
        metrics=known.get(latest),
        checkpoint=usable[latest],
        error=None,
        path=path,
        best_checkpoints=[(usable[name], known.get(name, {})) for name in names[first:]],
        metrics_dataframe=pd.DataFrame(rows) if rows else None,
        _storage_filesystem=filesystem,
    )
    return result, told
