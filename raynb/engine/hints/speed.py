"""Hints on what limits the step rate: data, a slow rank, reports, the network, too many threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raynb.engine.hints.view import (
    Finding,
    View,
    first_shard,
    number,
    percent,
    ranks_words,
    text,
    verb,
)
from raynb.telemetry.events import Floats
from raynb.telemetry.units import human_bytes, human_seconds

#: Share of a step that may be waiting for data, and the GPU use below which it counts.
DATA_SHARE, DATA_UTIL = 0.3, 70.0
#: Seconds a step that are worth saving.
WORTH_S = 0.005
#: A straggler's own time is this many times the median's.
SLOWER = 1.3
#: Share of the others' step that they lose to it.
LOST_SHARE = 0.1
#: Share of the time inside report().
REPORT_SHARE = 0.5
#: Share of the link's speed.
LINK_SHARE = 0.8


def data_bound(view: View) -> list[Finding]:
    """Steps wait for data while the device idles."""
    if not view.training or not view.workers:
        return []
    step, wait = view.step_s, view.column("wait_s")
    gpu = np.array([w.get("device_kind") == "GPU" for w in view.workers])
    util = view.column("util")
    with np.errstate(invalid="ignore", divide="ignore"):
        share = wait / step
        late = view.stepping & (share > DATA_SHARE) & (wait >= WORTH_S)
        late &= ~(gpu & (util >= DATA_UTIL))
    if not late.any():
        return []
    ranks = _ranks(view, late)
    worst = float(share[late].max())
    where = first_shard(view.workers[int(np.flatnonzero(late)[0])])
    waits = human_seconds(float(np.median(wait[late])))
    use = util[late & gpu]
    told = f"; GPU use {np.nanmedian(use):.0f} %" if np.isfinite(use).any() else ""
    return [
        Finding(
            "data_bound",
            "warn",
            f"{verb(ranks, 'waits', 'wait')} {percent(worst)} of the step for data",
            tuple(ranks),
            f"{waits} of {human_seconds(float(np.median(step[late])))} a step go into waiting for "
            f"the next batch (median of {ranks_words(ranks)} over the last 10 s){told}",
            f"more than {percent(DATA_SHARE)} of the step and {WORTH_S * 1000:.0f} ms, with a GPU "
            f"in use below {DATA_UTIL:.0f} %",
            _RAY_FIX if where.get("kind") == "ray" else _LOADER_FIX,
            hold=4.0,
        )
    ]


_LOADER_FIX = (
    "Load batches in other processes, and ahead of time:\n"
    "    DataLoader(..., num_workers=2, prefetch_factor=4, persistent_workers=True)\n"
    "and add pin_memory=True with a GPU. Give each worker CPUs for it with "
    "--resources CPU=3. What is computed for each row anew can be computed once before training."
)
_RAY_FIX = (
    "Prepare more batches ahead of time:\n"
    "    shard.iter_torch_batches(batch_size=..., prefetch_batches=4)\n"
    "When the dataset fits into the object store, run its transforms once, before training:\n"
    "    dataset = dataset.materialize()\n"
    "Leave CPUs free for Ray Data's own tasks."
)


def straggler(view: View) -> list[Finding]:
    """One rank is persistently slower than the median of all."""
    on = view.stepping
    if not view.training or len(view.workers) < 2 or not on.all():
        return []
    step = view.step_s
    if np.isnan(step).any():
        return []
    sync, report = view.column("sync_s"), view.column("report_s")
    # Under DDP all steps last equally long: what differs is what each does between the waits.
    own = np.clip(step - np.nan_to_num(sync) - np.nan_to_num(report), 0, None)
    # Of two ranks, the faster one is what the other is compared with.
    middle = float(np.sort(own)[(len(own) - 1) // 2])
    whole = float(np.median(step))
    late = (own > SLOWER * middle) & (own - middle >= max(WORTH_S, LOST_SHARE * whole))
    if not late.any():
        return []
    ranks = _ranks(view, late)
    worst = int(np.argmax(own))
    wait = view.column("wait_s")
    usual_wait = float(np.nanmedian(wait)) if np.isfinite(wait).any() else 0.0
    extra = own[worst] - middle
    by_data = np.isfinite(wait[worst]) and wait[worst] - usual_wait > 0.5 * extra
    row = view.workers[worst]
    known = np.isfinite(sync)
    others = ~late & known
    lost = (
        f"; the others wait {human_seconds(float(np.median(sync[others])))} a step for it"
        if others.any()
        else ""
    )
    return [
        Finding(
            "straggler",
            "warn",
            f"{verb(ranks, 'is', 'are')} {own[worst] / middle:.1f} times as slow as the others"
            if middle > 0
            else f"{verb(ranks, 'is', 'are')} slower than the others",
            tuple(ranks),
            f"rank {row['rank']} on {text(row.get('node'), 60) or 'a node that is not known'} "
            f"needs {human_seconds(float(own[worst]))} a step of its own, the median rank "
            f"{human_seconds(middle)}{lost}. The difference is in "
            f"{'waiting for data' if by_data else 'computing'}.",
            f"more than {SLOWER} times the median rank's own time, and "
            f"{percent(LOST_SHARE)} of the step and {WORTH_S * 1000:.0f} ms above it, over 10 s",
            (
                "Its data comes slower: look at its disk and network, and give it the same loader "
                "as the others."
                if by_data
                else "Its computing is slower: look for other programs on its node or GPU, a GPU "
                "that throttles (temperature, power), fewer CPUs, or work that only this rank "
                "does, such as logging or saving at each step."
            ),
            hold=6.0,
        )
    ]


def report_rate(view: View) -> list[Finding]:
    """report() is called so often that it limits the step rate."""
    if not view.training or not view.workers or not view.stepping.all():
        return []
    report, reports = view.column("report_s"), view.column("reports")
    with np.errstate(invalid="ignore", divide="ignore"):
        share = report / view.step_s
    # A barrier makes the fast ranks wait for the slow one: also that one has to lose time to it.
    if np.isnan(share).any() or share.min() <= REPORT_SHARE or not np.nanmin(reports) >= 5:
        return []
    return [
        Finding(
            "report_rate",
            "warn",
            f"report() takes {percent(float(share.min()))} of the time",
            tuple(_ranks(view, share > REPORT_SHARE)),
            f"{human_seconds(float(np.median(report)))} of "
            f"{human_seconds(float(np.median(view.step_s)))} a step are spent in report(), which "
            f"was called {np.nanmin(reports):.0f} times",
            f"more than {percent(REPORT_SHARE)} of the time on every rank, over 10 s",
            "report() is a barrier for all ranks: call it where there is a checkpoint to keep, "
            "such as once an epoch, and log metrics with\n"
            '    raynb.log({"loss": loss})\n'
            "which waits for nothing and takes each step.",
            hold=4.0,
        )
    ]


def network(view: View) -> list[Finding]:
    """A node's network link is used to its limit."""
    if not view.training or not view.workers:
        return []
    speed = view.column("net_speed")
    busiest = np.fmax(view.column("net_in"), view.column("net_out"))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(speed > 0, busiest / speed, np.nan)
        full = share > LINK_SHARE
    if not full.any():
        return []
    ranks = _ranks(view, full)
    worst = int(np.nanargmax(np.where(full, share, np.nan)))
    return [
        Finding(
            "network",
            "warn",
            f"the network of {ranks_words(ranks)} is {percent(float(share[worst]))} full",
            tuple(ranks),
            f"{human_bytes(float(busiest[worst]))}/s on a link of "
            f"{human_bytes(float(speed[worst]))}/s on node "
            f"{text(view.workers[worst].get('node'), 60) or 'n/a'}",
            f"more than {percent(LINK_SHARE)} of the link's speed for 10 s",
            "Send fewer gradients: accumulate over several batches with model.no_sync(), or halve "
            "them with\n"
            "    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
            "    model.register_comm_hook(None, default_hooks.bf16_compress_hook)\n"
            "Where it is the data that comes over this link, keep it nearer to the workers.",
            hold=10.0,
        )
    ]


def threads(view: View) -> list[Finding]:
    """The workers of a node have more threads than there are cores."""
    nodes: dict[object, list[tuple[int, float, float]]] = defaultdict(list)
    for row in view.workers:
        used, cores = number(row.get("threads")), number(row.get("cores"))
        if used is not None and cores is not None and row.get("status") in ("running", "waiting"):
            nodes[row.get("node")].append((int(row["rank"]), used, cores))
    if not view.training:
        return []
    found = []
    for node, rows in nodes.items():
        total, cores = sum(r[1] for r in rows), max(r[2] for r in rows)
        if total > cores:
            found.append((total / cores, node, rows, total, cores))
    if not found:
        return []
    _, node, rows, total, cores = max(found, key=lambda f: f[0])
    ranks = sorted(rank for f in found for rank, _, _ in f[2])
    each = max(1, int(cores // len(rows)))
    return [
        Finding(
            "threads",
            "info",
            f"{total:.0f} worker threads share {cores:.0f} cores",
            tuple(ranks),
            f"{len(rows)} ranks on node {text(node, 60) or 'n/a'} compute with {total:.0f} threads "
            f"in all",
            "more of torch's threads on a node than cores that its workers may use, for 5 s",
            "Threads that take turns on a core cost time. Give each worker its share:\n"
            f"    torch.set_num_threads({each})\n"
            "or start fewer workers.",
            hold=5.0,
        )
    ]


def _ranks(view: View, which: NDArray[np.bool_] | Floats) -> Sequence[int]:
    return [int(rank) for rank in view.ranks[which.astype(bool)]]
