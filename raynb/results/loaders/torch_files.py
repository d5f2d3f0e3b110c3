"""Loader of files that torch.save wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raynb.results.loaders.base import How
from raynb.weights.torch_file import read_torch_file

#: ``.tar`` for the ``model.pth.tar`` of many a training script.
_SUFFIXES = (".pt", ".pth", ".bin", ".tar")


class TorchLoader:
    """Reads one file, with ``weights_only=True`` unless it is trusted."""

    reads = f"files of torch.save ({', '.join(_SUFFIXES)})"

    def find(self, files: Sequence[str]) -> list[str]:
        return [f for f in files if f.lower().endswith(_SUFFIXES)]

    def load(self, path: Path, how: How) -> Any:
        return read_torch_file(
            path, shown=how.shown, map_location=how.map_location, trusted=how.trusted
        )
