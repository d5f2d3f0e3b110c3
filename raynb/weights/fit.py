"""Fits a state dict into a model: finds it, undoes wrappers' prefixes, tells what does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from raynb.errors import CheckpointError
from raynb.weights.torch_file import printable

if TYPE_CHECKING:
    from torch import nn

#: What DataParallel and DDP, torch.compile, FSDP and activation checkpointing put into names.
_WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module"}
)
#: What the part with the model's weights is called in nested dicts; the first one there wins.
_USUAL = (
    "model", "state_dict", "model_state_dict", "model_state", "module", "net", "network", "weights",
)  # fmt: skip
_MAX_ROWS = 12


def load_into(
    into: Any, content: Any, *, shown: str, key: str | None = None, strict: bool = True
) -> None:
    """Load what a checkpoint holds into a model, an optimizer or the like.

    Parameters
    ----------
    into : object with ``load_state_dict``
    content : object
        What a loader read.
    shown : str
        What messages call the checkpoint.
    key : str, optional
        The part of ``content`` to use.
    strict : bool
        Whether a model's weights must fit exactly; otherwise what fits is loaded, and a warning
        lists the rest.

    Raises
    ------
    CheckpointError
        When it does not fit; ``into`` is then as it was.
    """
    from torch import nn

    if key is not None:
        content = pick(content, key, shown)
    if isinstance(into, nn.Module):
        _load_model(into, weights_in(content, shown), shown, strict)
        return
    try:
        into.load_state_dict(content)
    except Exception as error:
        raise CheckpointError(
            f"{shown} does not fit the {type(into).__name__}: {type(error).__name__}: {error}",
            hint='choose its part with key=…, such as key="optimizer"' if key is None else "",
        ) from error


def pick(content: Any, key: str, shown: str) -> Any:
    """A part of a nested dict, by its key or by keys with dots between them.

    Raises
    ------
    CheckpointError
        When there is none.
    """
    if isinstance(content, Mapping) and key in content:
        return content[key]
    part = content
    for step in key.split("."):
        if not isinstance(part, Mapping) or step not in part:
            raise CheckpointError(
                f"{shown} has no part {key!r}",
                hint=f"it has {_names(content)}"
                if isinstance(content, Mapping)
                else f"it holds a {type(content).__name__}, not a dict",
            )
        part = part[step]
    return part


def weights_in(content: Any, shown: str) -> Mapping[str, Any]:
    """The state dict of a model in what a checkpoint holds.

    Raises
    ------
    CheckpointError
        When there is none, or more than one that it could be.
    """
    from torch import nn

    if isinstance(content, nn.Module):
        return content.state_dict()
    if not isinstance(content, Mapping) or not content:
        empty = content is None or isinstance(content, Mapping)
        what = "nothing" if empty else f"a {type(content).__name__}"
        raise CheckpointError(f"{shown} holds {what}, and no weights of a model")
    if _is_state(content):
        return content
    parts = {
        k: v for k, v in content.items() if isinstance(v, nn.Module) or _is_state(v, buffers=False)
    }
    chosen = next((k for k in _USUAL if k in parts), None)
    if chosen is None and len(parts) == 1:
        chosen = next(iter(parts))
    if chosen is not None:
        return weights_in(parts[chosen], shown)
    deeper = next((k for k in _USUAL if not parts and isinstance(content.get(k), Mapping)), None)
    if deeper is not None:
        return weights_in(content[deeper], f"{shown} ({deeper})")
    # Weights with something beside them: told as what is unexpected.
    if not parts and any(_is_tensor(v) for v in content.values()):
        return content
    raise CheckpointError(
        f"{shown} holds {_names(content)}, and "
        + ("several could be the weights" if parts else "none of it is a model's weights"),
        hint=f"choose one with key=…, such as key={printable(str(next(iter(parts or content))))!r}",
    )


def plain_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict by names without what torch.compile and FSDP put into them.

    Unlike ``module``, nobody gives their own layers such names.
    """
    wrappers = _WRAPPERS - {"module"}
    return {_without(name, wrappers): value for name, value in state.items()}


def _load_model(model: nn.Module, state: Mapping[str, Any], shown: str, strict: bool) -> None:
    own = model.state_dict()
    renamed = _renamed(state, own)
    # Of tied weights, which share their memory, some formats keep one.
    there = {_memory(own[k]) for k in own if k in renamed} - {None}
    missing = [k for k in own if k not in renamed and _memory(own[k]) not in there]
    unexpected = [k for k in renamed if k not in own]
    wrong = [
        k
        for k in own
        if k in renamed and None not in (s := (_shape(renamed[k]), _shape(own[k]))) and s[0] != s[1]
    ]
    table = _table(renamed, own, missing, unexpected, wrong)
    kind = type(model).__name__
    fitting = {k: v for k, v in renamed.items() if k in own and k not in wrong}
    if own and not fitting:
        raise CheckpointError(
            f"nothing in {shown} fits the {kind}",
            detail=table,
            hint="load it into the model that it was saved from",
        )
    if strict and table:
        raise CheckpointError(
            f"{shown} does not fit the {kind}: {len(missing):,} missing, "
            f"{len(unexpected):,} unexpected, {len(wrong):,} of wrong shape",
            detail=table,
            hint="load it into the model that it was saved from; strict=False loads what fits",
        )
    # Weights without memory can't be copied into: they are put in place.
    assign = any(getattr(v, "is_meta", False) for v in own.values())
    try:
        model.load_state_dict(_with_versions(fitting, state, own), strict=False, assign=assign)
    except Exception as error:
        raise CheckpointError(
            f"{shown} can't be loaded into the {kind}: {type(error).__name__}: {error}"
        ) from error
    if table:
        warnings.warn(f"{shown} fits the {kind} in part:\n{table}", stacklevel=4)


def _renamed(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The state by the model's own names, where prefixes are all that is between them."""
    if state.keys() == own.keys():
        return dict(state)
    theirs, ours = _by_plain(state), _by_plain(own)
    shift = _shift(list(theirs), list(ours))
    return {ours.get(shift(name), name): state[key] for name, key in theirs.items()}


def _by_plain(state: Mapping[str, Any]) -> dict[str, str]:
    """Names by what is left of them without wrappers' prefixes; as they are where that clashes."""
    names = {_without(key, _WRAPPERS): key for key in state}
    return names if len(names) == len(state) else {key: key for key in state}


def _without(name: str, wrappers: frozenset[str]) -> str:
    *path, last = name.split(".")
    return ".".join([*(p for p in path if p not in wrappers), last])


def _shift(theirs: list[str], ours: list[str]) -> Callable[[str], str]:
    """What turns their names into ours when one side's model is a part of the other's.

    So Lightning's ``model.fc.weight`` goes into a plain model, and the other way round. Only where
    no name fits as it is, and one prefix alone makes the most of them fit.
    """
    known = set(ours)
    if known.isdisjoint(theirs):
        gained = [
            *((sum(n.startswith(p) and n[len(p) :] in known for n in theirs), p, True)
              for p in _prefixes(theirs)),
            *((sum(p + n in known for n in theirs), p, False) for p in _prefixes(ours)),
        ]  # fmt: skip
        most = max((count for count, _, _ in gained), default=0)
        best = [(prefix, drop) for count, prefix, drop in gained if count == most]
        if most and len(best) == 1:
            prefix, drop = best[0]
            return lambda name: name.removeprefix(prefix) if drop else prefix + name
    return lambda name: name


def _prefixes(names: list[str]) -> set[str]:
    """The names' beginnings up to three steps deep, each with its last dot."""
    paths = (name.split(".")[:-1] for name in names)
    return {".".join(path[: n + 1]) + "." for path in paths for n in range(min(3, len(path)))}


def _with_versions(
    fitting: dict[str, Any], state: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The state with the versions of its modules, by which torch reads old layouts."""
    theirs, ours = getattr(state, "_metadata", None), getattr(own, "_metadata", None)
    if not isinstance(theirs, Mapping) or not isinstance(ours, Mapping):
        return fitting
    from collections import OrderedDict

    plain = {_without(f"{name}.", _WRAPPERS): value for name, value in theirs.items()}
    result: Any = OrderedDict(fitting)
    result._metadata = {
        name: plain[key] for name in ours if (key := _without(f"{name}.", _WRAPPERS)) in plain
    }
    return result  # type: ignore[no-any-return]


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_state(value: Any, buffers: bool = True) -> bool:
    """Whether a dict maps names to tensors; extra state of a module may be anything."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) for k in value)
        and all(_is_tensor(v) or k.endswith("_extra_state") for k, v in value.items())
        and (buffers or any(_is_tensor(v) for v in value.values()))
    )


def _memory(value: Any) -> tuple[Any, ...] | None:
    """Where a tensor lies; None for what has no memory of its own."""
    shape = _shape(value)
    if shape is None or value.is_meta or not value.numel():
        return None
    return (value.data_ptr(), shape, value.stride())


def _shape(value: Any) -> tuple[int, ...] | None:
    from torch.nn.parameter import is_lazy

    # A lazy layer takes its shape from what is loaded.
    return None if not _is_tensor(value) or is_lazy(value) else tuple(value.shape)


def _table(
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    missing: list[str],
    unexpected: list[str],
    wrong: list[str],
) -> str:
    def shape(value: Any) -> str:
        known = _shape(value)
        return type(value).__name__ if known is None else str(known)

    rows = [("missing", k, f"{shape(ours[k])} in the model") for k in missing]
    rows += [("unexpected", k, f"{shape(theirs[k])} in the checkpoint") for k in unexpected]
    rows += [
        ("wrong shape", k, f"{shape(theirs[k])} in the checkpoint, {shape(ours[k])} in the model")
        for k in wrong
    ]
    # A few of each kind, rather than many of the first.
    if len(rows) > _MAX_ROWS:
        each = _MAX_ROWS // 3
        kept = [r for kind in ("missing", "unexpected", "wrong shape") for r in
                [row for row in rows if row[0] == kind][:each]]  # fmt: skip
    else:
        kept = rows
    width = max((len(printable(k)) for _, k, _ in kept), default=0)
    lines = [f"  {kind:<11}  {printable(k):<{width}}  {what}" for kind, k, what in kept]
    if len(rows) > len(kept):
        lines.append(f"  … and {len(rows) - len(kept):,} more")
    return "\n".join(lines)


def _names(content: Mapping[Any, Any]) -> str:
    names = [printable(str(k)) for k in content]
    more = len(names) - _MAX_ROWS
    return ", ".join(names[:_MAX_ROWS]) + (f" and {more:,} more" if more > 0 else "")
