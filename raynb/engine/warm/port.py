"""A job's port: one job of a warm group's actor, called as an actor of its own would be."""

from __future__ import annotations

from typing import Any

#: Which of the actor's ways a job's method takes: what waits must not keep others from coming in.
_WAYS = {
    "ingest": "job_ingest",
    "poll": "job_watch",
    "outcome": "job_watch",
    "broadcast_from_rank_zero": "job_meet",
    "dataset_shard": "job_meet",
    "get_all_reported_checkpoints": "job_meet",
    "report": "job_meet",
    "ended": "job_meet",
}


class JobPort:
    """Stands for the supervisor of one run.

    Parameters
    ----------
    actor : ActorHandle
        The group's supervisor.
    job : int
    """

    def __init__(self, actor: Any, job: int) -> None:
        self._actor = actor
        self._job = job

    def __getattr__(self, name: str) -> _Call:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Call(getattr(self._actor, _WAYS.get(name, "job_control")), self._job, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return JobPort, (self._actor, self._job)


class _Call:
    def __init__(self, method: Any, job: int, name: str) -> None:
        self._method, self._job, self._name = method, job, name

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._method.remote(self._job, self._name, args, kwargs)
