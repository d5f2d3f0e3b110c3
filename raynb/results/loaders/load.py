"""load_checkpoint: finds what a checkpoint holds, reads it, and fits it into a model."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from raynb._ray.snapshot import CHECKPOINT
from raynb.engine.spec import checkpoint_place
from raynb.errors import CheckpointError, OptionError, RaynbError
from raynb.results.checkpoints import best_index
from raynb.results.fetch import fetch
from raynb.results.left import is_run
from raynb.results.loaders.base import How, Loader, installed, known_formats, named
from raynb.results.text import mapping
from raynb.scratch import Scratch
from raynb.weights.devices import device_of
from raynb.weights.fit import load_into, pick
from raynb.weights.torch_file import first_line, printable

_MAX_NAMED = 12


def load_checkpoint(
    source: Any,
    into: Any = None,
    *,
    file: str | None = None,
    key: str | None = None,
    map_location: Any = "cpu",
    strict: bool = True,
    trusted: bool = False,
    loader: str | None = None,
) -> Any:
    """Load a checkpoint's weights, into a model when one is given.

    No code that is in a checkpoint runs, unless ``trusted=True``.

    Parameters
    ----------
    source : RunResult, ray.train.Checkpoint, str or path
        A path or URI names a checkpoint's directory or one file.
    into : torch.nn.Module or other object with ``load_state_dict``, optional
        Gets the weights. ``module.``, ``_orig_mod.`` and FSDP's prefixes in names, on either
        side, make no difference.
    file : str, optional
        Which file, where the checkpoint holds several.
    key : str, optional
        Which part of a nested dict, such as ``"optimizer"`` or ``"ema.model"``. For a model the
        part with the weights is found without it.
    map_location : str, torch.device, callable or dict
        As in ``torch.load``.
    strict : bool
        Whether the weights must fit exactly. Without it what fits is loaded, and a warning
        lists the rest.
    trusted : bool
        Unpickle whatever the checkpoint holds; this runs code that is in it.
    loader : str, optional
        The loader's name, for a file whose name does not tell its format.

    Returns
    -------
    object
        ``into``. Without it what the checkpoint holds: a dict, or a model for a Hugging Face
        directory.

    Raises
    ------
    UnsafeCheckpointError
        When the checkpoint holds more than weights.
    CheckpointError
        When it does not exist, can't be read or does not fit.
    OptionError
        For an argument that can't be used.
    """
    if isinstance(into, type):
        raise OptionError(
            f"into must be a model, not the class {into.__name__}", hint=f"into={into.__name__}()"
        )
    if into is not None and not hasattr(into, "load_state_dict"):
        raise OptionError(
            f"into must be a model, not {type(into).__name__}",
            hint="give an object with load_state_dict, such as into=Net()",
        )
    for name, text in {"file": file, "key": key, "loader": loader}.items():
        if text is not None and not isinstance(text, str):
            raise OptionError(f"{name} must be a text, not {text!r}")
    for name, flag in {"strict": strict, "trusted": trusted}.items():
        # "no" is true to Python, and trusting is nothing to guess.
        if not isinstance(flag, bool):
            raise OptionError(f"{name} must be True or False, not {flag!r}")
    if map_location is not None and not callable(map_location):
        device_of(map_location)
    with _opened(source, whole=file is None) as place:
        reader, target = _choose(place, file, loader)
        shown = place.shown if target == "." else posixpath.join(place.shown, target)
        how = How(shown, map_location, trusted, build=into is None and key is None)
        content = _read(reader, place.path if target == "." else place.path / target, how)
    if into is None:
        return content if key is None else pick(content, key, shown)
    load_into(into, content, shown=shown, key=key, strict=strict)
    return into


def checkpoint_of(result: Any, which: Any = None) -> Any:
    """One checkpoint of a run's result.

    Parameters
    ----------
    result : RunResult or ray.train.Result
    which : str or int, optional
        As in :meth:`raynb.RunResult.load`.

    Returns
    -------
    ray.train.Checkpoint

    Raises
    ------
    CheckpointError
        When the run has no such checkpoint.
    OptionError
        When ``which`` is nothing that can choose one.
    """
    kept = list(result.best_checkpoints or ())
    if result.checkpoint is None and not kept:
        raise CheckpointError(
            f"the run {_name(result)} has no checkpoint",
            hint="save some in the train function, with raynb.checkpoint(model, …)",
        )
    best = str(mapping(mapping(getattr(result, "record", None)).get("options")).get("best") or "")
    if which is None:
        which = "best" if best else "latest"
    # NumPy's integers too: they come out of the table of checkpoints.
    if isinstance(which, int | np.integer) and not isinstance(which, bool):
        if not -len(kept) <= int(which) < len(kept):
            raise CheckpointError(
                f"the run {_name(result)} has {len(kept)} checkpoint"
                f"{'s' if len(kept) != 1 else ''}, so there is none of index {which}",
                hint=f'use 0 to {len(kept) - 1}, or "latest"' if kept else 'use "latest"',
            )
        return kept[int(which)][0]
    if which == "latest":
        return result.checkpoint if result.checkpoint is not None else kept[-1][0]
    text = best if which == "best" else which
    metric, _, mode = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if which == "best" and not metric:
        raise CheckpointError(
            f"the run {_name(result)} was started without --best, so none is its best checkpoint",
            hint='use "latest", an index, or a metric and which way is better: "accuracy:max"',
        )
    if not metric or mode not in ("min", "max"):
        raise OptionError(
            f'which must be "best", "latest", "METRIC:min", "METRIC:max" or an index, not {which!r}'
        )
    return _best(result, kept, metric, mode)


def _best(result: Any, kept: Sequence[tuple[Any, Any]], metric: str, mode: str) -> Any:
    index = best_index([metrics for _, metrics in kept], (metric, mode))
    if index is None:
        there = sorted({str(name) for _, metrics in kept for name in mapping(metrics)})
        raise CheckpointError(
            f"no checkpoint of the run {_name(result)} was reported with a number {metric!r}",
            hint=f"they have {_listed(there)}" if there else 'use "latest" or an index',
        )
    return kept[index][0]


def _name(result: Any) -> str:
    return repr(getattr(result, "name", "") or posixpath.basename(str(result.path).rstrip("/")))


def _read(reader: Loader, path: Path, how: How) -> Any:
    try:
        return reader.load(path, how)
    except RaynbError:
        raise
    except Exception as error:
        # Files may hold anything: what their reader did not expect is damage too.
        raise CheckpointError(
            f"{how.shown} can't be read as {reader.reads}: {first_line(error)}"
        ) from error


# -- what there is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A checkpoint on this machine: a directory and the files in it, or one file."""

    path: Path
    shown: str
    files: tuple[str, ...]
    single: bool = False


@contextlib.contextmanager
def _opened(source: Any, whole: bool) -> Iterator[_Place]:
    if hasattr(source, "best_checkpoints"):
        source = checkpoint_of(source)
    empty = isinstance(source, str) and not source
    place = None if empty else checkpoint_place(source)
    if place is None:
        raise OptionError(
            "a checkpoint is loaded from a RunResult, a ray.train.Checkpoint or a path, not from "
            + ("an empty text" if empty else type(source).__name__)
        )
    filesystem, path, shown = place
    try:
        info = filesystem.get_file_info(path)
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint {shown} can't be looked at: {type(error).__name__}: {error}"
        ) from error
    if info.type == pafs.FileType.NotFound:
        raise CheckpointError(
            f"there is no checkpoint {shown}",
            hint="check the path; a run's storage may have been moved, or --num-to-keep may have "
            "let Ray delete it",
        )
    if info.type == pafs.FileType.File:
        with _file_here(filesystem, path) as here:
            yield _Place(here.parent, posixpath.dirname(shown), (here.name,), single=True)
        return
    if whole and is_run(filesystem, path):
        raise CheckpointError(
            f"{shown} is a run's directory, not a checkpoint's",
            hint=f"load from the run, raynb.open({shown!r}).load(), or give one of its checkpoints",
        )
    with _directory_here(filesystem, path, shown) as here:
        names = (p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file())
        yield _Place(here, shown.rstrip("/"), tuple(sorted(names)))


@contextlib.contextmanager
def _file_here(filesystem: pafs.FileSystem, path: str) -> Iterator[Path]:
    if isinstance(filesystem, pafs.LocalFileSystem):
        yield Path(path)
        return
    with Scratch("load") as directory:
        here = Path(directory) / posixpath.basename(path)
        _copy(filesystem, path, here)
        yield here


@contextlib.contextmanager
def _directory_here(filesystem: pafs.FileSystem, path: str, shown: str) -> Iterator[Path]:
    if isinstance(filesystem, pafs.LocalFileSystem):
        yield Path(path)
        return
    with Scratch("load") as directory:
        _copy(filesystem, path, Path(directory))
        yield Path(directory)


def _copy(filesystem: pafs.FileSystem, path: str, here: Path) -> None:
    try:
        fetch(filesystem, path, here)
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint {path} can't be fetched: {type(error).__name__}: {error}"
        ) from error


def _choose(place: _Place, file: str | None, loader: str | None) -> tuple[Loader, str]:
    """The loader, and what it is to load: a name in the checkpoint, or ``"."``."""
    loaders = installed()
    asked = {loader: named(loaders, loader)} if loader is not None else loaders
    if file is not None:
        file = file.strip("/") or "."
        inside = [f for f in place.files if f == file or f.startswith(file + "/")]
        if not inside:
            raise CheckpointError(
                f"the checkpoint {place.shown} has no file {file!r}",
                hint=f"it has {_listed(place.files)}" if place.files else "it is empty",
            )
    elif place.single:
        file = place.files[0]
    if file is not None:
        for it in asked.values():
            if file in it.find(place.files):
                return it, file
        if loader is not None:
            return asked[loader], file
        raise _unknown(posixpath.join(place.shown, file), loaders)
    if not place.files:
        raise CheckpointError(f"the checkpoint {place.shown} is empty")
    found: dict[str, Loader] = {}
    for it in asked.values():
        for target in it.find(place.files):
            found.setdefault(target, it)
    # A directory that is one checkpoint swallows the files in it.
    whole = [t for t in found if t not in place.files]
    targets = [t for t in found if not any(_lies_in(t, d) for d in whole)]
    if len(targets) > 1:
        targets = [t for t in targets if "model" in posixpath.basename(t).lower()] or targets
    if len(targets) == 1:
        return found[targets[0]], targets[0]
    if not targets:
        if loader is not None and len(place.files) == 1:
            return asked[loader], place.files[0]
        runs = sorted({f.partition("/")[0] for f in place.files if f.startswith(CHECKPOINT)})
        if any("/" in f for f in place.files if f.startswith(CHECKPOINT)):
            raise CheckpointError(
                f"{place.shown} is a run's directory with {_listed(runs)}",
                hint=f"load one of them: {place.shown}/{runs[-1]}",
            )
        raise _unknown(f"the checkpoint {place.shown} with {_listed(place.files)}", loaders)
    raise CheckpointError(
        f"the checkpoint {place.shown} holds several that can be loaded: {_listed(targets)}",
        hint=f"choose one, such as file={targets[0]!r}",
    )


def _lies_in(target: str, directory: str) -> bool:
    return target != directory and (directory == "." or target.startswith(directory + "/"))


def _unknown(what: str, loaders: Mapping[str, Loader]) -> CheckpointError:
    return CheckpointError(
        f"no loader knows the format of {what}",
        detail="Known formats:\n" + known_formats(dict(loaders)),
        hint="name one of them with loader=…, or see docs/loaders.md on adding one",
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(map(printable, names[:_MAX_NAMED])) + (
        f" and {more:,} more" if more > 0 else ""
    )
