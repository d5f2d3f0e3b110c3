"""raynb.checkpoint and raynb.resume: saving and continuing inside a train function."""

from __future__ import annotations

import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raynb.errors import CheckpointError
from raynb.scratch import Scratch
from raynb.telemetry.events import to_values
from raynb.worker import runtime

if TYPE_CHECKING:
    from torch import nn

#: All of a checkpoint, or of a sharded one what is no part of the shards.
FILE = "checkpoint.pt"
_FORMAT = "raynb_checkpoint"
#: What reads back weights only; by exact type, since a subclass is pickled by its own name.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)

_told: set[str] = set()


def checkpoint(
    model: nn.Module,
    optimizer: Any = None,
    epoch: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    scheduler: Any = None,
    **extra: Any,
) -> None:
    """Save a checkpoint and report it to Ray Train; every rank calls it.

    Rank 0 writes it, from inside DDP's wrapper; of a model that FSDP or tensor parallelism has
    sharded every rank writes its part. :func:`resume` gives it back, and
    ``result.load(into=model)`` loads the weights. Like ``ray.train.report``, which it calls, it
    waits until every rank is there. Outside of Ray Train it does nothing, and says so once.

    Parameters
    ----------
    model : torch.nn.Module
    optimizer : torch.optim.Optimizer, optional
    epoch : int, optional
        The epoch that is done.
    metrics : dict, optional
        What ``ray.train.report`` gets with it: ``--best`` chooses by these.
    scheduler : object with ``state_dict``, optional
    **extra
        What else to keep: tensors, numbers, text, None, and dicts and lists of these. Rank 0's is
        kept.

    Raises
    ------
    CheckpointError
        For something that could not be read back without running code; it names it.
    TypeError
        When an argument is of the wrong kind.
    """
    _check_arguments(model, optimizer, scheduler, metrics)
    _check_plain(extra, "")
    rank = _rank("checkpoint")
    if rank is None:
        return
    import ray.train

    reported = runtime._plain(metrics or {})  # Ray refuses tensors, also where raynb is not around
    content: dict[str, Any] = {
        _FORMAT: 1,
        "epoch": epoch,
        "metrics": to_values(reported),
        "extra": extra,
    }
    if scheduler is not None:
        content["scheduler"] = scheduler.state_dict()
        _check_plain(content["scheduler"], "scheduler")
    sharded = _is_sharded(model)
    if rank == 0 and not sharded:
        content |= _whole(model, optimizer)
    with Scratch("checkpoint") as directory:
        if sharded:
            _save_shards(model, optimizer, directory)
        if rank == 0:
            import torch

            torch.save(content, os.path.join(directory, FILE))
        saved = ray.train.Checkpoint.from_directory(directory) if rank == 0 or sharded else None
        ray.train.report(reported, checkpoint=saved)


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from.

    Attributes
    ----------
    epoch : int or None
        The epoch that was done.
    metrics : dict
        What was reported with the checkpoint.
    extra : dict
        The further keyword arguments of :func:`checkpoint`.
    model, optimizer, scheduler : dict or None
        State dicts of what :func:`resume` was not given to load them into.
    checkpoint : ray.train.Checkpoint
        The checkpoint itself, for what :func:`checkpoint` did not write.
    """

    checkpoint: Any = field(repr=False)
    epoch: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    model: Any = field(default=None, repr=False)
    optimizer: Any = field(default=None, repr=False)
    scheduler: Any = field(default=None, repr=False)


def resume(
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    *,
    map_location: Any = "cpu",
) -> Resumed | None:
    """Go on from the latest checkpoint after a failure, or from the one of ``--resume``.

    Every rank calls it, before it trains. What is given is loaded in place, wherever its
    parameters are and whether DDP or FSDP wraps it or not.

    Parameters
    ----------
    model : torch.nn.Module, optional
    optimizer : torch.optim.Optimizer, optional
    scheduler : object with ``load_state_dict``, optional
    map_location
        Where the tensors among the extras, and state dicts that are given back, go.

    Returns
    -------
    Resumed or None
        None when there is nothing to go on from, as in a run's first attempt.

    Raises
    ------
    CheckpointError
        When the checkpoint can't be read, does not fit, or :func:`checkpoint` did not write it.
    TypeError
        When an argument is of the wrong kind.
    """
    _check_arguments(model, optimizer, scheduler, None, given=model is not None)
    if _rank("resume") is None:
        return None
    import ray.train

    # Newer than the run's start: the attempt before this one went on from there already.
    found = ray.train.get_checkpoint() or runtime.resume_from()
    if found is None:
        return None
    shown = str(found.path)
    with _directory(found, shown) as directory:
        content = _read(directory, shown, map_location)
        if content is None:
            if model is None and optimizer is None and scheduler is None:
                return Resumed(found)
            raise CheckpointError(
                f"raynb.resume can't load {shown}: raynb.checkpoint did not write it",
                hint="state = raynb.resume() gives it as it is, for "
                "raynb.load_checkpoint(state.checkpoint, into=model)",
            )
        if os.path.exists(os.path.join(directory, ".metadata")):
            content |= _load_shards(model, optimizer, directory, shown, map_location)
        else:
            _load_whole(model, optimizer, content, shown)
        if scheduler is not None:
            _load_state(scheduler, _part(content, "scheduler", shown), shown)
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Resumed(
        found,
        content.get("epoch"),
        dict(content.get("metrics") or {}),
        dict(content.get("extra") or {}),
        **{name: None if it is not None else content.get(name) for name, it in given.items()},
    )


# -- inside --------------------------------------------------------------------------------------


def _rank(caller: str) -> int | None:
    """This worker's world rank; None outside of Ray Train, which is told once."""
    import ray.train

    try:
        rank: int = ray.train.get_context().get_world_rank()
    except RuntimeError:
        if caller not in _told:
            _told.add(caller)
            what = "saved" if caller == "checkpoint" else "loaded"
            print(f"raynb.{caller}: not inside a run, so nothing is {what}", file=sys.stderr)
        return None
    return rank


def _check_arguments(
    model: Any, optimizer: Any, scheduler: Any, metrics: Any, *, given: bool = True
) -> None:
    from torch import nn

    if given and not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    for name, it in (("optimizer", optimizer), ("scheduler", scheduler)):
        if it is not None and not hasattr(it, "load_state_dict"):
            raise TypeError(f"{name} must have a state_dict, which {type(it).__name__} has not")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict, not {type(metrics).__name__}")


def _check_plain(value: Any, name: str) -> None:
    """Check that a value reads back weights only."""
    import torch

    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor | torch.dtype | torch.device):
        return
    if kind in _CONTAINERS or kind is torch.Size:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            if isinstance(value, dict):
                _check_plain(key, f"a key of {name}")
            _check_plain(part, f"{name}[{key!r}]" if name else str(key))
        return
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    raise CheckpointError(
        f"raynb.checkpoint can't keep {name}: a {home}{kind.__qualname__} would have to run code "
        "to be read back",
        hint="keep tensors, numbers, text, and dicts and lists of these; of NumPy's numbers "
        "x.item(), of its arrays torch.as_tensor(x)",
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DataParallel, DDP and torch.compile."""
    from torch import nn

    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, nn.DataParallel | nn.parallel.DistributedDataParallel
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _is_sharded(model: nn.Module) -> bool:
    import torch

    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in model.parameters()) or any(
        isinstance(m, FullyShardedDataParallel) for m in model.modules()
    )


# -- one file ------------------------------------------------------------------------------------


def _whole(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    from raynb.weights.fit import plain_names

    content = {"model": plain_names(_unwrapped(model).state_dict())}
    _check_plain(content["model"], "model")
    if optimizer is not None:
        content["optimizer"] = optimizer.state_dict()
        _check_plain(content["optimizer"], "optimizer")
    return content


def _load_whole(
    model: nn.Module | None, optimizer: Any, content: dict[str, Any], shown: str
) -> None:
    if model is None or not _is_sharded(model):
        if model is not None:
            _load_state(model, _part(content, "model", shown), shown)
        if optimizer is not None:
            _load_state(optimizer, _part(content, "optimizer", shown), shown)
        return
    _set_sharded(model, None, {"model": _part(content, "model", shown)}, shown)
    if optimizer is not None:
        state = _by_names(model, optimizer, _part(content, "optimizer", shown), shown)
        _set_sharded(model, optimizer, {"optimizer": state}, shown)


def _load_state(it: Any, state: Any, shown: str) -> None:
    from raynb.weights.fit import load_into

    load_into(it, state, shown=shown)


def _by_names(model: nn.Module, optimizer: Any, state: Any, shown: str) -> dict[str, Any]:
    """An optimizer's state by its parameters' names, as sharded models take it."""
    from raynb.weights.fit import plain_names

    name_of = {id(p): next(iter(plain_names({n: 0}))) for n, p in model.named_parameters()}
    names = [name_of.get(id(p)) for g in optimizer.param_groups for p in g["params"]]
    saved = sum(len(g["params"]) for g in state["param_groups"])
    if None in names or len(names) != saved:
        raise CheckpointError(
            f"{shown} has an optimizer of {saved:,} parameters, and this one has {len(names):,}",
            hint="make the optimizer as it was made when the checkpoint was saved",
            topic="does-not-fit",
        )
    return {
        "state": {names[i]: value for i, value in state["state"].items()},
        "param_groups": [
            {**g, "params": [names[i] for i in g["params"]]} for g in state["param_groups"]
        ],
    }


# -- shards --------------------------------------------------------------------------------------


def _shards_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def _save_shards(model: nn.Module, optimizer: Any, directory: str) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    state = _shards_of(model, optimizer)
    _check_plain(state, "")
    save(state, storage_writer=FileSystemWriter(directory))


def _load_shards(
    model: nn.Module | None, optimizer: Any, directory: str, shown: str, map_location: Any
) -> dict[str, Any]:
    """Load a sharded checkpoint; what is not given is given back as whole state dicts."""
    from raynb.weights.sharded import SafePlanner, SafeReader, load_shards, read_sharded

    if model is None or not _is_sharded(model):
        content = read_sharded(directory, shown=shown, map_location=map_location)
        if model is not None:
            _load_state(model, _part(content, "model", shown), shown)
            if optimizer is not None:
                state = {"optimizer": _part(content, "optimizer", shown)}
                _set_sharded(_unwrapped(model), optimizer, state, shown)
        elif optimizer is not None:
            raise CheckpointError(
                f"{shown} is sharded, and has its optimizer's state by the model's names",
                hint="give the model too: raynb.resume(model, optimizer=optimizer)",
            )
        return content
    reader = SafeReader(directory, shown)
    there = {name.partition(".")[0] for name in reader.read_metadata().state_dict_metadata}
    _part(dict.fromkeys(there), "model", shown)
    if optimizer is not None:
        _part(dict.fromkeys(there), "optimizer", shown)
    state = _shards_of(model, optimizer)
    load_shards(state, reader, SafePlanner(shown), shown=shown, alone=False)
    _set_sharded(model, optimizer, state, shown, whole=False)
    return {}


def _set_sharded(
    model: nn.Module, optimizer: Any, state: dict[str, Any], shown: str, *, whole: bool = True
) -> None:
    """Put a state, by parameters' names, into a model and an optimizer."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    options = StateDictOptions(full_state_dict=whole)
    try:
        if "model" in state:
            set_model_state_dict(model, state["model"], options=options)
        if optimizer is not None:
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
    except Exception as error:
        raise CheckpointError(
            f"{shown} does not fit: {type(error).__name__}: {error}",
            hint="make model and optimizer as they were made when the checkpoint was saved",
            topic="does-not-fit",
        ) from error


# -- reading -------------------------------------------------------------------------------------


def _directory(found: Any, shown: str) -> Any:
    import pyarrow.fs as pafs

    if found.filesystem.get_file_info(found.path).type != pafs.FileType.Directory:
        raise CheckpointError(
            f"there is no checkpoint {shown} on this node",
            hint="on several nodes a local path must be on storage that all of them see",
        )
    return found.as_directory()


def _read(directory: str, shown: str, map_location: Any) -> dict[str, Any] | None:
    """What raynb.checkpoint wrote into its file; None where it wrote none."""
    from raynb.weights.torch_file import read_torch_file

    path = os.path.join(directory, FILE)
    if not os.path.exists(path):
        return None
    content = read_torch_file(path, shown=f"{shown}/{FILE}", map_location=map_location)
    return content if isinstance(content, dict) and _FORMAT in content else None


def _part(content: Mapping[str, Any], name: str, shown: str) -> Any:
    if name not in content:
        raise CheckpointError(
            f"the checkpoint {shown} has no {name}",
            hint=f"save it too, raynb.checkpoint(…, {name}={name}), or leave it out of "
            "raynb.resume",
        )
    return content[name]
