"""The kernel's handle of the warm workers: there is one group of them, or none."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from raynb.engine.collector import RunFacts
from raynb.engine.nodes import on_this_node
from raynb.engine.spec import RunSpec
from raynb.engine.supervisor import NAMESPACE
from raynb.engine.trainer import TrainerMaker, told
from raynb.engine.warm.backend import GROUP, JobBackend
from raynb.engine.warm.host import group_actor
from raynb.engine.warm.job import Plan
from raynb.errors import OptionError
from raynb.worker.runtime import Link
from raynb.worker.warm.loop import WarmLoop

#: The command that starts warm workers, for messages.
UP = "%raynb workers up -n 2"
#: What a job takes from the group where the user gave nothing.
SCALING = (
    "num_workers",
    "use_gpu",
    "resources_per_worker",
    "placement_strategy",
    "accelerator_type",
    "backend",
    "timeout_s",
    "env",
)
_TIMEOUT_S = 1800
#: Seconds in which the watchers of a run that ended with the group get its outcome.
LINGER_S = 2.0

_current: WarmGroup | None = None


@dataclass
class GroupMaker:
    """Makes the group's TorchTrainer where ``fit()`` is called."""

    spec: RunSpec
    host: Any

    def __call__(self) -> Any:
        loop = WarmLoop(self.host, self.spec.timeout_s or _TIMEOUT_S)
        link = Link(self.spec.name, self.host, cwd="")
        return told(TrainerMaker(self.spec, loop, None, link).plain(), self.host)


class WarmGroup:
    """A worker group that stays.

    Parameters
    ----------
    actor : ActorHandle
        Its supervisor.
    spec : RunSpec
        Its scaling options, with whether it uses GPUs decided.
    """

    def __init__(self, actor: Any, spec: RunSpec) -> None:
        import ray

        self._ray = ray
        self.actor = actor
        self.spec = spec
        #: Storage roots that every node was seen to have.
        self.seen_by_all: set[str] = set()

    def __repr__(self) -> str:
        return f"<raynb warm workers: {describe(self.spec)}>"

    @classmethod
    def start(cls, spec: RunSpec, idle_s: float, env: dict[str, str]) -> WarmGroup:
        """Start a group; :meth:`wait_ready` waits for it."""
        facts = RunFacts(spec.name, spec.run_path, None, spec.bundle, {"options": spec.summary()})
        name = GROUP + spec.name
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", **on_this_node()}
        actor = group_actor(spec.min_workers).options(**options).remote(facts, env, idle_s)
        actor.start.remote(GroupMaker(spec, actor))
        return cls(actor, spec)

    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """The group's status, once it is ready or has ended, or ``timeout`` seconds have passed."""
        found: dict[str, Any] = self._ray.get(
            self.actor.wait_ready.remote(timeout), timeout=timeout + 60
        )
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ray.get(self.actor.status.remote(), timeout=60)
        return found

    def fill(self, spec: RunSpec, given: Collection[str]) -> None:
        """Let a spec take the group's scaling where its user gave none."""
        for name in SCALING:
            if name not in given:
                setattr(spec, name, getattr(self.spec, name))

    def why_not(self, spec: RunSpec) -> str:
        """Why a run of this spec can't be the group's; empty when it can."""
        own = self.spec
        asked = {
            "-n": (spec.num_workers, own.num_workers),
            "a worker's resources": (_bundle(spec, own), own.bundle),
            "--placement-strategy": (spec.placement_strategy, own.placement_strategy),
            "--accelerator-type": (spec.accelerator_type, own.accelerator_type),
            "--backend": (spec.backend or own.backend, own.backend),
            "--timeout-s": (spec.timeout_s or _TIMEOUT_S, own.timeout_s or _TIMEOUT_S),
        }
        if not isinstance(spec.num_workers, int):
            return "the warm workers' number is fixed, and an elastic run's is not"
        for what, (wanted, there) in asked.items():
            if wanted != there:
                return f"{what} is {_short(wanted)}, and the warm workers have {_short(there)}"
        other = [k for k, v in spec.env.items() if own.env.get(k) != v]
        if other:
            return f"the warm workers were started without --env {other[0]}"
        return ""

    def submit(self, facts: RunFacts, plan: Plan) -> JobBackend | str:
        """Begin a job; gives its backend, or why the group can't run it."""
        number = self._ray.get(self.actor.submit.remote(facts, plan), timeout=120)
        if isinstance(number, str):
            return number
        return JobBackend(self.actor, number, facts.run_path)

    def restart(self) -> None:
        self._ray.get(self.actor.restart.remote(), timeout=60)

    def down(self, timeout: float = 20.0) -> None:
        """End the group and wait until its processes are gone."""
        busy = False
        global _current
        if _current is self:
            _current = None
        try:
            busy = self.status()["job"] is not None
            self._ray.get(self.actor.stop.remote(), timeout=30)
            self._ray.get(self.actor.outcome.remote(timeout), timeout=timeout + 10)
        finally:
            if busy:
                time.sleep(LINGER_S)
            # Its controller and workers are its own, so Ray ends with it what is left.
            with contextlib.suppress(Exception):
                self._ray.kill(self.actor)
            shutil.rmtree(self.spec.storage_path, ignore_errors=True)


def current() -> WarmGroup | None:
    """The warm workers of this kernel, if there are any."""
    return _current


def set_current(group: WarmGroup | None) -> None:
    global _current
    _current = group


def choose(spec: RunSpec) -> tuple[WarmGroup | None, str]:
    """The warm workers if a run of this spec can be theirs, or why not.

    Raises
    ------
    OptionError
        When it has to be theirs, by ``--warm``, and can't.
    """
    if spec.warm is False or spec.local:
        return None, ""
    group = current()
    if group is None:
        if spec.warm:
            raise OptionError(
                "--warm needs warm workers, and none are up", hint=f"start them: {UP}"
            )
        return None, ""
    why = group.why_not(spec)
    return (None, refused(spec, why)) if why else (group, "")


def refused(spec: RunSpec, why: str) -> str:
    """What to tell of a run that can't be the warm workers'.

    Raises
    ------
    OptionError
        When it has to be theirs.
    """
    if spec.warm:
        raise OptionError(
            f"--warm can't be done: {why}",
            hint="leave out --warm for fresh workers, or what they can't do",
        )
    return f"on fresh workers: {why}"


def new_name() -> str:
    """A group's name, unlike any other's."""
    return f"workers-{uuid.uuid4().hex[:8]}"


def describe(spec: RunSpec) -> str:
    """A group's shape in words."""
    n = spec.min_workers
    each = ", ".join(f"{v:g} {k}" for k, v in spec.bundle.items())
    return f"{n} worker{'s' if n != 1 else ''} with {each} each"


def _bundle(spec: RunSpec, group: RunSpec) -> dict[str, float]:
    if spec.use_gpu is not None or spec.resources_per_worker:
        return spec.bundle
    return RunSpec(use_gpu=group.use_gpu).bundle


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{v:g} {k}" for k, v in value.items())
    return "none" if value is None else str(value)
