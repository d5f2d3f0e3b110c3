"""The live view of a run as text: a table that redraws itself, or a few plain lines in a pipe."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from raynb.results.hints import hint_rows
from raynb.results.page import state_of
from raynb.results.text import (
    UNKNOWN,
    clean,
    clean_line,
    format_count,
    format_value,
    mapping,
    number,
    plural,
    trained_on,
)
from raynb.results.tune.live import is_search, search_words
from raynb.telemetry.clock import Clock
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.units import human_bytes, human_seconds

#: Redraws a second at most.
MAX_HZ = 4
#: Seconds between progress lines where the output is no terminal.
PROGRESS_S = 5.0
MAX_RANKS = 16
MAX_LOG_LINES = 8
MAX_EVENT_LINES = 3
MAX_HINT_LINES = 4
#: Warnings and errors printed as plain lines; what comes after them is on the record.
MAX_PLAIN_EVENTS = 20

_STYLES = {"good": "green", "bad": "bold red", "busy": "yellow", "idle": "dim"}
_STATUS_STYLES = {"failed": "bold red", "finished": "green", "stopped": "dim", "waiting": "yellow"}
_LEVELS = {"error": ("✗", "red"), "warn": ("!", "yellow")}
_HINT_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
#: States in which there is progress to tell.
_AT_WORK = ("training", "searching")
_BAR = 8
#: Columns from which on memory, the device's full name and the bar have room.
_WIDE = 96


class TerminalView:
    """Shows one run on a stream while it lasts; a view that breaks goes quiet and never raises.

    On a terminal whose cell or script waits for the run, a panel is redrawn in place. Elsewhere,
    also where a prompt is open while the run goes on, a line is printed when the state changes and
    now and then one on the progress.

    Parameters
    ----------
    stream : file, optional
        Standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._console: Console | None = None
        self._live: Live | None = None
        self._drawn = 0.0
        self._state: object = None
        self._told: set[tuple[object, object]] = set()
        self._hinted: set[object] = set()
        self._quiet = False

    def open(self, mirror: Mirror) -> None:
        """Begin to show a run; what is drawn is decided by the first :meth:`update`."""
        self._guarded(lambda: self._open())

    def update(self, mirror: Mirror) -> None:
        """Show what is new; calls that come too fast are passed over."""
        self._guarded(lambda: self._update(mirror, last=False))

    def close(self, mirror: Mirror, result_text: str = "") -> None:
        """Show the end and the result's text, and give the terminal back."""
        self._guarded(lambda: self._update(mirror, last=True))
        if self._live is not None:
            self._stop_live()
        if result_text:
            self._guarded(lambda: self._print(clean(result_text, 20_000)))

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._quiet:
            return
        try:
            action()
        except Exception:
            # A closed pipe or an odd terminal must not reach the run.
            self._quiet = True
            self._stop_live()

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except Exception:
                self._quiet = True

    def _open(self) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)

    def _update(self, mirror: Mirror, *, last: bool) -> None:
        if self._console is None:
            self._open()
        assert self._console is not None
        first = self._state is None
        if first and _can_redraw(self._console, mirror):
            # Its own thread redraws, so that the time goes on while nothing else does.
            self._live = Live(
                console=self._console, refresh_per_second=MAX_HZ, vertical_overflow="ellipsis"
            )
            self._live.start()
        changed = mirror.run.get("state") != self._state
        self._state = mirror.run.get("state")
        now = time.monotonic()
        if self._live is not None:
            if changed or last or now - self._drawn >= 1 / MAX_HZ:
                self._drawn = now
                self._live.update(render(mirror), refresh=last)
            return
        for line in self._news(mirror):
            self._print(line)
        if changed:
            self._drawn = now
            self._print(state_line(mirror))
        elif not last and now - self._drawn >= PROGRESS_S and self._state in _AT_WORK:
            self._drawn = now
            self._print(progress_line(mirror))

    def _news(self, mirror: Mirror) -> list[str]:
        """Warnings, errors and hints not yet printed."""
        lines = []
        for event in mirror.events:
            key = (event.get("t"), event.get("text"))
            if event.get("level") not in ("warn", "error") or key in self._told:
                continue
            if len(self._told) < MAX_PLAIN_EVENTS:
                self._told.add(key)
                lines.append(f"{_stamp(mirror)} {event['level']}: {clean_line(event.get('text'))}")
        for hint in mirror.hints:
            if hint.get("id") not in self._hinted:
                self._hinted.add(hint.get("id"))
                (row,), _ = hint_rows([hint], None)
                lines.append(f"{_stamp(mirror)} hint: {row.title}")
                lines += [f"    {line}" for line in row.evidence.splitlines()]
        return lines

    def _print(self, text: str) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()


def _can_redraw(console: Console, mirror: Mirror) -> bool:
    return (
        console.is_terminal
        and not console.is_dumb_terminal
        and console.encoding.lower().startswith("utf")
        # A panel that redraws under an open prompt would fight with it.
        and bool(mirror.run.get("blocking"))
    )


# -- lines ---------------------------------------------------------------------------------------


def state_line(mirror: Mirror) -> str:
    """``[12 s] Training: message``."""
    _, word, _ = state_of(mirror.run.get("state"))
    message = clean_line(mirror.run.get("message") or "", 300)
    return f"{_stamp(mirror)} {word}{': ' if message else ''}{message}"


def progress_line(mirror: Mirror) -> str:
    """``[12 s] training · step 40 · loss 0.512 / 0.498 (2 ranks) · rows 10,240 of 60,000``."""
    _, word, _ = state_of(mirror.run.get("state"))
    parts = [f"{_stamp(mirror)} {word.lower()}"]
    if is_search(mirror.run):
        return " · ".join([*parts, *search_words(mirror.run)])
    steps = _step_words(mirror.workers.values())
    parts += [steps] if steps else []
    metrics = mirror.metrics()
    if metrics:
        parts.append(_metric_words(mirror, metrics[0]))
    parts += rows_words(mirror)
    return " · ".join(parts)


def _metric_words(mirror: Mirror, metric: str) -> str:
    """The ranks' latest values; where there are bands, their range."""
    name, latest = clean_line(metric, 40), mirror.latest(metric)
    spread = mirror.spread(metric)
    if spread is not None:
        low, middle, high, ranks = spread
        broken = [rank for rank, value in latest.items() if value != value]
        return (
            f"{name} {format_value(low)} to {format_value(high)}, median {format_value(middle)} "
            f"({plural(ranks, 'rank')})" + (f", NaN on rank {broken[0]}" if broken else "")
        )
    values = [value for _, value in sorted(latest.items())]
    if len(values) <= 4:
        shown = " / ".join(format_value(v) for v in values)
        return f"{name} {shown}" + (f" ({plural(len(values), 'rank')})" if len(values) > 1 else "")
    broken_ranks = sum(v != v for v in values)
    finite = [v for v in values if v == v] or [float("nan")]
    told = (
        f"{name} {format_value(min(finite))} to {format_value(max(finite))}, median "
        f"{format_value(statistics.median(finite))} ({plural(len(values), 'rank')})"
    )
    return told + (f", NaN on {broken_ranks:,}" if broken_ranks else "")


def rows_words(mirror: Mirror) -> list[str]:
    """``rows 10,240 of 60,000`` over all ranks, with the shard's name where there are several."""
    shards: dict[str, list[Mapping[str, Any]]] = {}
    for worker in mirror.workers.values():
        shard = trained_on(worker)
        if shard:
            shards.setdefault(str(shard.get("name")), []).append(shard)
    out = []
    for name, found in list(shards.items())[:3]:
        seen = _sum(number(s.get("rows_seen")) for s in found)
        total = number(mapping(mirror.run.get("shard_totals")).get(name))
        if total is None and len(found) == mirror.run.get("world_size"):
            total = _sum(number(s.get("rows_total")) for s in found)
        which = f"{clean_line(name, 30)} " if len(shards) > 1 else ""
        out.append(f"{which}rows {format_count(seen)} of {format_count(total)}")
    return out


def _sum(values: Any) -> float | None:
    """A sum is known when all its parts are."""
    parts = list(values)
    return None if any(v is None for v in parts) else sum(parts)


def _elapsed(run: Mapping[str, Any], clock: Clock) -> float | None:
    started = number(run.get("started"))
    if started is None:
        return None
    ended = number(run.get("ended"))
    return max(0.0, (clock.now() if ended is None else ended) - started)


def _stamp(mirror: Mirror) -> str:
    seconds = _elapsed(mirror.run, mirror.clock)
    return f"[{'0 s' if seconds is not None and seconds < 1 else human_seconds(seconds)}]"


# -- panel ---------------------------------------------------------------------------------------


class _Elapsed:
    """The time since the start, told anew with each redraw."""

    def __init__(self, run: Mapping[str, Any], clock: Clock) -> None:
        self._run, self._clock = dict(run), clock

    def __rich__(self) -> Text:
        n = number(self._run.get("world_size"))
        workers = f"{format_count(n)} workers" if n != 1 else "1 worker"
        seconds = _elapsed(self._run, self._clock)
        # Tenths would flicker.
        told = UNKNOWN if seconds is None else human_seconds(max(1.0, float(int(seconds))))
        return Text(f"{told.replace('.0', '')} · {workers if n is not None else 'workers n/a'}")


def render(mirror: Mirror) -> RenderableType:
    """The live picture as a rich panel; everything from a worker is plain text in it."""
    run = mirror.run
    icon, word, tone = state_of(run.get("state"))
    head = Text(f"{icon} {word}", style=_STYLES[tone])
    message = clean_line(run.get("message") or "", 200)
    if message:
        head.append(f"  {message}", style="default")
    top = Table.grid(expand=True)
    top.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    top.add_column(justify="right", no_wrap=True)
    top.add_row(head, _Elapsed(run, mirror.clock))
    parts: list[RenderableType] = [top]
    if is_search(run):
        facts = search_words(run)
    else:
        parts += [_Ranks(mirror)] if mirror.workers else []
        facts = rows_words(mirror)
    best = mapping(run.get("best"))
    if best:
        facts.append(
            f"best {clean_line(best.get('metric'), 40)} {format_value(best.get('value'))} "
            f"at step {format_count(best.get('step'))}"
        )
    dropped = sum(number(n) or 0 for n in mapping(run.get("dropped")).values())
    if dropped:
        facts.append(f"dropped {format_count(dropped)} messages")
    if facts:
        parts.append(Text(" · ".join(facts), style="dim"))
    parts += _hints(mirror)
    parts += _logs(mirror)
    for event in mirror.events[-MAX_EVENT_LINES:]:
        sign, style = _LEVELS.get(str(event.get("level")), ("•", "dim"))
        parts.append(_one_line(f"{sign} {clean_line(event.get('text'), 200)}", style))
    error = mapping(run.get("error"))
    if error:
        parts.append(_one_line(f"✗ {clean_line(error.get('title'), 300)}", "bold red"))
        if error.get("line"):
            parts.append(_one_line(f"  {clean_line(error.get('line'), 300)}", "red"))
    title = Text(clean_line(run.get("name") or "run", 60), style="bold")
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def worst_first(workers: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Failed ranks first, then those that are behind."""

    def key(item: tuple[int, Mapping[str, Any]]) -> tuple[bool, float, int]:
        rank, row = item
        step = number(row.get("step"))
        return row.get("status") != "failed", -1.0 if step is None else step, rank

    return [row for _, row in sorted(workers.items(), key=key)]


class _Ranks:
    """The table of ranks; a narrow terminal gets fewer columns."""

    def __init__(self, mirror: Mirror) -> None:
        metrics = mirror.metrics()
        self._metric = metrics[0] if metrics else None
        self._latest = mirror.latest(metrics[0]) if metrics else {}
        if len(mirror.workers) > MAX_RANKS:
            rows = worst_first(mirror.workers)
        else:
            rows = [row for _, row in sorted(mirror.workers.items())]
        # Copies: the console draws later, on its own thread.
        self._rows = [dict(row) for row in rows[:MAX_RANKS]]
        self._rest = _rest_words(rows[MAX_RANKS:])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _WIDE
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        table.add_column("rank", justify="right", no_wrap=True)
        table.add_column("status", no_wrap=True)
        table.add_column("device", no_wrap=True, overflow="ellipsis", ratio=1)
        for name in ("use", "memory", "step", "steps/s") if wide else ("use", "step", "steps/s"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("rows", no_wrap=True)
        if self._metric is not None:
            table.add_column(Text(clean_line(self._metric, 20)), justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*self._cells(row, wide))
        yield table
        if self._rest:
            yield Text(self._rest, style="dim")

    def _cells(self, row: Mapping[str, Any], wide: bool) -> list[Text]:
        status = clean_line(row.get("status") or UNKNOWN, 12)
        device = clean_line(row.get("device") or UNKNOWN, 40)
        util, rate = number(row.get("util")), number(row.get("rate"))
        cells = [
            Text(clean_line(row.get("rank"), 8)),
            Text(status, style=_STATUS_STYLES.get(status, "default")),
            Text(device if wide else device.partition(" · ")[0]),
            Text(UNKNOWN if util is None else f"{util:.0f} %"),
        ]
        cells += [Text(human_bytes(number(row.get("mem_used"))))] if wide else []
        cells += [
            Text(format_count(row.get("step"))),
            Text(UNKNOWN if rate is None else f"{rate:.3g}"),
            _rows_seen(trained_on(row), wide),
        ]
        if self._metric is not None:
            rank = row.get("rank")
            value = self._latest.get(rank) if isinstance(rank, int) else None
            cells.append(Text(format_value(value)))
        return cells


def _rest_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """``… 4 more ranks: 4 running; step 39`` for those that have no row."""
    if not rows:
        return ""
    counts = Counter(clean_line(row.get("status") or UNKNOWN, 12) for row in rows)
    told = ", ".join(f"{n:,} {status}" for status, n in counts.most_common())
    steps = _step_words(rows)
    return f"… {plural(len(rows), 'more rank')}: {told}{'; ' if steps else ''}{steps}"


def _step_words(rows: Iterable[Mapping[str, Any]]) -> str:
    steps = [n for row in rows if (n := number(row.get("step"))) is not None]
    if not steps:
        return ""
    low, high = format_count(min(steps)), format_count(max(steps))
    return f"step {low}" if low == high else f"step {low} to {high}"


def _rows_seen(shard: Mapping[str, Any], wide: bool) -> Text:
    """Rows seen in numbers and, where there is room and a total, as a short bar."""
    if not shard:
        return Text(UNKNOWN, style="dim")
    seen, total = number(shard.get("rows_seen")), number(shard.get("rows_total"))
    words = Text(f"{format_count(seen)}/{format_count(total)}")
    if not wide or seen is None or not total or total < 0:
        return words
    full = round(_BAR * min(1.0, max(0.0, seen / total)))
    return Text.assemble(("━" * full, "green"), ("━" * (_BAR - full), "dim"), " ", words)


def _hints(mirror: Mirror) -> list[RenderableType]:
    """What is wrong now, a line each, with its evidence where there is room for it."""
    rows = [row for row in hint_rows(mirror.hints, None)[0] if not row.over]
    lines: list[RenderableType] = []
    for row in rows[:MAX_HINT_LINES]:
        evidence = " ".join(row.evidence.split())
        told = f"{row.sign} hint: {row.title}"
        lines.append(_one_line(f"{told} ({evidence})", _HINT_STYLES.get(row.word, "default")))
    if len(rows) > MAX_HINT_LINES:
        lines.append(_one_line(f"… {plural(len(rows) - MAX_HINT_LINES, 'more hint')}", "dim"))
    return lines


def _logs(mirror: Mirror) -> list[RenderableType]:
    """The newest lines of each rank, as many as fit."""
    ranks = sorted(rank for rank, lines in mirror.logs.items() if lines)[:MAX_LOG_LINES]
    if not ranks:
        return []
    each = max(1, min(3, MAX_LOG_LINES // len(ranks)))
    return [
        _one_line(f"{rank} │ {clean_line(text, 300)}", "red" if stream == "err" else "default")
        for rank in ranks
        for stream, text in list(mirror.logs[rank].values())[-each:]
    ]


__all__ = ["TerminalView", "progress_line", "render", "state_line"]
