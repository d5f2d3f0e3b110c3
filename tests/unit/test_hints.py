"""The hints' rules: each on a run that has its fault, at its threshold, and on a healthy run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from raynb.engine.hints import data, failures, memory, progress, speed, values
from raynb.engine.hints.health import RULES, Health
from raynb.engine.hints.view import Finding, View, ranks_words

NOW = 1_000_000.0
MIB = 2**20
LINE = "Cell In[3], line 12: loss.backward() (in torch/autograd/graph.py:824 _engine_run_backward)"


def worker(rank: int, **more: Any) -> dict[str, Any]:
    """A rank of a healthy run under DDP."""
    shard = {
        "name": "Digits",
        "kind": "map",
        "rows_total": 5_000,
        "batches_total": 100,
        "batch_size": 50,
        "batches_seen": 40,
        "epoch": 2,
        "set_epoch": "ok",
        **more.pop("shard", {}),
    }
    return {
        "rank": rank,
        "attempt": 0,
        "node": "n0",
        "pid": 100 + rank,
        "status": "running",
        "waiting_since": None,
        "still_since": None,
        "where": None,
        "device_kind": "CPU",
        "cpu": 90.0,
        "rss": 500.0 * MIB,
        "threads": 1,
        "cores": 8,
        "step": 40.0,
        "rate": 20.0,
        "last_report": NOW - 0.1,
        "records": 40,
        "reports": 2,
        "step_s": 0.05,
        "wait_s": 0.004,
        "report_s": 0.001,
        "sync_s": 0.005,
        "lr": 0.1,
        "shards": [shard],
        **more,
    }


def view(*workers: Mapping[str, Any], **more: Any) -> View:
    run = {"state": "training", "world_size": len(workers), **more.pop("run", {})}
    ranks = [w["rank"] for w in workers]
    more = {
        "usual_step": dict.fromkeys(ranks, 0.05),
        "training_since": dict.fromkeys(ranks, NOW - 300),
        "heard": dict.fromkeys(ranks, NOW - 0.5),
        **more,
    }
    return View(NOW, run, workers, **more)


def one(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    found = findings[0]
    for told in (found.title, found.evidence, found.threshold, found.fix):
        assert told
    assert "\n" not in found.title
    return found


def kinds(seen: View) -> set[str]:
    return {found.kind for rule in RULES for found in rule(seen)}


def waiting(rank: int, seconds: float, number: int, **more: Any) -> dict[str, Any]:
    return worker(
        rank, status="waiting", waiting_since=NOW - seconds, reports=number, cpu=1.0, **more
    )


def still(rank: int, seconds: float, where: str = LINE, **more: Any) -> dict[str, Any]:
    return worker(rank, **{"still_since": NOW - seconds, "where": where, "cpu": 1.0, **more})


# -- a healthy run, and one of which nothing is known --------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_healthy_run_has_none(n: int) -> None:
    assert kinds(view(*[worker(rank) for rank in range(n)])) == set()


def test_what_is_unknown_is_no_fault() -> None:
    blank = {key: None for key in worker(0)} | {"attempt": 0, "status": "running"}
    assert kinds(view(*[{**blank, "rank": rank} for rank in range(3)])) == set()
    assert kinds(View(NOW)) == set()


def test_odd_rows_from_a_worker_break_nothing() -> None:
    odd = {key: "<b>x</b>" for key in worker(0)} | {"rank": 1, "status": "running"}
    seen = view(worker(0), odd, {**worker(2), "shards": [3], "step_s": math.inf, "where": b"\xff"})
    health = Health()
    health.judge(seen)
    assert health.broken == {}


def test_ranks_are_named_shortly() -> None:
    assert ranks_words([3]) == "rank 3"
    assert ranks_words([3, 7, 12, 20]) == "ranks 3, 7, 12 and 20"
    assert ranks_words(range(1000)) == "ranks 0, 1, 2 and 997 more"


# -- progress ------------------------------------------------------------------------------------


def test_a_report_that_another_rank_never_called() -> None:
    """C7: only rank 0 reports."""
    seen = view(waiting(0, 10.5, 2), worker(1, status="finished", reports=1, cpu=None))
    found = one(progress.stalled(seen))
    assert found.level == "error" and found.ranks == (0,)
    assert found.title == "rank 0 waits in report() number 2, which rank 1 never called"
    assert "rank 1: finished, 1 call of report() so far" in found.evidence
    assert kinds(seen) == {"stalled"}
    assert kinds(view(waiting(0, 9, 2), worker(1, status="finished", reports=1))) == set()


def test_a_collective_that_another_rank_skipped() -> None:
    found = one(progress.stalled(view(still(0, 11), worker(1, status="finished"))))
    assert "loss.backward()" in found.title and "rank 1, which had finished" in found.title
    asleep = still(1, 11, "Cell In[3], line 9: time.sleep(1e6)")
    found = one(progress.stalled(view(still(0, 11), asleep)))
    assert found.level == "warn" and "for rank 1" in found.title
    assert "rank 1: at Cell In[3], line 9: time.sleep(1e6) for 11 s" in found.evidence


def test_report_against_collective() -> None:
    found = one(progress.stalled(view(still(0, 12), waiting(1, 11, 4))))
    assert found.title == "rank 1 waits in report() while rank 0 waits in a collective"
    assert found.level == "error" and found.ranks == (0, 1)


def test_collectives_that_do_not_match() -> None:
    seen = view(still(0, 12), still(1, 12, "Cell In[3], line 30: dist.barrier()"))
    assert one(progress.stalled(seen)).level == "error"


def test_one_line_for_all_is_no_hang_at_once() -> None:
    assert kinds(view(still(0, 60), still(1, 60))) == set()
    assert kinds(view(still(0, 130), still(1, 130))) == {"stalled"}
    busy = view(still(0, 130, cpu=90.0), still(1, 130, cpu=90.0))
    assert kinds(busy) == set(), "all compute: a long step of a large model"


def test_slow_steps_are_given_time() -> None:
    steps = {0: 4.0, 1: 4.0}
    asleep = still(1, 30, "Cell In[3], line 9: evaluate()")
    assert kinds(view(still(0, 30), asleep, usual_step=steps)) == set()
    asleep = still(1, 41, "Cell In[3], line 9: evaluate()")
    assert kinds(view(still(0, 41), asleep, usual_step=steps)) == {"stalled"}


def test_a_rank_at_work_is_given_time() -> None:
    """Rank 0 validates or saves by itself while the others wait."""
    for place in (worker(0), still(0, 25, "Cell In[3], line 9: evaluate()", cpu=100.0)):
        assert kinds(view(place, still(1, 25))) == set()
        found = one(progress.stalled(view(place, still(1, 31))))
        assert found.level == "warn" and "ends by itself" in found.fix


def test_a_hang_in_the_first_step() -> None:
    init = "Cell In[1], line 2: dist.barrier() (in torch/distributed/distributed_c10d.py:1 barrier)"
    fresh = {"step_s": None, "rate": None, "last_report": None, "records": 0, "shards": None}
    pair = [still(0, 14, init, **fresh), still(1, 14, "Cell In[1], line 9: lock()", **fresh)]
    seen = view(*pair, usual_step={}, training_since={})
    assert kinds(seen) == set()
    pair = [still(0, 16, init, **fresh), still(1, 16, "Cell In[1], line 9: lock()", **fresh)]
    assert kinds(view(*pair, usual_step={}, training_since={})) == {"stalled"}


def test_a_rank_from_which_nothing_comes() -> None:
    heard = {0: NOW - 0.5, 1: NOW - 12}
    found = one(progress.stalled(view(still(0, 12), worker(1), heard=heard)))
    assert "rank 1: nothing heard" in found.evidence
    found = one(progress.silent(view(worker(0), worker(1), heard=heard)))
    assert found.ranks == (1,)
    everyone = view(worker(0), worker(1), heard={0: NOW - 12, 1: NOW - 12})
    assert kinds(everyone) == set(), "a busy supervisor hears nobody"


def test_gpu_waits_where_it_needs_the_result() -> None:
    where = "Cell In[3], line 14: total += loss.item()"
    gpu = {"device_kind": "GPU", "util": 0.0}
    seen = view(still(0, 12, where, **gpu), worker(1, status="finished"))
    assert one(progress.stalled(seen)).ranks == (0,)
    assert progress.stalled(view(still(0, 12, where), worker(1, status="finished"))) == []


def test_a_silent_rank() -> None:
    quiet = still(1, 40, "Cell In[3], line 5: socket.recv(1)", last_report=NOW - 40)
    found = one(progress.silent(view(worker(0), quiet, worker(2))))
    assert found.title == "rank 1 has not reported for 40 s while others have"
    assert "socket.recv" in found.evidence
    assert kinds(view(worker(0), still(1, 9, "x"), worker(2))) == set()
    assert kinds(view(worker(0), still(1, 25, "x", cpu=100.0), worker(2))) == set()


def test_failed_or_ending_runs_are_not_stalled() -> None:
    assert progress.stalled(view(still(0, 60), worker(1, status="failed"))) == []
    ending = view(waiting(0, 60, 2), worker(1, status="finished"), run={"state": "finishing"})
    assert progress.stalled(ending) == []


# -- speed ---------------------------------------------------------------------------------------


def test_data_bound() -> None:
    slow = {"step_s": 0.1, "wait_s": 0.071}
    found = one(speed.data_bound(view(worker(0, **slow), worker(1, **slow))))
    assert found.title == "ranks 0 and 1 wait 71 % of the step for data"
    assert "num_workers" in found.fix
    found = one(speed.data_bound(view(worker(0, **slow, shard={"kind": "ray"}))))
    assert "prefetch_batches" in found.fix and "materialize" in found.fix
    gpu = {"device_kind": "GPU", **slow}
    assert "GPU use 40 %" in one(speed.data_bound(view(worker(0, **gpu, util=40.0)))).evidence
    assert speed.data_bound(view(worker(0, **gpu, util=75.0))) == []
    assert speed.data_bound(view(worker(0, step_s=0.1, wait_s=0.029))) == []
    tiny = view(worker(0, step_s=0.003, wait_s=0.002))
    assert speed.data_bound(tiny) == [], "nothing to gain worth telling"


def test_straggler_under_ddp() -> None:
    """All steps last equally long; the others wait for the slow one's gradients."""
    fast = {"step_s": 0.1, "sync_s": 0.06}
    slow = {"step_s": 0.1, "sync_s": 0.002}
    seen = view(worker(0, **fast), worker(1, **slow, node="n7"), worker(2, **fast))
    found = one(speed.straggler(seen))
    assert found.ranks == (1,) and "2.5 times as slow" in found.title
    assert "n7" in found.evidence and "the others wait 60 ms" in found.evidence
    assert "computing" in found.evidence
    data = {**slow, "wait_s": 0.07}
    found = one(speed.straggler(view(worker(0, **fast), worker(1, **data))))
    assert "waiting for data" in found.evidence and "disk" in found.fix


def test_straggler_without_ddp_and_limits() -> None:
    alone = {"sync_s": None, "report_s": None, "wait_s": None}
    pair = view(worker(0, **alone, step_s=0.05), worker(1, **alone, step_s=0.07))
    assert one(speed.straggler(pair)).ranks == (1,)
    pair = view(worker(0, **alone, step_s=0.05), worker(1, **alone, step_s=0.06))
    assert speed.straggler(pair) == []
    tiny = view(worker(0, **alone, step_s=0.001), worker(1, **alone, step_s=0.004))
    assert speed.straggler(tiny) == []
    by_rate = {**alone, "step_s": None}
    pair = view(worker(0, **by_rate, rate=20.0), worker(1, **by_rate, rate=10.0))
    assert one(speed.straggler(pair)).ranks == (1,)
    stale = view(worker(0), still(1, 6, "x", step_s=0.5))
    assert speed.straggler(stale) == []


def test_report_rate() -> None:
    often = {"step_s": 0.5, "report_s": 0.45, "reports": 20}
    found = one(speed.report_rate(view(worker(0, **often), worker(1, **often))))
    assert found.title == "report() takes 90 % of the time" and "raynb.log" in found.fix
    rare = {**often, "reports": 4}
    assert speed.report_rate(view(worker(0, **rare), worker(1, **rare))) == []
    waits = view(worker(0, **often), worker(1, **{**often, "report_s": 0.02}))
    assert speed.report_rate(waits) == [], "rank 0 only waits for a slow rank"


def test_network() -> None:
    link = {"net_speed": 1.25e9, "net_in": 1e8, "net_out": 1.1e9}
    found = one(speed.network(view(worker(0), worker(1, **link))))
    assert found.ranks == (1,) and "88 %" in found.title
    assert speed.network(view(worker(0, **{**link, "net_out": 9e8}))) == []
    assert speed.network(view(worker(0, **{**link, "net_speed": None}))) == []


def test_threads() -> None:
    many = [worker(rank, threads=8, cores=8) for rank in range(2)]
    found = one(speed.threads(view(*many)))
    assert found.title == "16 worker threads share 8 cores" and found.level == "info"
    assert "set_num_threads(4)" in found.fix
    apart = [{**w, "node": f"n{w['rank']}"} for w in many]
    assert speed.threads(view(*apart)) == []


# -- data ----------------------------------------------------------------------------------------


def test_imbalance() -> None:
    def rows(*counts: int) -> View:
        shards = [{"rows_total": n, "batches_total": -(-n // 50)} for n in counts]
        return view(*[worker(rank, shard=s) for rank, s in enumerate(shards)])

    found = one(data.imbalance(rows(1000, 1000, 3000, 1000)))
    assert found.title == "rank 2 has more rows than the others"
    assert "1,000 to 3,000 rows" in found.evidence and "20 to 60 batches" in found.evidence
    assert one(data.imbalance(rows(3000, 1000, 3000))).ranks == (1,)
    assert data.imbalance(rows(1000, 1001)) == []
    assert data.imbalance(rows(10, 40)) == [], "less than a batch"
    missing = view(worker(0), worker(1, shard={"rows_total": 50_000}), run={"world_size": 3})
    assert data.imbalance(missing) == []
    other = view(worker(0), worker(1, shard={"rows_total": None}))
    assert data.imbalance(other) == []


def test_set_epoch() -> None:
    found = one(data.set_epoch(view(*[worker(r, shard={"set_epoch": "missing"}) for r in (0, 1)])))
    assert "loader.sampler.set_epoch(epoch)" in found.fix and found.ranks == (0, 1)


# -- memory --------------------------------------------------------------------------------------


def memory_view(
    curve: Callable[[np.ndarray], np.ndarray], seconds: float = 40, **more: Any
) -> View:
    """A rank whose memory follows ``curve``, a sample a second since its first step."""
    times = NOW - seconds + np.arange(seconds + 1)
    rss = curve(times - times[0])
    column = more.pop("column", "rss")
    own = more.pop("own", np.full(len(rss), np.nan))
    return view(
        worker(0, **{column: float(rss[-1])}, **more),
        trends={0: {"time": times, "rss": rss, "mem_process": rss, "private": own}},
        training_since={0: times[0]},
        heard={0: NOW},
        lowest={(column, 0): float(rss.min())},
    )


def noisy(curve: np.ndarray) -> np.ndarray:
    return curve * MIB + np.random.default_rng(5).normal(0, 4 * MIB, len(curve))


def test_a_leak_is_found_fifteen_seconds_after_it_began() -> None:
    def grows(t: np.ndarray) -> np.ndarray:
        return noisy(600 + 30 * t)

    found = one(memory.leak(memory_view(grows, 16)))
    assert found.ranks == (0,) and "memory of rank 0 grows steadily" in found.title
    assert memory.leak(memory_view(grows, 9)) == [], "still warming up"


@pytest.mark.parametrize(
    "curve",
    [
        lambda t: noisy(600 + 0 * t),
        lambda t: noisy(600 + 500 * np.minimum(t, 8) / 8),  # loads, then stays
        lambda t: noisy(600 + 600 * (1 - np.exp(-t / 6))),  # a cache that fills
        lambda t: noisy(600 + 300 * np.floor(np.minimum(t, 45) / 12)),  # steps
        lambda t: noisy(600 + 200 * (t % 8) / 8),  # rises and falls
        lambda t: noisy(600 + 200 * np.abs(np.sin(t / 9))),
        lambda t: noisy(600 + 1.0 * t),  # too little to tell in this time
    ],
    ids=["flat", "loads", "fills", "steps", "saw", "wave", "little"],
)
@pytest.mark.parametrize("seconds", [16, 24, 40, 90])
def test_memory_that_is_no_leak(curve: Callable[[np.ndarray], np.ndarray], seconds: int) -> None:
    for now in range(8, seconds + 1):
        assert memory.leak(memory_view(curve, now)) == [], now


def test_a_slow_leak_over_the_whole_run() -> None:
    seen = memory_view(lambda t: noisy(600 + 0.2 * t), 3_000)
    assert "the last 49 min" in one(memory.leak(seen)).evidence
    assert kinds(seen) == {"leak"}


def test_a_leak_on_the_gpu() -> None:
    seen = memory_view(
        lambda t: noisy(2_000 + 100 * t),
        column="mem_process",
        device_kind="GPU",
        mem_total=80.0 * 1024 * MIB,
    )
    found = one(memory.leak(seen))
    assert found.title.startswith("GPU memory of rank 0") and "it is full in" in found.evidence


def test_the_object_store_is_no_leak() -> None:
    """Blocks that a worker has read stay resident, in memory that is shared."""
    own = np.full(41, 600.0 * MIB)
    assert memory.leak(memory_view(lambda t: noisy(600 + 30 * t), 40, own=own)) == []


def test_gpu_memory() -> None:
    full = {"device_kind": "GPU", "mem_total": 100.0, "mem_used": 96.0, "mem_process": 90.0}
    found = one(memory.gpu_memory(view(worker(0), worker(1, **full))))
    assert found.ranks == (1,) and "96 %" in found.title
    assert memory.gpu_memory(view(worker(0, **{**full, "mem_used": 94.0}))) == []
    assert memory.gpu_memory(view(worker(0, mem_total=100.0, mem_used=99.0))) == []


# -- failures ------------------------------------------------------------------------------------


def failure(rank: int, kind: str, message: str, at: float = NOW, **more: Any) -> dict[str, Any]:
    cell = {"label": "Cell In[3]", "line": 12, "text": "loss.backward()"}
    trace = 'File "/x/torch/autograd/graph.py", line 824'
    told = {"rank": rank, "attempt": 0, "type": kind, "message": message, "at": at, "time": at}
    return {**told, "cell": cell, "traceback": trace, **more}


def test_cuda_out_of_memory() -> None:
    oom = failure(1, "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.")
    gpu = {"device_kind": "GPU", "mem_used": 78.0 * 2**30, "mem_total": 80.0 * 2**30}
    found = one(failures.cuda_oom(view(worker(0), worker(1, **gpu), failures=[oom])))
    assert found.ranks == (1,) and found.level == "error"
    for told in ("line 12: loss.backward()", "Tried to allocate", "78 GiB of 80 GiB", "size 50"):
        assert told in found.evidence
    assert "batch_size=25" in found.fix and "zero_grad" in found.fix
    assert failures.cuda_oom(view(worker(0), failures=[failure(0, "ValueError", "no")])) == []


GLOO = "[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711"
NCCL = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, ALLREDUCE)"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", GLOO),
        ("RuntimeError", "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms"),
        ("torch.distributed.DistBackendError", NCCL),
        ("torch.distributed.DistNetworkError", "The client socket has timed out after 60s"),
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /store/0"),
    ],
)
def test_the_rank_that_was_missing(kind: str, message: str) -> None:
    ranks = [worker(0, status="failed"), worker(1, step=17.0), worker(2, status="failed")]
    told = [failure(0, kind, message), failure(2, kind, message)]
    found = one(failures.collective_timeout(view(*ranks, failures=told)))
    assert found.title == "rank 1 was missing in a collective" and found.ranks == (1,)
    assert "rank 1: running, at step 17" in found.evidence


def test_a_peer_that_had_failed_first() -> None:
    told = [failure(0, "RuntimeError", GLOO), failure(1, "ValueError", "bad row", NOW - 1)]
    found = one(failures.collective_timeout(view(worker(0), worker(1), failures=told)))
    assert found.level == "info" and "because rank 1 had failed" in found.title
    mine = failure(0, "RuntimeError", "Timed out waiting for the server", traceback="mine.py")
    assert failures.collective_timeout(view(worker(0), failures=[mine])) == []


def test_rendezvous_that_failed() -> None:
    error = {"title": "WorkerGroupError", "text": "DistStoreError: Timed out after 31 seconds"}
    absent = worker(1, pid=None, status="starting", step=None)
    seen = view(worker(0), absent, run={"state": "failed", "error": error})
    found = one(failures.collective_timeout(seen))
    assert found.title == "rank 1 was missing in joining the process group"


# -- values --------------------------------------------------------------------------------------


def test_non_finite() -> None:
    bad = {("loss", 1): (12.0, math.nan), ("loss", 0): (14.0, math.nan), ("auc", 0): (0, math.nan)}
    found = one(values.non_finite(view(worker(0), worker(1), nonfinite=bad)))
    assert found.title == "loss is NaN on ranks 0 and 1 since step 12"
    assert "rank 1 at step 12" in found.evidence
    both = {("train/loss", 0): (3.0, math.inf), ("val_ppl", 0): (4.0, math.inf)}
    found_both = values.non_finite(view(worker(0), nonfinite=both))
    assert [f.key for f in found_both] == ["train/loss", "val_ppl"]


def test_lr_scaling() -> None:
    def scaled(lr: float, batch: float) -> list[Finding]:
        previous = {"lr": 0.1, "global_batch": 100.0}
        seen = view(
            worker(0), worker(1), previous=previous, scale={"lr": lr, "global_batch": batch}
        )
        return values.lr_scaling(seen)

    found = one(scaled(0.1, 400.0))
    assert found.level == "info" and "lr=0.4" in found.fix and "lr=0.2" in found.fix
    assert scaled(0.2, 400.0) == scaled(0.1, 100.0) == scaled(0.1, 50.0) == []


# -- cost ----------------------------------------------------------------------------------------


def test_a_thousand_ranks_cost_little() -> None:
    faults = [{}, {"wait_s": 0.04}, {"step_s": 0.2}, {"threads": 64}, {"shard": {"rows_total": 9}}]
    rows = [worker(rank, **faults[rank % len(faults)]) for rank in range(1_000)]
    costs = []
    for _ in range(20):
        seen, health = view(*rows), Health()
        began = time.thread_time()
        health.judge(seen)
        costs.append(time.thread_time() - began)
    assert kinds(seen) == {"imbalance", "data_bound", "straggler", "threads"}
    assert min(costs) < 0.01, costs
