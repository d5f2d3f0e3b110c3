"""Loader of PyTorch Lightning's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raynb.results.loaders.base import How
from raynb.weights.torch_file import read_torch_file


class LightningLoader:
    """Reads a .ckpt: a file of torch.save with the weights under ``state_dict``."""

    reads = "Lightning checkpoints (.ckpt)"

    def find(self, files: Sequence[str]) -> list[str]:
        return [f for f in files if f.lower().endswith(".ckpt")]

    def load(self, path: Path, how: How) -> Any:
        return read_torch_file(
            path,
            shown=how.shown,
            map_location=how.map_location,
            trusted=how.trusted,
            stand_ins=_hyper_parameters(),
        )


def _hyper_parameters() -> list[tuple[Any, str]]:
    """What hyperparameters are often saved as: plain containers, which run nothing.

    A class of Lightning's own becomes an ordinary dict, so that Lightning need not be here.
    """
    import argparse
    import collections
    import pathlib

    homes = (
        "lightning.fabric.utilities.data",
        "lightning_fabric.utilities.data",
        "lightning.pytorch.utilities.parsing",
        "pytorch_lightning.utilities.parsing",
    )
    return [
        (argparse.Namespace, "argparse.Namespace"),
        (pathlib.PurePosixPath, "pathlib.PosixPath"),
        (pathlib.PureWindowsPath, "pathlib.WindowsPath"),
        *((collections.OrderedDict, f"{home}.AttributeDict") for home in homes),
    ]
