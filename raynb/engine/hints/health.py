"""The health monitor: asks every rule about a run again and again, and keeps what they find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raynb.engine.hints import data, failures, memory, progress, speed, values
from raynb.engine.hints.view import Finding, View, first_shard, number
from raynb.telemetry import clock
from raynb.telemetry.digest import Digest
from raynb.telemetry.trend import Trend
from raynb.telemetry.update import MAX_HINTS

Rule = Callable[[View], list[Finding]]
#: Every rule; a new one is a function here, and a section in ``docs/hints.md``.
RULES: tuple[Rule, ...] = (
    failures.cuda_oom,
    failures.collective_timeout,
    values.non_finite,
    progress.stalled,
    progress.silent,
    data.imbalance,
    data.set_epoch,
    memory.leak,
    memory.gpu_memory,
    speed.data_bound,
    speed.straggler,
    speed.report_rate,
    speed.network,
    speed.threads,
    values.lr_scaling,
)
#: Seconds for which a finding may be missing without having ended: values swing about a threshold.
CLEAR_S = 5.0
#: Seconds between two changes of the numbers that an open hint tells.
REFRESH_S = 2.0


@dataclass
class _Memory:
    """What has to be remembered of an attempt for the next look at it."""

    attempt: int
    since: float
    usual_step: dict[int, float] = field(default_factory=dict)
    training_since: dict[int, float] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    lowest: dict[tuple[str, int], float] = field(default_factory=dict)
    lr: float | None = None


@dataclass
class _Episode:
    """A finding over time."""

    finding: Finding
    first: float
    last: float
    told: float = 0.0
    hint: dict[str, Any] | None = None


class Health:
    """Hints of one run.

    Parameters
    ----------
    previous : mapping, optional
        ``lr`` and ``global_batch`` of an earlier run of the same function.
    rules : sequence of callable, optional
        By default all of :data:`RULES`.

    Attributes
    ----------
    hints : list of dict
        The wire's hints, in order of appearance.
    broken : dict of str to str
        Rules that raised, and what; a rule that fails must not silence the others.
    scale : dict
        ``lr`` and ``global_batch`` of this run, for the next one.
    """

    def __init__(
        self, previous: Mapping[str, Any] | None = None, rules: Sequence[Rule] = RULES
    ) -> None:
        self.hints: list[dict[str, Any]] = []
        self.broken: dict[str, str] = {}
        self.scale: dict[str, float] = {}
        self._previous = dict(previous or {})
        self._rules = rules
        self._memory = _Memory(-1, 0.0)
        self._episodes: dict[str, _Episode] = {}

    def look(
        self, digest: Digest, failed: Sequence[Mapping[str, Any]] = (), now: float | None = None
    ) -> bool:
        """Look at a run; True when :attr:`hints` changed.

        Parameters
        ----------
        digest : Digest
            Not changed, and not kept; its owner holds its lock.
        failed : sequence of mapping
            What ranks raised, as the collector keeps it.
        now : float, optional
            UNIX seconds.
        """
        return self.judge(self.view(digest, failed, clock.now() if now is None else now))

    def view(self, digest: Digest, failed: Sequence[Mapping[str, Any]], now: float) -> View:
        """The picture that the rules get."""
        size = digest.run["world_size"]
        rows = [
            dict(row) for rank, row in sorted(digest.workers.items()) if size is None or rank < size
        ]
        attempt = max((int(row["attempt"]) for row in rows), default=0)
        rows = [row for row in rows if row["attempt"] == attempt]
        if attempt != self._memory.attempt:
            self._memory = _Memory(attempt, now)
        trends = {rank: t for rank, t in digest.trends.items() if t.attempt == attempt}
        self._remember(rows, trends, size, now)
        return View(
            now,
            dict(digest.run),
            rows,
            trends,
            self._memory.lowest,
            {
                (metric, rank): first
                for (metric, rank, of), first in digest.nonfinite.items()
                if of == attempt
            },
            [f for f in failed if f["attempt"] == attempt],
            self.scale,
            self._previous,
            self._memory.usual_step,
            self._memory.training_since,
            self._memory.heard,
        )

    def _remember(
        self,
        rows: Sequence[Mapping[str, Any]],
        trends: Mapping[int, Trend],
        size: int | None,
        now: float,
    ) -> None:
        memory = self._memory
        for row in rows:
            rank = int(row["rank"])
            step = number(row.get("step_s"))
            if step is not None:
                memory.usual_step[rank] = step
            reported = number(row.get("last_report"))
            if rank not in memory.training_since and (
                step is not None
                or first_shard(row).get("batches_seen")
                or (reported is not None and reported > memory.since)
            ):
                memory.training_since[rank] = now
            for column in ("rss", "mem_process") if rank in memory.training_since else ():
                if (value := number(row.get(column))) is not None:
                    low = memory.lowest.get((column, rank), value)
                    memory.lowest[column, rank] = min(low, value)
            lr = number(row.get("lr"))
            if lr is not None:
                memory.lr = max(lr, memory.lr or 0.0)
        for rank, trend in trends.items():
            # By this side's clock: clocks of nodes differ.
            if memory.samples.get(rank) != trend.samples:
                memory.samples[rank] = trend.samples
                memory.heard[rank] = now
        sizes = [number(first_shard(row).get("batch_size")) for row in rows]
        if memory.lr is not None and rows and len(rows) == size and None not in sizes:
            batch = sum(n for n in sizes if n is not None)
            self.scale = {"lr": memory.lr, "global_batch": batch}

    def judge(self, view: View) -> bool:
        """Ask the rules about a picture; True when :attr:`hints` changed."""
        found: dict[str, Finding] = {}
        attempt = int(view.run.get("attempt") or 0)
        for rule in self._rules:
            try:
                findings = rule(view)
            except Exception as error:
                self.broken[rule.__name__] = f"{type(error).__name__}: {error}"
                continue
            for one in findings:
                again = f"{attempt}:" if attempt else ""
                found[f"{again}{one.kind}{':' if one.key else ''}{one.key}"] = one
        changed = False
        for name, finding in found.items():
            changed |= self._found(name, finding, view.now)
        for name, episode in list(self._episodes.items()):
            if name not in found and view.now - episode.last > CLEAR_S:
                del self._episodes[name]
                if episode.hint is not None:
                    self._replace({**episode.hint, "until": episode.last})
                    changed = True
        return changed

    def _found(self, name: str, finding: Finding, now: float) -> bool:
        episode = self._episodes.get(name)
        if episode is None:
            episode = self._episodes[name] = _Episode(finding, now, now)
        episode.finding, episode.last = finding, now
        if now - episode.first < finding.hold:
            return False
        if episode.hint is not None and now - episode.told < REFRESH_S:
            return False
        hint = {
            "id": name,
            "kind": finding.kind,
            "level": finding.level,
            "title": finding.title,
            "ranks": list(finding.ranks),
            "evidence": finding.evidence,
            "threshold": finding.threshold,
            "fix": finding.fix,
            "since": episode.first,
            "until": None,
        }
        if hint == episode.hint:
            return False
        episode.hint, episode.told = hint, now
        self._replace(hint)
        return True

    def _replace(self, hint: dict[str, Any]) -> None:
        # New dicts in a new list: who has the old one may still be reading it.
        hints = list(self.hints)
        for at, old in enumerate(hints):
            if old["id"] == hint["id"]:
                hints[at] = hint
                break
        else:
            hints.append(hint)
            if len(hints) > MAX_HINTS:
                ended = next((h for h in hints if h["until"] is not None), hints[0])
                hints.remove(ended)
        self.hints = hints
