"""Ray Train's list of a run's checkpoints on storage: its own reader, and a forgiving one."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.fs as pafs
from ray.train import Result

#: The list's file in a run's directory, and with it the sign of a run of Ray Train.
SNAPSHOT = "checkpoint_manager_snapshot.json"
#: How names of checkpoints' directories begin; Ray goes on with the time, so they sort by it.
CHECKPOINT = "checkpoint_"
_LOGGER = "ray.train.v2._internal.execution.checkpoint.checkpoint_manager"


def result_on_storage(path: str, filesystem: pafs.FileSystem | None) -> Result:
    """What Ray makes of a run's directory; raises what Ray raises."""
    with _without_notice():
        return Result.from_path(path, storage_filesystem=filesystem)


@contextlib.contextmanager
def _without_notice() -> Iterator[None]:
    """Ray tells of a list that it finds as if training were to begin there, which is wrong here."""
    log, here = logging.getLogger(_LOGGER), threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno > logging.INFO

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def listed(filesystem: pafs.FileSystem, run_dir: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Directories of the list with the metrics of each, in Ray's order, and the latest one's name.

    Reads what Ray does not: a list of another version, or of checkpoints that are gone. Empty
    where it can't be read.
    """
    try:
        with filesystem.open_input_stream(f"{run_dir}/{SNAPSHOT}") as stream:
            content = json.loads(stream.read())
        found = {}
        for entry in content["checkpoint_results"]:
            metrics = entry["metrics"]
            found[str(entry["checkpoint_dir_name"])] = (
                dict(metrics) if isinstance(metrics, Mapping) else {}
            )
        latest = str(content["latest_checkpoint_result"]["checkpoint_dir_name"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}, ""
    return found, latest
