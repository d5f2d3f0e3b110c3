"""Hints on ranks that go no further: one that the others wait for, and one that fell silent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raynb.engine.hints.view import Finding, View, number, ranks_words, text, verb
from raynb.telemetry.units import human_seconds

#: Seconds that a wait has to last, at least, and how many of the rank's own steps.
PATIENCE_S, PATIENCE_STEPS = 10.0, 10.0
#: The same before the first step: compiling, downloading and joining take their time.
FIRST_S = 15.0
#: The same where the one waited for is at work: it validates or saves by itself, as it seems.
BUSY_S = 30.0
#: The same where no rank is known to be elsewhere: all wait, or all stand idle.
ALL_S = 120.0
#: Seconds without any message after which a rank counts as cut off: samples come every second.
UNHEARD_S = 8.0
#: A process below it (percent of its CPUs, percent of its GPU) is idle.
IDLE_CPU, IDLE_GPU = 40.0, 10.0

# Where a rank waits for the others: torch's collectives by their files, and by how a cell calls
# them. In backward(), DDP's gradients are waited for in C++.
_COLLECTIVE = re.compile(
    r"torch/distributed/|nn/parallel/distributed|_engine_run_backward|\.backward\("
    r"|\b(?:all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|barrier|monitored_barrier"
    r"|all_to_all\w*)\("
)
# A GPU's collectives run behind the program's back: it stands where it first needs the result.
_GPU_WAIT = re.compile(r"\.(?:item|tolist|cpu|numpy|synchronize)\(")


@dataclass(frozen=True)
class Stand:
    """Where one rank stands.

    Attributes
    ----------
    rank : int
    place : str
        ``report``, ``collective``, ``elsewhere``, ``unheard``, ``moving`` or ``finished``.
    seconds : float
        For how long; 0 while it moves.
    where : str
        The line, as the worker's stack tells it.
    reports : int or None
        Calls of ``report()`` it has begun.
    busy : bool
        Its processor is at work.
    """

    rank: int
    place: str
    seconds: float
    where: str
    reports: int | None
    busy: bool

    @property
    def waits(self) -> bool:
        return self.place in ("report", "collective")

    def words(self) -> str:
        """What can be said of one rank or of many."""
        calls = "" if self.reports is None else f", {_times(self.reports)} of report() so far"
        if self.place == "report":
            return f"in report() number {self.reports or 'n/a'}"
        if self.place == "finished":
            return f"finished{calls}"
        if self.place == "unheard":
            return "nothing heard, not even samples of memory"
        if self.place == "moving":
            return f"at work{calls}"
        return f"at {self.where or 'a line that is not known'}"


def _times(n: int) -> str:
    return f"{n:,} call{'' if n == 1 else 's'}"


def stands(view: View) -> list[Stand]:
    """Where each rank of the attempt stands; empty where all of them step."""
    newest = max(view.heard.values(), default=view.now)
    oldest = min(view.heard.values(), default=view.now)
    if view.stepping.all() and newest - oldest <= UNHEARD_S:
        return []
    return [_stand(row, view, newest) for row in view.workers]


def _stand(row: Mapping[str, Any], view: View, newest: float) -> Stand:
    rank = int(row["rank"])
    since = number(row.get("still_since"))
    waiting = number(row.get("waiting_since"))
    heard = view.heard.get(rank, view.now)
    where = text(row.get("where"))
    if row.get("status") == "finished":
        place, since = "finished", view.now
    elif row.get("status") == "waiting" and waiting is not None:
        place, since = "report", waiting
    elif view.now - heard > UNHEARD_S and newest - heard > UNHEARD_S:
        place, since = "unheard", heard
    elif since is None:
        place, since = "moving", view.now
    elif _COLLECTIVE.search(where) or (row.get("device_kind") == "GPU" and _GPU_WAIT.search(where)):
        place = "collective"
    else:
        place = "elsewhere"
    cpu, util = number(row.get("cpu")) or 0.0, number(row.get("util")) or 0.0
    busy = cpu >= IDLE_CPU or (row.get("device_kind") == "GPU" and util >= IDLE_GPU)
    reports = number(row.get("reports"))
    return Stand(
        rank,
        place,
        max(0.0, view.now - since),
        where,
        None if reports is None else int(reports),
        busy and place != "unheard",
    )


def patience(view: View) -> float:
    """Seconds that a rank may stand: long for slow steps, and longer before the first one."""
    if not view.usual_step:
        return FIRST_S
    return max(PATIENCE_S, PATIENCE_STEPS * max(view.usual_step.values()))


def stalled(view: View) -> list[Finding]:
    """Ranks wait in ``report()`` or a collective for others that are not on their way."""
    if not view.training or any(w.get("status") == "failed" for w in view.workers):
        return []
    found = view.once(stands)
    waiting = [s for s in found if s.waits]
    others = [s for s in found if not s.waits]
    verdict = _all_stand(found, view) if not waiting or not others else None
    if waiting and others:
        verdict = _waits_for(waiting, others, view)
    elif waiting and {s.place for s in waiting} == {"report", "collective"}:
        verdict = _mismatch(waiting, view)
    return [verdict] if verdict is not None else []


def _waits_for(waiting: Sequence[Stand], others: Sequence[Stand], view: View) -> Finding | None:
    seconds = max(s.seconds for s in waiting)
    finished = [s for s in others if s.place == "finished"]
    # One that stands is told of before one that moves: nothing says that it will ever come.
    still = [s for s in others if s.place in ("elsewhere", "unheard") and not s.busy]
    limit = patience(view)
    if finished:
        # All of them call report(), or none does: who has finished will never come.
        limit = PATIENCE_S if any(s.place == "report" for s in waiting) else limit
        culprits, certain = finished, True
    elif still:
        culprits, certain = still, False
        seconds = min(seconds, max(s.seconds for s in still))
    else:
        culprits, certain = list(others), False
        limit = max(BUSY_S, limit)
    if seconds < limit:
        return None
    return Finding(
        "stalled",
        "error" if certain else "warn",
        _waiting_title(waiting, culprits),
        tuple(s.rank for s in waiting),
        _evidence(waiting, others),
        _threshold(limit, "while another has finished, stands elsewhere or goes on without it"),
        _FIX_CERTAIN if certain else f"{_FIX_CERTAIN}\n{_FIX_BUSY}",
    )


def _waiting_title(waiting: Sequence[Stand], culprits: Sequence[Stand]) -> str:
    missing = [s.rank for s in culprits]
    reporting = [s for s in waiting if s.place == "report"]
    first = (reporting or waiting)[0]
    same = [s.rank for s in waiting if s.place == first.place and s.reports == first.reports]
    if first.place == "report" and first.reports is not None:
        begun = [s.reports for s in culprits if s.reports is not None]
        never = bool(begun) and max(begun) < first.reports
        head = f"{verb(same, 'waits', 'wait')} in report() number {first.reports}"
        if never:
            return f"{head}, which {ranks_words(missing)} never called"
        return f"{head} for {ranks_words(missing)}"
    head = f"{verb(same, 'waits', 'wait')} at {first.where} for {ranks_words(missing)}"
    return head + (", which had finished" if culprits[0].place == "finished" else "")


def _mismatch(waiting: Sequence[Stand], view: View) -> Finding | None:
    """All wait, some in report() and some in a collective: no one can let the other go on."""
    limit = patience(view)
    if min(s.seconds for s in waiting) < limit:
        return None
    reporting = [s.rank for s in waiting if s.place == "report"]
    others = [s.rank for s in waiting if s.place != "report"]
    return Finding(
        "stalled",
        "error",
        f"{verb(reporting, 'waits', 'wait')} in report() while {verb(others, 'waits', 'wait')} "
        "in a collective",
        tuple(s.rank for s in waiting),
        _evidence(waiting, ()),
        _threshold(limit, "while others wait somewhere else"),
        _FIX_CERTAIN,
    )


def _all_stand(found: Sequence[Stand], view: View) -> Finding | None:
    """Nobody moves: collectives that do not match, or all of them idle for minutes."""
    active = [s for s in found if s.place != "finished"]
    if not active or any(s.place in ("moving", "report") for s in active):
        return None
    waiting = all(s.place == "collective" for s in active)
    lines = {s.where for s in active}
    apart = waiting and len(lines) > 1
    if not apart and any(s.busy for s in active):
        return None
    limit = patience(view) if apart else max(ALL_S, 2 * patience(view))
    if min(s.seconds for s in active) < limit:
        return None
    ranks = [s.rank for s in active]
    if apart:
        title = "ranks wait for each other in different collectives"
    else:
        title = f"{verb(ranks, 'has', 'have')} not moved for {human_seconds(limit)} and more"
    return Finding(
        "stalled",
        "error" if apart else "warn",
        title,
        tuple(ranks),
        _evidence(active, ()),
        _threshold(limit, "without a step, a batch, a log or a report"),
        _FIX_CERTAIN if apart else _FIX_IDLE,
    )


def silent(view: View) -> list[Finding]:
    """A rank makes no step, batch, log or report any more while others go on."""
    if not view.training or len(view.workers) < 2:
        return []
    found = view.once(stands)
    if any(s.waits and s.seconds >= PATIENCE_S for s in found):
        return []  # that the others wait for it says more
    if not any(s.place == "moving" and s.rank in view.usual_step for s in found):
        return []
    limit = patience(view)
    late = [
        s
        for s in found
        if s.place in ("elsewhere", "unheard")
        and s.seconds >= (max(BUSY_S, limit) if s.busy else limit)
        and (s.place == "unheard" or s.rank in view.training_since)
    ]
    if not late:
        return []
    seconds = max(s.seconds for s in late)
    ranks = [s.rank for s in late]
    return [
        Finding(
            "silent",
            "warn",
            f"{verb(ranks, 'has', 'have')} not reported for {human_seconds(seconds)} "
            "while others have",
            tuple(ranks),
            _evidence(late, ()),
            _threshold(limit, "without a step, a batch, a log or a report while others go on"),
            "Look at the line where it stands and at its log: a file or a network that does not "
            "answer, a lock, or a loop without end. Stop ends the run and keeps what was reached.",
        )
    ]


def _threshold(limit: float, what: str) -> str:
    return (
        f"{human_seconds(limit)} {what} (at least {PATIENCE_S:.0f} s and {PATIENCE_STEPS:.0f} "
        f"steps; {FIRST_S:.0f} s before the first step; {BUSY_S:.0f} s where it is at work)"
    )


def _evidence(waiting: Sequence[Stand], others: Sequence[Stand]) -> str:
    """A line for all ranks of which the same can be said, the most telling ones first."""
    groups: dict[str, list[Stand]] = {}
    for stand in (*waiting, *others):
        groups.setdefault(stand.words(), []).append(stand)
    lines = []
    for said, group in list(groups.items())[:6]:
        ranks = [s.rank for s in group]
        lasted = max(s.seconds for s in group)
        for_long = f" for {human_seconds(lasted)}" if lasted else ""
        lines.append(f"{ranks_words(ranks)}: {said}{for_long}")
    if len(groups) > 6:
        rest = sum(len(group) for group in list(groups.values())[6:])
        lines.append(f"and {rest:,} more ranks elsewhere")
    return "\n".join(lines)


_FIX_CERTAIN = (
    "Every rank has to call report() and every collective (a step under DDP is one) equally often "
    "and in the same order. Look for a call inside `if rank == 0:`, for an early return or "
    "continue, and for ranks with more batches than others (drop_last, equal splits, or\n"
    "    with model.join():\n"
    "around the loop). Rank 0 alone may log what it likes with raynb.log, which waits for nobody."
)
_FIX_BUSY = (
    "Where one rank validates, downloads or saves while the others wait, this ends by itself; let "
    "all ranks share that work, or do it after the run."
)
_FIX_IDLE = (
    "The ranks use no processor: they wait for something outside, such as a file system, a "
    "network, a lock or a DataLoader worker. Look at the lines where they stand."
)
