"""The collector of a search: its trials' states, results and telemetry in one place."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from raynb.engine.collector import Collector, RunFacts
from raynb.engine.spec import filesystem_of, read_record, without_secrets
from raynb.errors import TrainingError
from raynb.telemetry import clock
from raynb.telemetry.digest import Digest
from raynb.telemetry.events import Record, RecordBatch
from raynb.telemetry.gate import Cut, checked_hello
from raynb.telemetry.trials import ENDED_TRIAL, SearchDigest, is_trial, lane_of, result_lane

#: Seconds between two looks at the cluster, and at whether the record is worth writing.
LOOK_S = 2.0
#: Trials of a search, and the length of one's id.
MAX_TRIALS, MAX_ID = 100_000, 200
#: Resources of the cluster that the panel shows.
_SHOWN = ("CPU", "GPU", "memory")


class SearchCollector(Collector):
    """Takes what Tune's callbacks and the trials' workers tell."""

    _digest: SearchDigest

    def __init__(self, facts: RunFacts, search: Mapping[str, Any]) -> None:
        self._search = search
        self._index: dict[str, int] = {}
        self._details: dict[int, dict[str, Any]] = {}
        self._failure: dict[int, dict[str, Any]] = {}
        #: What ends the whole search, once there is something.
        self.problem: TrainingError | None = None
        self.interrupted = threading.Event()
        #: Writes the search's state to storage, for a later one to go on from.
        self.save: Callable[[], None] = lambda: None
        #: Ends a trial, by its id; on the thread that runs the search only.
        self.end_trial: Callable[[str], None] = lambda trial_id: None
        self._asked: deque[str] = deque()
        self._dirty = False
        self._logged: dict[str, None] = {}
        super().__init__(facts)
        threading.Thread(target=self._look_around, name="raynb-search", daemon=True).start()

    def _new_digest(self) -> Digest:
        facts = self.facts
        digest = SearchDigest(
            facts.name,
            self._search,
            storage=without_secrets(facts.run_path),
            started=clock.now(),
        )
        before = read_record(*filesystem_of(facts.run_path)) or {}
        trials = before.get("trials") if before.get("kind") == "tune" else None
        rows = [row for row in trials or () if is_trial(row)] if isinstance(trials, list) else []
        for row in rows:
            details = row.pop("details", None)
            self._index[row["id"]] = row["trial"]
            self._details[row["trial"]] = details if isinstance(details, dict) else {}
        digest.restore(rows)
        return digest

    # -- workers ---------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        return int(self._digest.run["workers"])

    def trial_of(self, trial_id: str) -> int:
        """The index of a trial, a new one where it is not known; the caller holds the lock."""
        if trial_id not in self._index:
            self._index[trial_id] = len(self._index)
            self._digest.set_trial(self._index[trial_id], id=trial_id)
        return self._index[trial_id]

    def hello_trial(self, who: Mapping[str, Any]) -> tuple[int, int]:
        """A rank of a trial is there; tells it its attempt and its lane."""
        name = who.get("trial")
        who = checked_hello(who, self.facts.name)
        if type(name) is not str or len(name) > MAX_ID or who["rank"] >= self.lanes:
            raise ValueError("no rank of a trial of this search")
        with self._news:
            if name not in self._index and len(self._index) >= MAX_TRIALS:
                raise ValueError(f"a search has at most {MAX_TRIALS:,} trials")
            trial = self.trial_of(name)
            row = self._digest.trials[trial]
            lane, attempt = lane_of(trial, who["rank"], self.lanes), row["restarts"]
            known = {k: who[k] for k in ("node", "ip", "pid")}
            self._digest.set_worker(lane, attempt=attempt, status="running", **known)
            if who["rank"] == 0:
                self._digest.set_trial(trial, node=who["node"], pid=who["pid"])
            self._news.notify_all()
            return attempt, lane

    def _bounds(self) -> tuple[int, range]:
        restarts = max((row["restarts"] for row in self._digest.trials.values()), default=0)
        return max(1, len(self._digest.trials)) * self.lanes, range(restarts + 1)

    def ingest(self, message: Any) -> None:
        """Take one worker's message."""
        batch = self.let_in(message)
        if batch is None:
            return
        if batch.records is not None:
            self.history.add(batch.rank, batch.attempt, batch.records)
        with self._news:
            if batch.records is not None and len(self._logged) < 100:
                self._logged.update(dict.fromkeys(batch.records.metrics))
            self._digest.apply(batch)
            if batch.failure is not None:
                trial, rank = divmod(batch.rank, self.lanes)
                failure = {"at": clock.now(), **batch.failure, "rank": rank}
                first = self._failure.get(trial)
                if first is None or first["at"] > failure["at"]:
                    self._failure[trial] = failure
            self._news.notify_all()

    # -- what Tune tells -------------------------------------------------------------------------

    def set_trial(self, trial_id: str, **changes: Any) -> None:
        """Change a trial's row; a state that is terminal stays unless it is restarted."""
        with self._news:
            trial = self.trial_of(trial_id)
            state = changes.get("state")
            if state in ENDED_TRIAL:
                changes.setdefault("ended", clock.now())
                self._dirty = True
                self._end_lanes(trial, state)
            self._digest.set_trial(trial, **changes)
            self._news.notify_all()

    def row_of(self, trial_id: str) -> dict[str, Any]:
        """A copy of a trial's row."""
        with self._news:
            return dict(self._digest.trials[self.trial_of(trial_id)])

    def _end_lanes(self, trial: int, state: str) -> None:
        for rank in range(self.lanes):
            lane = lane_of(trial, rank, self.lanes)
            row = self._digest.workers.get(lane)
            if row is not None and row["status"] not in ("finished", "failed"):
                status = {"finished": "finished", "failed": "failed"}.get(state, "stopped")
                self._digest.set_worker(lane, status=status)

    def detail(self, trial_id: str, **details: Any) -> None:
        """Keep what the record has of a trial besides its row."""
        with self._news:
            self._details.setdefault(self.trial_of(trial_id), {}).update(details)

    def add_result(
        self, trial_id: str, iteration: float, values: Mapping[str, float], time_s: Any
    ) -> None:
        at = clock.now()
        with self._news:
            trial = self.trial_of(trial_id)
            cut: Cut = Counter()
            values = self._gate.named(values, cut)
            self._tell_cut(None, cut)
            self._digest.add_result(trial, iteration, at, values, time_s)
            attempt = self._digest.trials[trial]["restarts"]
            self._news.notify_all()
        kept = dict(values)
        if isinstance(time_s, (int, float)):
            kept["time_total_s"] = float(time_s)
        record = RecordBatch.of([Record(float(iteration), at, kept)])
        self.history.add(result_lane(trial), attempt, record)

    def restarted(self, trial_id: str) -> None:
        """A trial failed and will be tried again."""
        with self._news:
            trial = self.trial_of(trial_id)
            failure = self._failure.pop(trial, None)
            row = self._digest.trials[trial]
            why = f": {failure['type']}: {failure['message'][:200]}" if failure else ""
            self._digest.event(f"trial {trial} failed and is restarted{why}", "warn")
            self._digest.set_trial(trial, state="pending", restarts=row["restarts"] + 1)
            self._news.notify_all()

    def failure_of(self, trial_id: str) -> dict[str, Any] | None:
        """The failure that a trial's worker told first."""
        with self._news:
            return self._failure.get(self.trial_of(trial_id))

    def end_with(self, problem: TrainingError) -> None:
        """End the whole search: nothing good can come of it."""
        with self._news:
            if self.problem is None:
                self.problem = problem
                self._digest.event(problem.message, "error")
                self._news.notify_all()

    def end_open_trials(self, reason: str, kind: str) -> None:
        """Mark the trials that Tune ended without a word."""
        with self._news:
            for trial, row in list(self._digest.trials.items()):
                if row["state"] in ENDED_TRIAL:
                    continue
                began = row["started"] is not None
                self._end_lanes(trial, "stopped")
                self._digest.set_trial(
                    trial,
                    state="stopped",
                    reason=reason if began else f"not started: {reason}",
                    reason_kind=kind,
                    ended=clock.now() if began else None,
                )
            self._news.notify_all()

    def ask_to_end(self, trial: int) -> None:
        """End a trial at the search's next step."""
        with self._news:
            row = self._digest.trials.get(trial)
            if row is None or row["state"] in ENDED_TRIAL:
                return
            self._asked.append(row["id"])
            self._digest.set_trial(trial, reason="stopped on request", reason_kind="stopped")
            self._news.notify_all()

    def end_asked_trials(self) -> None:
        """End the trials that were asked to, on the thread that runs the search."""
        while self._asked:
            self.end_trial(self._asked.popleft())

    @property
    def logged(self) -> list[str]:
        """Names that ``raynb.log`` was given."""
        with self._news:
            return list(self._logged)

    def trials(self) -> Sequence[dict[str, Any]]:
        """A copy of the trials' rows."""
        with self._news:
            return [dict(row) for _, row in sorted(self._digest.trials.items())]

    # -- record and surroundings -----------------------------------------------------------------

    def _record(self) -> dict[str, Any]:
        run = self._digest.run
        search = {
            key: run[key]
            for key in (
                "metric", "mode", "planned", "params", "metrics", "counts", "best_trial", "stop",
            )
        }  # fmt: skip
        trials = [
            {**row, "details": self._details.get(trial, {})}
            for trial, row in sorted(self._digest.trials.items())
        ]
        return {
            **super()._record(),
            "kind": "tune",
            "best_seen": run["best_trial"] and {"metric": run["metric"], **run["best_trial"]},
            "lanes": self.lanes,
            **search,
            "trials": trials,
            "attempts": 0,
        }

    def _look(self) -> None:
        """Hints are about one worker group; a search has none."""

    def _look_at_cluster(self) -> None:
        total, free = ray.cluster_resources(), ray.available_resources()
        use = {
            name: {"used": total[name] - free.get(name, 0.0), "total": total[name]}
            for name in _SHOWN
            if name in total
        }
        with self._news:
            self._digest.set_run(cluster=use)
            self._news.notify_all()

    def _look_around(self) -> None:
        while not self._closed.wait(LOOK_S):
            with contextlib.suppress(Exception):  # the cluster may be busy
                if ray.is_initialized():  # asking would start one
                    self._look_at_cluster()
            if self._dirty:
                self._dirty = False
                self.write_record()
