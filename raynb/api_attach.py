"""Watching from anywhere: attach to a run that another kernel started."""

from __future__ import annotations

from typing import Any

from raynb.engine.run import RemoteBackend, Run, find_backend, live_runs
from raynb.errors import OptionError, ResourceError, SupervisorDiedError
from raynb.panel.views import close_view, open_view

#: Seconds in which a supervisor says what it hosts.
ANSWER_S = 30.0


def attach(name: str | None = None, *, show: bool = True, echo: bool = False) -> Any:
    """Watch a run that goes on, with all that it has told so far.

    The run does not notice: any number of kernels may watch it, and each may stop it. It works
    where the cluster outlives the kernel that started the run: one that was given, or one of
    ``%raynb cluster up``.

    Parameters
    ----------
    name : str, optional
        The run's or search's name; by default the only one there is.
    show : bool
        Show its panel here, or in a terminal a live text view.
    echo : bool
        Print the workers' output here as well.

    Returns
    -------
    Run or Search
        As ``raynb.train(…, block=False)`` returns it.

    Raises
    ------
    ResourceError
        When there is no cluster to connect to.
    OptionError
        When no such run goes on.
    """
    backend = find_live(name)
    kind, facts = _ask(backend, name)
    run = _handle(kind, facts)
    backend.reads_from(facts.run_path)
    if show:
        open_view(run, echo=echo)
    run.when_done(lambda: close_view(run))
    run.attach(backend)
    return run


def find_live(name: str | None) -> RemoteBackend:
    """The supervisor of a run that goes on; raises what :func:`attach` raises."""
    need_cluster()
    backend = None if name is None else find_backend(name)
    if backend is not None:
        return backend
    names = live_runs()
    told = ", ".join(names)
    if name is None:
        if len(names) > 1:
            raise OptionError(
                f"several runs go on: {told}", hint="name one of them", topic="no-such-run"
            )
        if not names:
            raise OptionError(
                "no run goes on",
                hint="%raynb runs lists those that have ended",
                topic="no-such-run",
            )
        name = names[0]
        backend = find_backend(name)
    if backend is None:
        raise OptionError(
            f"no run called {name!r} goes on"
            + (f"; these do: {told}" if names else ", nor any other"),
            hint="raynb.open(path) shows one that has ended, and %raynb runs lists them",
            topic="no-such-run",
        )
    return backend


def need_cluster() -> None:
    """Connect to the cluster that outlives kernels; raises ResourceError where there is none."""
    from raynb._ray import cluster

    if not cluster.connect():
        raise ResourceError(
            "there is no cluster that other kernels could have left a run on",
            hint="a cluster that raynb starts for a kernel ends with it; start one that stays "
            "with `%raynb cluster up`, or give RAY_ADDRESS",
            topic="no-cluster-that-stays",
        )


def _ask(backend: RemoteBackend, name: str | None) -> tuple[str, Any]:
    import ray

    try:
        kind, facts = ray.get(backend.actor.facts.remote(), timeout=ANSWER_S)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise SupervisorDiedError(
            f"the supervisor of {name or 'the run'} does not answer: {type(error).__name__}",
            hint="what it had written is on storage: raynb.runs() lists it",
        ) from None
    return kind, facts


def _handle(kind: str, facts: Any) -> Run:
    if kind == "search":
        from raynb.results.tune.result import TuneResult
        from raynb.tuning.search import Search

        return Search(facts, TuneResult.of, blocking=False, attached=True)
    from raynb.results.run_result import RunResult

    return Run(facts, RunResult.of, blocking=False, attached=True)
