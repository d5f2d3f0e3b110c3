"""Hints on how ranks failed: out of GPU memory, or in a collective that others did not join."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raynb.engine.hints.view import (
    Finding,
    View,
    first_shard,
    number,
    ranks_words,
    text,
    verb,
)
from raynb.telemetry.units import human_bytes

_OOM = re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_PEER = re.compile(
    # Gloo, NCCL, and torch's store, which is where ranks meet.
    r"Connection (?:closed|reset) by peer|Timed out waiting|Application timeout|gloo.*(?:timeout|"
    r"timed out)|collective operation timeout|ncclRemoteError|NCCL.*(?:timeout|timed out)|"
    r"Watchdog caught|socket has timed out|wait timeout after|Timed out (?:after|initializing)|"
    r"RendezvousTimeout|Socket Timeout|failed to recv, got 0 bytes|Broken pipe",
    re.IGNORECASE | re.DOTALL,
)
_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]")
_KILLED = re.compile(r"ActorDied|WorkerDied|WorkerCrashed|died unexpectedly|running low on memory")
_PEER_TYPES = ("DistNetworkError", "DistStoreError", "DistBackendError", "RendezvousTimeoutError")


def _is_oom(failure: Mapping[str, Any]) -> bool:
    kind, message = str(failure.get("type")), str(failure.get("message"))
    return bool(
        _OOM.search(message) or kind in ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
    )


def _is_peer(failure: Mapping[str, Any]) -> bool:
    kind, message = str(failure.get("type")), str(failure.get("message"))
    if kind.rpartition(".")[2] in _PEER_TYPES:
        return True
    # A user's own error may speak of timeouts as well: torch raises these from its own files.
    if kind not in ("RuntimeError", "TimeoutError", "ConnectionError"):
        return False
    return bool(_PEER.search(message)) and (
        "torch/" in str(failure.get("traceback")) or "gloo" in message or "NCCL" in message
    )


def topic(failure: Mapping[str, Any] | None, error: BaseException | None) -> str:
    """The heading of the troubleshooting page for how a run failed; "" for the user's own error.

    Parameters
    ----------
    failure : dict or None
        The first rank's failure, as its worker told it.
    error : BaseException or None
        Ray's.
    """
    if failure is not None:
        if _is_oom(failure):
            return "cuda-out-of-memory"
        if _IN_USE.search(str(failure.get("message"))):
            return "port-in-use"
        if _FULL.search(str(failure.get("message"))):
            return "storage-full"
        return "collective-timeout" if _is_peer(failure) else ""
    told = f"{type(error).__name__}: {error}"
    # Ray's reasons first: a killed worker's peers lose their connections.
    for pattern, name in (
        (_KILLED, "worker-died"),
        (_FULL, "storage-full"),
        (_IN_USE, "port-in-use"),
    ):
        if pattern.search(told):
            return name
    return "collective-timeout" if _PEER.search(told) or _names_peer(told) else ""


def _names_peer(told: str) -> bool:
    return any(t in told for t in _PEER_TYPES)


def _place(failure: Mapping[str, Any]) -> str:
    cell = failure.get("cell")
    if not isinstance(cell, Mapping):
        return "a line outside the cell"
    return f"{text(cell.get('label'), 40)}, line {cell.get('line')}: {text(cell.get('text'))}"


def cuda_oom(view: View) -> list[Finding]:
    """A rank ran out of GPU memory."""
    failed = sorted((f for f in view.failures if _is_oom(f)), key=lambda f: float(f["at"]))
    if not failed:
        return []
    first = failed[0]
    ranks = sorted({int(f["rank"]) for f in failed})
    row = next((w for w in view.workers if w["rank"] == first["rank"]), {})
    used, total = number(row.get("mem_used")), number(row.get("mem_total"))
    size = number(first_shard(row).get("batch_size"))
    evidence = [f"at {_place(first)}", text(first.get("message"), 400)]
    if row.get("device_kind") == "GPU" and used is not None:
        evidence.append(
            f"the last sample before it: {human_bytes(used)} of {human_bytes(total)} taken"
        )
    if size is not None:
        evidence.append(f"batch size {size:,.0f} a rank")
    half = f"{max(1, int(size // 2))}" if size else "half as many"
    return [
        Finding(
            "cuda_oom",
            "error",
            f"{ranks_words(ranks)} ran out of GPU memory",
            tuple(ranks),
            "\n".join(evidence),
            "CUDA could not allocate what was asked for",
            f"Use a smaller batch (batch_size={half}), and to keep the same batch for the "
            "optimizer, accumulate gradients over several:\n"
            "    for i, batch in enumerate(loader):\n"
            "        (loss_of(batch) / 2).backward()\n"
            "        if i % 2:\n"
            "            optimizer.step()\n"
            "            optimizer.zero_grad()\n"
            "Mixed precision (torch.autocast) and activation checkpointing take less as well.",
        )
    ]


def collective_timeout(view: View) -> list[Finding]:
    """Ranks failed in a collective or while joining, for want of another rank."""
    failed = [f for f in view.failures if _is_peer(f)]
    error = view.run.get("error")
    joining = False
    if not failed and not view.failures and isinstance(error, Mapping):
        told = f"{error.get('title')}\n{error.get('text')}"
        joining = bool(_PEER.search(told) or _names_peer(told))
    if not failed and not joining:
        return []
    broken = sorted({int(f["rank"]) for f in failed})
    own = sorted((f for f in view.failures if not _is_peer(f)), key=lambda f: float(f["at"]))
    if own:
        cause = own[0]
        return [
            Finding(
                "collective_timeout",
                "info",
                f"{verb(broken, 'was', 'were')} cut off because rank {cause['rank']} had failed",
                tuple(broken),
                f"rank {cause['rank']} raised {text(cause.get('type'), 60)}: "
                f"{text(cause.get('message'))}\n{_heads(failed)}",
                "a collective failed after another rank had failed by itself",
                f"The error of rank {cause['rank']} is the one to look at.",
            )
        ]
    missing = [w for w in view.workers if int(w["rank"]) not in broken]
    if joining:
        absent = [w for w in view.workers if w.get("pid") is None]
        missing = absent or []
    ranks = [int(w["rank"]) for w in missing]
    where = [
        f"rank {w['rank']}: {text(w.get('status'), 20)}"
        + (f", at step {w['step']:,.0f}" if number(w.get("step")) is not None else "")
        + (f", last seen at {text(w.get('where'))}" if w.get("where") else "")
        for w in missing[:4]
    ]
    what = "joining the process group" if joining else "a collective"
    if ranks:
        title = f"{verb(ranks, 'was', 'were')} missing in {what}"
    else:
        title = f"{what} failed: ranks did not find each other"
    told = _heads(failed) if failed else text(error.get("title") if error else "", 300)
    return [
        Finding(
            "collective_timeout",
            "error",
            title,
            tuple(ranks or broken),
            "\n".join([told, *where]),
            "the backend's own timeout, or a connection that a peer closed",
            "Every rank has to reach the same collectives. Look at the log of "
            f"{ranks_words(ranks) if ranks else 'each rank'}: it may have ended, been killed (out "
            "of memory on its node), or wait elsewhere. Where one rank works long by itself, give "
            "the others more time with --timeout-s; between nodes, check firewalls and "
            "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME.",
        )
    ]


def _heads(failed: list[Mapping[str, Any]]) -> str:
    """What the ranks raised, one line for those that say the same."""
    said: dict[str, list[int]] = {}
    for failure in failed:
        head = f"{text(failure.get('type'), 60)}: {text(failure.get('message'), 160)}"
        head = f"{head} (at {_place(failure)})"
        said.setdefault(head, []).append(int(failure["rank"]))
    lines = [f"{ranks_words(sorted(ranks))}: {head}" for head, ranks in list(said.items())[:3]]
    return "\n".join(lines)
