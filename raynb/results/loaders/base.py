"""What a checkpoint loader is, and the loaders that are installed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from raynb.errors import CheckpointError, OptionError

#: Entry points that name loader classes.
GROUP = "raynb.checkpoint_loaders"


@dataclass(frozen=True)
class How:
    """How something is to be loaded.

    Attributes
    ----------
    shown : str
        What messages call it: the checkpoint's path and the file in it.
    map_location
        As in ``torch.load``: where tensors go.
    trusted : bool
        Code in it may run.
    build : bool
        The caller gave no model: a loader that can build one returns it. Otherwise weights.
    """

    shown: str
    map_location: Any = "cpu"
    trusted: bool = False
    build: bool = False


@runtime_checkable
class Loader(Protocol):
    """Reads one format.

    Attributes
    ----------
    reads : str
        What it reads, for the list in messages: ``"torch files (.pt, .pth)"``.
    """

    reads: str

    def find(self, files: Sequence[str]) -> Sequence[str]:
        """Which of a checkpoint's files it reads.

        Parameters
        ----------
        files : sequence of str
            Names relative to the checkpoint's directory, with ``/``.

        Returns
        -------
        sequence of str
            Of these the ones that it reads each by itself; for a format that takes a directory,
            the directory's name, ``"."`` for the checkpoint's own.
        """
        ...

    def load(self, path: Path, how: How) -> Any:
        """Read a file or directory that `find` named.

        Returns
        -------
        object
            A state dict, a dict that holds some, or a model.

        Raises
        ------
        CheckpointError
            When it can't; UnsafeCheckpointError when it would have to run code.
        """
        ...


def installed() -> dict[str, Loader]:
    """The loaders by name; other packages' first, so that they can take over a format."""
    found = sorted(entry_points(group=GROUP), key=lambda e: e.value.startswith("raynb."))
    loaders: dict[str, Loader] = {}
    for entry in found:
        if entry.name in loaders:
            continue
        try:
            loader = entry.load()()
        except Exception as error:
            raise CheckpointError(
                f"the checkpoint loader {entry.name!r} ({entry.value}) can't be imported: "
                f"{type(error).__name__}: {error}",
                hint="repair or uninstall its package",
            ) from error
        loaders[entry.name] = loader
    if not loaders:
        raise CheckpointError(
            "no checkpoint loaders are registered, not even raynb's own",
            hint="install raynb again: pip install --force-reinstall --no-deps raynb",
        )
    return loaders


def named(loaders: dict[str, Loader], name: str) -> Loader:
    """One loader.

    Raises
    ------
    OptionError
        When there is none of this name.
    """
    if name in loaders:
        return loaders[name]
    near = difflib.get_close_matches(str(name), loaders, 1)
    raise OptionError(
        f"there is no checkpoint loader {name!r}",
        hint=(f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(loaders)}",
    )


def known_formats(loaders: dict[str, Loader]) -> str:
    """What the loaders read, a line each."""
    width = max(map(len, loaders))
    return "\n".join(f"  {name.ljust(width)}  {it.reads}" for name, it in loaders.items())
