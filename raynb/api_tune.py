"""Searches from Python: tune a function, a cell or a user's Tuner, watched."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from raynb import api
from raynb.engine.capture import Capture
from raynb.engine.collector import RunFacts
from raynb.engine.preflight import fits
from raynb.engine.spec import absolute_storage, check_storage, default_storage, join_storage
from raynb.tuning.spec import Criterion, TuneSpec
from raynb.worker.runtime import Link

MakeTuner = Callable[[Link], Callable[[], Any]]


def tune(
    train_func: Callable[..., Any],
    space: dict[str, Any],
    *,
    metric: str,
    mode: str,
    num_samples: int | None = None,
    scheduler: str = "none",
    scheduler_args: dict[str, Any] | None = None,
    search: str = "random",
    max_concurrent: int | None = None,
    time_budget_s: float | None = None,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
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
    resume: Any = None,
    datasets: dict[str, Any] | None = None,
    backend: str | None = None,
    timeout_s: int | None = None,
    env: dict[str, str] | None = None,
    block: bool = True,
    show: bool = True,
    echo: bool = False,
) -> Any:
    """Search for the config with which a train function does best, and watch it.

    Parameters
    ----------
    train_func : callable
        Takes the config; reports with ``ray.train.report``, ``ray.tune.report`` or
        :func:`raynb.log`.
    space : dict
        Names to ``ray.tune`` domains, such as ``{"lr": tune.loguniform(1e-4, 1e-1)}``.
    metric : str
        What is tuned; every report has it.
    mode : str
        ``min`` or ``max``.
    num_samples : int, optional
        Trials, or repetitions of a grid; by default 1 for a grid alone, else 10.
    scheduler : str
        ``asha``, ``median``, ``pbt``, ``hyperband`` or ``none``.
    scheduler_args : dict, optional
        Its own options, as Ray Tune's class takes them.
    search : str
        ``random``, ``grid``, ``optuna``, ``hyperopt`` or ``bohb``; the last three need their
        packages.
    max_concurrent : int, optional
        Trials at a time; by default what the cluster holds.
    time_budget_s : float, optional
        Seconds after which the search ends.
    stop : str or sequence of str
        ``"val_accuracy>=0.95"``: a trial ends when it is met.
    seed : int, optional
        Draws the same values again.
    config : dict, optional
        Values that are the same in every trial.
    num_workers : int or (int, int)
        Workers of each trial; with two or more, each trial is a ``TorchTrainer``.
    resume : TuneResult, str or path, optional
        A search, or its directory, that goes on where it was stopped.
    use_gpu, resources_per_worker, placement_strategy, accelerator_type, name, storage_path, \
max_failures, num_to_keep, datasets, backend, timeout_s, env, block, show, echo
        As for :func:`raynb.train`, for each trial.

    Returns
    -------
    TuneResult or Search

    Raises
    ------
    OptionError, StorageError, ResourceError, CaptureError
        Before anything starts.
    TrainingError
        When no trial worked, or none reports the metric.
    """
    api._check_function(train_func)
    spec = TuneSpec(
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
        resume=resume,
        datasets=dict(datasets or {}),
        backend=backend,
        timeout_s=timeout_s,
        env=dict(env or {}),
        space=space,
        metric=metric,
        mode=mode,
        num_samples=num_samples,
        scheduler=scheduler,
        scheduler_args=dict(scheduler_args or {}),
        search=search,
        max_concurrent=max_concurrent,
        time_budget_s=time_budget_s,
        stop=tuple(map(Criterion.parse, [stop] if isinstance(stop, str) else stop)),
        seed=seed,
    ).check()
    api._check_ships(train_func)
    started = _start_spec(spec, train_func, None, block=block, show=show, echo=echo)
    return started.wait() if block else started


def tune_cell(
    spec: TuneSpec, capture: Capture, *, background: bool = False, echo: bool = False
) -> Any:
    """Start the search with a captured cell; the magics' way in.

    Returns
    -------
    Search
    """
    return _start_spec(spec, None, capture, block=not background, show=True, echo=echo)


def fit_tuner(tuner: Any, *, block: bool, show: bool, echo: bool) -> Any:
    """``tuner.fit()``, watched; see :func:`raynb.fit`."""
    from raynb._ray.tune import tuner_parts
    from raynb.tuning import space as spaces
    from raynb.tuning.tuner import GivenTuner

    parts = tuner_parts(tuner)
    run_config, tune_config = parts["run_config"], parts["tune_config"]
    api.check_filesystem(run_config, "search")
    storage = absolute_storage(run_config.storage_path or default_storage())
    check_storage(storage, run_config.name)
    space = parts["param_space"] or {}
    scheduler = tune_config.scheduler
    search = tune_config.search_alg
    facts = {
        "metric": tune_config.metric,
        "mode": tune_config.mode,
        "num_samples": tune_config.num_samples,
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "search": None if search is None else type(search).__name__,
        "max_concurrent": tune_config.max_concurrent_trials,
        "time_budget_s": tune_config.time_budget_s,
        "params": [spaces.describe(name, value) for name, value in spaces.leaves(space)],
    }
    spec = TuneSpec(name=run_config.name, storage_path=storage)
    options = {k: v for k, v in facts.items() if k != "params"}
    summary = {
        **api._summary(spec, None),
        "options": {"name": spec.name, "storage_path": storage, **options},
    }
    started = _start(
        spec,
        lambda link: GivenTuner(parts, link),
        summary,
        facts,
        block=block,
        show=show,
        echo=echo,
    )
    return started.wait() if block else started


# -- inside --------------------------------------------------------------------------------------


def _start_spec(
    spec: TuneSpec,
    fn: Callable[..., Any] | None,
    capture: Capture | None,
    *,
    block: bool,
    show: bool,
    echo: bool,
) -> Any:
    from raynb.engine.trainer import CellFunction
    from raynb.tuning.tuner import TunerMaker

    def make(link: Link) -> Callable[[], Any]:
        import ray

        concurrent = _at_a_time(spec)
        train_env = api._ray_train_env() if spec.distributed else {}
        if capture is None:
            assert fn is not None
            return TunerMaker(spec, fn, None, link, calls_report(fn), concurrent, train_env)
        large = None
        if capture.large:
            large = ray.get(link.supervisor.adopt.remote(capture.large))[0]
        program = capture.program
        cell = CellFunction(program, capture.payload, large)
        sources = [program.source, *(c.source for c in program.other_cells)]
        reports = True if any(map(_has_report, sources)) else None
        return TunerMaker(spec, cell, program, link, reports, concurrent, train_env)

    summary = api._summary(spec, capture)
    return _start(spec, make, summary, spec.facts(), block=block, show=show, echo=echo)


def _start(
    spec: TuneSpec,
    make: MakeTuner,
    summary: dict[str, Any],
    search: dict[str, Any],
    *,
    block: bool,
    show: bool,
    echo: bool,
) -> Any:
    """Start a search: preflight, Ray, supervisor, Tuner."""
    from raynb.results.tune.result import TuneResult
    from raynb.tuning.search import Search
    from raynb.tuning.supervisor import Supervisor

    path = join_storage(spec.storage_path, spec.name)
    facts = RunFacts(spec.name, path, None, {}, {**summary, "search": search})
    run = Search(facts, TuneResult.of, blocking=block)
    own = bool(spec.metric)  # a user's Tuner has no request that could be compared
    return api.launch(
        run,
        spec,
        make,
        show=show,
        echo=echo,
        check=own,
        env=_tune_env(spec) if own else None,
        supervisor=Supervisor,
    )


def _tune_env(spec: TuneSpec) -> dict[str, str]:
    # raynb's own check names what was reported, and does not end in the middle.
    env = {"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"}
    if spec.num_samples == -1:
        # Else Tune draws 200 trials ahead of what runs, which then never start.
        env["TUNE_MAX_PENDING_TRIALS_PG"] = "1"
    return env


def _at_a_time(spec: TuneSpec) -> int | None:
    """How many worker groups the cluster holds: Tune does not see what a trial's group needs."""
    if not spec.distributed:
        return None
    import ray

    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    group = spec.min_workers
    workers = fits(spec.bundle, 100_000, nodes, "PACK") if spec.bundle else group
    possible = max(1, workers // group)
    return min(possible, spec.max_concurrent) if spec.max_concurrent else possible


def calls_report(fn: Callable[..., Any]) -> bool | None:
    """Whether a function's own source calls a ``report``; None when nothing tells that it does."""
    try:
        source = textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):
        return None
    return True if _has_report(source) else None


def _has_report(source: str) -> bool:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    names = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    return "report" in names
