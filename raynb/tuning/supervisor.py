"""The supervisor of a search: the Ray actor that hosts ``Tuner.fit()``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import ray

from raynb.engine.collector import Collector, RunFacts
from raynb.engine.supervisor import ACTOR, Outcome, RunSupervisor, shown_error
from raynb.errors import TrainingError
from raynb.tuning.collector import SearchCollector

#: Ray Tune's settings that a search gets unless the user set them: a stopped trial that does not
#: end is killed after some seconds instead of ten minutes.
TUNE_DEFAULTS = {"TUNE_FORCE_TRIAL_CLEANUP_S": "5"}


class TuneSupervisor(RunSupervisor):
    """Hosts one search.

    Parameters
    ----------
    facts : RunFacts
        ``summary["search"]`` holds ``TuneSpec.facts()``.
    env : dict of str to str
    """

    _collector: SearchCollector

    def __init__(self, facts: RunFacts, env: Mapping[str, str]) -> None:
        for name, value in TUNE_DEFAULTS.items():
            os.environ.setdefault(name, value)
        super().__init__(facts, env)

    def _new_collector(self, facts: RunFacts) -> Collector:
        from raynb._ray.tune import tell_controller
        from raynb.tuning.callback import host

        collector = SearchCollector(facts, facts.summary.pop("search"))
        host(collector)
        tell_controller(self._has_tune_controller)
        return collector

    def _has_tune_controller(self, controller: Any) -> None:
        self._controller = controller
        self._collector.save = lambda: controller.checkpoint(force=True, wait=True)
        self._collector.end_trial = self._end_trial
        self._has_controller.set()

    @ray.method(concurrency_group="control")
    def hello(self, who: Mapping[str, Any]) -> Any:
        """A rank of a trial is there: its attempt and its lane."""
        return self._collector.hello_trial(who)

    @ray.method(concurrency_group="control")
    def stop_trial(self, trial: int) -> None:
        """End one trial; returns at once, its row tells when it is done."""
        self._collector.ask_to_end(trial)

    def _end_trial(self, trial_id: str) -> None:
        # Tune's own queue of such requests is read by nobody (Ray 2.60).
        trial = self._controller.get_trial(trial_id)
        if trial is not None:
            self._controller.stop_trial(trial)

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        collector = self._collector
        problem: BaseException | None = collector.problem
        shown = None
        if self._stopping.is_set() and problem is None:
            state, message, error = "stopped", "stopped on request", None
            collector.end_open_trials("the search was stopped", "stopped")
        elif problem is None and error is None:
            collector.end_open_trials(*self._why_ended())
            state, message = "finished", ""
            problem = self._all_failed()
        else:
            collector.end_open_trials("the search ended", "search_ended")
        problem = problem or error
        if problem is not None:
            state = "failed"
            shown = shown_error(None, problem)
            if isinstance(problem, TrainingError):
                shown = {**shown, "title": problem.message, "text": problem.detail or shown["text"]}
            message = shown["title"]
        collector.history.flush()
        collector.set_state(state, message, error=shown)
        collector.write_record()
        self._outcome = Outcome(state, None, problem, None, 0)

    def _why_ended(self) -> tuple[str, str]:
        budget = self._collector.facts.summary.get("options", {}).get("time_budget_s")
        if budget is not None:
            return f"the time budget of {budget:g} s is used up", "budget"
        return "the search ended", "search_ended"

    def _all_failed(self) -> TrainingError | None:
        """The error of a search without any trial that worked."""
        rows = self._collector.trials()
        failed = [row for row in rows if row["state"] == "failed"]
        if not failed or len(failed) < len(rows):
            return None
        error = failed[0]["error"] or {}
        lines = [error["line"]] if error.get("line") else []
        return TrainingError(
            f"all {len(failed)} trials failed; the first one: {failed[0]['reason']}",
            detail="\n".join([*lines, str(error.get("text") or "").rstrip()]),
            rank=error.get("rank"),
        )

    def _abort(self) -> None:
        """End the search, with its trials' states kept so that it can be resumed."""
        while not self._has_controller.wait(0.1):
            if self._ended.is_set():
                return
        # Checked by the callback, on the thread that runs the search.
        self._collector.interrupted.set()
        if not self._ended.wait(30.0):
            self._collector.event("the search does not end: ending its supervisor", "error")
            with contextlib.suppress(Exception):
                self._collector.close()
            time.sleep(0.5)
            os._exit(1)

    def _fit(self, make_trainer: Any) -> None:
        from raynb.tuning.callback import Interrupted

        result: Any = None
        error: BaseException | None = None
        try:
            tuner = make_trainer()
            if not self._stopping.is_set():
                result = tuner.fit()
        except Interrupted:
            pass
        except BaseException as raised:
            error = raised
        self._end(result, error)


Supervisor = ray.remote(**ACTOR)(TuneSupervisor)
