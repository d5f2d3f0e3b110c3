"""Callbacks that Ray Train's controller runs: they tell the supervisor what the run is doing."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import ray
import ray.train.v2._internal.constants as train_constants
import ray.train.v2._internal.execution.worker_group.worker_group as worker_group
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from raynb._ray.helpers import leave_out


def name_own_cluster() -> None:
    """Tell the processes that ``fit()`` will start here which cluster they are of.

    Reason for the internals: the actor with which Ray Train cleans up after a dead controller asks
    Ray's state API, which looks for a cluster on the machine instead of using its own. With two of
    them, or the record of one that is gone, it finds none or the other, and placement groups stay
    for ever. The environment variable settles it, and Ray Train passes on those of this set.
    """
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    train_constants.ENV_VARS_TO_PROPAGATE.add("RAY_ADDRESS")


class SupervisorCallback(ControllerCallback, WorkerGroupCallback):
    """Hands the controller's handle and its states to the supervisor.

    Reason for the internals: the public ``UserCallback`` has no hook for states, and Ray offers
    no handle of its controller, which is the one thing that can abort a run and clean up after
    it. Ray's own comment at ``RunConfig.callbacks`` allows such callbacks.

    Parameters
    ----------
    supervisor : ActorHandle
        Has ``controller_ready(handle)`` and ``controller_event(kind, payload)``.
    without : collection of str
        Helper actors that are not started, from :func:`raynb._ray.helpers.idle_helpers`.
    """

    def __init__(self, supervisor: Any, without: Collection[str] = ()) -> None:
        self._supervisor = supervisor
        self._without = frozenset(without)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The controller unpickles its callbacks before it starts anything; a hook comes too late.
        self.__dict__.update(state)
        leave_out(self._without)

    def _tell(self, kind: str, **payload: Any) -> Any:
        return self._supervisor.controller_event.remote(kind, payload)

    def after_controller_start(self, train_run_context: Any) -> None:
        # Waited for: a run that can't be stopped must not start.
        handle = ray.get_runtime_context().current_actor
        ray.get(self._supervisor.controller_ready.remote(handle), timeout=30)
        self._watch_placement_groups()

    def _watch_placement_groups(self) -> None:
        """Let the supervisor know of each placement group while the controller waits for it.

        Reason for the internals: a controller that waits for resources hears no abort, and Ray's
        own cleaner learns of the group only once it is placed. Whoever ends such a controller has
        to remove the group, and no hook tells which one it is.
        """
        original = worker_group.placement_group

        def placement_group(*args: Any, **kwargs: Any) -> Any:
            group = original(*args, **kwargs)
            self._tell("placement_group", group=group)
            return group

        worker_group.placement_group = placement_group

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        before, now = _name(previous_state), _name(current_state)
        if before != now:
            error = getattr(current_state, "training_failed_error", None)
            self._tell("state", state=now, error=_short(error))

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        # Waited for: workers ask the supervisor which attempt they belong to.
        ref = self._tell("group_starting", num_workers=worker_group_context.num_workers)
        ray.get(ref, timeout=30)

    def after_worker_group_start(self, started: Any) -> None:
        self._tell("group_started", num_workers=len(started))


def _name(state: Any) -> str:
    return str(state._state_type.state_name).lower()


def _short(error: BaseException | None) -> str | None:
    if error is None:
        return None
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
