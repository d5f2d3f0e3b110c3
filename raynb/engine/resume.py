"""Finds the checkpoint that a run is to go on from, before anything starts."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from raynb._ray.snapshot import CHECKPOINT
from raynb.engine.spec import checkpoint_place, join_storage
from raynb.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from ray.train import Checkpoint


def checkpoint_to_resume(source: Any) -> Checkpoint:
    """The checkpoint that ``source`` names, looked at.

    Parameters
    ----------
    source : RunResult, ray.train.Checkpoint, str or path
        Of a result, and of a run's directory, the latest checkpoint.

    Raises
    ------
    CheckpointError
        When there is none, or it can't be read.
    OptionError
        For anything else.
    """
    from ray.train import Checkpoint

    if hasattr(source, "best_checkpoints"):
        if source.checkpoint is None:
            raise CheckpointError(
                f"there is nothing to resume from: the run {str(source.path)!r} has no checkpoint",
                hint="save some in the train function, with raynb.checkpoint(model, …)",
            )
        source = source.checkpoint
    place = checkpoint_place(source)
    if place is None:
        raise OptionError(
            f"a run resumes from a RunResult, a ray.train.Checkpoint or a path, not from "
            f"{type(source).__name__}",
            hint="of a run in the background, give its result" if hasattr(source, "result") else "",
        )
    filesystem, path, shown = place
    try:
        return Checkpoint(_looked_at(filesystem, path.rstrip("/"), shown), filesystem)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {shown} to resume from can't be read: {type(error).__name__}: {error}"
        ) from error


def _looked_at(filesystem: pafs.FileSystem, path: str, shown: str) -> str:
    kind = filesystem.get_file_info(path).type
    if kind == pafs.FileType.NotFound:
        raise CheckpointError(
            f"there is no checkpoint {shown} to resume from",
            hint="give a variable that holds a RunResult, or a checkpoint's directory",
        )
    if kind == pafs.FileType.File:
        raise CheckpointError(
            f"a run resumes from a checkpoint's directory, and {shown} is a file",
            hint=f"give {posixpath.dirname(shown)}",
        )
    inside = filesystem.get_file_info(pafs.FileSelector(path))
    files = sorted(i.path for i in inside if i.type == pafs.FileType.File)
    older = sorted(
        i.path
        for i in inside
        if i.type == pafs.FileType.Directory and i.base_name.startswith(CHECKPOINT)
    )
    if older:  # a run's directory; Ray names checkpoints by their time
        return _looked_at(filesystem, older[-1], join_storage(shown, posixpath.basename(older[-1])))
    if not inside:
        raise CheckpointError(f"the checkpoint {shown} to resume from is empty")
    for file in files[:1]:
        with filesystem.open_input_stream(file) as stream:
            stream.read(1)
    return path
