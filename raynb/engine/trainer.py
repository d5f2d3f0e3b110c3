"""From a spec to a TorchTrainer, and from a user's trainer to one that tells what it does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from raynb.engine.spec import RunSpec, filesystem_of
from raynb.worker.program import CellProgram, load_values, run_program
from raynb.worker.runtime import Link, TrainEntry


@dataclass
class CellFunction:
    """The cell as a train function that ships.

    Attributes
    ----------
    program : CellProgram
    payload : bytes
        The captured values that travel with it.
    large : ObjectRef or None
        A dict of the captured values that wait in the object store.
    """

    program: CellProgram
    payload: bytes
    large: Any = None

    def __call__(self, config: dict[str, Any]) -> Any:
        import ray

        # Arrays come from the node's shared memory: one copy a node, not one a rank.
        large = ray.get(self.large) if self.large is not None else {}
        return run_program(self.program, {**load_values(self.payload), **large}, config)


@dataclass
class TrainerMaker:
    """Makes the run's TorchTrainer where ``fit()`` is called, which spares the kernel torch.

    Attributes
    ----------
    spec : RunSpec
        Checked, with ``use_gpu`` decided.
    fn : callable
        The train function.
    program : CellProgram or None
        The cell it came from.
    link : Link
    """

    spec: RunSpec
    fn: Callable[..., Any]
    program: CellProgram | None
    link: Link

    def __call__(self) -> Any:
        return watched(self.plain(), self.link, self.program)

    def plain(self) -> Any:
        """The trainer without telemetry."""
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        spec = self.spec
        torch_config = TorchConfig(backend=spec.backend)
        if spec.timeout_s is not None:
            torch_config.timeout_s = spec.timeout_s
        scaling: dict[str, Any] = {
            "num_workers": spec.num_workers,
            "use_gpu": bool(spec.use_gpu),
            "placement_strategy": spec.placement_strategy,
        }
        if spec.resources_per_worker:
            scaling["resources_per_worker"] = spec.bundle
        if spec.accelerator_type:
            scaling["accelerator_type"] = spec.accelerator_type
        return TorchTrainer(
            self.fn,
            train_loop_config=dict(spec.config or {}),
            torch_config=torch_config,
            scaling_config=ray.train.ScalingConfig(**scaling),
            run_config=run_config_of(spec),
            datasets=spec.datasets or None,
        )


def run_config_of(spec: RunSpec) -> Any:
    """Ray Train's RunConfig of a spec: where a run is stored, and what is kept of it."""
    import ray.train

    checkpoints: dict[str, Any] = {"num_to_keep": spec.num_to_keep}
    if spec.best is not None:
        metric, mode = spec.best
        checkpoints |= {"checkpoint_score_attribute": metric, "checkpoint_score_order": mode}
    run_config: dict[str, Any] = {
        "name": spec.name,
        "storage_path": spec.storage_path,
        "failure_config": ray.train.FailureConfig(max_failures=spec.max_failures),
        "checkpoint_config": ray.train.CheckpointConfig(**checkpoints),
    }
    filesystem, root = filesystem_of(spec.storage_path)
    if isinstance(filesystem, pafs.PyFileSystem):
        # fsspec's: from the URI alone Ray could not make it.
        run_config |= {"storage_path": root, "storage_filesystem": filesystem}
    if spec.env:
        run_config["worker_runtime_env"] = {"env_vars": dict(spec.env)}
    return ray.train.RunConfig(**run_config)


@dataclass
class GivenTrainer:
    """A trainer that the user built, watched."""

    trainer: Any
    link: Link

    def __call__(self) -> Any:
        return watched(self.trainer, self.link, None)


def watched(trainer: Any, link: Link, program: CellProgram | None) -> Any:
    """A copy of ``trainer`` whose workers and controller tell the supervisor what they do."""
    trainer = copy.copy(trainer)
    fn = trainer.train_loop_per_worker
    trainer.train_loop_per_worker = TrainEntry(
        link, fn, program, getattr(fn, "__name__", "train_func")
    )
    # Ray hands a config only to a function that takes one; the entry always takes it.
    trainer.train_loop_config = trainer.train_loop_config or {}
    return trainer if link.local else told(trainer, link.supervisor)


def told(trainer: Any, supervisor: Any) -> Any:
    """A copy of ``trainer`` whose controller tells the supervisor what it does."""
    from raynb._ray import cluster
    from raynb._ray.controller import SupervisorCallback
    from raynb._ray.helpers import idle_helpers

    trainer = copy.copy(trainer)
    run_config = copy.copy(trainer.run_config)
    callbacks: Sequence[Any] = run_config.callbacks or []
    without = idle_helpers(
        trainer, one_machine=cluster.is_one_machine(), small=cluster.is_small_local()
    )
    run_config.callbacks = [*callbacks, SupervisorCallback(supervisor, without)]
    # Ray's workers get an environment of their own in any case; this one starts them faster.
    env = dict(run_config.worker_runtime_env or {})
    env["env_vars"] = {**cluster.faster_imports(), **env.get("env_vars", {})}
    run_config.worker_runtime_env = env
    trainer.run_config = run_config
    return trainer
