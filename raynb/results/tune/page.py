"""The static record of a search: its best trials as a table like a paper's, its plots, its text."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

from raynb.engine.spec import without_secrets
from raynb.results import static
from raynb.results.chart import new_figure, png_of
from raynb.results.page import Page, Table, error_box, state_of
from raynb.results.text import (
    UNKNOWN,
    clean_line,
    format_count,
    format_moment,
    format_value,
    mapping,
    number,
    plural,
)
from raynb.results.tune import plots
from raynb.results.tune.result import TuneResult
from raynb.telemetry.units import human_seconds

#: Trials of the table, the best ones; failed ones are told below it.
MAX_TOP = 10
MAX_FAILED = 8
MAX_PARAMS = 8
_STATES = {"finished": "✓", "failed": "✗", "pruned": "✂", "stopped": "■", "running": "▶"}


def ranked(result: TuneResult) -> list[dict[str, Any]]:
    """The trials with a value of the metric, the best first."""
    rows = [row for row in result.rows if number(row.get("best")) is not None]
    return sorted(rows, key=lambda row: row["best"], reverse=result.mode != "min")


def top_table(result: TuneResult) -> Table | None:
    """The best trials: rank, trial, parameters, metric, iterations, time, how it ended."""
    rows = ranked(result)
    if not rows:
        return None
    params = result.params[:MAX_PARAMS]
    # What every trial has, with the tuned one first.
    metric = result.metric or "metric"
    heads = ("", "trial", *(clean_line(p, 24) for p in params), f"best {clean_line(metric, 24)}",
             "at", "last", "iterations", "time", "ended")  # fmt: skip
    cells: list[tuple[str, ...]] = []
    for place, row in enumerate(rows[:MAX_TOP], 1):
        config = mapping(row.get("config"))
        seconds = number(row.get("time_s"))
        cells.append(
            (
                "★" if place == 1 else str(place),
                format_count(row.get("trial")),
                *(format_value(config.get(p)) for p in params),
                format_value(row.get("best")),
                format_count(row.get("best_step")),
                format_value(row.get("latest")),
                format_count(row.get("iterations")),
                UNKNOWN if seconds is None else human_seconds(seconds),
                f"{_STATES.get(str(row.get('state')), '')} {_ended(row)}".strip(),
            )
        )
    more = len(rows) - len(cells)
    left = len(result.params) - len(params)
    cut = " · ".join(
        part
        for part in (
            f"{plural(more, 'more trial')} in .dataframe" if more else "",
            f"{plural(left, 'more parameter')} left out here" if left else "",
        )
        if part
    )
    numeric = frozenset({1, *range(2 + len(params), len(heads) - 1)})
    return Table(heads, cells, cut, numeric)


def _ended(row: Mapping[str, Any]) -> str:
    return clean_line(row.get("reason") or row.get("state") or UNKNOWN, 60)


def failed_table(result: TuneResult) -> Table | None:
    """The trials that failed, with the reason and the cell's line."""
    rows = [row for row in result.rows if row.get("state") == "failed"]
    if not rows:
        return None
    cells = [
        (
            format_count(row.get("trial")),
            clean_line(row.get("reason") or UNKNOWN, 200),
            clean_line(mapping(row.get("error")).get("line") or "", 120),
        )
        for row in rows[:MAX_FAILED]
    ]
    more = len(rows) - len(cells)
    cut = f"{plural(more, 'more failed trial')} left out here" if more else ""
    return Table(("failed trial", "reason", "line"), cells, cut, frozenset({0}))


def counts_line(result: TuneResult) -> str:
    """``20 trials: 6 finished, 13 pruned, 1 failed``."""
    states = [str(row.get("state")) for row in result.rows]
    told = [f"{states.count(s)} {s}" for s in ("finished", "pruned", "stopped", "failed",
            "running", "paused", "pending") if s in states]  # fmt: skip
    return f"{plural(len(states), 'trial')}{': ' + ', '.join(told) if told else ''}"


def best_line(result: TuneResult) -> str:
    """``val_accuracy 0.981 (max) in trial 7: lr = 0.01, width = 64``."""
    i = result.best_index
    if i is None:
        return ""
    row = result.rows[i]
    config = mapping(row.get("config"))
    told = ", ".join(
        f"{clean_line(p, 40)} = {format_value(config.get(p))}" for p in result.params[:MAX_PARAMS]
    )
    return (
        f"{clean_line(result.metric, 60)} {format_value(row.get('best'))} ({result.mode}) in trial "
        f"{row.get('trial')}{': ' + told if told else ''}"
    )


def how_line(result: TuneResult) -> str:
    """What was searched how, in one line."""
    options = mapping(result.record.get("options"))
    parts = []
    for key, word in (("search", "search"), ("scheduler", "scheduler"), ("stop", "stop"),
                      ("time_budget_s", "budget"), ("seed", "seed")):  # fmt: skip
        value = options.get(key)
        if value is not None and value != "none":
            parts.append(f"{word} {clean_line(value, 60)}{' s' if key == 'time_budget_s' else ''}")
    return " · ".join(parts)


def _facts(result: TuneResult) -> str:
    parts = ["duration n/a" if result.duration is None else human_seconds(result.duration)]
    parts.append(counts_line(result))
    if number(result.record.get("started")) is not None:
        parts.append(f"started {format_moment(result.record.get('started'))}")
    return " · ".join(parts)


def _error(result: TuneResult) -> str:
    page = Page(result.record)
    return static.error_section(page) if error_box(page) is not None else ""


def code_lines(result: TuneResult) -> list[str]:
    """The lines that load the best trial's checkpoint and open the search again."""
    where = clean_line(without_secrets(result.uri), 500)
    lines = [f"result = raynb.open({where!r})"]
    if result.best_index is not None:
        lines.append("result.best.load(into=model)  # the best trial's best checkpoint")
    return lines


def short_text(result: TuneResult) -> str:
    """The result in a few lines."""
    _, word, _ = state_of(result.state)
    lines = [f"TuneResult {clean_line(result.name, 120)!r} · {word.lower()} · {_facts(result)}"]
    if best := best_line(result):
        lines.append(f"  best         {best}")
    if result.error is not None:
        first = str(result.error).partition("\n")[0]
        lines.append(f"  error        {clean_line(first, 300)}")
    lines.append(f"  path         {clean_line(without_secrets(result.uri), 500)}")
    return "\n".join(lines)


def picture(result: TuneResult) -> bytes | None:
    """Curves and parallel coordinates below each other as a PNG; None without a value."""
    metric = result.metric
    if metric is None or result.best_index is None or metric not in result.results:
        return None
    figure, first = new_figure()
    first.remove()
    both = bool(result.params)
    figure.set_size_inches(7.2, 4.8 if both else 2.6)
    axes = figure.subplots(2 if both else 1, 1, squeeze=False)[:, 0]
    plots.draw(axes[0], result, "curves", metric)
    if both:
        plots.draw(axes[1], result, "parallel", metric)
    return png_of(figure)


def bundle(result: TuneResult) -> dict[str, str]:
    """The record as a mime bundle: plain text, HTML and a picture."""
    notes = list(result.notes)
    try:
        png = picture(result)
    except Exception as error:
        # A picture must not take the numbers away.
        png = None
        notes.append(f"The chart can't be drawn: {type(error).__name__}: {error}")
    top, failed = top_table(result), failed_table(result)
    name = clean_line(result.name, 120)
    record_page = Page(result.record)
    head = (
        f"<div>{static.pill(result.state)} "
        f'<b style="margin-left:4px">{escape(name)}</b></div>'
        + static.paragraph(_facts(result), static.MUTED)
        + (
            static.paragraph(f"best {best_line(result)}", "font-weight:600")
            if best_line(result)
            else ""
        )
        + static.paragraph(how_line(result), static.MUTED)
        + "".join(static.paragraph(note) for note in notes)
    )
    chart = ""
    data = base64.b64encode(png).decode() if png is not None else ""
    if data:
        alt = f"Learning curves of {plural(len(result), 'trial')} and their parameters"
        chart = static.picture(data, escape(alt))
    html = static.wrap(
        [
            head,
            _error(result),
            static.table_section(top) if top else static.paragraph("No trial reported the metric."),
            static.table_section(failed) if failed else "",
            chart,
            static.code_section("\n".join(code_lines(result))),
            static.folded("all options", static.options_section(record_page)),
            static.folded("source of the cell", static.source_section(record_page)),
            static.foot(record_page),
        ]
    )
    text = [short_text(result)]
    text += [note for note in notes if note]
    text += static.text_block("top trials", top, MAX_TOP)
    text += static.text_block("", failed, MAX_FAILED)
    out = {"text/plain": "\n".join(text), "text/html": html}
    if data:
        out["image/png"] = data
    return out
