"""Warm workers from Python: ``raynb.workers.up()``, ``status()``, ``restart()``, ``down()``."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raynb.engine.spec import RunSpec
from raynb.errors import OptionError, ResourceError

if TYPE_CHECKING:
    from raynb.engine.run import Run
    from raynb.engine.warm.group import WarmGroup
    from raynb.engine.warm.job import Plan

__all__ = ["down", "restart", "status", "up"]

#: Seconds without a job after which warm workers end, unless told otherwise.
IDLE_S = 1800.0


def up(
    num_workers: int = 1,
    *,
    use_gpu: bool | None = None,
    resources_per_worker: dict[str, float] | None = None,
    placement_strategy: str = "PACK",
    accelerator_type: str | None = None,
    backend: str | None = None,
    timeout_s: int | None = None,
    env: dict[str, str] | None = None,
    idle_timeout: float = IDLE_S,
) -> dict[str, Any]:
    """Start warm workers: :func:`raynb.train` and the magics run on them, without starting others.

    Parameters
    ----------
    num_workers, use_gpu, resources_per_worker, placement_strategy, accelerator_type
        As for :func:`raynb.train`; the number is fixed.
    backend, timeout_s, env
        As for :func:`raynb.train`.
    idle_timeout : float
        Seconds without a run after which they end and free what they hold.

    Returns
    -------
    dict
        What :func:`status` gives.

    Raises
    ------
    OptionError
        When warm workers of another shape are up, or an option can't be used.
    ResourceError
        When the cluster can't hold them, or they could not be started.
    """
    return start(
        RunSpec(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources_per_worker=dict(resources_per_worker or {}),
            placement_strategy=placement_strategy,
            accelerator_type=accelerator_type,
            backend=backend,
            timeout_s=timeout_s,
            env=dict(env or {}),
        ),
        idle_timeout,
    )


def status() -> dict[str, Any] | None:
    """What the warm workers are doing; None when none are up.

    Returns
    -------
    dict or None
        ``phase`` (``starting``, ``idle``, ``busy``, ``ending``), ``ranks`` (for each its node,
        process, device, bytes of memory and what the last job left), ``idle`` seconds of
        ``idle_timeout``, ``jobs`` so far, ``restarts``, and ``job``, the run that goes on.
    """
    group = alive()
    return None if group is None else group.status()


def restart(
    *, force: bool = False, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Start the workers' processes anew, which frees all that jobs left in them.

    Parameters
    ----------
    force : bool
        Also while a run goes on, which fails then.
    tell : callable
        Gets what is being waited for.
    """
    group = _idle("restart", force)
    tell("starting their processes anew")
    before = group.status()["restarts"]
    group.restart()
    end = time.monotonic() + 300
    found = group.status()
    while found["restarts"] == before and found["phase"] != "gone" and time.monotonic() < end:
        time.sleep(0.1)
        found = group.status()
    return _wait(group, tell)


def down(*, force: bool = False) -> None:
    """End the warm workers and free what they hold.

    Parameters
    ----------
    force : bool
        Also while a run goes on, which fails then.

    Raises
    ------
    OptionError
        When none are up, or a run goes on and ``force`` is not given.
    """
    _idle("down", force).down()


# -- inside --------------------------------------------------------------------------------------


def start(
    spec: RunSpec, idle_s: float = IDLE_S, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Start warm workers of a spec; ``tell`` gets what is being waited for."""
    from raynb import api
    from raynb._ray import cluster
    from raynb.engine.preflight import check_this_machine
    from raynb.engine.warm import group as groups

    if not isinstance(spec.num_workers, int) or spec.num_workers < 1:
        raise OptionError(
            f"the number of warm workers is fixed, and at least 1, not {spec.num_workers!r}",
            hint=groups.UP,
        )
    if isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not idle_s >= 1:
        raise OptionError(f"the idle timeout must be at least a second: {idle_s!r}")
    spec.name = groups.new_name()
    # Nothing is kept there: a job writes to its own directory.
    spec.storage_path = os.path.join(tempfile.gettempdir(), f"raynb-{spec.name}")
    spec.max_failures = -1
    spec.check()
    there = alive()
    if there is not None:
        why = there.why_not(spec)
        if not why:
            return there.status()
        raise OptionError(
            f"warm workers are up already ({groups.describe(there.spec)}): {why}",
            hint="end them first: %raynb workers down",
        )
    if not cluster.connect():
        check_this_machine(spec)
        tell("starting Ray")
        cluster.start_local()
    waiting = api._check_cluster(spec, stores=False)
    tell(waiting or "starting the workers")
    group = groups.WarmGroup.start(spec, float(idle_s), api._ray_train_env())
    groups.set_current(group)
    try:
        return _wait(group, tell)
    except BaseException:
        group.down()
        raise


def alive() -> WarmGroup | None:
    """The warm workers, if they live."""
    from raynb.engine.warm import group as groups

    group = groups.current()
    if group is None:
        return None
    import ray

    try:
        if group.status()["phase"] not in ("gone", "ending"):
            return group
    except ray.exceptions.RayError:
        pass
    groups.set_current(None)
    return None


def start_job(
    spec: RunSpec,
    make_run: Callable[[], Run],
    code: Any,
    *,
    show: bool,
    echo: bool,
) -> Run | str:
    """Start a run of a train function or a Capture on the warm workers.

    Returns
    -------
    Run or str
        Or why it can't be theirs.
    """
    from raynb import api
    from raynb.engine.alive import refuse_running
    from raynb.engine.nodes import check_nodes
    from raynb.engine.run import find_supervisor, make_way
    from raynb.engine.warm import group as groups
    from raynb.panel.views import close_view, open_view

    group, why = groups.choose(spec)
    if group is None:
        return why
    import ray

    make_way(spec.name, find_supervisor)
    refuse_running(spec.run_path, spec.name)
    if spec.datasets:
        api._check_cluster(spec)
    elif spec.storage_path not in group.seen_by_all:
        if len([n for n in ray.nodes() if n["Alive"]]) > 1:
            check_nodes(spec)
        group.seen_by_all.add(spec.storage_path)
    group.fill(spec, {"num_workers"})
    plan = _plan(spec, code)
    run = make_run()
    run.facts.summary["options"] = spec.summary()
    run.facts.summary["workers_note"] = f"on the warm workers: {groups.describe(group.spec)}"
    try:
        found = group.submit(run.facts, plan)
    except ray.exceptions.RayActorError as error:
        found = f"the warm workers are gone: {error}".splitlines()[0]
    if isinstance(found, str):
        if "are gone" in found:
            groups.set_current(None)
        return groups.refused(spec, found)
    # Shown once it is on its way: the workers need not wait for the panel.
    if show:
        open_view(run, echo=echo)
        run.when_done(lambda: close_view(run))
    run.attach(found)
    return run


def _plan(spec: RunSpec, code: Any) -> Plan:
    from ray import cloudpickle

    from raynb import api
    from raynb.engine.capture import Capture
    from raynb.engine.trainer import CellFunction
    from raynb.engine.warm.job import Plan

    capture = code if isinstance(code, Capture) else None
    function = code if capture is None else CellFunction(capture.program, capture.payload)
    return Plan(
        dataclasses.replace(spec, config=None, resume=None),
        api._link(spec, None),
        None if capture is None else capture.program,
        cloudpickle.dumps((function, dict(spec.config or {}))),
        {} if capture is None else capture.large,
    )


def _wait(group: WarmGroup, tell: Callable[[str], None]) -> dict[str, Any]:
    told = ""
    while True:
        found = group.wait_ready(1.0)
        if found["phase"] in ("idle", "busy"):
            return found
        if found["phase"] in ("gone", "ending"):
            raise ResourceError(
                f"the warm workers could not be started: {found['why'] or 'they ended'}",
                hint="a run with --fresh may show more",
            )
        if found["message"] != told:
            told = found["message"]
            tell(told)


def _idle(what: str, force: bool) -> WarmGroup:
    from raynb.engine.warm import group as groups

    group = alive()
    if group is None:
        raise OptionError("no warm workers are up", hint=f"start them: {groups.UP}")
    job = group.status()["job"]
    if job is not None and not force:
        raise OptionError(
            f"run {job!r} is going on on the warm workers",
            hint=f"wait for it or stop it; %raynb workers {what} --force ends it",
        )
    return group
