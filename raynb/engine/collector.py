"""The collector: one run's telemetry in one place, for the supervisor and for local mode."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from raynb.engine.alive import Pulse
from raynb.engine.hints.health import Health
from raynb.engine.spec import RAYNB_DIR, filesystem_of, read_record, without_secrets, write_record
from raynb.telemetry import clock
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch
from raynb.telemetry.gate import MAX_RANKS, Cut, Gate, checked_hello
from raynb.telemetry.history import HistoryWriter
from raynb.telemetry.loglines import read_log
from raynb.telemetry.update import Update

#: States that a run does not leave.
TERMINAL = ("finished", "failed", "stopped")
#: Watchers that are remembered; one that comes back after so many others is told everything anew.
MAX_WATCHERS = 32
#: Attempts before the last one whose failures are kept.
KEPT_ATTEMPTS = 2
#: Seconds between two looks for hints.
LOOK_S = 1.0


@dataclass
class RunFacts:
    """What is known of a run when it starts.

    Attributes
    ----------
    name : str
    run_path : str
        Absolute path or URI of the run's directory.
    best : (metric, mode) or None
    bundle : dict of str to float
        Resources of one worker.
    summary : dict
        JSON of spec, capture table and versions, for the record.
    """

    name: str
    run_path: str
    best: tuple[str, str] | None = None
    bundle: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


class Collector:
    """Takes events, keeps the digest and the history, and lets watchers wait for news."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self._filesystem, self._dir = filesystem_of(facts.run_path)
        self._news = threading.Condition()
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()
        self._digest = self._new_digest()
        before = read_record(self._filesystem, self._dir) or {}
        # A run that goes on in its old directory keeps its attempts apart from the earlier ones.
        attempts = before.get("attempts")
        self._first_attempt = attempts if type(attempts) is int and 0 <= attempts < 2**31 else 0
        self._attempt = self._first_attempt - 1
        self._gate = Gate(facts.name)
        self._told_cut: set[str] = set()
        #: The largest group so far; 0 before the first.
        self._ranks = 0
        self._health = Health(facts.summary.get("previous"))
        self._broken: set[str] = set()
        self.history = HistoryWriter(self._filesystem, f"{self._dir}/{RAYNB_DIR}/history")
        self.failures: list[dict[str, Any]] = []
        self._pulse = Pulse(self._filesystem, self._dir)
        self._closed = threading.Event()
        self._record_lock = threading.Lock()
        self.write_record()
        if note := facts.summary.get("workers_note"):
            self.event(str(note))
        self._thread = threading.Thread(target=self._tick, name="raynb-collector", daemon=True)
        self._thread.start()

    def _new_digest(self) -> Digest:
        facts = self.facts
        storage = without_secrets(facts.run_path)
        return Digest(facts.name, facts.best, storage=storage, started=clock.now())

    # -- facts come in ---------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return str(self._digest.run["state"])

    @property
    def message(self) -> str:
        return str(self._digest.run["message"])

    @property
    def attempt(self) -> int:
        """The number of the attempt that goes on, or was the last."""
        return self._attempt

    def set_state(self, state: str, message: str = "", **more: Any) -> None:
        """Change the run's state; a terminal one stays."""
        with self._news:
            if self.state in TERMINAL:
                return
            if state in TERMINAL:
                more.setdefault("ended", clock.now())
                more["stoppable"] = False
                for rank, row in self._digest.workers.items():
                    if row["status"] not in ("finished", "failed"):
                        self._digest.set_worker(
                            rank, status="finished" if state == "finished" else "stopped"
                        )
            if state != self.state:
                self._digest.event(
                    f"{state.replace('_', ' ')}{': ' + message if message else ''}",
                    "error" if state == "failed" else "info",
                )
            self._digest.set_run(state=state, message=message, **more)
            if state in TERMINAL:
                self._look()  # the last time: the hints stay as they are now
            self._news.notify_all()

    def event(self, text: str, level: str = "info") -> None:
        with self._news:
            self._digest.event(text, level)
            self._news.notify_all()

    def group_starting(self, num_workers: int) -> None:
        """A worker group is about to start: a new attempt."""
        with self._news:
            self._attempt += 1
            self._ranks = max(self._ranks, num_workers)
            for rank in self._digest.workers:
                self._digest.set_worker(rank, status="stopped")
            for rank in range(num_workers):
                self._digest.set_worker(
                    rank,
                    status="starting",
                    attempt=self._attempt,
                )
            self._digest.set_run(
                attempt=self._attempt - self._first_attempt, world_size=num_workers
            )
            self._news.notify_all()

    def hello(self, who: Mapping[str, Any]) -> int:
        """A rank is there; tells it which attempt it belongs to."""
        who = checked_hello(who, self.facts.name)
        with self._news:
            self._ranks = max(self._ranks, who["world_size"])
            if self._attempt < self._first_attempt:
                self._attempt = self._first_attempt
            self._digest.set_run(world_size=who["world_size"])
            self._digest.set_worker(
                who["rank"],
                attempt=self._attempt,
                node=who["node"],
                ip=who["ip"],
                pid=who["pid"],
                status="running",
            )
            self._news.notify_all()
            return self._attempt

    def let_in(self, message: Any) -> Batch | None:
        """A worker's message without what it may not hold; what is cut off is counted and told."""
        with self._news:
            batch, cut = self._gate.check(message, *self._bounds())
            self._tell_cut(batch, cut)
        return batch

    def _bounds(self) -> tuple[int, range]:
        """What the ranks are smaller than, and the attempts that there were."""
        first = self._first_attempt
        return self._ranks or MAX_RANKS, range(first, max(first, self._attempt) + 1)

    def _tell_cut(self, batch: Batch | None, cut: Cut) -> None:
        """Count what was cut off, and tell each kind of it once; the caller holds the lock."""
        if not cut:
            return
        dropped = self._digest.run["dropped"]
        refused = dropped.get("refused", 0) + cut.total()
        self._digest.set_run(dropped={**dropped, "refused": refused})
        for what in cut.keys() - self._told_cut:
            self._told_cut.add(what)
            who = "a worker's" if batch is None else f"rank {batch.rank}'s"
            self._digest.event(f"cut off from {who} messages, and counted: {what}", "warn")
        self._news.notify_all()

    def ingest(self, message: Any) -> None:
        """Take one worker's message."""
        batch = self.let_in(message)
        if batch is None:
            return
        if batch.records is not None:
            self.history.add(batch.rank, batch.attempt, batch.records)
        with self._news:
            self._digest.apply(batch)
            if batch.failure is not None:
                now = clock.now()
                failure = {
                    "at": now,
                    **batch.failure,
                    "rank": batch.rank,
                    "attempt": batch.attempt,
                    "time": now,
                }
                self._keep_failure(failure)
            self._news.notify_all()

    def _keep_failure(self, failure: dict[str, Any]) -> None:
        who = (failure["rank"], failure["attempt"])
        if who in ((f["rank"], f["attempt"]) for f in self.failures):
            return  # a rank ends once
        # Of a run that fails again and again, the last attempts tell why.
        kept = [f for f in self.failures if f["attempt"] >= failure["attempt"] - KEPT_ATTEMPTS]
        self.failures = [*kept, failure]
        self._digest.event(
            f"rank {failure['rank']} raised {failure['type']}: {failure['message'][:200]}", "error"
        )

    # -- watchers look ---------------------------------------------------------------------------

    def poll(self, watcher: str, timeout: float, pinned: Iterable[Any] = ()) -> Update:
        """News for a watcher since its last call; waits up to ``timeout`` seconds for some.

        Parameters
        ----------
        watcher : str
        timeout : float
        pinned : iterable of int
            Ranks whose series this watcher wants where there are too many for all.
        """
        end = time.monotonic() + timeout
        with self._news:
            cursor = self._cursors.setdefault(watcher, Cursor())
            self._cursors.move_to_end(watcher)
            if len(self._cursors) > MAX_WATCHERS:
                self._cursors.popitem(last=False)
            cursor.pin(pinned)
            while True:
                now = time.monotonic()
                due = self._digest.due(cursor, now)
                if due == 0.0:
                    update = self._digest.since(cursor, now)
                    if update:
                        return update
                elif now >= end:
                    return Update()
                self._news.wait(max(0.0, min(end - now, due or timeout)))

    def workers(self) -> dict[int, dict[str, Any]]:
        """A copy of the workers' rows."""
        with self._news:
            return {rank: dict(row) for rank, row in self._digest.workers.items()}

    @property
    def all_started(self) -> bool:
        """Whether every rank of the group has said hello."""
        with self._news:
            return all(row["status"] != "starting" for row in self._digest.workers.values())

    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """A rank's log file as :func:`~raynb.telemetry.loglines.read_log` tells it."""
        return read_log(self._filesystem, f"{self._dir}/{RAYNB_DIR}/logs", rank, max_bytes)

    def first_failure(self) -> dict[str, Any] | None:
        """The failure that came first in the last attempt that failed."""
        if not self.failures:
            return None
        last = max(f["attempt"] for f in self.failures)
        return min((f for f in self.failures if f["attempt"] == last), key=lambda f: f["at"])

    def history_table(self) -> pa.Table:
        return self.history.table()

    # -- storage ---------------------------------------------------------------------------------

    @property
    def storage(self) -> tuple[pafs.FileSystem, str]:
        return self._filesystem, self._dir

    def write_record(self) -> None:
        """Write ``record.json``: what a later session needs to know of this run."""
        # One at a time, so that an older one never comes last.
        with self._record_lock:
            self._write_record()

    def _write_record(self) -> None:
        with self._news:
            record = self._record()
        try:
            write_record(self._filesystem, self._dir, record)
        except Exception as error:
            self.event(f"record.json can't be written: {without_secrets(str(error))}", "error")

    def _record(self) -> dict[str, Any]:
        """The content of ``record.json``; the caller holds the lock."""
        run = dict(self._digest.run)
        return {
            "format": 1,
            **self.facts.summary,
            "name": self.facts.name,
            "state": run["state"] if run["state"] in TERMINAL else "running",
            "message": run["message"],
            "started": run["started"],
            "ended": run["ended"],
            "world_size": run["world_size"],
            "attempts": self._attempt + 1,
            "rows": self.history.rows,
            "shard_totals": run["shard_totals"],
            "dropped": run["dropped"],
            "error": run["error"],
            "best_seen": run["best"],
            "workers": [row for _, row in sorted(self._digest.workers.items())],
            "events": self._digest.events[-100:],
            "hints": self._digest.hints,
            "scale": self._health.scale,
        }

    def _look(self) -> None:
        """Look for hints; the caller holds the lock."""
        broken = self._health.broken
        try:
            if self._health.look(self._digest, self.failures):
                self._digest.set_hints(self._health.hints)
                self._news.notify_all()
        except Exception as error:  # a worker's row may hold anything, and the run goes on
            broken = {**broken, "of every kind": f"{type(error).__name__}: {error}"}
        for rule, why in broken.items():
            if rule not in self._broken:
                self._broken.add(rule)
                self._digest.event(f"the hint {rule} can't be told: {why}", "warn")

    def _tick(self) -> None:
        told, looked = None, 0.0
        while not self._closed.wait(0.5):
            with self._news:
                if self.state not in TERMINAL and time.monotonic() - looked >= LOOK_S:
                    looked = time.monotonic()
                    self._look()
            if self.history.due():
                self.history.flush()
            if self.state not in TERMINAL and self._pulse.beat():
                self.event(
                    "another run of this name writes into the same directory: their histories mix",
                    "error",
                )
            if self.history.error != told:
                told = self.history.error
                why = without_secrets(told or "")
                self.event(
                    f"history can't be written ({why}); it is kept here and tried again"
                    if told
                    else "history is written again",
                    "error" if told else "info",
                )

    def close(self) -> None:
        """Write out what is pending; the digest stays for those who watch."""
        self._closed.set()
        self.history.flush()
        if self.history.error:
            why = without_secrets(self.history.error)
            self.event(f"history could not be written: {why}", "error")
        self.write_record()
        self._pulse.end()
