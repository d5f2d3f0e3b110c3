"""Reads checkpoints of torch.distributed.checkpoint without unpickling what could run code."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from raynb.errors import CheckpointError, RaynbError
from raynb.weights.devices import device_of
from raynb.weights.torch_file import first_line, printable, read_torch_file, refusal

METADATA = ".metadata"

#: All that the metadata is made of: data classes, enumerations and torch's own constants.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "collections": ("OrderedDict",),
    "pathlib": ("PosixPath", "WindowsPath", "PurePosixPath", "Path"),
}  # fmt: skip


class _Refused(pickle.UnpicklingError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _MetadataUnpickler(pickle.Unpickler):
    """Makes what ``_ALLOWED`` lists and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise _Refused(f"{module}.{name}")


class SafeReader(FileSystemReader):
    """Reads shards from a directory; of the metadata, a pickle, it takes plain data only.

    Parameters
    ----------
    path : str or path
        The checkpoint's directory.
    shown : str
        What messages call it.
    trusted : bool
        Unpickle whatever is there.
    """

    def __init__(self, path: str | os.PathLike[str], shown: str, trusted: bool = False) -> None:
        super().__init__(path)
        self._directory = Path(path)
        self._shown = shown
        self._trusted = trusted
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata, read once."""
        if self._metadata is None:
            self._metadata = self._read_metadata()
        return self._metadata

    def _read_metadata(self) -> Metadata:
        shown = f"{self._shown}/{METADATA}"
        try:
            with open(self._directory / METADATA, "rb") as stream:
                metadata = self._unpickled(stream)
        except _Refused as error:
            raise refusal(shown, error.name) from error
        except FileNotFoundError:
            raise CheckpointError(f"{shown} does not exist") from None
        except Exception as error:
            raise CheckpointError(
                f"{shown} can't be read: it is cut off or damaged ({first_line(error)})"
            ) from error
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, Mapping):
            raise CheckpointError(
                f"{shown} holds no metadata of torch.distributed.checkpoint, but a "
                f"{type(metadata).__name__}"
            )
        for info in metadata.storage_data.values():
            self._check_inside(str(info.relative_path))
        return metadata

    def _unpickled(self, stream: IO[bytes]) -> Any:
        return pickle.load(stream) if self._trusted else _MetadataUnpickler(stream).load()

    def _check_inside(self, name: str) -> None:
        """Names in the metadata may be anybody's: a shard lies in the checkpoint's directory."""
        root = self._directory.resolve()
        if not (root / name).resolve().is_relative_to(root):
            raise CheckpointError(
                f"{self._shown} names a file outside of itself: {printable(name)}"
            )


class SafePlanner(DefaultLoadPlanner):
    """Reads what is no tensor weights only, where torch's own planner unpickles it."""

    def __init__(self, shown: str, trusted: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self._shown = shown
        self._trusted = trusted

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        data = read_torch_file(
            value, shown=f"{self._shown} ({printable(name)})", trusted=self._trusted
        )
        checked = io.BytesIO()
        torch.save(data, checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)


def read_sharded(
    path: str | os.PathLike[str], *, shown: str, map_location: Any = "cpu", trusted: bool = False
) -> dict[str, Any]:
    """Read a whole sharded checkpoint into this process.

    Returns
    -------
    dict
        Nested as it was saved, with whole tensors.

    Raises
    ------
    UnsafeCheckpointError
        When it holds more than weights and ``trusted`` is False. None of its code ran.
    CheckpointError
        When it can't be read.
    """
    device = device_of(map_location)
    reader = SafeReader(path, shown, trusted)
    metadata = reader.read_metadata()
    flat: dict[str, Any] = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        if isinstance(meta, TensorStorageMetadata)
        else None
        for name, meta in metadata.state_dict_metadata.items()
    }
    planner = SafePlanner(shown, trusted, flatten_state_dict=False, flatten_sharded_tensors=False)
    load_shards(flat, reader, planner, shown=shown, alone=True)
    if device.type != "cpu":
        flat = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in flat.items()}
    paths = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
    return _nested(flat, paths)


def load_shards(
    state: dict[str, Any], reader: SafeReader, planner: SafePlanner, *, shown: str, alone: bool
) -> None:
    """``dcp.load`` with its errors told in one sentence.

    Parameters
    ----------
    state : dict
        What is filled.
    reader : SafeReader
    planner : SafePlanner
    shown : str
    alone : bool
        Whether only this process loads, rather than every rank its part.
    """
    try:
        with warnings.catch_warnings():
            # "torch.distributed is disabled, unavailable or uninitialized": as is meant.
            warnings.filterwarnings("ignore", message="torch.distributed is")
            load(state, storage_reader=reader, planner=planner, no_dist=alone)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if isinstance(cause, RaynbError):
            raise cause from None
        if isinstance(cause, FileNotFoundError):
            raise CheckpointError(f"{shown} lacks the shard {cause.filename}") from error
        raise CheckpointError(
            f"{shown} can't be read: a shard is cut off or damaged, or something else was saved "
            f"({first_line(cause)})"
        ) from error


def _nested(flat: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """What was flattened into dotted names, as it was: keys are names, and numbers in lists."""
    root: dict[Any, Any] = {}
    for name, value in flat.items():
        *steps, last = paths.get(name) or (name,)
        part = root
        for step in steps:
            part = part.setdefault(step, {})
        part[last] = value
    return {name: _with_lists(value) for name, value in root.items()}


def _with_lists(value: Any) -> Any:
    """Dicts whose keys count from 0 are lists: only lists are flattened into numbers."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(part) for key, part in value.items()}
    if inner and all(type(key) is int for key in inner) and sorted(inner) == [*range(len(inner))]:
        return [inner[n] for n in range(len(inner))]
    return inner
