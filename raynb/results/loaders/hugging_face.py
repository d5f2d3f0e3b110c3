"""Loader of directories that Hugging Face's save_pretrained wrote."""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raynb.errors import CheckpointError, RaynbError, UnsafeCheckpointError
from raynb.results.loaders.base import How
from raynb.results.loaders.safetensors import read_safetensors
from raynb.weights.devices import device_of
from raynb.weights.torch_file import first_line, printable, read_torch_file

_CONFIG = "config.json"
#: Files with weights, the first one there is read; an index names the files of a large model.
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class HuggingFaceLoader:
    """Builds the model with transformers, or gives its weights for a model that is there."""

    reads = "Hugging Face directories (config.json beside the weights)"

    def find(self, files: Sequence[str]) -> list[str]:
        configs = {posixpath.dirname(f) for f in files if posixpath.basename(f) == _CONFIG}
        weights = {posixpath.dirname(f) for f in files if posixpath.basename(f) in _WEIGHTS}
        return sorted(d or "." for d in configs & weights)

    def load(self, path: Path, how: How) -> Any:
        if not how.build:
            return _weights(path, how)
        try:
            import transformers
        except ImportError as error:
            raise CheckpointError(
                f"building the model of {how.shown} needs the package transformers, which is not "
                "installed",
                hint="pip install transformers; or give a model to load the weights into, "
                "into=model",
            ) from error
        try:
            model = _built(transformers, path, how)
        except RaynbError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"transformers can't build the model of {how.shown}: {first_line(error)}",
                hint="give a model to load the weights into, into=model",
            ) from error
        return model.to(device_of(how.map_location))


def _built(transformers: Any, path: Path, how: How) -> Any:
    settings = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    named = next(iter(settings.get("architectures") or ()), "")
    kind = getattr(transformers, named, None)
    # The model's own code, in files beside the weights: transformers' Auto classes find it there.
    own = settings.get("auto_map") or {}
    if own and kind is None:
        if not how.trusted:
            name = printable(str(named))
            raise UnsafeCheckpointError(
                f"{how.shown} brings the code of its model {name}, and it was not run",
                hint="give a model to load the weights into, into=model; or, if you trust where "
                "it comes from, trusted=True",
            )
        auto = next((k for k, v in own.items() if str(v).endswith(f".{named}")), "AutoModel")
        return getattr(transformers, auto).from_pretrained(
            path, trust_remote_code=True, local_files_only=True
        )
    # The weights are read here and handed over, so that no other way of reading them is taken.
    state = _weights(path, dataclasses.replace(how, map_location="cpu"))
    config = transformers.AutoConfig.from_pretrained(
        path, trust_remote_code=False, local_files_only=True
    )
    return (kind or transformers.AutoModel).from_pretrained(None, config=config, state_dict=state)


def _weights(path: Path, how: How) -> dict[str, Any]:
    name = next(n for n in _WEIGHTS if (path / n).is_file())
    if not name.endswith(".json"):
        return _read(path, name, how)
    shown = f"{how.shown}/{name}"
    try:
        index = json.loads((path / name).read_text(encoding="utf-8"))
        parts = sorted(set(map(str, index["weight_map"].values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{shown} is no index of weights ({type(error).__name__}: {error})"
        ) from error
    state: dict[str, Any] = {}
    for part in parts:
        # The index may be anybody's: its files lie beside it.
        if part != posixpath.basename(part) or not (path / part).is_file():
            raise CheckpointError(f"{shown} names a file that is not beside it: {printable(part)}")
        state |= _read(path, part, how)
    return state


def _read(path: Path, name: str, how: How) -> dict[str, Any]:
    how = dataclasses.replace(how, shown=f"{how.shown}/{name}")
    if name.endswith(".safetensors"):
        return read_safetensors(path / name, how)
    content = read_torch_file(
        path / name, shown=how.shown, map_location=how.map_location, trusted=how.trusted
    )
    if not isinstance(content, dict):
        raise CheckpointError(f"{how.shown} holds a {type(content).__name__}, not weights by name")
    return content
