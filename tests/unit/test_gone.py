"""Workers that are gone, told when Ray Train has not noticed it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from raynb.engine.gone import Gone
from raynb.processes import runs

HERE = "10.0.0.1"


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def row(pid: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"pid": pid, "ip": HERE, "status": "running", **(more or {})}


def test_it_is_told_once_at_the_second_look(worker: subprocess.Popen[bytes]) -> None:
    workers, gone = {3: row(worker.pid)}, Gone()
    assert runs(worker.pid) and gone.news(HERE, workers) == []
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # it waits to be reaped
    assert gone.news(HERE, workers) == [] and not runs(worker.pid)
    [(text, level)] = gone.news(HERE, workers)
    assert text.startswith(f"rank 3's process {worker.pid} has ended") and level == "error"
    assert "600 s" in text and "Stop" in text
    worker.wait()
    assert gone.news(HERE, workers) == []


def test_what_ray_train_saw_is_not_told(worker: subprocess.Popen[bytes]) -> None:
    gone = Gone()
    worker.kill()
    worker.wait()
    assert gone.news(HERE, {0: row(worker.pid)}) == []
    assert gone.news(HERE, {}) == []  # it restarts
    assert gone.news(HERE, {0: row(worker.pid)}) == []


@pytest.mark.parametrize(
    "more", [{"ip": "10.0.0.2"}, {"status": "finished"}, {"status": "starting"}, {"pid": None}]
)
def test_of_others_nothing_is_known(worker: subprocess.Popen[bytes], more: dict[str, Any]) -> None:
    gone = Gone()
    worker.kill()
    worker.wait()
    for _ in range(3):
        assert gone.news(HERE, {0: row(worker.pid, more)}) == []


def test_the_users_limit_is_named(
    worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "42")
    gone = Gone()
    worker.kill()
    worker.wait()
    gone.news(HERE, {0: row(worker.pid)})
    assert "up to 42 s" in gone.news(HERE, {0: row(worker.pid)})[0][0]
