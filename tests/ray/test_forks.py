"""Processes that a train function forks by itself are no part of the run's telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest

import raynb

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_child_that_leaves_the_train_function_ends_nothing(tmp_path: Path) -> None:
    def train_func() -> None:
        import os
        import time

        raynb.log({"before": 1.0})
        pid = os.fork()
        if not pid:
            print("the child prints")
            raynb.log({"of the child": 1.0})
            raise SystemExit(3)  # through all that is around the train function
        ended, end = 0, time.monotonic() + 20
        while not ended and time.monotonic() < end:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        time.sleep(1.0)  # what the child might have told would have come
        raynb.log({"ended": float(ended == pid)})

    result = raynb.train(train_func, num_workers=1, storage_path=str(tmp_path), show=False)
    assert result.state == "finished" and result.record["error"] is None
    assert [w["status"] for w in result.record["workers"]] == ["finished"]
    assert result.history["ended"].dropna().tolist() == [1.0]
    assert "of the child" not in result.history
    assert not [e for e in result.record["events"] if e["level"] == "error"]
    log = (Path(result.path) / "raynb" / "logs" / "rank-00000.log").read_text()
    assert "the child prints" in log
