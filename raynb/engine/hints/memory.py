"""Hints on memory: it grows without end, and a GPU that is nearly full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raynb.engine.hints.view import Finding, View, number, percent, ranks_words, verb
from raynb.telemetry.events import Floats
from raynb.telemetry.units import human_bytes, human_seconds

MIB = 2**20
#: Seconds from a rank's first step on that belong to warming up: allocators, workers, caches.
WARM_S = 5.0
#: Looks: over the last (seconds, at least so many), growth by (bytes, share). A short look needs
#: more of it.
LOOKS = (
    (10.0, 8.5, 128 * MIB, 0.10),
    (60.0, 55.0, 100 * MIB, 0.05),
    (float("inf"), 120.0, 100 * MIB, 0.05),
)
#: Parts that a look is cut into; memory has to rise from each to the next.
PARTS = 5
#: The least that a part adds, as a share of the mean, and the later half, as one of the earlier.
EVEN = 0.3, 0.85
#: How straight the growth has to be.
STRAIGHT = 0.9
#: Ranks with the largest growth that are looked at closely: the look stays cheap with thousands.
CLOSE = 16
GPU_FULL = 0.95


@dataclass(frozen=True)
class Growth:
    """Steady growth of one rank's memory."""

    rank: int
    first: float
    last: float
    seconds: float

    @property
    def rate(self) -> float:
        return (self.last - self.first) / self.seconds


def leak(view: View) -> list[Finding]:
    """Memory grows steadily, on the host or on a GPU."""
    if not view.training:
        return []
    found = []
    for column, what, fix in (
        ("rss", "memory", _HOST_FIX),
        ("mem_process", "GPU memory", _GPU_FIX),
    ):
        growths = _growing(view, column)
        if not growths:
            continue
        ranks = sorted(g.rank for g in growths)
        worst = max(growths, key=lambda g: g.rate)
        row = next(w for w in view.workers if w["rank"] == worst.rank)
        total = number(row.get("mem_total"))
        left = ""
        if total is not None and total > worst.last and column == "mem_process":
            left = (
                f"; at this rate it is full in {human_seconds((total - worst.last) / worst.rate)}"
            )
        found.append(
            Finding(
                "leak",
                "warn",
                f"{what} of {ranks_words(ranks)} grows steadily, {human_bytes(worst.rate)}/s",
                tuple(ranks),
                f"rank {worst.rank} grew from {human_bytes(worst.first)} to "
                f"{human_bytes(worst.last)} in the last {human_seconds(worst.seconds)}, "
                f"without a pause{left}",
                f"after {WARM_S:.0f} s of warming up: over 10 s, by more than 10 % and 128 MiB; "
                f"over 60 s or the whole run, by more than 5 % and 100 MiB; rising through all of "
                f"{PARTS} parts, nearly in a straight line",
                fix,
                key=column,
                hold=1.0,
            )
        )
    return found


def _growing(view: View, column: str) -> list[Growth]:
    candidates = []
    for row in view.workers:
        rank, value = int(row["rank"]), number(row.get(column))
        low = view.lowest.get((column, rank))
        # Most ranks of most runs are through with this: a trend is read for the others alone.
        if value is not None and low is not None and value - low > min(look[2] for look in LOOKS):
            candidates.append((value - low, rank))
    candidates.sort(reverse=True)
    found = []
    for _, rank in candidates[:CLOSE]:
        trend, since = view.trends.get(rank), view.training_since.get(rank)
        if trend is None or since is None:
            continue
        times, values = trend["time"], trend[column]
        if column == "rss":
            # Ray Data's blocks are resident as well, in memory that is shared: no leak of this
            # process, and bounded by the object store.
            own = trend["private"]
            values = np.where(np.isfinite(own), own, values)
        # The rank's own clock: samples carry it, and it may differ from this one.
        since += float(times[-1]) - view.heard.get(rank, view.now)
        warm = (times >= since + WARM_S) & np.isfinite(values)
        times, values = times[warm], values[warm]
        for seconds, at_least, bytes_, share in LOOKS:
            start = times[-1] - seconds - 0.5 if len(times) else 0.0
            growth = _steady(times[times >= start], values[times >= start])
            if growth is None:
                continue
            first, last, lasted = growth
            # What falls and rises again is no leak: only what is more than ever counts.
            first = max(first, np.fmax.reduce(values[times < start], initial=0.0))
            if lasted >= at_least and last - first > max(bytes_, share * first):
                found.append(Growth(rank, first, last, lasted))
                break
    return found


def _steady(t: Floats, y: Floats) -> tuple[float, float, float] | None:
    """First and last value and seconds in between, of what rises all the time."""
    if len(t) < 2 * PARTS - 1 or t[-1] <= t[0]:
        return None
    which = np.minimum((PARTS * (t - t[0]) / (t[-1] - t[0])).astype(int), PARTS - 1)
    if len(np.unique(which)) < PARTS:
        return None
    middles = np.array([np.median(y[which == part]) for part in range(PARTS)])
    rises = np.diff(middles)
    # A warm-up or a cache that fills levels off; each part of a leak adds about as much.
    early, late = middles[PARTS // 2] - middles[0], middles[-1] - middles[PARTS // 2]
    if rises.min() <= EVEN[0] * rises.mean() or late < EVEN[1] * early:
        return None
    straight = float(np.corrcoef(t, y)[0, 1]) ** 2
    return (float(y[0]), float(y[-1]), float(t[-1] - t[0])) if straight >= STRAIGHT else None


_HOST_FIX = (
    "Something is kept at each step. Common causes: a list of losses as tensors, which keeps each "
    "step's graph alive (append loss.item()); outputs or batches appended to a list; a cache "
    "without a limit; a DataLoader worker that copies a growing Python list."
)
_GPU_FIX = (
    "Something on the GPU is kept at each step. Common causes: total += loss instead of "
    "total += loss.item(), which keeps each step's graph alive; outputs appended to a list; "
    "backward(retain_graph=True). torch.cuda.memory._record_memory_history() tells what it is."
)


def gpu_memory(view: View) -> list[Finding]:
    """A GPU's memory is nearly full."""
    if not view.workers:
        return []
    used, total = view.column("mem_used"), view.column("mem_total")
    gpu = np.array([w.get("device_kind") == "GPU" for w in view.workers])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(gpu & (total > 0), used / total, np.nan)
        full = share > GPU_FULL
    if not view.training or not full.any():
        return []
    ranks = [int(r) for r in view.ranks[full]]
    worst = int(np.nanargmax(np.where(full, share, np.nan)))
    row = view.workers[worst]
    own = number(row.get("mem_process"))
    whose = f", {human_bytes(own)} of it by this worker" if own is not None else ""
    return [
        Finding(
            "gpu_memory",
            "warn",
            f"GPU memory of {verb(ranks, 'is', 'are')} {percent(float(share[worst]))} full",
            tuple(ranks),
            f"rank {row['rank']}: {human_bytes(float(used[worst]))} of "
            f"{human_bytes(float(total[worst]))} are taken{whose}",
            f"more than {percent(GPU_FULL)} for 5 s",
            "One larger batch may not fit any more. Use a smaller batch, mixed precision "
            "(torch.autocast), or activation checkpointing; PyTorch keeps freed memory, so this "
            "alone is no fault.",
            hold=5.0,
        )
    ]
