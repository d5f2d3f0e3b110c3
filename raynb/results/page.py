"""What a run's static page tells, as bounded and cleaned sections for HTML and for plain text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raynb.engine.spec import RunSpec
from raynb.results.checkpoints import CheckpointRow
from raynb.results.curves import (
    Curve,
    curves_of_mirror,
    default_metric,
    last_values,
)
from raynb.results.text import (
    UNKNOWN,
    clean,
    clean_line,
    cut_middle,
    format_count,
    format_moment,
    format_of,
    format_value,
    json_text,
    mapping,
    mappings,
    number,
    plural,
    trained_on,
)
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.units import human_bytes, human_seconds

MAX_METRICS = 30
MAX_WORKERS = 64
#: Workers past it are folded away in HTML and left out of plain text.
OPEN_WORKERS = 16
MAX_CAPTURED = 40
MAX_CHECKPOINTS = 12
#: Metrics of checkpoints that get a column, and files of one that are named.
MAX_CHECKPOINT_METRICS = 5
MAX_FILES_NAMED = 3
MAX_DEVICES = 6
MAX_EVENTS = 40
MAX_OPTIONS = 40
MAX_TRACEBACK = 12_000
MAX_SOURCE = 6_000

#: State -> (icon, word, tone); tones are good, bad, busy and idle.
STATES = {
    "preflight": ("◌", "Checking", "busy"),
    "starting_ray": ("◌", "Starting Ray", "busy"),
    "waiting": ("◌", "Waiting for resources", "busy"),
    "starting_workers": ("◌", "Starting workers", "busy"),
    "training": ("▶", "Training", "good"),
    "searching": ("▶", "Searching", "good"),
    "running": ("▶", "Running", "good"),
    "running_or_lost": ("?", "Running or lost", "busy"),
    "finishing": ("▶", "Finishing", "busy"),
    "restarting": ("↻", "Restarting", "busy"),
    "stopping": ("■", "Stopping", "busy"),
    "finished": ("✓", "Finished", "good"),
    "failed": ("✗", "Failed", "bad"),
    "stopped": ("■", "Stopped", "idle"),
    "unknown": ("?", "Outcome unknown", "idle"),
    "plain": ("?", "Plain Ray run", "idle"),
    "unreadable": ("✗", "Record unreadable", "bad"),
}


def state_of(state: object) -> tuple[str, str, str]:
    """Icon, word and tone of a run's state, also of one that isn't known."""
    return STATES.get(str(state), ("?", clean_line(state, 40) or "Unknown state", "idle"))


@dataclass
class Page:
    """All that a static page shows, as plain data.

    Attributes
    ----------
    record : mapping
        ``record.json``'s content: ``name``, ``state``, ``message``, ``started``, ``ended``,
        ``world_size``, ``attempts``, ``rows``, ``shard_totals``, ``dropped``, ``error``,
        ``best_seen``, ``workers``, ``options`` (``RunSpec.summary()``), ``capture`` (rows of
        ``Captured``), ``source``, ``versions``. Any of it may be missing or of a wrong type.
    curves : sequence of Curve
        The metrics, for the chart and the last values.
    texts : mapping of str to str
        Rank 0's last text under each name that was logged as text.
    checkpoints : sequence of CheckpointRow
    events : sequence of mapping
        ``t``, ``level``, ``text``; oldest first.
    note : str
        A remark below the head line.
    path : str
        Where the run is stored; made from the options when empty.
    shown : float or None
        UNIX time that ages are told as of.
    live : str
        Marks the places that a live kernel fills with controls; empty for none.
    """

    record: Mapping[str, Any]
    curves: Sequence[Curve] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Sequence[CheckpointRow] = ()
    events: Sequence[Mapping[str, Any]] = ()
    note: str = ""
    path: str = ""
    shown: float | None = None
    live: str = ""

    @classmethod
    def of_mirror(cls, mirror: Mirror, note: str = "") -> Page:
        """A page from the live picture alone, for a run without a record yet."""
        run = mirror.run
        record = {
            **run,
            "best_seen": run.get("best"),
            "attempts": (number(run.get("attempt")) or 0) + 1,
            "workers": [row for _, row in sorted(mirror.workers.items())],
            "hints": list(mirror.hints),
        }
        return cls(
            record,
            curves=curves_of_mirror(mirror),
            events=list(mirror.events),
            note=note,
            path=clean_line(run.get("storage") or "", 500),
        )

    @property
    def metric(self) -> str | None:
        """The metric that chart and worker table show."""
        return default_metric(self.metrics)

    @property
    def metrics(self) -> list[str]:
        """The numeric metrics in order of appearance."""
        return list(dict.fromkeys(c.metric for c in self.curves))

    def mode_of(self, metric: str) -> str | None:
        """Which way a metric is better, where ``--best`` says it."""
        option = self.best_option
        return option[1] if option and option[0] == metric else None

    @property
    def best_option(self) -> tuple[str, str] | None:
        """Metric and mode of the run's option ``best``."""
        return parse_best(mapping(self.record.get("options")).get("best"))


def parse_best(value: object) -> tuple[str, str] | None:
    """``("accuracy", "max")`` from ``"accuracy:max"``; None for anything else."""
    if not isinstance(value, str):
        return None
    metric, _, mode = value.rpartition(":")
    return (metric, mode) if metric and mode in ("min", "max") else None


@dataclass
class Table:
    """Rows of cleaned text with their heads; ``cut`` says what was left out."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    cut: str = ""
    #: Columns with numbers, aligned right.
    numeric: frozenset[int] = frozenset()


def duration_of(record: Mapping[str, Any]) -> float | None:
    """Seconds from start to end; None while either is unknown."""
    started, ended = number(record.get("started")), number(record.get("ended"))
    if started is None or ended is None or not math.isfinite(ended - started):
        return None
    return max(0.0, ended - started)


def workers_of(record: Mapping[str, Any]) -> int | None:
    """The run's world size; None when it never got workers."""
    n = number(record.get("world_size"))
    if n is not None and math.isfinite(n):
        return int(n)
    return len(mappings(record.get("workers"))) or None


def head_facts(page: Page) -> list[str]:
    """Short facts for the line below the name."""
    record = page.record
    n = workers_of(record)
    started, now = number(record.get("started")), number(record.get("now"))
    if number(record.get("ended")) is None and started is not None and now is not None:
        time_told = f"{human_seconds(max(0.0, now - started))} so far"
    else:
        duration = duration_of(record)
        time_told = "duration n/a" if duration is None else human_seconds(duration)
    facts = [
        time_told,
        plural(n, "worker") if n is not None else "workers n/a",
    ]
    attempts = number(record.get("attempts"))
    if attempts is not None and attempts > 1:
        facts.append(f"{format_count(attempts)} attempts")
    if started is not None:
        facts.append(f"started {format_moment(record.get('started'))}")
    return facts


def best_of(record: Mapping[str, Any]) -> tuple[str, float, str] | None:
    """Metric, best value seen and mode, where the run was started with ``--best``."""
    best = mapping(record.get("best_seen"))
    value = number(best.get("value"))
    option = parse_best(mapping(record.get("options")).get("best"))
    if value is None:
        return None
    metric = str(best.get("metric"))
    return metric, value, option[1] if option and option[0] == metric else ""


def told_best(best: tuple[str, float, str] | None) -> str:
    """``accuracy 0.981 (max)``."""
    if best is None:
        return ""
    metric, value, mode = best
    return f"{clean_line(metric, 60)} {format_value(value)}{f' ({mode})' if mode else ''}"


def best_line(page: Page) -> str:
    """``accuracy 0.981 (max) at step 400 on rank 1``, or nothing."""
    best = mapping(page.record.get("best_seen"))
    if not best:
        return ""
    where = "".join(
        f" {word} {format_count(best.get(key))}"
        for key, word in (("step", "at step"), ("rank", "on rank"))
        if number(best.get(key)) is not None
    )
    return told_best(best_of(page.record)) + where


def metric_table(page: Page) -> Table | None:
    """Last values: on rank 0, and over all ranks where there are several."""
    names = page.metrics
    rows: list[tuple[str, ...]] = []
    several = len({c.rank for c in page.curves}) > 1
    for name in names[:MAX_METRICS]:
        values = last_values(page.curves, name)
        row: tuple[str, ...] = (clean_line(name, 60), format_value(values.get(0)))
        if several:
            finite = list(values.values())
            low, high = _extremes(finite)
            row += (format_value(sum(finite) / len(finite)), low, high, str(len(finite)))
        rows.append(row)
    rows += [
        (clean_line(name, 60), clean_line(text, 60)) + (("",) * 4 if several else ())
        for name, text in list(page.texts.items())[: max(0, MAX_METRICS - len(rows))]
    ]
    if not rows:
        return None
    heads: tuple[str, ...] = ("metric", "last on rank 0")
    if several:
        heads += ("mean of last", "lowest", "highest", "ranks")
    return Table(
        heads,
        rows,
        _cut(len(names) + len(page.texts) - len(rows), "more metric"),
        frozenset(range(1, len(heads))),
    )


def _extremes(values: list[float]) -> tuple[str, str]:
    """Lowest and highest; NaN when any is, since min() and max() would hide it."""
    if any(math.isnan(v) for v in values):
        return "NaN", "NaN"
    return format_value(min(values)), format_value(max(values))


def worker_table(page: Page) -> Table | None:
    """A row a rank; failed ranks come first where not all fit."""
    workers = mappings(page.record.get("workers"))
    if not workers:
        return None
    shown = workers
    if len(workers) > OPEN_WORKERS:
        shown = sorted(workers, key=lambda w: w.get("status") != "failed")
    metric = page.metric
    values = last_values(page.curves, metric) if metric is not None else {}
    one_node = len({str(w.get("node")) for w in workers}) == 1
    heads: tuple[str, ...] = ("rank", "status", "device", "step", "rows", "batches")
    if not one_node:
        heads = (*heads[:2], "node", *heads[2:])
    if metric is not None:
        heads += (f"last {clean_line(metric, 20)}",)
    rows = []
    for worker in shown[:MAX_WORKERS]:
        shard = trained_on(worker)
        rank = worker.get("rank")
        row: tuple[str, ...] = (
            clean_line(rank, 12),
            _status(worker),
            _known(worker.get("device"), 60),
            format_count(worker.get("step")),
            format_of(shard.get("rows_seen"), shard.get("rows_total")),
            format_of(shard.get("batches_seen"), shard.get("batches_total")),
        )
        if not one_node:
            row = (*row[:2], _known(worker.get("node") or worker.get("ip"), 40), *row[2:])
        if metric is not None:
            row += (format_value(values.get(rank) if isinstance(rank, int) else None),)
        rows.append(row)
    first_number = 3 if one_node else 4
    return Table(
        heads,
        rows,
        _cut(len(workers) - len(rows), "more worker"),
        frozenset({0, *range(first_number, len(heads))}),
    )


_STATUS_ICONS = {"finished": "✓", "failed": "✗", "stopped": "■"}


def _status(worker: Mapping[str, Any]) -> str:
    status = _known(worker.get("status"), 20)
    icon = _STATUS_ICONS.get(status, "")
    return f"{icon} {status}".strip()


def data_line(page: Page) -> str:
    """Rows over all ranks by shard name, the node where there is one, in one line."""
    parts = []
    totals = mapping(page.record.get("shard_totals"))
    for name, total in list(totals.items())[:10]:
        parts.append(f"{clean_line(name, 40)}: {format_count(total)} rows over all ranks")
    nodes = {clean_line(w.get("node") or "", 60) for w in mappings(page.record.get("workers"))}
    if len(nodes) == 1 and (node := nodes.pop()):
        parts.append(f"all on node {node}")
    return " · ".join(parts)


def option_rows(page: Page) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The run's options as (name, value): those that differ from the defaults, and the others."""
    # Told elsewhere on the page.
    told = ("name", "storage_path", "num_workers")
    options = mapping(page.record.get("options"))
    defaults = RunSpec().summary()
    changed: list[tuple[str, str]] = []
    same: list[tuple[str, str]] = []
    for name, value in list(options.items())[:MAX_OPTIONS]:
        if name in told:
            continue
        row = (clean_line(name, 40), json_text(value))
        (same if name in defaults and defaults[name] == value else changed).append(row)
    return changed, same


def capture_table(page: Page) -> Table | None:
    """What the cell took from the notebook."""
    captured = mappings(page.record.get("capture"))
    if not captured:
        return None
    rows: list[tuple[str, ...]] = []
    for row in captured[:MAX_CAPTURED]:
        size = number(row.get("size"))
        rows.append(
            (
                clean_line(row.get("name"), 60),
                _known(row.get("kind"), 40),
                "" if size is None else human_bytes(size),
                _known(row.get("via"), 20),
                format_count(row.get("line")),
                clean_line(row.get("note") or "", 160),
            )
        )
    heads: tuple[str, ...] = ("name", "kind", "size", "goes by", "line", "note")
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Table(heads, rows, _cut(len(captured) - len(rows), "more name"), frozenset({2, 4}))


def capture_title(page: Page) -> str:
    """``3 names from the notebook, 120 MiB``."""
    captured = mappings(page.record.get("capture"))
    sizes = [n for row in captured if (n := number(row.get("size"))) is not None]
    total = f", {human_bytes(sum(sizes))}" if sizes else ""
    return f"{plural(len(captured), 'name')} from the notebook{total}"


def shown_checkpoints(page: Page) -> list[CheckpointRow]:
    """The checkpoints that the page shows, in Ray's order; the best is never cut."""
    rows = list(page.checkpoints)
    # Ray puts the best, or the latest, at the end.
    return [r for r in rows[:-MAX_CHECKPOINTS] if r.best] + rows[-MAX_CHECKPOINTS:]


def checkpoint_table(page: Page) -> Table | None:
    """A row a checkpoint: index, name, step, metrics, size, age and files."""
    rows = shown_checkpoints(page)
    if not rows:
        return None
    metrics = list(dict.fromkeys(str(name) for row in rows for name in row.metrics))
    told = metrics[:MAX_CHECKPOINT_METRICS]
    heads = (
        "", "checkpoint", "step", *(clean_line(m, 24) for m in told), "size", "age", "files",
    )  # fmt: skip
    body = []
    for row in rows:
        age = UNKNOWN
        if row.files is not None and row.files.saved is not None and page.shown is not None:
            age = human_seconds(max(0.0, page.shown - row.files.saved))
        values = {str(name): value for name, value in row.metrics.items()}
        body.append(
            (
                f"[{row.index}]",
                clean_line(row.name, 80) + (" ★ best" if row.best else ""),
                UNKNOWN if row.step is None else format_count(row.step),
                *(format_value(values[m]) if m in values else UNKNOWN for m in told),
                human_bytes(None if row.files is None else row.files.size),
                age,
                _files(row),
            )
        )
    cut = [
        _cut(len(page.checkpoints) - len(rows), "earlier checkpoint"),
        _cut(len(metrics) - len(told), "more metric"),
        f"ages as of {format_moment(page.shown)}" if page.shown is not None else "",
    ]
    return Table(
        heads, body, " · ".join(c for c in cut if c), frozenset({2, *range(3, 5 + len(told))})
    )


def _files(row: CheckpointRow) -> str:
    if row.files is None:
        return UNKNOWN
    names = [clean_line(name, 40) for name, _ in row.files.files[:MAX_FILES_NAMED]]
    more = len(row.files.files) - len(names)
    return (", ".join(names) or "none") + (f" and {more:,} more" if more > 0 else "")


def load_lines(page: Page) -> list[tuple[str, str]]:
    """Each shown checkpoint's line of code and what it loads; the best, else the last, first."""
    rows = shown_checkpoints(page)
    rows.sort(key=lambda row: (not row.best, -row.index))
    return [
        (
            clean_line(row.code(), 600),
            f"[{row.index}]"
            + (" ★ best" if row.best else "")
            + ("" if row.step is None else f", step {format_count(row.step)}"),
        )
        for row in rows
    ]


def environment_table(page: Page) -> Table:
    """Where the run ran and with what: devices, nodes, versions, the cell and its hash."""
    record = page.record
    workers = mappings(record.get("workers"))
    devices: dict[str, int] = {}
    for worker in workers:
        device = _known(worker.get("device"), 60)
        devices[device] = devices.get(device, 0) + 1
    nodes = dict.fromkeys(
        clean_line(node, 60) for w in workers if (node := w.get("node") or w.get("ip"))
    )
    told = list(devices.items())[:MAX_DEVICES]
    size = workers_of(record)
    rows = [
        ("world size", UNKNOWN if size is None else str(size)),
        (
            "devices",
            ", ".join(f"{count} × {device}" for device, count in told)
            + (f" and {len(devices) - len(told):,} other kinds" if len(devices) > len(told) else "")
            or UNKNOWN,
        ),
        (
            "nodes",
            (", ".join(list(nodes)[:MAX_DEVICES]) or UNKNOWN)
            + (f" and {len(nodes) - MAX_DEVICES:,} more" if len(nodes) > MAX_DEVICES else ""),
        ),
        *((name, version) for name, version in _versions(page)),
    ]
    if told_hash := source_hash(page):
        label = clean_line(record.get("label") or "", 40)
        rows.append(("code", f"{label + ', ' if label else ''}sha256 {told_hash}"))
    return Table(("", ""), rows)


def source_hash(page: Page) -> str:
    """The first 16 digits of the SHA-256 of the cell's code; nothing where it isn't recorded."""
    source = page.record.get("source")
    if not isinstance(source, str) or not source:
        return ""
    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:16]


@dataclass
class ErrorBox:
    """Why the run failed, cleaned: head line, place in the notebook, traceback."""

    title: str
    place: str
    text: str


def error_box(page: Page) -> ErrorBox | None:
    """The record's error; None when there is none."""
    error = mapping(page.record.get("error"))
    if not error:
        return None
    rank = number(error.get("rank"))
    title = clean_line(error.get("title") or "the run failed", 500)
    place = clean_line(error.get("line") or "", 300)
    return ErrorBox(
        title if rank is None else f"rank {format_count(rank)}: {title}",
        place,
        cut_middle(error.get("text") or "", MAX_TRACEBACK),
    )


def event_rows(page: Page) -> tuple[list[tuple[str, str, str]], str]:
    """The last events as (time since the start, level, text), and how many were left out."""
    events = mappings(page.events)
    start = number(page.record.get("started"))
    rows = []
    for event in events[-MAX_EVENTS:]:
        at = number(event.get("t"))
        since = UNKNOWN if at is None or start is None else human_seconds(max(0.0, at - start))
        rows.append((since, _known(event.get("level"), 10), clean_line(event.get("text"), 300)))
    return rows, _cut(len(events) - len(rows), "earlier event")


def dropped_line(page: Page) -> str:
    """What the channel had to drop, in words; nothing when it dropped nothing."""
    dropped = mapping(page.record.get("dropped"))
    words = {
        "metrics": "metric records",
        "samples": "device samples",
        "logs": "log lines",
        "refused": "pieces of messages that were refused",
    }
    parts = [
        f"{format_count(n)} {words.get(str(kind), clean_line(kind, 30))}"
        for kind, n in list(dropped.items())[:10]
        if (number(n) or 0) > 0
    ]
    return f"dropped on the way: {', '.join(parts)}" if parts else ""


def stored_at(page: Page) -> str:
    """Where the run is stored."""
    if page.path:
        return clean_line(page.path, 500)
    options = mapping(page.record.get("options"))
    if not options.get("storage_path"):
        return UNKNOWN
    parts: Iterable[object] = (
        str(options["storage_path"]).rstrip("/"),
        page.record.get("name") or options.get("name") or "",
    )
    return clean_line("/".join(str(p) for p in parts), 500)


def versions_line(page: Page) -> str:
    """``Python 3.11.7 · Ray 2.60.0 · …`` as the record has them."""
    return " · ".join(f"{name} {version}" for name, version in _versions(page))


def _versions(page: Page) -> list[tuple[str, str]]:
    versions = mapping(page.record.get("versions"))
    return [(clean_line(k, 30), json_text(v, 40)) for k, v in list(versions.items())[:16]]


def note_text(page: Page) -> str:
    """The run's message and the page's note."""
    message = clean(page.record.get("message") or "", 500)
    # The error box has it in full.
    if mapping(page.record.get("error")):
        message = ""
    return "\n".join(part for part in (message, clean(page.note, 1_000)) if part)


def _known(value: object, limit: int) -> str:
    return UNKNOWN if value is None or value == "" else clean_line(value, limit)


def _cut(n: int, what: str) -> str:
    return f"{plural(n, what)} left out here" if n > 0 else ""
