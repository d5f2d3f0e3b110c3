"""What counts as a report of a trial, and what its end is called."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray import tune
from ray.exceptions import ActorDiedError, RayTaskError

from raynb.api_tune import calls_report
from raynb.tuning.callback import missing_metric, why_failed
from raynb.tuning.tuner import with_telemetry
from raynb.worker.runtime import Link
from raynb.worker.trial import LoggedMetric, TrialLink


def told(reports: bool | None = None) -> tuple[LoggedMetric, list[Any]]:
    sent: list[Any] = []
    return LoggedMetric(TrialLink("t", "acc", reports), sent.append), sent


def test_logs_are_reports_where_nothing_else_is() -> None:
    logged, sent = told()
    logged.logged({"loss": 1.0})
    logged.logged({"acc": 0.1})
    assert sent == []  # a report may come yet
    logged.logged({"acc": 0.2, "loss": 0.5})
    assert sent == [{"acc": 0.1}, {"acc": 0.2, "loss": 0.5}]
    logged.logged({"acc": 0.3})
    assert len(sent) == 3


def test_one_log_is_a_report_at_the_end() -> None:
    logged, sent = told()
    logged.logged({"acc": 0.1})
    logged.flush()
    assert sent == [{"acc": 0.1}]


def test_no_value_counts_twice() -> None:
    logged, sent = told()
    for value in (0.1, 0.2, 0.3):
        logged.logged({"acc": value})
        logged.reported()  # the function itself reports the same
    logged.flush()
    assert sent == []


def test_a_function_that_reports_is_known_beforehand() -> None:
    logged, sent = told(reports=True)
    logged.logged({"acc": 0.1})
    logged.logged({"acc": 0.2})
    logged.flush()
    assert sent == []

    def reporting(config: dict[str, Any]) -> None:
        ray.train.report({"acc": 1.0})

    def logging(config: dict[str, Any]) -> None:
        print(config)

    assert calls_report(reporting) is True and calls_report(logging) is None
    assert calls_report(len) is None


def test_a_users_function_stays_what_tune_sees() -> None:
    def mine(config: dict[str, Any]) -> None: ...

    def steps(config: dict[str, Any]) -> Any:
        yield {"acc": 1.0}

    class Own(tune.Trainable): ...

    link = Link("run", None, "/")
    wrapped = with_telemetry(tune.with_resources(mine, {"CPU": 2}), link)
    assert wrapped is not mine and wrapped.__name__ == "mine"
    assert wrapped._resources.required_resources == {"CPU": 2.0}
    for other in (steps, Own, "a registered name"):
        assert with_telemetry(other, link) is other


def test_a_missing_metric_names_what_there_is() -> None:
    error = str(missing_metric("val_acc", ["val_accuracy", "loss"], []))
    assert "'val_acc'" in error and "'val_accuracy', 'loss'" in error
    assert "--metric val_accuracy" in error
    assert "logged 'loss'" in str(missing_metric("acc", [], ["loss"]))
    assert "nothing" in str(missing_metric("acc", [], []))


FAILURE = {
    "rank": 0,
    "type": "ValueError",
    "message": "bad batch",
    "traceback": "Traceback\nValueError: bad batch",
    "cell": {"label": "Cell In[3]", "line": 9, "text": "  raise ValueError('bad batch')"},
}


@pytest.mark.parametrize(
    ("error", "failure", "kind", "words"),
    [
        (None, FAILURE, "error", "ValueError: bad batch"),
        (None, {**FAILURE, "type": "torch.OutOfMemoryError", "message": "8 GiB"}, "oom", "8 GiB"),
        (None, {**FAILURE, "type": "MemoryError", "message": ""}, "oom", "out of memory"),
        (ActorDiedError(), None, "killed", "its worker process was killed"),
        (ray.exceptions.OutOfMemoryError("x"), None, "oom", "out of memory"),
        (KeyError("lr"), None, "error", "KeyError"),
        (None, None, "error", "gives no reason"),
    ],
)
def test_why_a_trial_failed(error: Any, failure: Any, kind: str, words: str) -> None:
    changes = why_failed(error, failure)
    assert changes["reason_kind"] == kind and words in changes["reason"]
    assert "\n" not in changes["reason"]
    if failure is not None:
        assert changes["error"]["line"].startswith("Cell In[3], line 9: raise")


def test_a_task_error_is_told_by_its_cause() -> None:
    error = RayTaskError("train", "Traceback …", ValueError("bad"))
    assert why_failed(error, None)["reason"] == "ValueError: bad"
