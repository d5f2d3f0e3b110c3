"""A job of warm workers where their supervisor is: attempts, reports, outcome; without Ray."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray.train
from ray import cloudpickle

from raynb._ray.jobs import worker_error
from raynb.engine.collector import RunFacts
from raynb.engine.spec import RunSpec
from raynb.engine.warm import job as jobs
from raynb.engine.warm.group import WarmGroup
from raynb.engine.warm.job import Job, Plan
from raynb.engine.warm.left import left_text
from raynb.worker.runtime import Link
from raynb.worker.warm.loop import End


class Orders(list[tuple[str, Any]]):
    def __call__(self, kind: str, what: Any) -> None:
        self.append((kind, what))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


def job_of(directory: Path, orders: Orders, given_up: list[Any], **options: Any) -> Job:
    spec = RunSpec(num_workers=2, storage_path=str(directory), name="job", **options).check()
    facts = RunFacts("job", spec.run_path, spec.best, spec.bundle, {"options": spec.summary()})
    link = Link("job", None, str(directory))
    return Job(1, facts, Plan(spec, link, None, b"payload"), "port", orders, given_up.append)


def report(job: Job, directory: Path, loss: float) -> None:
    """Both ranks report; rank 0 with a checkpoint on the job's storage."""
    run_config = [what for kind, what in job.orders if kind == "run"][-1].run_config  # type: ignore[attr-defined]
    from ray.train.v2._internal.execution.training_report import _TrainingReport

    with tempfile.TemporaryDirectory() as made:
        Path(made, "model").write_text(str(loss))
        storage = run_config.storage_context
        saved = storage.persist_current_checkpoint(
            ray.train.Checkpoint(made), f"checkpoint_{time.time_ns()}"
        )
    job.report(0, _TrainingReport(saved, {"loss": loss}, False))
    job.report(1, _TrainingReport(None, {"loss": loss + 1}, False))


@pytest.fixture
def made(tmp_path: Path) -> Any:
    found: list[Job] = []

    def make(**options: Any) -> tuple[Job, Orders, list[Any]]:
        orders, given_up = Orders(), []
        job = job_of(tmp_path, orders, given_up, **options)
        job.orders = orders  # type: ignore[attr-defined]
        job.begin(["n", "n"])
        found.append(job)
        return job, orders, given_up

    yield make
    for job in found:
        job.collector.close()


def failed(message: str) -> End:
    error = cloudpickle.dumps(worker_error(ValueError(message), f"ValueError: {message}"))
    return End("failed", error=error, text=f"ValueError: {message}")


def test_reports_make_rays_result(made: Any, tmp_path: Path) -> None:
    job, orders, _ = made(num_to_keep=1, best=("loss", "min"))
    for loss in (3.0, 1.0, 2.0):
        report(job, tmp_path, loss)
    job.ended(0, 1, End(value=cloudpickle.dumps("not rank 0's")))
    job.ended(0, 0, End(value=cloudpickle.dumps("done")))
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "finished"
    result = outcome.result
    assert result.return_value == "done" and result.metrics == {"loss": 2.0}
    assert [m["loss"] for _, m in result.best_checkpoints] == [1.0]
    assert result.path == str(tmp_path / "job")
    kept = [n for n in os.listdir(tmp_path / "job") if n.startswith("checkpoint_1")]
    assert len(kept) == 2  # the best, and the latest
    assert ray.train.Result.from_path(str(tmp_path / "job")).metrics == {"loss": 2.0}
    assert orders.kinds == ["run"]


def test_a_failing_rank_interrupts_the_others(made: Any) -> None:
    job, orders, _ = made()
    job.failed(0, 1)
    assert orders.kinds == ["run", "interrupt"] and orders[-1][1] == (1, 0)
    job.ended(0, 1, failed("bad"))
    job.ended(0, 0, End("interrupted", text="KeyboardInterrupt"))
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "failed"
    assert isinstance(outcome.error, ray.train.WorkerGroupError)
    assert set(outcome.error.worker_failures) == {1} and "ValueError: bad" in str(outcome.error)


def test_ranks_that_do_not_end_cost_the_processes(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RELEASE_S", 0.5)
    monkeypatch.setattr(jobs, "ASK_S", 0.1)
    job, orders, given_up = made()
    job.failed(0, 1)
    job.ended(0, 1, failed("bad"))
    end = time.monotonic() + 5
    while not given_up and time.monotonic() < end:
        time.sleep(0.02)
    assert given_up == [[0]]
    assert orders.kinds == ["run", "interrupt", "abort"]
    job.lost("killed")
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "failed"
    events = [e["text"] for e in _record(job)["events"]]
    assert any("rank 0 could not be stopped in 0.5 s" in text for text in events)


def test_it_is_tried_again_from_its_latest_checkpoint(made: Any, tmp_path: Path) -> None:
    job, orders, _ = made(max_failures=1)
    report(job, tmp_path, 4.0)
    job.ended(0, 1, failed("once"))
    job.ended(0, 0, End("interrupted"))
    assert job.waits and not job.done.is_set()
    job.begin(["n", "n"])
    begin = orders[-1][1].begin
    assert begin["index"] == 1 and Path(begin["checkpoint"].path, "model").read_text() == "4.0"
    job.ended(0, 0, failed("late, of the attempt before"))
    for rank in (0, 1):
        job.ended(1, rank, End(value=cloudpickle.dumps(None)))
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "finished"
    assert not job.waits


@pytest.mark.parametrize("again", [0, 1])
def test_processes_that_die(made: Any, again: int) -> None:
    job, _, _ = made(max_failures=again)
    job.ended(0, 0, failed("Connection closed by peer"))
    job.lost("rank 1 died")
    if again:
        assert job.waits
        job.fail("the workers end")
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "failed"
    assert outcome.failure is None
    told = "the workers end" if again else "rank 1 died"
    assert told in str(outcome.error)
    assert _record(job)["error"]["title"].endswith(told)


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_stop(made: Any, when: str) -> None:
    job, orders, _ = made(max_failures=3)
    if when == "waiting":
        job.lost("killed")
        assert job.waits
    job.stop()
    assert not job.waits
    if when == "running":
        assert orders.kinds == ["run", "interrupt"]
        for rank in (0, 1):
            job.ended(0, rank, End("interrupted"))
    outcome = job.outcome(10)
    assert outcome is not None and outcome.state == "stopped"
    assert outcome.error is None


def test_an_attempt_that_ends_lets_ranks_go_that_meet(made: Any) -> None:
    job, _, _ = made()
    raised: list[str] = []

    def meet() -> None:
        try:
            job.broadcast_from_rank_zero(
                world_rank=0, world_size=2, data="x", caller_method_name="m", collective_seq=1
            )
        except Exception as error:
            raised.append(type(error).__name__)

    thread = threading.Thread(target=meet)
    thread.start()
    time.sleep(0.05)
    job.failed(0, 1)
    thread.join(5)
    assert raised == ["SynchronizationBarrierResetError"]


def _record(job: Job) -> dict[str, Any]:
    from raynb.engine.spec import read_record

    job.collector.write_record()
    found = read_record(*job.collector.storage)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, ""),
        ({"use_gpu": False}, ""),
        ({"num_workers": 3}, "-n is 3, and the warm workers have 2"),
        ({"num_workers": (1, 2)}, "fixed"),
        ({"use_gpu": True}, "resources is 1 GPU, and the warm workers have 1 CPU"),
        ({"resources_per_worker": {"CPU": 2.0}}, "2 CPU"),
        ({"placement_strategy": "SPREAD"}, "--placement-strategy is SPREAD"),
        ({"backend": "nccl"}, "--backend is nccl, and the warm workers have none"),
        ({"timeout_s": 1800}, ""),
        ({"timeout_s": 60}, "--timeout-s is 60, and the warm workers have 1800"),
        ({"env": {"A": "1"}}, ""),
        ({"env": {"B": "1"}}, "without --env B"),
    ],
)
def test_what_fits(asked: dict[str, Any], why: str) -> None:
    group = WarmGroup(None, RunSpec(num_workers=2, use_gpu=False, env={"A": "1"}))
    found = group.why_not(RunSpec(**{"num_workers": 2, **asked}))
    assert (why in found) if why else found == ""
    filled = RunSpec(num_workers=1)
    group.fill(filled, ())
    assert group.why_not(filled) == ""


def test_what_was_left_in_words() -> None:
    assert left_text(None) == left_text({"cuda": 0, "threads": []}) == ""
    text = left_text({"cuda": 2**30, "cuda_by": ["1 GiB by variable `model`"], "files": ["/a"]})
    assert "1.0 GiB of GPU memory: 1 GiB by variable `model`" in text and "1 open file (/a)" in text


def test_the_first_ranks_failure_is_the_runs(made: Any) -> None:
    from raynb.telemetry.events import Batch

    job, _, _ = made()
    for rank, kind, at in ((1, "ValueError", 1.0), (0, "RuntimeError", 2.0)):
        failure = {"type": kind, "message": "m", "cell": None, "traceback": kind, "at": at}
        job.ingest(Batch(rank=rank, attempt=0, seq=1, failure=failure))
        job.ended(0, rank, failed(kind))
    outcome = job.outcome(10)
    assert outcome is not None and outcome.failure is not None
    assert (outcome.failure["rank"], outcome.failure["type"], outcome.secondary) == (
        1,
        "ValueError",
        1,
    )
    assert _record(job)["error"]["rank"] == 1
