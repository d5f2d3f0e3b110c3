"""The engine from Python: train a function, a cell or a trainer, watched."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from raynb._version import __version__
from raynb.engine.alive import refuse_running
from raynb.engine.capture import Capture
from raynb.engine.collector import RunFacts
from raynb.engine.hints.previous import function_key, previous, remember
from raynb.engine.preflight import (
    check_accelerator,
    check_resources,
    check_this_machine,
    choose_gpu,
)
from raynb.engine.spec import RAYNB_DIR, RunSpec, absolute_storage, check_storage, filesystem_of
from raynb.errors import OptionError
from raynb.panel.views import close_view, open_view
from raynb.worker.program import CellProgram, load_values, run_program
from raynb.worker.runtime import Link

MakeTrainer = Callable[[Link], Callable[[], Any]]
#: The module that a kernel with warm workers has imported; without them it is not needed.
_WARM = "raynb.engine.warm.group"


def train(
    train_func: Callable[..., Any],
    *,
    config: dict[str, Any] | None = None,
    num_workers: int | tuple[int, int] = 1,
    use_gpu: bool | None = None,
    resources_per_worker: dict[str, float] | None = None,
    placement_strategy: str = "PACK",
    accelerator_type: str | None = None,
    name: str = "",
    storage_path: str = "",
    max_failures: int = 0,
    num_to_keep: int | None = None,
    best: tuple[str, str] | None = None,
    resume: Any = None,
    datasets: dict[str, Any] | None = None,
    backend: str | None = None,
    timeout_s: int | None = None,
    env: dict[str, str] | None = None,
    warm: bool | None = None,
    block: bool = True,
    show: bool = True,
    echo: bool = False,
) -> Any:
    """Train a function on a Ray worker group and watch it.

    Parameters
    ----------
    train_func : callable
        Takes the config or nothing; what ``TorchTrainer(train_func)`` would run.
    config : dict, optional
        What ``train_func`` gets.
    num_workers : int or (int, int)
        Workers; a pair is elastic; 0 runs in this process.
    use_gpu : bool, optional
        By default GPUs are used when the cluster has one for each worker.
    resources_per_worker, placement_strategy, accelerator_type
        As in ``ray.train.ScalingConfig``.
    name, storage_path : str
        As in ``ray.train.RunConfig``; a relative path is made absolute.
    max_failures : int
        As in ``ray.train.FailureConfig``.
    num_to_keep : int, optional
    best : (metric, mode), optional
        As ``checkpoint_score_attribute`` and ``checkpoint_score_order`` of
        ``ray.train.CheckpointConfig``.
    resume : RunResult, ray.train.Checkpoint, str or path, optional
        What :func:`raynb.resume` goes on from at the run's start; of a result or of a run's
        directory the latest checkpoint.
    datasets : dict of str to ray.data.Dataset, optional
    backend, timeout_s
        As in ``ray.train.torch.TorchConfig``.
    env : dict of str to str, optional
        Environment variables of the workers.
    warm : bool, optional
        True: on the warm workers of :mod:`raynb.workers` or not at all; False: on workers of its
        own. By default on the warm ones where they are up and have what is asked for.
    block : bool
        False returns the :class:`~raynb.engine.run.Run` at once.
    show : bool
        Show the live panel, or in a terminal a live text view.
    echo : bool
        Print the workers' output here as well.

    Returns
    -------
    RunResult or Run

    Raises
    ------
    OptionError, CheckpointError, StorageError, ResourceError, CaptureError
        Before anything starts.
    TrainingError
        When training failed; its ``result`` has what was reached.
    """
    _check_function(train_func)
    spec = RunSpec(
        name=name,
        num_workers=num_workers,
        use_gpu=use_gpu,
        resources_per_worker=dict(resources_per_worker or {}),
        placement_strategy=placement_strategy,
        accelerator_type=accelerator_type,
        config=config,
        storage_path=storage_path,
        max_failures=max_failures,
        num_to_keep=num_to_keep,
        best=best,
        resume=resume,
        datasets=dict(datasets or {}),
        backend=backend,
        timeout_s=timeout_s,
        env=dict(env or {}),
        warm=warm,
    ).check()
    if not spec.local:
        _check_ships(train_func)
    run = _start_spec(spec, train_func, None, block=block, show=show, echo=echo)
    return run.wait() if block else run


def fit(trainer: Any, *, block: bool = True, show: bool = True, echo: bool = False) -> Any:
    """``trainer.fit()``, watched: for any Ray Train trainer that runs a train function.

    Parameters
    ----------
    trainer : ray.train.torch.TorchTrainer, another data-parallel trainer, or ray.tune.Tuner
        Its configs are used as they are; it is not changed.
    block, show, echo : bool
        As for :func:`train`.

    Returns
    -------
    RunResult or Run
        For a Tuner, TuneResult or Search.

    Raises
    ------
    OptionError
        When ``trainer`` is none of Ray Train V2's data-parallel trainers.
    StorageError, ResourceError
        Before anything starts.
    TrainingError
        When training failed.
    """
    from raynb.engine.trainer import GivenTrainer

    tune = sys.modules.get("ray.tune")
    if tune is not None and isinstance(trainer, tune.Tuner):
        from raynb.api_tune import fit_tuner

        return fit_tuner(trainer, block=block, show=show, echo=echo)
    if not all(
        hasattr(trainer, a) for a in ("train_loop_per_worker", "scaling_config", "run_config")
    ):
        raise OptionError(
            f"raynb.fit takes a Ray Train trainer, not {type(trainer).__name__}",
            hint="for example ray.train.torch.TorchTrainer(train_func, …)",
        )
    scaling, given = trainer.scaling_config, trainer.run_config
    check_filesystem(given, "run")
    checkpoints = given.checkpoint_config
    score = checkpoints.checkpoint_score_attribute
    spec = RunSpec(
        name=given.name,
        num_workers=scaling.num_workers,
        use_gpu=bool(scaling.use_gpu),
        resources_per_worker=dict(scaling.resources_per_worker or {}),
        placement_strategy=scaling.placement_strategy,
        accelerator_type=scaling.accelerator_type,
        config=trainer.train_loop_config,
        storage_path=absolute_storage(given.storage_path),
        max_failures=given.failure_config.max_failures,
        num_to_keep=checkpoints.num_to_keep,
        best=(score, checkpoints.checkpoint_score_order) if score else None,
    )
    check_storage(spec.storage_path, spec.name)
    run = _start(
        spec,
        lambda link: GivenTrainer(trainer, link),
        _summary(spec, None),
        function_key(trainer.train_loop_per_worker, None),
        block=block,
        show=show,
        echo=echo,
    )
    return run.wait() if block else run


def run_cell(
    spec: RunSpec,
    capture: Capture,
    *,
    background: bool = False,
    echo: bool = False,
) -> Any:
    """Start a captured cell; the magics' way in.

    Parameters
    ----------
    spec : RunSpec
        Checked.
    capture : Capture
    background : bool
        The cell will not wait for the run.
    echo : bool

    Returns
    -------
    Run
    """
    return _start_spec(spec, None, capture, block=not background, show=True, echo=echo)


# -- inside --------------------------------------------------------------------------------------


def check_filesystem(run_config: Any, what: str) -> None:
    """Refuse a user's RunConfig whose storage raynb could not find again by its address."""
    if run_config.storage_filesystem is not None:
        raise OptionError(
            f"raynb.fit can't watch a {what} with storage_filesystem set",
            hint="give storage_path as a URI that pyarrow knows, such as s3://bucket/path",
        )


def _start_spec(
    spec: RunSpec,
    fn: Callable[..., Any] | None,
    capture: Capture | None,
    *,
    block: bool,
    show: bool,
    echo: bool,
) -> Any:
    program: CellProgram | None = capture.program if capture is not None else None

    def make(link: Link) -> Callable[[], Any]:
        from raynb.engine.trainer import CellFunction, TrainerMaker

        if capture is None:
            assert fn is not None
            return TrainerMaker(spec, fn, None, link)
        if link.local:
            values = {**load_values(capture.payload), **capture.large}

            def run_here(config: dict[str, Any]) -> object:
                return run_program(capture.program, values, config, replace_main=False)

            return TrainerMaker(spec, run_here, program, link)
        large = None
        if capture.large:
            import ray

            large = ray.get(link.supervisor.adopt.remote(capture.large))[0]
        return TrainerMaker(
            spec, CellFunction(capture.program, capture.payload, large), program, link
        )

    key = function_key(fn, program.source if program is not None else None)
    summary = _summary(spec, capture)
    if not spec.local and (spec.warm or (spec.warm is None and _WARM in sys.modules)):
        from raynb import workers

        found = workers.start_job(
            spec,
            lambda: _new_run(spec, summary, key, block=block),
            capture or fn,
            show=show,
            echo=echo,
        )
        if not isinstance(found, str):
            return found
        summary["workers_note"] = found
    return _start(spec, make, summary, key, block=block, show=show, echo=echo)


def _start(
    spec: RunSpec,
    make: MakeTrainer,
    summary: dict[str, Any],
    function: str,
    *,
    block: bool,
    show: bool,
    echo: bool,
) -> Any:
    """Start a run: preflight, Ray, supervisor, trainer."""
    run = _new_run(spec, summary, function, block=block)
    if spec.local:
        return _start_local(run, spec, make, show=show, echo=echo)
    return launch(run, spec, make, show=show, echo=echo)


def launch(
    run: Any,
    spec: RunSpec,
    make: MakeTrainer,
    *,
    show: bool,
    echo: bool,
    check: bool = True,
    env: dict[str, str] | None = None,
    supervisor: Any = None,
) -> Any:
    """Start on the cluster what a handle stands for.

    Parameters
    ----------
    run : Run
    spec : RunSpec
    make : callable
        Gives what the supervisor calls for the trainer or Tuner.
    show, echo : bool
    check : bool
        Whether the spec has the request; that of a user's own Tuner is not known.
    env : dict of str to str, optional
        Settings of the supervisor's process, besides Ray Train's.
    supervisor : ActorClass, optional
        :data:`raynb.engine.supervisor.Supervisor` by default.

    Returns
    -------
    Run
        The same, watching.
    """
    from raynb._ray import cluster
    from raynb.engine.run import RemoteBackend
    from raynb.engine.supervisor import Supervisor

    found = cluster.connect()
    if not found and check:
        check_this_machine(spec)
    if show:
        open_view(run, echo=echo)
    try:
        if not found:
            kind = "a small" if cluster.is_small_machine() else "a local"
            run.tell("starting_ray", f"{kind} cluster that ends with this kernel")
            cluster.start_local()
        waiting = ""
        if check:
            waiting = _check_cluster(spec)
            # Whether GPUs are used is decided now.
            run.facts.summary["options"] = spec.summary()
        run.tell("waiting" if waiting else "starting_workers", waiting or "starting the supervisor")
        settings = {**_ray_train_env(), **(env or {})}
        backend = RemoteBackend.start(run.facts, settings, supervisor or Supervisor)
        try:
            backend.actor.start.remote(make(_link(spec, backend.actor)))
        except BaseException:
            backend.kill()
            raise
    except BaseException as error:
        run.abandon(error)
        close_view(run)
        raise
    run.when_done(lambda: close_view(run))
    run.attach(backend)
    return run


def _new_run(spec: RunSpec, summary: dict[str, Any], function: str, *, block: bool) -> Any:
    from raynb.engine.run import Run
    from raynb.results.run_result import RunResult

    summary["previous"] = previous(function)
    facts = RunFacts(spec.name, spec.run_path, spec.best, spec.bundle, summary)
    run = Run(facts, RunResult.of, blocking=block)
    run.when_done(lambda: remember(function, run.result.record))
    return run


def _start_local(run: Any, spec: RunSpec, make: MakeTrainer, *, show: bool, echo: bool) -> Any:
    from raynb.engine.local import LocalCollector, fit_here
    from raynb.engine.run import LocalBackend

    refuse_running(spec.run_path, spec.name)
    collector = LocalCollector(run.facts, spec.num_to_keep)
    backend = LocalBackend(collector)
    if show:
        open_view(run, echo=echo)
    run.when_done(lambda: close_view(run))
    run.attach(backend)
    backend.ended, raised = fit_here(make(_link(spec, collector)), collector)
    run.finish_local(raised)
    return run


def _check_cluster(spec: RunSpec, *, stores: bool = True) -> str:
    """Compare the request with the cluster; returns why it has to wait, if it has."""
    import ray

    from raynb._ray import cluster
    from raynb.engine.nodes import check_nodes

    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    limits = cluster.autoscaling_limits()
    spec.use_gpu = choose_gpu(spec, limits or ray.cluster_resources())
    if len(nodes) > 1:
        check_nodes(spec, stores=stores)
    check_accelerator(spec, nodes, limits)
    return check_resources(spec, nodes, ray.available_resources(), limits)


def _link(spec: RunSpec, supervisor: Any) -> Link:
    filesystem, path = filesystem_of(spec.run_path)
    logs = f"{path}/{RAYNB_DIR}/logs"
    remote = "://" in spec.run_path
    return Link(
        run=spec.name,
        supervisor=supervisor,
        cwd=os.getcwd(),
        log_dir=None if remote else logs,
        remote_log_dir=(filesystem, logs) if remote else None,
        num_cpus=spec.bundle.get("CPU", 1.0),
        local=spec.local,
        resume=spec.resume,
    )


def _ray_train_env() -> dict[str, str]:
    """Ray Train's settings in this process: its docs promise that the driver's count."""
    from raynb._ray import cluster

    prefixes = ("RAY_TRAIN_", "RAY_CHDIR_TO_TRIAL_DIR", "TORCHFT_", "NCCL_RAS_")
    env = {k: v for k, v in os.environ.items() if k.startswith(prefixes)}
    if cluster.is_one_machine():
        # It has no node to lose and go on without: one process less to start.
        env.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    return env


def _summary(spec: RunSpec, capture: Capture | None) -> dict[str, Any]:
    return {
        "submitted": time.time(),
        "options": spec.summary(),
        "capture": [vars(c) for c in capture.table] if capture is not None else None,
        "source": capture.program.source.strip("\n") if capture is not None else None,
        "label": capture.program.label if capture is not None else None,
        "versions": {
            "python": sys.version.split()[0],
            "raynb": __version__,
            **{p: _version(p) for p in ("ray", "torch")},
        },
    }


@functools.cache
def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "n/a"


def _check_function(fn: Any) -> None:
    import inspect

    if not callable(fn):
        raise OptionError(f"train_func must be callable, not {type(fn).__name__}")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    required = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) > 1:
        name = getattr(fn, "__name__", "train_func")
        raise OptionError(
            f"{name} takes {len(required)} arguments ({', '.join(required)}); a train function "
            "takes the config or nothing",
            hint="put what it needs into config",
        )


def _check_ships(fn: Any) -> None:
    """Check that a function pickles, and name what keeps it from it."""
    import io

    from ray import cloudpickle

    try:
        cloudpickle.dumps(fn)
    except Exception as error:
        from ray.util import inspect_serializability

        from raynb.errors import CaptureError

        _, found = inspect_serializability(fn, name="train_func", print_file=io.StringIO())
        names = "\n".join(f"  {f.name} ({type(f.obj).__name__})" for f in found)
        raise CaptureError(
            f"the train function can't be sent to the workers: {error}",
            detail=names,
            hint="create these inside the function",
            topic="unpicklable",
        ) from error
