"""What is broken on purpose, on real processes, and what a run makes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

import raynb
from raynb.errors import TrainingError

pytestmark = pytest.mark.usefixtures("cluster")
STEPS = 60


def train_func(config: dict[str, Any]) -> str:
    """Logs each step, saves every tenth, goes on from there; its own files tell the truth."""
    import time
    from pathlib import Path

    import ray.train
    import torch

    import raynb

    rank = ray.train.get_context().get_world_rank()
    model = torch.nn.Linear(2, 1)
    saved = raynb.resume(model)
    first = 0 if saved is None else saved.extra["step"] + 1
    with Path(config["there"], f"rank{rank}.txt").open("a") as file:
        for step in range(first, config["steps"]):
            raynb.log({"loss": float(step)}, step=step)
            print(step, file=file, flush=True)
            time.sleep(0.05)
            if step == config.get("at") and rank == 1 and first == 0:
                exec(config["what"])
            if step % 10 == 9:
                raynb.checkpoint(model, step=step)
    return "done"


class Started:
    """A run of :func:`train_func` on two ranks."""

    def __init__(self, there: Path, **options: Any) -> None:
        self.there = there
        config = {"there": str(there), "steps": STEPS, **options.pop("config", {})}
        self.run = raynb.train(
            train_func, config=config, num_workers=2, storage_path=str(there / "runs"),
            name=there.name, block=False, show=False, **options,
        )  # fmt: skip

    def reaches(self, step: int, seconds: float = 90) -> list[int]:
        """Wait until both ranks are that far; gives their process ids."""
        end = time.monotonic() + seconds
        while min((len(rows) for rows in self.written()), default=0) <= step:
            assert time.monotonic() < end and not self.run.done, self.run.mirror.run
            time.sleep(0.05)
        return [row["pid"] for _, row in sorted(self.run.mirror.workers.items())]

    def written(self) -> list[list[str]]:
        """What each rank has written itself."""
        return [p.read_text().splitlines() for p in sorted(self.there.glob("rank*.txt"))]

    def ends(self, seconds: float = 90) -> Any:
        """The result, whatever it is."""
        assert self.run._done.wait(seconds), self.run.mirror.run
        return self.run.result


def rows_of(result: Any) -> list[list[str]]:
    """The history in the words of the ranks' own files, attempt after attempt."""
    frame = result.history.sort_values(["rank", "attempt", "step"], kind="stable")
    logged = frame[frame["loss"].notna()]
    return [[str(int(s)) for s in part["step"]] for _, part in logged.groupby("rank")]


def test_a_killed_worker_is_one_error_that_names_it(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path)
    pids = started.reaches(15)
    os.kill(pids[1], signal.SIGKILL)
    result = started.ends()
    assert result.state == "failed"
    with pytest.raises(TrainingError) as raised:
        started.run.wait()
    assert raised.value.rank == 1 and "rank 1" in raised.value.message
    assert "SIGKILL" in str(raised.value) or "killed" in str(raised.value)
    assert result.checkpoint is not None  # what was saved before
    nothing_left(pids, 15)


def test_a_killed_worker_is_replaced_and_goes_on_from_the_checkpoint(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path, max_failures=1)
    pids = started.reaches(25)
    os.kill(pids[1], signal.SIGKILL)
    result = started.ends(150)
    assert result.state == "finished" and result.return_value == "done"
    frame = result.history
    assert sorted(frame["attempt"].unique()) == [0, 1]
    logged = frame[frame["loss"].notna()]
    # The second attempt begins behind the checkpoint, and reaches the end once.
    again = logged.loc[logged["attempt"] == 1, "step"].min()
    assert again % 10 == 0 and again > 0
    for rank, written in enumerate(started.written()):
        first, second = (
            [str(int(s)) for s in part["step"]]
            for _, part in logged[logged["rank"] == rank].groupby("attempt")
        )
        cut = len(written) - len(second)
        # Nothing is there twice; processes that were killed took what they had not sent yet along.
        assert second == written[cut:] == [str(s) for s in range(int(again), STEPS)]
        assert first == written[: len(first)] and cut - 40 < len(first) <= cut
    nothing_left(pids, 15)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("import os; os._exit(3)", "exit"),
        ("import sys; sys.exit(3)", "SystemExit"),
        (
            "import torch; raise torch.OutOfMemoryError("
            "'CUDA out of memory. Tried to allocate 2.00 GiB.')",
            "CUDA out of memory",
        ),
    ],
)
def test_a_rank_that_ends_itself(
    tmp_path: Path, nothing_left: Callable[..., None], what: str, says: str
) -> None:
    started = Started(tmp_path, config={"at": 12, "what": what})
    result = started.ends(120)
    assert result.state == "failed"
    with pytest.raises(TrainingError, match="rank 1") as raised:
        started.run.wait()
    assert says in str(raised.value)
    kinds = {hint["kind"] for hint in result.record["hints"]}
    assert kinds == ({"cuda_oom"} if "memory" in says else set())
    nothing_left([row["pid"] for row in started.run.mirror.workers.values()], 15)


def test_a_killed_controller_is_one_error(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    from ray.util.state import list_actors

    started = Started(tmp_path)
    pids = started.reaches(15)
    address = ray.get_runtime_context().gcs_address
    alive = [("class_name", "=", "TrainController"), ("state", "=", "ALIVE")]
    [controller] = list_actors(address=address, filters=alive)
    os.kill(controller.pid, signal.SIGKILL)
    result = started.ends()
    assert result.state == "failed"
    with pytest.raises(raynb.RaynbError, match="controller"):
        started.run.wait()
    assert len(result.history) >= 30
    nothing_left(pids, 40)


def test_storage_that_fails_for_a_while_loses_nothing(tmp_path: Path) -> None:
    started = Started(tmp_path, config={"steps": 200})
    started.reaches(20)
    there = tmp_path / "runs" / tmp_path.name / "raynb" / "history"
    aside = there.with_name("aside")
    there.rename(aside)
    there.write_text("no directory")  # root may write anywhere, but not into a file
    events = started.run.mirror.events
    end = time.monotonic() + 30
    while not any("can't be written" in event["text"] for event in events):
        assert time.monotonic() < end
        time.sleep(0.1)
    there.unlink()
    aside.rename(there)
    result = started.ends()
    assert result.state == "finished"
    assert rows_of(result) == started.written()
    assert any("written again" in event["text"] for event in result.record["events"])


def test_a_stopped_process_is_seen_and_can_be_stopped(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path, config={"steps": 100_000})
    pids = started.reaches(15)
    os.kill(pids[1], signal.SIGSTOP)
    end = time.monotonic() + 90
    while not any("rank 1 never called" in hint["title"] for hint in started.run.mirror.hints):
        assert time.monotonic() < end
        time.sleep(0.2)
    began = time.monotonic()
    started.run.stop()
    result = started.ends(30)
    assert result.state == "stopped" and time.monotonic() - began < 15
    nothing_left(pids, 15)
