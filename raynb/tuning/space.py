"""The space that is searched: its checks, and its parameters as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from raynb.engine.spec import json_safe
from raynb.errors import OptionError
from raynb.telemetry.events import short_text

#: Between the names of a nested parameter, as in Ray Tune's own tables.
SEPARATOR = "/"
EXAMPLE = 'space = {"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([64, 128])}'
MAX_CHOICES = 50


def check_space(space: Any) -> None:
    """Check that a space can be searched and sent.

    Raises
    ------
    OptionError
        When it is no dict, holds nothing to search, or a value that can't be pickled.
    """
    if not isinstance(space, dict):
        raise OptionError(
            f"the space must be a dict of ray.tune domains, not {type(space).__name__}",
            hint=f"for example {EXAMPLE}",
        )
    if not space:
        raise OptionError("the space is empty: there is nothing to search", hint=EXAMPLE)
    _check_keys(space)
    _check_pickles(space)
    if not any(is_searched(value) for _, value in leaves(space)):
        raise OptionError(
            "the space has nothing to search: all of its values are fixed "
            f"({', '.join(short_text(name, 60) for name, _ in leaves(space))})",
            hint="give at least one domain such as tune.loguniform(1e-4, 1e-1); values that stay "
            "the same belong into --config",
        )


def _check_keys(space: Mapping[Any, Any]) -> None:
    bad = [key for key in space if not isinstance(key, str)]
    if bad:
        raise OptionError(
            f"the space's names must be text: {short_text(bad[0], 60)!r} is a "
            f"{type(bad[0]).__name__}"
        )
    for value in space.values():
        if isinstance(value, dict) and not is_grid(value):
            _check_keys(value)


def _check_pickles(space: Mapping[str, Any]) -> None:
    from ray import cloudpickle

    bad = []
    for name, value in leaves(space):
        for part in _parts(value):
            try:
                cloudpickle.dumps(part)
            except Exception as error:
                bad.append(f"  space[{name!r}] ({type(part).__name__}): {error}")
                break
    if bad:
        raise OptionError(
            "the space can't be sent to the trials",
            detail="\n".join(bad),
            hint="search over names or numbers, and create these objects inside the cell",
        )


def _parts(value: Any) -> list[Any]:
    """What an error names: the single choices where there are some."""
    return list(choices_of(value) or [value])


def leaves(space: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter of a nested space with its path."""
    for name, value in space.items():
        path = f"{above}{SEPARATOR}{name}" if above else str(name)
        if isinstance(value, dict) and value and not is_grid(value):
            yield from leaves(value, path)
        else:
            yield path, value


def is_grid(value: Any) -> bool:
    """Whether a value is what ``tune.grid_search`` returns."""
    return isinstance(value, dict) and set(value) == {"grid_search"}


def is_domain(value: Any) -> bool:
    from ray.tune.search.sample import Domain

    return isinstance(value, Domain)


def is_searched(value: Any) -> bool:
    """Whether trials get different values of it; a list may hold domains too."""
    if isinstance(value, (list, tuple)):
        return any(is_searched(item) for item in value)
    return is_grid(value) or is_domain(value)


def choices_of(value: Any) -> list[Any] | None:
    """The values of a grid or a choice; None for what has no list of them."""
    from ray.tune.search.sample import Categorical

    if is_grid(value):
        return list(value["grid_search"])
    return list(value.categories) if isinstance(value, Categorical) else None


def as_grid(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with every choice as a grid, for an exhaustive search.

    Raises
    ------
    OptionError
        Where a domain has no list of values.
    """
    grid: dict[str, Any] = {}
    for name, value in space.items():
        if isinstance(value, dict) and value and not is_grid(value):
            grid[name] = as_grid(value)
        elif is_searched(value):
            choices = choices_of(value)
            if choices is None:
                raise OptionError(
                    f"--search grid needs a list of values for each parameter, and {name!r} is "
                    f"{describe(name, value)['text']}",
                    hint=f"use tune.grid_search([…]) for {name!r}, or --search random",
                )
            grid[name] = {"grid_search": choices}
        else:
            grid[name] = value
    return grid


def grid_size(space: Mapping[str, Any]) -> int:
    """How many combinations the grids of a space make."""
    return math.prod(len(v["grid_search"]) for _, v in leaves(space) if is_grid(v))


def describe(name: str, value: Any) -> dict[str, Any]:
    """A parameter as plain data for record and panel: kind, bounds, scale, choices, text."""
    from ray.tune.search.sample import Float, Integer

    row: dict[str, Any] = {
        "name": name, "kind": "fixed", "log": False, "low": None, "high": None, "choices": None,
    }  # fmt: skip
    choices = choices_of(value)
    if choices is not None:
        shown = [json_safe(choice) for choice in choices[:MAX_CHOICES]]
        text = f"{'grid' if is_grid(value) else 'choice'} of {short_text(choices, 80)}"
        return {**row, "kind": "choice", "choices": shown, "text": text}
    if isinstance(value, (Float, Integer)):
        log = _log_scale(value)
        low, high = _finite(value.lower), _finite(value.upper)
        kind = "float" if isinstance(value, Float) else "int"
        text = f"{kind} from {low:g} to {high:g}" if low is not None and high is not None else kind
        if log:
            text += ", log scale"
        return {**row, "kind": kind, "log": log, "low": low, "high": high, "text": text}
    if is_searched(value):
        return {**row, "kind": "other", "text": type(value).__name__}
    return {**row, "text": short_text(value, 80)}


def _log_scale(domain: Any) -> bool:
    from ray.tune.search.sample import LogUniform, Quantized

    sampler = domain.get_sampler()
    if isinstance(sampler, Quantized):
        sampler = sampler.get_sampler()
    return isinstance(sampler, LogUniform)


def _finite(bound: Any) -> float | None:
    return float(bound) if bound is not None and math.isfinite(bound) else None


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's config as the panel shows it: flat names, JSON values."""
    return {name: json_safe(value) for name, value in leaves(config)}
