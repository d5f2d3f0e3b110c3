"""Stands before the package of this name in Ray's processes and loads it when it is used.

JupyterLab brings rfc3987_syntax along, jsonschema takes it in where it is installed, Ray imports
jsonschema, and the package compiles a grammar when it is imported: a second of CPU time in each
process that Ray starts, nine of them for a run of two workers, and none that ever checks an IRI.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_spec = importlib.machinery.PathFinder.find_spec(
    __name__, [p for p in sys.path if os.path.abspath(p) != _HERE]
)
if _spec is None or _spec.loader is None:
    raise ImportError(f"no package {__name__} is installed", name=__name__)
_real: ModuleType | None = None
# Its submodules are found where they are.
__path__ = list(_spec.submodule_search_locations or [])


def _load() -> ModuleType:
    """Put the real package in this one's place."""
    global _real
    if _real is not None:
        return _real
    assert _spec is not None and _spec.loader is not None
    real = _real = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = real
    _spec.loader.exec_module(real)
    return real


def is_valid_syntax(*args: Any, **kwargs: Any) -> Any:
    """What jsonschema imports by name; a call loads the real one."""
    return _load().is_valid_syntax(*args, **kwargs)


def __getattr__(name: str) -> Any:
    # Dunders are asked for by the import system and by inspection: no reason to load it.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_load(), name)
