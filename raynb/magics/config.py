"""RayNB: the defaults that ``%config RayNB`` shows and changes."""

from __future__ import annotations

import keyword
from typing import Any

from traitlets import Bool, Enum, Float, Int, TraitError, Tuple, Unicode, Union, validate
from traitlets.config import Configurable

from raynb.engine.spec import BACKENDS, PLACEMENT_STRATEGIES


class RayNB(Configurable):
    """Defaults of raynb's magics; an option in a magic line overrides them."""

    num_workers = Union(
        [Int(), Tuple(Int(), Int())],
        default_value=1,
        help="Workers of a run, or (min, max) of an elastic group.",
    ).tag(config=True)
    gpu = Bool(
        None,
        allow_none=True,
        help="One GPU a worker or none; None takes GPUs if the cluster has enough.",
    ).tag(config=True)
    placement_strategy = Enum(
        PLACEMENT_STRATEGIES, "PACK", help="How workers are spread over nodes."
    ).tag(config=True)
    backend = Enum(
        BACKENDS, None, allow_none=True, help="torch.distributed's backend; None: Ray chooses."
    ).tag(config=True)
    timeout_s = Int(
        None, min=1, allow_none=True, help="Seconds a collective may take; None: Ray's default."
    ).tag(config=True)
    storage_path = Unicode(
        "", help="A directory or URI for runs; empty for Ray's default, ~/ray_results."
    ).tag(config=True)
    max_failures = Int(0, min=-1, help="Restarts from the latest checkpoint; -1 for no limit.").tag(
        config=True
    )
    num_to_keep = Int(
        None, min=1, allow_none=True, help="Checkpoints to keep; None keeps all."
    ).tag(config=True)
    out = Unicode("result", help="The variable that gets the result.").tag(config=True)
    echo = Bool(False, help="Print the workers' output below the panel as well.").tag(config=True)
    capture_limit_mib = Float(
        50.0,
        min=0.0,
        help="MiB above which a variable of the notebook travels through Ray's object store.",
    ).tag(config=True)

    workers_idle_minutes = Float(
        30.0, min=0.02, help="Minutes without a run after which warm workers end."
    ).tag(config=True)

    @validate("num_workers")
    def _check_num_workers(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        least, most = value if isinstance(value, tuple) else (value, value)
        if not 1 <= least <= most:
            raise TraitError(
                f"num_workers must be at least 1, or (min, max) with 1 <= min <= max: {value!r}"
            )
        return value

    @validate("out")
    def _check_out(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if not value.isidentifier() or keyword.iskeyword(value):
            raise TraitError(f"out must be a variable's name, not {value!r}")
        return value
