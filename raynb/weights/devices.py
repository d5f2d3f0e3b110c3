"""Where loaded tensors go, for formats that know devices by name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raynb.errors import OptionError


def device_of(map_location: Any) -> Any:
    """The device for tensors that were read to the CPU, from a ``map_location`` of ``torch.load``.

    Raises
    ------
    OptionError
        When it is a function, or no device that this machine has.
    """
    import torch

    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu", "cpu")
    if map_location is None:
        return torch.device("cpu")
    if callable(map_location):
        raise OptionError(
            "map_location must be a device for this format, not a function",
            hint='for example map_location="cpu"',
        )
    try:
        device = torch.device(map_location)
        torch.empty(0, device=device)
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise OptionError(
            f"map_location {map_location!r} can't be used here: {line}",
            hint='use map_location="cpu", or a device of this machine',
        ) from error
    return device
