"""A job of a warm group, where the group's supervisor is: its attempts, telemetry and outcome."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle

from raynb._ray.jobs import Meeting, Reports, group_error
from raynb.engine.collector import Collector, RunFacts
from raynb.engine.spec import RunSpec
from raynb.engine.supervisor import Outcome, shown_error
from raynb.engine.trainer import run_config_of
from raynb.worker.program import CellProgram
from raynb.worker.runtime import Link
from raynb.worker.warm.loop import End, JobOrder

#: How a rank's attempt may end badly; the first is the cause of the others.
_CAUSES = ("lost", "failed", "interrupted")
#: Bytes of a pickled function above which it goes through the object store.
INLINE = 100_000
#: Seconds in which the other ranks of a failed attempt have to end, of which the first are theirs.
RELEASE_S, ASK_S = 5.0, 1.5
#: The same for a job that was stopped: what handles KeyboardInterrupt may save a checkpoint.
STOP_S, STOP_ASK_S = 10.0, 4.0


@dataclass
class Plan:
    """What a job is, as it is submitted.

    Attributes
    ----------
    spec : RunSpec
    link : Link
        Without its supervisor, which the group's actor fills in.
    program : CellProgram or None
    payload : bytes
        The train function and its config, pickled.
    large : dict
        The cell's captured values that go through the object store.
    """

    spec: RunSpec
    link: Link
    program: CellProgram | None
    payload: bytes = field(repr=False)
    large: dict[str, Any] = field(default_factory=dict, repr=False)


class Job:
    """One job.

    Parameters
    ----------
    number : int
    facts : RunFacts
    plan : Plan
    port : JobPort
        By which the ranks reach this job.
    order : callable
        ``order(kind, what)`` tells every rank something.
    give_up : callable
        ``give_up(ranks)`` ends the group's processes: these ranks could not be stopped.
    """

    def __init__(
        self,
        number: int,
        facts: RunFacts,
        plan: Plan,
        port: Any,
        order: Callable[[str, Any], None],
        give_up: Callable[[list[int]], None],
    ) -> None:
        self.number = number
        self.name = facts.name
        self._facts = facts
        self.collector = Collector(facts)
        self.done = threading.Event()
        self.attempt = -1
        self._plan = plan
        plan.link.supervisor = port
        self._order = order
        self._give_up = give_up
        self._run_config = run_config_of(plan.spec)
        self._reports = Reports(self._run_config, plan.spec.datasets)
        self._again = plan.spec.max_failures
        # In lists, because Ray would resolve bare references. Once a node, not once a rank.
        self._large = [ray.put(plan.large)] if plan.large else []
        self._payload: Any = plan.payload
        if len(plan.payload) > INLINE:
            self._payload = [ray.put(plan.payload)]
        self._lock = threading.RLock()
        self._meeting = Meeting(0)
        self._ends: dict[int, End] = {}
        self._world: list[int] = []
        self._running = False
        self._ending = ""  # why the attempt is being ended
        self._stopping = self._concluded = self._closed = False
        self._outcome: Outcome | None = None
        self.collector.set_state("starting_workers", "on the warm workers")

    # -- the group's supervisor ------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether an attempt is to begin as soon as the ranks are there."""
        with self._lock:
            return not (self._running or self._concluded or self._stopping)

    def begin(self, node_ids: list[str]) -> None:
        """Begin an attempt on as many ranks as there are node ids."""
        with self._lock:
            self.attempt += 1
            self._world = list(range(len(node_ids)))
            self._ends = {}
            self._ending = ""
            self._meeting = Meeting(len(node_ids))
            self._running = True
        self.collector.group_starting(len(node_ids))
        begin = self._reports.begin(len(node_ids), node_ids)
        plan = self._plan
        self._order(
            "run",
            JobOrder(
                self.number,
                self.attempt,
                plan.link,
                plan.program,
                self._run_config,
                begin,
                self._payload,
                self._large,
            ),
        )

    def lost(self, why: str) -> None:
        """The group's processes are gone, and with them the attempt."""
        with self._lock:
            if not self._running:
                return
            self.collector.event(f"the warm workers' processes ended: {why}", "error")
            for rank in self._world:
                self._ends.setdefault(rank, End("lost", text=why))
        self._over()

    def fail(self, why: str) -> None:
        """The group ends: so does the job, without another attempt."""
        with self._lock:
            self._again = 0
            if self._running:
                self.lost(why)
            elif not self.done.is_set():
                self._ends = {0: End("lost", text=why)}
                self._over()

    # -- ranks -----------------------------------------------------------------------------------

    def hello(self, who: Mapping[str, Any]) -> int:
        attempt = self.collector.hello(who)
        if self.collector.all_started and not self._stopping:
            self.collector.set_state("training")
        return attempt

    def ingest(self, batch: Any) -> None:
        self.collector.ingest(batch)

    def report(self, rank: int, report: Any) -> None:
        self._reports.report(rank, report)

    def dataset_shard(self, info: Any) -> Any:
        return self._reports.dataset_shard(info)

    def get_all_reported_checkpoints(self, *args: Any) -> Any:
        return self._reports.get_all_reported_checkpoints(*args)

    def broadcast_from_rank_zero(self, **call: Any) -> Any:
        return self._meeting.broadcast_from_rank_zero(**call)

    def failed(self, attempt: int, rank: int) -> None:
        """A rank has failed: the others are to end as well."""
        with self._lock:
            if attempt != self.attempt or not self._running or self._ending:
                return
            self._ending = f"rank {rank} failed"
        self._end_ranks(RELEASE_S, ASK_S, "interrupt")

    def ended(self, attempt: int, rank: int, end: End) -> None:
        """A rank's attempt has ended."""
        with self._lock:
            if attempt != self.attempt or not self._running:
                return
            self._ends[rank] = end
            over = len(self._ends) == len(self._world)
        if over:
            self._over()
        elif end.status == "failed":
            self.failed(attempt, rank)

    # -- kernels ---------------------------------------------------------------------------------

    def facts(self) -> tuple[str, RunFacts]:
        """What it is, and what was known when it started."""
        return "run", self._facts

    def state(self) -> str:
        return self.collector.state

    def poll(
        self, watcher: str, timeout: float, pinned: Iterable[Any] = ()
    ) -> tuple[dict[str, Any], list[Any], bool]:
        update = self.collector.poll(watcher, timeout, pinned)
        return update.content, update.buffers, update.whole

    def stop(self) -> None:
        """Interrupt it; returns at once."""
        with self._lock:
            if self._stopping or self.done.is_set():
                return
            self._stopping = True
            self._ending = "stopped on request"
            running = self._running
        self.collector.set_state("stopping", "interrupting the ranks")
        if running:
            self._end_ranks(STOP_S, STOP_ASK_S, "interrupt")
        else:
            self._over()

    def outcome(self, timeout: float = 60.0) -> Outcome | None:
        self.done.wait(timeout)
        return self._outcome

    def unwritten(self) -> tuple[Any, int, int]:
        history = self.collector.history
        return *history.unwritten(), history.rows

    def history(self) -> Any:
        return self.collector.history_table()

    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None:
        return self.collector.log_file(rank, max_bytes)

    def shutdown(self) -> None:
        """Nobody watches it any more; a second time it writes nothing."""
        if not self._closed:
            self._closed = True
            self.collector.close()

    def release(self, watcher: str = "") -> None:
        """A watcher has its outcome."""
        self.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _end_ranks(self, seconds: float, ask: float, kind: str) -> None:
        """Ask the ranks to end, then end what keeps them, then end their processes."""
        self._meeting.end()
        self._reports.release()
        self._order(kind, (self.number, self.attempt))
        threading.Thread(
            target=self._see_to_it, args=(self.attempt, seconds, ask), daemon=True
        ).start()

    def _see_to_it(self, attempt: int, seconds: float, ask: float) -> None:
        began, aborted = time.monotonic(), False
        while (waited := time.monotonic() - began) < seconds:
            time.sleep(0.05)
            if not self._is_running(attempt):
                return
            if waited > ask and not aborted:
                aborted = True
                self._order("abort", (self.number, attempt))
        with self._lock:
            if not self._is_running(attempt):
                return
            stuck = [rank for rank in self._world if rank not in self._ends]
            self.collector.event(
                f"{'rank' if len(stuck) == 1 else 'ranks'} {', '.join(map(str, stuck))} could not "
                f"be stopped in {seconds:g} s: the warm workers are started anew",
                "warn",
            )
        self._give_up(stuck)

    def _is_running(self, attempt: int) -> bool:
        with self._lock:
            return self._running and self.attempt == attempt

    def _over(self) -> None:
        """The attempt is over on every rank."""
        with self._lock:
            self._running = False
            bad = {r: e for r, e in self._ends.items() if e.status != "finished"}
            again = self._again
            if bad and not self._stopping and (again < 0 or self.attempt < again):
                first = min(bad.values(), key=lambda e: _CAUSES.index(e.status))
                self.collector.set_state("restarting", _last_line(first.text))
                return
            if self._concluded:
                return
            self._concluded = True
        threading.Thread(target=self._conclude, args=(bad,), name="raynb-end", daemon=True).start()

    def _conclude(self, bad: dict[int, End]) -> None:
        try:
            outcome, shown = self._judge(bad)
            self.collector.history.flush()
        except Exception as broken:
            # The kernel waits for a last state and an outcome, whatever happens.
            outcome = Outcome("failed", None, broken, None, 0)
            shown = shown_error(None, broken)
        self._outcome = outcome
        # The next job may begin as soon as this one's ranks are free.
        self.collector.set_state(outcome.state, shown["title"] if shown else "", error=shown)
        self.collector.write_record()
        self.done.set()
        with contextlib.suppress(Exception):
            self._reports.close()
        self._large, self._payload = [], None
        self._plan.spec.datasets, self._plan.large = {}, {}

    def _judge(self, bad: dict[int, End]) -> tuple[Outcome, dict[str, Any] | None]:
        if self._stopping:
            return Outcome("stopped", None, None, self.collector.first_failure(), 0), None
        if not bad:
            value = self._ends[0].value
            returned = None if value is None else cloudpickle.loads(value)
            return Outcome("finished", self._reports.result(returned), None, None, 0), None
        cause = min((e.status for e in bad.values()), key=_CAUSES.index)
        raised = {r: e for r, e in bad.items() if e.status == cause}
        failures = {rank: _error(end) for rank, end in raised.items()}
        text = "\n".join(f"[Rank {rank} Error Snippet]:\n{e.text}" for rank, e in raised.items())
        error = group_error(text, failures)
        failure = self.collector.first_failure()
        if failure is not None and (
            cause != "failed" or failure["attempt"] < self.collector.attempt
        ):
            failure = None  # of an earlier attempt, or for want of a rank that is gone
        secondary = 0
        if failure is not None:
            told = self.collector.failures
            secondary = len({f["rank"] for f in told if f["attempt"] == failure["attempt"]}) - 1
        return (
            Outcome("failed", None, error, failure, secondary),
            shown_error(failure, error),
        )


def _error(end: End) -> BaseException:
    if end.error is not None:
        with contextlib.suppress(Exception):
            found: BaseException = cloudpickle.loads(end.error)
            return found
    return RuntimeError(end.text)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
