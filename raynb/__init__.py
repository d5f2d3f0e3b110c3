"""raynb: distributed PyTorch training on Ray from a notebook cell, with a live panel.

``%load_ext raynb`` brings the magics ``%%distributed_train`` and ``%%distributed_tune``;
:func:`train`, :func:`tune` and :func:`fit` do the same from Python, and :func:`log` records metrics
inside a train function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raynb._version import __version__

if TYPE_CHECKING:
    from raynb import workers
    from raynb.api import fit, train
    from raynb.api_attach import attach
    from raynb.api_tune import tune
    from raynb.engine.run import Run
    from raynb.errors import CheckpointError, RaynbError, TrainingError, UnsafeCheckpointError
    from raynb.magics.loading import load_ipython_extension, unload_ipython_extension
    from raynb.results.compare import compare
    from raynb.results.loaders import load_checkpoint
    from raynb.results.open import open
    from raynb.results.run_result import RunResult
    from raynb.results.runs import runs
    from raynb.results.tune.result import TuneResult
    from raynb.tuning.search import Search
    from raynb.worker.checkpoints import checkpoint, resume
    from raynb.worker.runtime import log

#: Where each public name lives. Workers import raynb too, and they need neither IPython nor
#: widgets, so nothing is imported before it is asked for.
_HOMES = {
    "train": "raynb.api",
    "fit": "raynb.api",
    "attach": "raynb.api_attach",
    "tune": "raynb.api_tune",
    "log": "raynb.worker.runtime",
    "checkpoint": "raynb.worker.checkpoints",
    "resume": "raynb.worker.checkpoints",
    "load_checkpoint": "raynb.results.loaders",
    "open": "raynb.results.open",
    "runs": "raynb.results.runs",
    "compare": "raynb.results.compare",
    "Run": "raynb.engine.run",
    "RunResult": "raynb.results.run_result",
    "Search": "raynb.tuning.search",
    "TuneResult": "raynb.results.tune.result",
    "CheckpointError": "raynb.errors",
    "RaynbError": "raynb.errors",
    "TrainingError": "raynb.errors",
    "UnsafeCheckpointError": "raynb.errors",
    "load_ipython_extension": "raynb.magics.loading",
    "unload_ipython_extension": "raynb.magics.loading",
}

#: Public modules, imported when they are asked for.
_MODULES = {"workers": "raynb.workers"}

__all__ = [
    "CheckpointError",
    "RaynbError",
    "Run",
    "RunResult",
    "Search",
    "TrainingError",
    "TuneResult",
    "UnsafeCheckpointError",
    "__version__",
    "attach",
    "checkpoint",
    "compare",
    "fit",
    "load_checkpoint",
    "load_ipython_extension",
    "log",
    "open",
    "resume",
    "runs",
    "train",
    "tune",
    "unload_ipython_extension",
    "workers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'raynb' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
