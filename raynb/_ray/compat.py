"""Does the installed Ray have what raynb stands on? Asked by ``raynb doctor`` and the tests."""

from __future__ import annotations

import importlib

import ray
from ray.train.v2._internal.constants import V2_ENABLED_ENV_VAR, is_v2_enabled

#: Internals in use: where, what, and which methods or parameters must be there.
_NEEDED = (
    ("ray.train.v2._internal.execution.callback", "ControllerCallback",
     ("after_controller_start", "after_controller_state_update")),
    ("ray.train.v2._internal.execution.callback", "WorkerGroupCallback",
     ("before_worker_group_start", "after_worker_group_start")),
    ("ray.train.v2._internal.execution.controller", "TrainController", ("abort",)),
    ("ray.train.v2._internal.execution.worker_group.worker_group", "placement_group", ()),
    ("ray.train.v2._internal.execution.train_fn_utils", "TrainFnUtils",
     ("report", "get_dataset_shard")),
    ("ray.train.v2._internal.execution.train_fn_utils", "get_train_fn_utils", ()),
    ("ray.train.v2._internal.execution.train_fn_utils", "set_train_fn_utils", ()),
    ("ray.train.v2.torch.train_loop_utils", "prepare_data_loader", ()),
    ("ray.train.v2.torch.train_loop_utils", "prepare_model", ()),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", ()),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTERS_ENV_VAR", ()),
    ("ray._private.utils", "read_ray_address", ()),
    ("ray._private.state", "state", ("get_max_resources_from_cluster_config",)),
)  # fmt: skip


def problems() -> list[str]:
    """What the installed Ray lacks, one sentence each; empty when all is there."""
    found = []
    if not is_v2_enabled():
        found.append(
            f"Ray Train V2 is switched off: unset {V2_ENABLED_ENV_VAR} before Python starts"
        )
    for module_name, name, members in _NEEDED:
        try:
            owner = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError):
            found.append(f"Ray {ray.__version__} has no {module_name}.{name}")
            continue
        found += [
            f"Ray {ray.__version__} has no {module_name}.{name}.{member}"
            for member in members
            if not hasattr(owner, member)
        ]
    return found
