"""The collector of a search: what it keeps of Tune's callbacks and the workers' messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from raynb.engine.collector import RunFacts
from raynb.engine.spec import read_record
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.trials import SearchMirror, records_of, results_of
from raynb.tuning.callback import Interrupted, SearchCallback, SearchStopper, error_of, host
from raynb.tuning.collector import SearchCollector
from raynb.tuning.spec import Criterion

FACTS = {"metric": "acc", "mode": "max", "planned": 3, "workers": 2}


def make(tmp_path: Path) -> SearchCollector:
    return SearchCollector(RunFacts("search", str(tmp_path / "search")), FACTS)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[SearchCollector]:
    collector = make(tmp_path)
    host(collector)
    yield collector
    collector.close()


class Trial(SimpleNamespace):
    """What of Ray Tune's Trial the callback reads."""

    def __init__(self, number: int, **more: Any) -> None:
        kept = SimpleNamespace(best_checkpoint_results=[])
        super().__init__(
            **{
                "trial_id": f"t{number}",
                "config": {"lr": 0.1 * number},
                "status": "PENDING",
                "path": f"/data/search/trial_{number}",
                "last_result": {},
                "stopping_criterion": {},
                "run_metadata": SimpleNamespace(checkpoint_manager=kept),
                **more,
            }
        )

    def __str__(self) -> str:
        return f"trial_{self.trial_id}"


def result(step: int, acc: float, **more: Any) -> dict[str, Any]:
    return {"acc": acc, "training_iteration": step, "time_total_s": 1.0 * step, "pid": 3,
            "config": {"lr": 1}, **more}  # fmt: skip


def row(search: SearchCollector, number: int) -> dict[str, Any]:
    return search.row_of(f"t{number}")


def told(search: SearchCollector, number: int) -> tuple[str, str, str]:
    found = row(search, number)
    return found["state"], found["reason_kind"], found["reason"]


def test_how_trials_end(search: SearchCollector) -> None:
    callback = SearchCallback().named("ASHA", ("training_iteration", 9))
    trials = [Trial(k) for k in range(7)]
    callback.on_step_begin(0, trials)
    search.set_state("starting_workers")
    assert [r["state"] for r in search.trials()] == ["pending"] * 7
    for trial in trials:
        trial.status = "RUNNING"
        callback.on_trial_start(0, trials, trial)
    assert search.state == "searching"
    stopper = SearchStopper("acc", [Criterion.parse("acc>=0.9")])

    # 0 returns by itself: Tune marks its last result done, and tells no further one.
    callback.on_trial_result(1, trials, trials[0], result(1, 0.5))
    trials[0].last_result = result(1, 0.5, done=True)
    callback.on_trial_complete(1, trials, trials[0])
    # 1 is stopped by the scheduler upon a result.
    callback.on_trial_result(1, trials, trials[1], result(1, 0.1, done=True))
    callback.on_trial_complete(1, trials, trials[1])
    # 2 reaches the criterion.
    assert stopper("t2", result(1, 0.95)) is True and stopper("t0", result(1, 0.5)) is False
    callback.on_trial_result(1, trials, trials[2], result(1, 0.95, done=True))
    callback.on_trial_complete(1, trials, trials[2])
    # 3 is stopped while it waits, as HyperBand does.
    callback.on_trial_complete(1, trials, trials[3])
    # 4 fails; its worker had told why.
    failure = {"type": "ValueError", "message": "bad", "traceback": "Traceback", "cell": None}
    attempt, lane = search.hello_trial(
        {"trial": "t4", "rank": 1, "node": "n", "ip": "i", "pid": 7, "world_size": 2}
    )
    assert (attempt, lane) == (0, 9)
    search.ingest(Batch(lane, 0, 1, failure={**failure, "at": 1.0}))
    callback.on_trial_error(1, trials, trials[4])
    assert search.trials()[4]["state"] == "failed"
    # 6 comes as far as ASHA lets a trial come.
    callback.on_trial_result(1, trials, trials[6], result(9, 0.3, done=True))
    callback.on_trial_complete(1, trials, trials[6])
    # 5 is ended by Tune without a word.
    search.end_open_trials("the time budget of 9 s is used up", "budget")

    assert told(search, 0) == ("finished", "finished", "ended by itself")
    assert told(search, 1) == ("pruned", "pruned", "pruned by ASHA at iteration 1")
    assert told(search, 2) == ("finished", "criterion", "reached acc >= 0.9")
    assert told(search, 3) == ("pruned", "pruned", "pruned by ASHA")
    assert told(search, 4) == ("failed", "error", "ValueError: bad")
    assert row(search, 4)["error"]["rank"] == 1
    assert told(search, 5) == ("stopped", "budget", "the time budget of 9 s is used up")
    most = "reached training_iteration 9, the most that ASHA gives a trial"
    assert told(search, 6) == ("finished", "criterion", most)
    search.set_state("finished")
    search.write_record()
    record = read_record(*search.storage)
    assert record is not None and record["kind"] == "tune" and record["state"] == "finished"
    assert record["best_trial"]["id"] == "t2" and record["best_seen"]["value"] == 0.95
    assert record["counts"] == {"pending": 0, "running": 0, "paused": 0, "finished": 3,
                                "pruned": 2, "stopped": 1, "failed": 1}  # fmt: skip
    assert record["trials"][2]["details"]["last_result"]["acc"] == 0.95


def test_results_and_logs_are_one_history(search: SearchCollector) -> None:
    for trial in ("t0", "t1"):
        for rank in (0, 1):
            who = {"trial": trial, "rank": rank, "node": "n", "ip": "i", "pid": 1, "world_size": 2}
            _, lane = search.hello_trial(who)
            records = RecordBatch.of([Record(0.0, 5.0, {"loss": float(lane)})])
            search.ingest(Batch(lane, 0, 1, records=records))
        search.add_result(trial, 1, {"acc": 0.5}, 2.0)
    table = search.history_table()
    logged, results = records_of(table, 2), results_of(table)
    assert logged[["trial", "rank", "loss"]].values.tolist() == [
        [0, 0, 0], [0, 1, 1], [1, 0, 2], [1, 1, 3],
    ]  # fmt: skip
    assert results[["trial", "training_iteration", "acc"]].values.tolist() == [
        [0, 1, 0.5], [1, 1, 0.5],
    ]  # fmt: skip


def test_a_metric_that_never_comes_ends_the_search(search: SearchCollector) -> None:
    stopper = SearchStopper("accuracy", [])
    stopper("t0", {"pid": 1, "date": "x", "training_iteration": 0})
    assert not stopper.stop_all()  # nothing was reported yet
    stopper("t0", {**result(1, 0.5), "loss": 1.0})
    assert stopper.stop_all() and search.problem is not None
    assert "'acc', 'loss'" in search.problem.message
    stopper("t0", {"other": 1})
    assert "'other'" not in search.problem.message  # the first report is named


def test_an_interrupt_saves_first(search: SearchCollector) -> None:
    saved: list[str] = []
    search.save = lambda: saved.append("state")
    callback = SearchCallback()
    callback.on_step_begin(0, [])
    search.interrupted.set()
    with pytest.raises(Interrupted):
        callback.on_step_begin(1, [])
    assert saved == ["state"]


def test_a_resumed_search_knows_its_trials(tmp_path: Path) -> None:
    first = make(tmp_path)
    host(first)
    callback, trials = SearchCallback(), [Trial(0), Trial(1)]
    callback.on_step_begin(0, trials)
    callback.on_trial_result(1, trials, trials[0], result(1, 0.5))
    first.set_trial("t0", state="finished", reason="ended by itself", reason_kind="finished")
    first.end_open_trials("the search was stopped", "stopped")
    first.set_state("stopped")
    first.close()

    second = make(tmp_path)
    host(second)
    try:
        trials = [Trial(0, status="TERMINATED"), Trial(1), Trial(2)]
        SearchCallback().on_step_begin(0, trials)
        assert [r["state"] for r in second.trials()] == ["finished", "pending", "pending"]
        assert [r["id"] for r in second.trials()] == ["t0", "t1", "t2"]
        assert row(second, 1)["reason"] is None
        mirror = SearchMirror()
        mirror.apply(second.poll("w", 1.0))
        assert mirror.run["best_trial"]["value"] == 0.5 and len(mirror.trials) == 3
    finally:
        second.close()


def test_the_callback_travels_without_the_search(search: SearchCollector) -> None:
    import pickle

    from ray import cloudpickle

    for part in (SearchCallback().named("ASHA"), SearchStopper("acc", [Criterion("a", ">=", 1)])):
        assert type(pickle.loads(cloudpickle.dumps(part))) is type(part)


def test_a_trial_that_is_asked_to_end_ends_at_the_next_step(search: SearchCollector) -> None:
    ended: list[str] = []
    search.end_trial = ended.append
    callback, trials = SearchCallback(), [Trial(0), Trial(1)]
    callback.on_step_begin(0, trials)
    search.set_trial("t1", state="finished")
    for trial in (0, 1, 7):
        search.ask_to_end(trial)
    assert ended == []  # the request comes on another thread
    callback.on_step_begin(1, trials)
    callback.on_step_begin(2, trials)
    assert ended == ["t0"] and row(search, 0)["reason"] == "stopped on request"


def test_an_error_is_read_where_tune_puts_it_first(tmp_path: Path) -> None:
    from ray import cloudpickle

    trial = Trial(0, pickled_error_file=str(tmp_path / "e.pkl"), error_file=str(tmp_path / "e"))
    assert error_of(trial) is None
    (tmp_path / "e").write_text("Failure # 1\nthe text")
    assert "the text" in str(error_of(trial))
    (tmp_path / "e.pkl").write_bytes(cloudpickle.dumps(ActorDiedError()))
    assert isinstance(error_of(trial), ActorDiedError)
