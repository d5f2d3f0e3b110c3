"""The health monitor on a real digest: what it remembers, when a hint comes and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from raynb.engine.hints.health import CLEAR_S, Health
from raynb.engine.hints.previous import function_key, previous, remember
from raynb.engine.hints.view import Finding, View
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.update import MAX_HINTS

START = 1_000_000.0
FOUND = Finding("network", "warn", "t", (0,), "e 1", "th", "f")


class Scripted:
    """A rule that finds what it is told to."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.__name__ = "scripted"

    def __call__(self, view: View) -> list[Finding]:
        return self.found


def health_with(*found: Finding) -> tuple[Health, Scripted]:
    rule = Scripted()
    rule.found = list(found)
    return Health(rules=[rule]), rule


def test_a_finding_has_to_hold() -> None:
    health, _ = health_with(replace(FOUND, hold=3.0))
    assert not health.judge(View(START)) and health.hints == []
    assert not health.judge(View(START + 2.9)) and health.hints == []
    assert health.judge(View(START + 3.0))
    (hint,) = health.hints
    assert hint["since"] == START and hint["until"] is None and hint["id"] == "network"
    assert set(hint) == {
        "id", "kind", "level", "title", "ranks", "evidence", "threshold", "fix", "since", "until",
    }  # fmt: skip


def test_a_short_swing_neither_ends_nor_restarts() -> None:
    health, rule = health_with(replace(FOUND, hold=3.0))
    health.judge(View(START))
    rule.found = []
    health.judge(View(START + 1))
    rule.found = [replace(FOUND, hold=3.0)]
    assert health.judge(View(START + 3))
    rule.found = []
    assert not health.judge(View(START + 3 + CLEAR_S))
    assert health.judge(View(START + 4 + CLEAR_S))
    assert health.hints[0]["until"] == START + 3


def test_one_that_comes_back_is_the_same_hint() -> None:
    health, rule = health_with(FOUND)
    health.judge(View(START))
    rule.found = []
    health.judge(View(START + 60))
    assert health.hints[0]["until"] == START
    rule.found = [FOUND]
    health.judge(View(START + 90))
    (hint,) = health.hints
    assert hint["until"] is None and hint["since"] == START + 90


def test_numbers_are_not_told_anew_each_second() -> None:
    health, rule = health_with(FOUND)
    health.judge(View(START))
    rule.found = [replace(FOUND, evidence="e 2")]
    assert not health.judge(View(START + 1))
    assert health.judge(View(START + 2)) and health.hints[0]["evidence"] == "e 2"
    assert not health.judge(View(START + 5))


def test_hints_are_bounded_and_keys_keep_them_apart() -> None:
    many = [replace(FOUND, key=str(i)) for i in range(MAX_HINTS + 7)]
    health, _ = health_with(*many)
    health.judge(View(START))
    assert len(health.hints) == MAX_HINTS
    assert len({hint["id"] for hint in health.hints}) == MAX_HINTS


def test_a_rule_that_raises_is_told_and_silences_nobody() -> None:
    def broken(view: View) -> list[Finding]:
        raise ValueError("no")

    _, rule = health_with(FOUND)
    rule.found = [FOUND]
    health = Health(rules=[broken, rule])
    health.judge(View(START))
    assert len(health.hints) == 1 and health.broken == {"broken": "ValueError: no"}


# -- with a digest -------------------------------------------------------------------------------


def batch(rank: int, attempt: int = 0, **more: Any) -> Batch:
    return Batch(rank, attempt, 1, **more)


def training(n: int = 2) -> Digest:
    digest = Digest("run")
    digest.set_run(state="training", world_size=n)
    for rank in range(n):
        digest.set_worker(rank, attempt=0, status="running", node="n0", pid=rank + 1)
    return digest


def records(rank: int, step: float, at: float, loss: float, attempt: int = 0) -> Batch:
    record = Record(step=step, time=at, values={"loss": loss})
    return batch(rank, attempt, records=RecordBatch.of([record]))


def test_a_nan_reaches_who_watches() -> None:
    digest, health, mirror = training(), Health(), Mirror()
    for step in range(4):
        for rank in range(2):
            bad = rank == 1 and step == 3
            digest.apply(records(rank, step, START + step, math.nan if bad else 1.0))
    assert health.look(digest, now=START + 4)
    digest.set_hints(health.hints)
    mirror.apply(digest.since(Cursor()))
    assert [hint["title"] for hint in mirror.hints] == ["loss is NaN on rank 1 since step 3"]


def test_only_rank_0_reports() -> None:
    digest, health = training(), Health()
    digest.apply(batch(0, status="waiting", timing={"reports": 2, "waiting_since": START}))
    digest.apply(batch(1, status="finished", timing={"reports": 1}))
    seen = [now for now in range(20) if health.look(digest, now=START + now)]
    assert seen[0] == 10 and seen[0] < 15
    assert (
        health.hints[0]["title"] == "rank 0 waits in report() number 2, which rank 1 never called"
    )


def test_a_leak_by_samples() -> None:
    digest, health = training(), Health()
    found = None
    for second in range(30):
        for rank in range(2):
            rss = (500 + 40 * second * rank + 3 * (second % 2)) * 2.0**20
            sample = {"time": START + second, "rss": rss, "cpu": 90.0, "device_kind": "CPU"}
            digest.apply(batch(rank, sample=sample, timing={"step_s": 0.1}))
        if health.look(digest, now=START + second + 0.2) and found is None:
            found = second
    assert [hint["kind"] for hint in health.hints] == ["leak"]
    assert health.hints[0]["ranks"] == [1]
    assert found is not None and found <= 16
    assert health.broken == {}


def test_a_new_attempt_ends_the_hints_of_the_one_before() -> None:
    digest, health = training(1), Health()
    digest.apply(records(0, 0, START, math.nan))
    health.look(digest, now=START)
    digest.set_worker(0, attempt=1, status="running")
    digest.set_run(attempt=1)
    digest.apply(records(0, 0, START + 10, 1.0, attempt=1))
    for now in range(10, 20):
        health.look(digest, now=START + now)
    assert [hint["until"] for hint in health.hints] == [START]
    digest.apply(records(0, 1, START + 20, math.inf, attempt=1))
    health.look(digest, now=START + 20)
    assert [(hint["id"], hint["until"]) for hint in health.hints] == [
        ("non_finite:loss", START),
        ("1:non_finite:loss", None),
    ]


def test_what_the_next_run_is_compared_with() -> None:
    def run(n: int, lr: float, previous: dict[str, float] | None = None) -> Health:
        digest, health = training(n), Health(previous)
        shard = {"name": "Digits", "batch_size": 50}
        for step, rate in enumerate((0.0, lr, lr / 2)):  # a warm-up, then a decay
            for rank in range(n):
                digest.apply(batch(rank, timing={"lr": rate}, shards=[shard]))
            health.look(digest, now=START + step)
        return health

    first = run(2, 0.1)
    assert first.scale == {"lr": 0.1, "global_batch": 100.0} and first.hints == []
    key = function_key(None, "loader = DataLoader(data, batch_size=50)")
    assert previous(key) == {}
    remember(key, {"scale": {}})
    remember(key, {"scale": first.scale})
    again = function_key(None, "loader = DataLoader(data, batch_size=100)\n")
    second = run(4, 0.1, previous(again))
    assert [hint["kind"] for hint in second.hints] == ["lr_scaling"]
    assert run(4, 0.2, first.scale).hints == run(2, 0.1, first.scale).hints == []


def test_ranks_that_an_elastic_group_lost_do_not_count() -> None:
    digest, health = training(3), Health()
    digest.set_run(world_size=2)
    view = health.view(digest, [], START)
    assert view.ranks.tolist() == [0, 1] and np.isnan(view.step_s).all()
