"""The supervisor: the Ray actor that hosts ``trainer.fit()`` and collects a run's telemetry."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from raynb.engine.collector import TERMINAL, Collector, RunFacts
from raynb.engine.gone import Gone
from raynb.engine.nodes import Roll
from raynb.engine.preflight import EPSILON
from raynb.processes import left
from raynb.scratch import sweep
from raynb.telemetry.channel import interval_s
from raynb.telemetry.events import printable

#: Ray namespace of the supervisors' names.
NAMESPACE = "raynb"
#: Ray Train settings that a run gets unless the user set them: reports are picked up in 0.5 s
#: instead of every 2 s, and print() goes to the rank's own log instead of through Ray's logger.
RAY_DEFAULTS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
#: Seconds that workers get to send what they have before they are killed, past their interval.
DRAIN_S = 0.1
#: Seconds that Ray Train's own abort gets before its controller is killed.
ABORT_S = 4.0
#: Seconds between two looks at the nodes, and at whether anybody still watches.
WATCH_S = 5.0
#: Seconds after which a supervisor that nobody asks any more leaves.
LINGER_S = 600.0
#: Seconds without a question after which a watcher counts as gone.
WATCHER_S = 10.0


@dataclass
class Outcome:
    """How a run ended.

    Attributes
    ----------
    state : str
        ``finished``, ``failed`` or ``stopped``.
    result : ray.train.Result or None
        Ray's, when ``fit()`` returned one.
    error : BaseException or None
        What ``fit()`` raised.
    failure : dict or None
        The first rank's failure, as its worker told it.
    secondary : int
        Ranks that failed after it.
    """

    state: str
    result: Any
    error: BaseException | None
    failure: dict[str, Any] | None
    secondary: int


#: Options of a supervisor's actor.
ACTOR: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": 0,
    "concurrency_groups": {"ingest": 1, "watch": 8, "control": 4},
}


class RunSupervisor:
    """Hosts one run. Workers call ``hello`` and ``ingest``, watchers ``poll``, kernels ``stop``."""

    #: What it hosts, ``run`` or ``search``.
    KIND = "run"

    def __init__(self, facts: RunFacts, env: Mapping[str, str]) -> None:
        # Ray Train reads these where fit() is called, which is here and not in the kernel.
        os.environ.update(env)
        for name, value in RAY_DEFAULTS.items():
            os.environ.setdefault(name, value)
        # Arrow's own pools keep what a merge of the history needed once.
        pa.set_memory_pool(pa.system_memory_pool())
        self._collector = self._new_collector(facts)
        self._facts = facts
        self._controller: Any = None
        self._placement_group: Any = None
        self._has_controller = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._outcome: Outcome | None = None
        self._asked = time.monotonic()
        #: When each watcher asked last, and whether one of them has had all it needs.
        self._watchers: dict[str, float] = {}
        self._released = False
        self._collector.set_state("starting_workers", "starting Ray Train")

    def _new_collector(self, facts: RunFacts) -> Collector:
        return Collector(facts)

    # -- the kernel ------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def start(self, make_trainer: Callable[[], Any]) -> None:
        """Start ``fit()`` of the trainer that ``make_trainer`` makes; returns at once."""
        threading.Thread(
            target=self._fit, args=(make_trainer,), name="raynb-fit", daemon=True
        ).start()
        threading.Thread(target=self._watch, name="raynb-watch", daemon=True).start()

    @ray.method(concurrency_group="control")
    def facts(self) -> tuple[str, RunFacts]:
        """For a kernel that attaches: :attr:`KIND`, and what was known when it started."""
        return self.KIND, self._facts

    @ray.method(concurrency_group="control")
    def state(self) -> str:
        return self._collector.state

    @ray.method(concurrency_group="control")
    def adopt(self, values: dict[str, Any]) -> list[Any]:
        """Put large captures into the object store with this actor, not the kernel, as owner.

        Returns
        -------
        list of one ObjectRef
            In a list, because Ray would resolve a bare one.
        """
        return [ray.put(values)]

    @ray.method(concurrency_group="watch")
    def poll(
        self, watcher: str, timeout: float, pinned: Iterable[Any] = ()
    ) -> tuple[dict[str, Any], list[Any], bool]:
        """News for a watcher: an :class:`~raynb.telemetry.update.Update` in parts."""
        self._asked = self._watchers[watcher] = time.monotonic()
        update = self._collector.poll(watcher, timeout, pinned)
        return update.content, update.buffers, update.whole

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Begin to stop; returns at once, the state tells when it is done."""
        self._stop()

    def _stop(self) -> None:
        if self._stopping.is_set() or self._ended.is_set():
            return
        self._stopping.set()
        self._collector.set_state("stopping", "ending the workers")
        threading.Thread(target=self._abort, name="raynb-abort", daemon=True).start()

    @ray.method(concurrency_group="control")
    def outcome(self, timeout: float = 60.0) -> Outcome | None:
        """How the run ended; None when it has not within ``timeout`` seconds."""
        self._ended.wait(timeout)
        return self._outcome

    @ray.method(concurrency_group="control")
    def unwritten(self) -> tuple[Any, int, int]:
        """What of the history is not on storage, the next part's number, and the rows in all.

        The history itself is read from storage, since it may be larger than memory here.
        """
        history = self._collector.history
        return *history.unwritten(), history.rows

    @ray.method(concurrency_group="control")
    def history(self) -> Any:
        """The history so far, a pyarrow Table, for those who can't read the storage."""
        return self._collector.history_table()

    @ray.method(concurrency_group="control")
    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """A rank's log file, at most its last ``max_bytes``, and whether that is all of it."""
        return self._collector.log_file(rank, max_bytes)

    @ray.method(concurrency_group="control")
    def release(self, watcher: str) -> None:
        """A watcher has the outcome: leave, unless another one is still about to get it."""
        self._watchers.pop(watcher, None)
        self._released = True
        if not self._watched() and self._all_written():
            self._collector.close()
            ray.actor.exit_actor()

    # -- workers and controller ------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def hello(self, who: Mapping[str, Any]) -> int:
        attempt = self._collector.hello(who)
        if self._collector.all_started:
            self._collector.set_state("training")
        return attempt

    @ray.method(concurrency_group="ingest")
    def ingest(self, batch: Any) -> None:
        self._collector.ingest(batch)

    @ray.method(concurrency_group="control")
    def controller_ready(self, handle: Any) -> None:
        self._controller = handle
        self._has_controller.set()

    @ray.method(concurrency_group="control")
    def controller_event(self, kind: str, payload: Mapping[str, Any]) -> None:
        self._on_controller_event(kind, payload)

    def _on_controller_event(self, kind: str, payload: Mapping[str, Any]) -> None:
        if kind == "placement_group":
            self._placement_group = payload["group"]
            return
        if self._stopping.is_set():
            return
        if kind == "group_starting":
            self._collector.group_starting(payload["num_workers"])
            self._tell_waiting(payload["num_workers"])
        elif kind == "group_started":
            self._collector.set_state("starting_workers", "importing and joining the process group")
        elif kind == "state":
            state, error = payload["state"], payload["error"]
            if state in ("restarting", "rescheduling"):
                self._collector.set_state("restarting", error or "")
            elif state == "resizing":
                self._collector.set_state("restarting", "with another number of workers")
            elif state == "preempting":
                self._collector.event("a node is about to be taken away", "warn")
            elif state == "shutting_down":
                self._collector.set_state("finishing")

    # -- inside ----------------------------------------------------------------------------------

    def _fit(self, make_trainer: Callable[[], Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            trainer = make_trainer()
            # Here: what it imports, the trainer has imported.
            from raynb._ray.controller import name_own_cluster

            name_own_cluster()
            if not self._stopping.is_set():
                result = trainer.fit()
        except BaseException as raised:
            error = raised
        self._end(result, error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        try:
            self._conclude(result, error)
        except Exception as broken:
            # The kernel waits for a last state and an outcome, whatever happens.
            self._outcome = Outcome("failed", None, error or broken, None, 0)
            shown = {"title": "the run's end failed", "rank": None, "text": repr(broken)}
            self._collector.set_state("failed", repr(broken)[:500], error={**shown, "line": None})
        finally:
            self._remove_group()
            if error is not None:
                self._left(1.0)
                self._tidy()
            self._ended.set()

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        failure = self._collector.first_failure()
        if error is None and result is not None:
            state, message, shown = "finished", "", None
        elif error is None or self._stopping.is_set():
            state, message, shown = "stopped", "stopped on request", None
            self._check_gone()
        else:
            state = "failed"
            shown = shown_error(failure, error)
            message = shown["title"]
        self._collector.history.flush()
        self._collector.set_state(state, message, error=shown)
        self._collector.write_record()
        last = max((f["attempt"] for f in self._collector.failures), default=0)
        ranks = {f["rank"] for f in self._collector.failures if f["attempt"] == last}
        self._outcome = Outcome(state, result, error, failure, max(0, len(ranks) - 1))

    def _abort(self) -> None:
        time.sleep(interval_s(len(self._collector.workers())) + DRAIN_S)
        # A stop may come before the controller is there: nothing could take it down then.
        while not self._has_controller.wait(0.1):
            if self._ended.is_set():
                return
        with contextlib.suppress(Exception):
            self._controller.abort.remote()
        # A controller that waits for resources is deaf until it has them.
        if not self._ended.wait(ABORT_S):
            self._collector.event("the controller does not answer: killing it", "warn")
            with contextlib.suppress(Exception):
                ray.kill(self._controller)
            self._remove_group()

    def _remove_group(self) -> None:
        """Free what the workers had, where their controller did not; harmless where it did."""
        if self._placement_group is not None:
            with contextlib.suppress(Exception):
                ray.util.remove_placement_group(self._placement_group)

    def _check_gone(self) -> None:
        """Say so when a worker process of this node is left."""
        for pid, rank in self._left(5.0).items():
            self._collector.event(f"rank {rank}'s process {pid} is still there", "error")

    def _left(self, seconds: float) -> dict[int, int]:
        """Worker processes of this node, with their ranks, that run after so many seconds."""
        here = ray.util.get_node_ip_address()
        mine = {
            pid: rank
            for rank, row in self._collector.workers().items()
            if row["ip"] == here and (pid := row["pid"])
        }
        return {pid: mine[pid] for pid in left(list(mine), seconds)}

    def _tidy(self) -> None:
        """Take away what killed workers of this node left in the directory for temporary files."""
        with contextlib.suppress(Exception):
            sweep()

    def _tell_waiting(self, num_workers: int) -> None:
        need = {k: v * num_workers for k, v in self._facts.bundle.items()}
        free = ray.available_resources()
        short = {k: v for k, v in need.items() if free.get(k, 0) < v - EPSILON}
        if short:
            self._collector.set_state(
                "waiting",
                "needs "
                + ", ".join(f"{v:g} {k}" for k, v in need.items())
                + "; free: "
                + ", ".join(f"{free.get(k, 0):g} {k}" for k in need),
            )
        else:
            self._collector.set_state("starting_workers", f"starting {num_workers} workers")

    def _watched(self) -> bool:
        now = time.monotonic()
        return any(now - asked < WATCHER_S for asked in list(self._watchers.values()))

    def _all_written(self) -> bool:
        """Whether nothing is here alone; what storage does not take is tried again and again."""
        self._collector.history.flush()
        return not self._collector.history.waiting

    def _watch(self) -> None:
        """Tell who joins and leaves the cluster; leave when the run has ended and all have its
        outcome, or nobody has come for it."""
        roll, gone, here = Roll(), Gone(), ray.util.get_node_ip_address()
        while True:
            time.sleep(WATCH_S)
            if not self._ended.is_set():
                workers = self._collector.workers()
                with contextlib.suppress(Exception):  # the head may be away
                    for text, level in roll.news(workers):
                        self._collector.event(text, level)
                training = self._collector.state == "training"
                for text, level in gone.news(here, workers if training else {}):
                    self._collector.event(text, level)
            forgotten = time.monotonic() - self._asked > LINGER_S
            left = self._released and not self._watched()
            if self._ended.is_set() and (forgotten or (left and self._all_written())):
                self._collector.close()
                self._tidy()
                os._exit(0)


Supervisor = ray.remote(**ACTOR)(RunSupervisor)


def shown_error(failure: Mapping[str, Any] | None, error: BaseException) -> dict[str, Any]:
    """The run's ``error`` for the panel: title, rank, text and the cell's line."""
    if failure is None:
        text = printable(str(error))
        last = text.strip().splitlines()[-1] if text.strip() else ""
        ranks = sorted(getattr(error, "worker_failures", {}) or {})
        title = f"{type(error).__name__}: {last}"
        if isinstance(error, ray.exceptions.RayActorError):
            title = "the run's controller died: its process was killed, or its node is gone"
        return {
            "title": title[:500],
            "rank": ranks[0] if ranks else None,
            "text": text[-8_000:],
            "line": None,
        }
    cell = failure.get("cell")
    return {
        "title": f"{failure['type']}: {failure['message']}"[:500],
        "rank": failure["rank"],
        "text": failure["traceback"][-8_000:],
        "line": f"{cell['label']}, line {cell['line']}: {cell['text'].strip()}" if cell else None,
    }


def supervisor_name(run_name: str) -> str:
    """The actor name under which a run's supervisor is found in :data:`NAMESPACE`."""
    return f"run:{run_name}"


__all__ = [
    "ACTOR",
    "NAMESPACE",
    "TERMINAL",
    "Outcome",
    "RunSupervisor",
    "Supervisor",
    "supervisor_name",
]
