"""Loader of safetensors files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raynb.errors import CheckpointError
from raynb.results.loaders.base import How
from raynb.weights.devices import device_of

SUFFIX = ".safetensors"


class SafetensorsLoader:
    """Reads one file; the format holds tensors alone, so nothing in it can run."""

    reads = f"safetensors files ({SUFFIX})"

    def find(self, files: Sequence[str]) -> list[str]:
        return [f for f in files if f.lower().endswith(SUFFIX)]

    def load(self, path: Path, how: How) -> Any:
        return read_safetensors(path, how)


def read_safetensors(path: Path, how: How) -> dict[str, Any]:
    """The tensors of a file by their names.

    Raises
    ------
    CheckpointError
        When it can't be read, or safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError(
            f"{how.shown} needs the package safetensors, which is not installed",
            hint="pip install safetensors",
        ) from error
    try:
        tensors: dict[str, Any] = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{how.shown} can't be read: it is cut off or damaged, or no safetensors file ({error})"
        ) from error
    # Not by load_file's own device, which knows fewer than torch. The same device costs nothing.
    device = device_of(how.map_location)
    return {name: tensor.to(device) for name, tensor in tensors.items()}
