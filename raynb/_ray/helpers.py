"""Ray Train's helper actors that would have nothing to do in a run, and are not started for it.

Each is a process that imports Ray Train and Ray Data, some seconds of CPU time and 120 MB, beside
the workers that a start waits for. A controller puts their place here, in its own process.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

#: Splits the run's datasets.
DATASETS = "datasets"
#: Asks an autoscaler for nodes, and tells Ray Data what training takes.
COORDINATOR = "coordinator"
#: Removes the placement group after a controller that died.
CLEANER = "cleaner"


def idle_helpers(trainer: Any, *, one_machine: bool, small: bool) -> frozenset[str]:
    """The helpers that have nothing to do for a trainer.

    Parameters
    ----------
    trainer : ray.train.torch.TorchTrainer
    one_machine : bool
        The cluster is one node, and no other can come.
    small : bool
        The cluster is a small machine's, which ends with its kernel.

    Returns
    -------
    frozenset of str
    """
    found = set()
    if not trainer.datasets:
        found.add(DATASETS)
        if one_machine and isinstance(trainer.scaling_config.num_workers, int):
            found.add(COORDINATOR)
    if small:
        found.add(CLEANER)
    return frozenset(found)


def leave_out(helpers: Collection[str]) -> None:
    """Start none of these in the run whose controller this process is.

    Reason for the internals: no option leaves them out.
    """
    # Here, since ranks load this module too, for NoDatasets.
    import ray.train.v2._internal.callbacks.datasets as datasets_callback
    import ray.train.v2._internal.callbacks.placement_group_callback as cleaner_callback
    import ray.train.v2._internal.execution.scaling_policy.scaling_policy as scaling_policy

    if DATASETS in helpers:
        datasets_callback.RayDatasetShardProvider = NoDatasets
    if COORDINATOR in helpers:
        scaling_policy.TrainAutoscalingCoordinatorClient = NoCoordinator
    if CLEANER in helpers:
        cleaner_callback.PlacementGroupCleanerCallback.after_controller_start = _no_cleaner


class NoDatasets:
    """Stands for the provider of shards in a run that has no datasets."""

    def __init__(self, **_: Any) -> None:
        pass

    def get_dataset_shard(self, dataset_info: Any) -> Any:
        """Raise what Ray raises.

        Raises
        ------
        KeyError
        """
        raise KeyError(
            f"Dataset shard for '{dataset_info.dataset_name}' not found: the run has no datasets. "
            "Name them with --dataset, or pass them to the trainer"
        )

    def shutdown_data_executors(self) -> None:
        """Nothing is there to be shut down."""


class NoCoordinator:
    """Stands for the client of the autoscaling coordinator where nothing can be scaled."""

    def __init__(self, requester_id: str) -> None:
        pass

    def send_resource_request(self, scaling_config: Any, num_workers: int) -> None:
        """There is no more to be had."""

    def maybe_send_resource_request(self, scaling_config: Any, num_workers: int) -> None:
        """There is no more to be had."""

    def cancel_resource_request(self) -> None:
        """Nothing was asked for."""


def _no_cleaner(self: Any, train_run_context: Any) -> None:
    pass
