"""The supervisor of a warm group: it hosts the group's trainer, and hands its ranks jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import ray

from raynb._ray.jobs import Meeting
from raynb.engine.collector import RunFacts
from raynb.engine.spec import filesystem_of
from raynb.engine.supervisor import ACTOR, RunSupervisor
from raynb.engine.warm.cells import Cell, News
from raynb.engine.warm.job import Job, Plan
from raynb.engine.warm.left import left_text
from raynb.engine.warm.port import JobPort
from raynb.worker.warm.spmd import CellEnd, CellOrder

#: Seconds that a rank's question for orders waits for one.
ORDERS_S = 30.0
#: Jobs that have ended and are kept for those who still ask.
KEPT_JOBS = 4
#: Groups of processes that may die one after the other without becoming ready.
MAX_STARTS = 3


def group_actor(ranks: int) -> Any:
    """The actor class for a group of so many ranks: each may wait for orders, and in a meeting."""
    ways = {**ACTOR["concurrency_groups"], "orders": ranks + 2, "meet": 2 * ranks + 2}
    return ray.remote(**{**ACTOR, "concurrency_groups": ways})(GroupSupervisor)


class GroupSupervisor(RunSupervisor):
    """Hosts a warm group, which to itself is a run, and its jobs, one at a time."""

    def __init__(self, facts: RunFacts, env: Mapping[str, str], idle_s: float) -> None:
        super().__init__(facts, env)
        self._idle_s = idle_s
        self._changed = threading.Condition(threading.RLock())
        self._incarnation = 0
        self._starts = 0  # of processes, since they last became ready
        self._world_size = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._meeting = Meeting(0)
        self._orders: list[tuple[int, str, Any]] = []
        self._number = 0
        self._job: Job | None = None
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._cell: Cell | None = None
        self._cells = 0
        self._done = 0
        self._idle_since = time.monotonic()
        self._why = ""

    # -- the kernel ------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def submit(self, facts: RunFacts, plan: Plan) -> int | str:
        """Begin a job.

        Returns
        -------
        int or str
            Its number, or why it can't run here.
        """
        with self._changed:
            if self._cell is not None and not self._cell.done:
                return "the warm workers are busy with a %%distributed cell"
            if self._phase() not in ("idle", "busy"):
                return f"the warm workers are {self._phase()}"
            if self._job is not None and not self._job.done.is_set():
                return f"the warm workers are busy with run {self._job.name!r}"
            self._done += 1
            number = self._done
            job = Job(
                number,
                facts,
                plan,
                JobPort(ray.get_runtime_context().current_actor, number),
                self._order,
                self._give_up,
            )
            self._job = self._jobs[number] = job
            while len(self._jobs) > KEPT_JOBS:
                self._jobs.popitem(last=False)[1].shutdown()  # whoever watched it is gone
            self._begin()
        return number

    @ray.method(concurrency_group="watch")
    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """:meth:`status`, once the ranks are ready or the group has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._all_ready() or self._ended.is_set(), max(0.0, timeout)
            )
        return self._status()

    @ray.method(concurrency_group="control")
    def status(self) -> dict[str, Any]:
        """What there is to know of the group, as JSON."""
        return self._status()

    @ray.method(concurrency_group="control")
    def running(self) -> tuple[str, int] | None:
        """Name and number of the run that goes on."""
        job = self._job
        return None if job is None or job.done.is_set() else (job.name, job.number)

    @ray.method(concurrency_group="control")
    def restart(self) -> None:
        """End the ranks' processes; Ray Train starts new ones."""
        self._give_up([])

    # -- jobs ------------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def job_control(self, job: int, name: str, args: Any, kwargs: Any) -> Any:
        return getattr(self._jobs[job], name)(*args, **kwargs)

    @ray.method(concurrency_group="ingest")
    def job_ingest(self, job: int, name: str, args: Any, kwargs: Any) -> Any:
        return getattr(self._jobs[job], name)(*args, **kwargs)

    @ray.method(concurrency_group="watch")
    def job_watch(self, job: int, name: str, args: Any, kwargs: Any) -> Any:
        self._asked = time.monotonic()
        return getattr(self._jobs[job], name)(*args, **kwargs)

    @ray.method(concurrency_group="meet")
    def job_meet(self, job: int, name: str, args: Any, kwargs: Any) -> Any:
        return getattr(self._jobs[job], name)(*args, **kwargs)

    # -- cells -----------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def cell_begin(self, order: CellOrder) -> int | str:
        """Begin a cell on every rank; gives its number, or why it can't run now."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase() != "idle" or self._all_ready(), 10)
            phase = self._phase()
            if phase == "busy" and self._job is not None and not self._job.done.is_set():
                return f"the warm workers are busy with run {self._job.name!r}"
            if phase != "idle":
                return f"the warm workers are {phase}"
            beyond = [r for r in order.ranks if not 0 <= r < self._world_size]
            if beyond:
                return f"there is no rank {beyond[0]}: the warm workers have 0 to " + str(
                    self._world_size - 1
                )
            order.ranks = order.ranks or tuple(range(self._world_size))
            self._cells += 1
            order.number = self._cells
            self._cell = Cell(order, self._order, self._give_up)
            self._order("cell", order)
            return order.number

    @ray.method(concurrency_group="watch")
    def cell_watch(self, number: int, seen: int, timeout: float) -> News:
        return self._cell_of(number).watch(seen, timeout)

    @ray.method(concurrency_group="control")
    def cell_stop(self, number: int) -> None:
        self._cell_of(number).stop()

    @ray.method(concurrency_group="ingest")
    def cell_lines(self, number: int, rank: int, lines: list[tuple[int, str, str]]) -> None:
        self._cell_of(number).take_lines(rank, lines)

    @ray.method(concurrency_group="ingest")
    def cell_ended(self, number: int, rank: int, end: CellEnd) -> None:
        cell = self._cell_of(number)
        if not cell.ended(rank, end):
            return
        with self._changed:
            self._idle_since = time.monotonic()
            if cell.aborted:
                for row in self._ranks.values():
                    row["ready"] = False
                self._order("renew", None)
            self._changed.notify_all()

    def _cell_of(self, number: int) -> Cell:
        cell = self._cell
        if cell is None or cell.order.number != number:
            raise KeyError(f"cell {number} is over")
        return cell

    # -- ranks -----------------------------------------------------------------------------------

    @ray.method(concurrency_group="control")
    def join(self, who: Mapping[str, Any]) -> int:
        """A rank's process is there; gives the number of the group of processes it belongs to."""
        self._collector.hello(who)
        with self._changed:
            self._ranks[who["rank"]] = {**who, "ready": False}
            return self._incarnation

    @ray.method(concurrency_group="control")
    def ready(self, incarnation: int, rank: int, state: Mapping[str, Any]) -> None:
        """A rank waits for a job."""
        with self._changed:
            if incarnation != self._incarnation or rank not in self._ranks:
                return
            self._ranks[rank].update(state, ready=True)
            if self._all_ready():
                self._starts = 0
                self._idle_since = time.monotonic()
                self._collector.set_state("training", "waiting for jobs")
                self._begin()
            self._changed.notify_all()

    @ray.method(concurrency_group="orders")
    def orders(self, incarnation: int, rank: int, seen: int) -> list[tuple[int, str, Any]]:
        """Orders after number ``seen``; waits for one."""
        with self._changed:
            self._changed.wait_for(
                lambda: incarnation != self._incarnation or self._after(seen), ORDERS_S
            )
            if incarnation != self._incarnation:
                return [(seen + 1, "end", None)]
            return self._after(seen)

    @ray.method(concurrency_group="meet")
    def tell(self, incarnation: int, rank: int, turn: int, data: Any) -> Any:
        """Give every rank what rank 0 tells."""
        with self._changed:
            if incarnation != self._incarnation:
                raise RuntimeError("other processes have taken this group's place")
            meeting = self._meeting
        return meeting.broadcast_from_rank_zero(rank, data, turn)

    @ray.method(concurrency_group="control")
    def controller_event(self, kind: str, payload: Mapping[str, Any]) -> None:
        if kind == "group_starting":
            self._new_processes(payload["num_workers"])
        elif kind == "state" and payload["state"] in ("restarting", "rescheduling"):
            self._processes_gone(payload["error"] or "Ray Train starts them anew")
        self._on_controller_event(kind, payload)

    # -- inside ----------------------------------------------------------------------------------

    def _new_processes(self, ranks: int) -> None:
        self._processes_gone("their processes were started anew")
        with self._changed:
            self._incarnation += 1
            self._starts += 1
            self._world_size = ranks
            self._ranks = {}
            self._orders = []
            self._meeting = Meeting(ranks)
            self._changed.notify_all()
            too_often = self._starts > MAX_STARTS
        if too_often:
            self._down(f"they died {MAX_STARTS} times before they were ready")

    def _processes_gone(self, why: str) -> None:
        with self._changed:
            self._meeting.end()
            for row in self._ranks.values():
                row["ready"] = False
            job = self._job
            cell = self._cell
        if job is not None:
            job.lost(why)
        if cell is not None and not cell.done:
            cell.lost(why)

    def _order(self, kind: str, what: Any) -> None:
        with self._changed:
            if kind in ("run", "cell"):  # what came before is history
                self._orders.clear()
            self._orders.append((self._number, kind, what))
            self._number += 1
            self._changed.notify_all()

    def _after(self, seen: int) -> list[tuple[int, str, Any]]:
        return [order for order in self._orders if order[0] > seen]

    def _all_ready(self) -> bool:
        rows = self._ranks.values()
        return len(rows) == self._world_size > 0 and all(row["ready"] for row in rows)

    def _begin(self) -> None:
        """Begin the job's attempt, if there is one to begin and the ranks are ready."""
        job = self._job
        if job is None or not job.waits or not self._all_ready():
            return
        nodes = [self._ranks[rank]["node_id"] for rank in sorted(self._ranks)]
        for rank, row in sorted(self._ranks.items()):
            row["ready"] = False
            if text := left_text(row.pop("left", None)):
                job.collector.event(f"rank {rank}: {text}", "warn")
        job.begin(nodes)

    def _give_up(self, ranks: list[int]) -> None:
        """End the ranks' processes, of which these could not be stopped."""
        with self._changed:
            actors = [row["actor"] for row in self._ranks.values()]
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)

    def _phase(self) -> str:
        if self._ended.is_set():
            return "gone" + (f": {self._why}" if self._why else "")
        if self._stopping.is_set():
            return "ending"
        if self._job is not None and not self._job.done.is_set():
            return "busy"
        if self._cell is not None and not self._cell.done:
            return "busy"
        if self._all_ready():
            return "idle"
        if self._incarnation > 1 and not self._ranks:
            return "starting anew"
        # Between two jobs the ranks clean up, which is no reason to turn one away.
        return "idle" if self._done and len(self._ranks) == self._world_size else "starting"

    def _status(self) -> dict[str, Any]:
        with self._changed:
            phase = self._phase()
            idle = time.monotonic() - self._idle_since if phase == "idle" else None
            hidden = ("actor", "node_id")
            return {
                "phase": phase.partition(":")[0],
                "why": self._why,
                "idle": idle,
                "idle_timeout": self._idle_s,
                "jobs": self._done,
                "restarts": max(0, self._incarnation - 1),
                "job": self._going_on(),
                "message": str(self._collector.message),
                "ranks": [
                    {k: v for k, v in row.items() if k not in hidden}
                    for _, row in sorted(self._ranks.items())
                ],
            }

    def _going_on(self) -> str | None:
        """The run, or the cell, that goes on."""
        if self._job is not None and not self._job.done.is_set():
            return self._job.name
        if self._cell is not None and not self._cell.done:
            return self._cell.order.program.label
        return None

    def _down(self, why: str) -> None:
        self._why = why
        job = self._job
        if job is not None:
            job.fail(f"the warm workers ended: {why}")
        self._stop()

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        super()._conclude(result, error)
        if not self._why and self._outcome is not None and self._outcome.error is not None:
            self._why = str(self._outcome.error).strip().splitlines()[-1][:300]
        job = self._job
        if job is not None:
            job.fail(f"the warm workers ended{': ' if self._why else ''}{self._why}")
        with self._changed:
            self._changed.notify_all()

    def _watch(self) -> None:
        """End the group when nobody has used it for long, and leave once it has ended."""
        while not self._ended.wait(min(5.0, self._idle_s / 4)):
            with self._changed:
                idle = time.monotonic() - self._idle_since
                unused = self._phase() == "idle" and idle > self._idle_s
            if unused and not self._stopping.is_set():
                self._down(f"idle for {idle / 60:.3g} minutes")
        with self._changed:
            self._changed.notify_all()
        time.sleep(60)
        filesystem, path = filesystem_of(self._facts.run_path)
        if filesystem.type_name == "local":
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        os._exit(0)
