"""A job of a warm group as a run sees it, and the way to it by the run's name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from raynb.engine.run import RemoteBackend, named_actors
from raynb.engine.supervisor import NAMESPACE
from raynb.engine.warm.port import JobPort

#: What the names of groups' supervisors begin with.
GROUP = "group:"


class JobBackend(RemoteBackend):
    """A job of warm workers.

    Parameters
    ----------
    group : ActorHandle
        The group's supervisor.
    number : int
        The job's.
    run_path : str or None
        As of :class:`~raynb.engine.run.RemoteBackend`.
    """

    def __init__(self, group: Any, number: int, run_path: str | None = None) -> None:
        super().__init__(JobPort(group, number), run_path)
        self._group = group

    def kill(self) -> None:
        """End the group's processes, and with them the job: Ray Train starts new ones."""
        with contextlib.suppress(Exception):
            self._group.restart.remote()


def find_job(name: str) -> JobBackend | None:
    """The job that goes on under this run's name on any warm group of the cluster, or None."""
    for group, running, number in _jobs():
        if running == name:
            return JobBackend(group, number)
    return None


def live_jobs() -> list[str]:
    """Names of the runs that go on, on warm groups of the cluster."""
    return [running for _, running, _ in _jobs()]


def _jobs() -> Iterator[tuple[Any, str, int]]:
    """Each group with a job, the job's run and number."""
    import ray

    for name in named_actors(GROUP):
        with contextlib.suppress(Exception):
            group = ray.get_actor(GROUP + name, namespace=NAMESPACE)
            job = ray.get(group.running.remote(), timeout=10)
            if job is not None:
                yield group, *job
