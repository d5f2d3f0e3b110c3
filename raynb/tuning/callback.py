"""What Tune tells of its trials: a callback and a stopper that pass it on to the collector."""

from __future__ import annotations

import contextlib
import difflib
import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.tune import Callback, Stopper
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS
from ray.tune.utils import flatten_dict

from raynb.engine.spec import json_safe
from raynb.errors import TrainingError
from raynb.telemetry import clock
from raynb.telemetry.trials import ENDED_TRIAL, numeric
from raynb.tuning.collector import SearchCollector
from raynb.tuning.space import flat_config

#: What Ray Tune adds to a result by itself.
OWN_KEYS = frozenset(
    {*AUTO_RESULT_KEYS, *DEBUG_METRICS, "done", "should_checkpoint", "experiment_tag",
     "checkpoint_path"}
)  # fmt: skip
#: Seconds between two looks at states that no callback tells.
LOOK_S = 0.2
#: Characters of an error's text that are kept, its last ones.
MAX_ERROR = 8_000

_STATES = {"PENDING": "pending", "RUNNING": "running", "PAUSED": "paused"}
#: What a trial that has not ended has no word on.
_OPEN: dict[str, Any] = {"reason": None, "reason_kind": None, "error": None, "ended": None}
_search: SearchCollector | None = None


class Interrupted(Exception):
    """The search was stopped on request; its trials can be resumed."""


def host(search: SearchCollector) -> None:
    """Let this process's callbacks speak to ``search``.

    They hold no reference to it: Tune pickles them with what it needs to restore a search.
    """
    global _search
    _search = search


def _hosted() -> SearchCollector:
    if _search is None:
        raise RuntimeError("this search can be restored by raynb's --resume only")
    return _search


class SearchStopper(Stopper):
    """Ends trials that reached what was asked for, and a search whose metric never comes.

    Parameters
    ----------
    metric : str
    criteria : sequence of Criterion
    """

    def __init__(self, metric: str, criteria: Sequence[Any]) -> None:
        self._metric = metric
        self._criteria = tuple(criteria)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        flat = flatten_dict(dict(result))
        reported = [str(k) for k in flat if k not in OWN_KEYS and not str(k).startswith("config/")]
        if self._metric not in flat:
            # The end of a function that reports nothing comes here too, without any name.
            if reported or result.get("done"):
                _hosted().end_with(missing_metric(self._metric, reported, _hosted().logged))
            return False
        for criterion in self._criteria:
            if criterion.met(flat):
                _hosted().set_trial(
                    trial_id, reason=f"reached {criterion}", reason_kind="criterion"
                )
                return True
        return False

    def stop_all(self) -> bool:
        return _hosted().problem is not None


def missing_metric(metric: str, reported: Sequence[str], logged: Sequence[str]) -> TrainingError:
    """The error for a metric that no report has."""
    names = list(dict.fromkeys(reported or logged))
    told = ", ".join(repr(name) for name in names[:20]) or "nothing"
    how = "reported" if reported or not logged else "logged"
    near = difflib.get_close_matches(metric, names, 1, 0.5)
    hint = f"did you mean --metric {near[0]}?" if near else (
        f"report {metric!r} with every ray.train.report, or name one that is: --metric {names[0]}"
        if names
        else f"report it, for example ray.train.report({{{metric!r}: value}})"
    )  # fmt: skip
    return TrainingError(
        f"the metric {metric!r} is not reported; the trials {how} {told}", hint=hint
    )


class SearchCallback(Callback):
    """Tells the collector what happens to each trial."""

    def __init__(self) -> None:
        self._seen = 0
        self._looked = 0.0
        self._scheduler = "the scheduler"
        self._most: tuple[str, float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_seen": 0, "_looked": 0.0}

    def named(self, scheduler: str, most: tuple[str, float] | None = None) -> SearchCallback:
        """Call the scheduler so where it ended a trial.

        ``most`` names what it counts and how much of it a trial may have: one that comes so far is
        not pruned.
        """
        self._scheduler, self._most = scheduler, most
        return self

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        search = _hosted()
        search.end_asked_trials()
        if search.interrupted.is_set():
            # With its trials as they are: what Tune's own end of a search would call terminated
            # could not be resumed.
            search.save()
            raise Interrupted
        if len(trials) > self._seen:
            for trial in trials[self._seen :]:
                changes: dict[str, Any] = {}
                if trial.status in _STATES:
                    # In a search that is resumed, it had ended with it.
                    changes = {"state": _STATES[trial.status], **_OPEN}
                config = flat_config(trial.config)
                search.set_trial(trial.trial_id, name=str(trial), config=config, **changes)
                self._detail(search, trial)
            self._seen = len(trials)
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        for trial in trials:
            state = _STATES.get(trial.status)
            before = search.row_of(trial.trial_id)["state"]
            # One that Tune runs again, from a checkpoint or a copy of another's, is at work.
            if state is not None and state != before and not (
                before in ENDED_TRIAL and state == "pending"
            ):  # fmt: skip
                search.set_trial(trial.trial_id, state=state)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _hosted()
        if search.state == "starting_workers":
            search.set_state("searching")
        search.set_trial(
            trial.trial_id,
            state="running",
            config=flat_config(trial.config),  # population-based training changes it
            started=clock.now(),
            **_OPEN,
        )

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        search = _hosted()
        flat = flatten_dict(dict(result))
        step = flat.get("training_iteration", 0)
        search.add_result(trial.trial_id, step, numeric(flat, OWN_KEYS), flat.get("time_total_s"))
        self._detail(search, trial, last_result=_plain(result))
        told = search.row_of(trial.trial_id)["reason_kind"] == "criterion"
        if result.get("done") and not told:
            # The stopper has not ended it: then it is the scheduler's doing.
            search.set_trial(trial.trial_id, **self._why_done(trial, flat, step))

    def _why_done(self, trial: Any, flat: Mapping[str, Any], step: Any) -> dict[str, Any]:
        met = [
            f"{name} >= {bound:g}"
            for name, bound in (trial.stopping_criterion or {}).items()
            if isinstance(flat.get(name), (int, float)) and flat[name] >= bound
        ]
        if met:
            return {"reason": f"reached {met[0]}", "reason_kind": "criterion"}
        if self._most is not None:
            name, most = self._most
            if isinstance(flat.get(name), (int, float)) and flat[name] >= most:
                reason = f"reached {name} {most:g}, the most that {self._scheduler} gives a trial"
                return {"reason": reason, "reason_kind": "criterion"}
        return {
            "reason": f"pruned by {self._scheduler} at iteration {step}",
            "reason_kind": "pruned",
        }

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        search = _hosted()
        done = search.row_of(trial.trial_id)["checkpoint"]
        search.set_trial(trial.trial_id, checkpoint=done + 1)

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # Tune knows the checkpoint only now, and a result before its own.
        self._detail(_hosted(), trial)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        # Of a trial that a time budget ends, nothing else tells what it had by then.
        for trial in trials:
            self._detail(_hosted(), trial)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _hosted()
        self._detail(search, trial)
        kind = search.row_of(trial.trial_id)["reason_kind"]
        changes: dict[str, Any] = {}
        if kind == "criterion":
            state = "finished"
        elif kind in ("pruned", "stopped"):
            state = kind
        elif (trial.last_result or {}).get("done"):
            state, changes = "finished", {"reason": "ended by itself", "reason_kind": "finished"}
        else:
            state = "pruned"
            changes = {"reason": f"pruned by {self._scheduler}", "reason_kind": "pruned"}
        search.set_trial(trial.trial_id, state=state, **changes)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        _hosted().restarted(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _hosted()
        self._detail(search, trial)
        changes = why_failed(error_of(trial), search.failure_of(trial.trial_id))
        search.set_trial(trial.trial_id, state="failed", **changes)
        number = search.row_of(trial.trial_id)["trial"]
        search.event(f"trial {number} failed: {changes['reason']}", "error")

    @staticmethod
    def _detail(search: SearchCollector, trial: Any, **more: Any) -> None:
        """What the trial's result is made of again."""
        kept = trial.run_metadata.checkpoint_manager.best_checkpoint_results
        search.detail(
            trial.trial_id,
            config=json_safe(trial.config, depth=6),
            directory=posixpath.basename(str(trial.path).rstrip("/")) if trial.path else None,
            checkpoints=[
                {"name": posixpath.basename(k.checkpoint.path), "metrics": _plain(k.metrics)}
                for k in kept
                if k.checkpoint is not None
            ],
            **more,
        )


def error_of(trial: Any) -> BaseException | None:
    """What ended a trial, from the directory where Tune has just put it.

    Tune's own ``trial.get_error()`` looks on storage, which gets it later.
    """
    with contextlib.suppress(Exception), open(trial.pickled_error_file, "rb") as file:
        error = cloudpickle.load(file)
        if isinstance(error, BaseException):
            return error
    with contextlib.suppress(Exception), open(trial.error_file, encoding="utf-8") as file:
        return RuntimeError(file.read()[-MAX_ERROR:].strip())
    return None


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as JSON, without the config that each one repeats."""
    plain = json_safe({k: v for k, v in result.items() if k != "config"}, depth=6)
    assert isinstance(plain, dict)
    return plain


def why_failed(error: Any, failure: Mapping[str, Any] | None) -> dict[str, Any]:
    """Reason, its kind and the whole error of a trial that failed.

    Parameters
    ----------
    error : BaseException or None
        What Tune has.
    failure : dict or None
        What the trial's own worker told, which knows the cell's line.
    """
    from raynb.engine.supervisor import shown_error

    if error is None:
        error = RuntimeError("Ray Tune gives no reason")
    cause = getattr(error, "cause", None) or error
    if failure is not None:
        shown = shown_error(failure, error)
        name = failure["type"].rpartition(".")[2]
        if name in ("OutOfMemoryError", "MemoryError"):
            return {"reason": _line("out of memory", failure["message"] or failure["type"]),
                    "reason_kind": "oom", "error": shown}  # fmt: skip
        return {"reason": shown["title"][:300], "reason_kind": "error", "error": shown}
    shown = shown_error(None, cause)
    errors = ray.exceptions
    text = str(error)
    if isinstance(cause, errors.OutOfMemoryError):
        return {"reason": _line("out of memory", "killed by Ray before its node ran out of it"),
                "reason_kind": "oom", "error": shown}  # fmt: skip
    died = isinstance(cause, (errors.ActorDiedError, errors.ActorUnavailableError,
                              errors.WorkerCrashedError))  # fmt: skip
    if died or "ActorDiedError" in text or "died unexpectedly" in text:
        why = next((line.strip() for line in text.splitlines() if "exit" in line.casefold()), "")
        return {"reason": _line("its worker process was killed", why), "reason_kind": "killed",
                "error": shown}  # fmt: skip
    return {"reason": shown["title"][:300], "reason_kind": "error", "error": shown}


def _line(what: str, why: str) -> str:
    first = why.strip().splitlines()[0] if why.strip() else ""
    return f"{what}: {first}"[:300] if first else what
