"""The clock that durations are made of, while the machine's is set anew."""

from __future__ import annotations

import time

import pytest

from raynb.engine.hints.health import Health
from raynb.telemetry import clock
from raynb.telemetry.clock import Clock
from raynb.telemetry.digest import Digest
from raynb.telemetry.events import Batch


@pytest.mark.parametrize("by", [86_400.0, -86_400.0])
def test_it_counts_on(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    real = time.time
    here, began = Clock(), time.time()
    monkeypatch.setattr(time, "time", lambda: real() + by)
    time.sleep(0.05)
    assert 0.04 < here.now() - began < 5
    assert abs(clock.now() - real()) < 5
    # One that is made later takes the machine's word.
    assert abs(Clock().now() - time.time()) < 1


def test_no_hint_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that were heard a moment ago are not silent for a day."""
    digest, health = Digest("run", world_size=2), Health()
    for rank in (0, 1):
        digest.apply(Batch(rank, 0, 1, sample={"cpu": 1.0}, sent=clock.now()))
    health.look(digest)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400.0)
    for rank in (0, 1):
        timing = {"still_since": None, "where": None, "waiting_since": clock.now()}
        digest.apply(Batch(rank, 0, 2, timing=timing, sent=clock.now()))
    for _ in range(3):
        health.look(digest)
    assert health.hints == []
