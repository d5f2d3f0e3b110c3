"""Plots of a search: learning curves, parallel coordinates, a metric against a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raynb.results.chart import LINE, MUTED, dress
from raynb.results.text import clean_line, format_value, mapping, mappings, number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from raynb.results.tune.result import TuneResult

KINDS = ("curves", "parallel", "scatter")
_BEST, _DONE, _PRUNED, _FAILED = "#d55e00", "#0072b2", "#8a929b", "#b3261e"
#: Axes of parallel coordinates, besides the metric's.
MAX_AXES = 8


def draw(ax: Axes, result: TuneResult, kind: str, metric: str, param: str | None = None) -> None:
    """Draw one kind of plot into ``ax``."""
    if kind == "curves":
        _curves(ax, result, metric)
    elif kind == "parallel":
        _parallel(ax, result, metric)
    else:
        assert param is not None
        _scatter(ax, result, metric, param)


def _style(row: Mapping[str, Any], best: bool) -> dict[str, Any]:
    """A trial's line: the best one stands out, pruned ones fade."""
    if best:
        return {"color": _BEST, "linewidth": 2.2, "alpha": 1.0, "zorder": 5}
    state = row.get("state")
    if state == "failed":
        return {"color": _FAILED, "linewidth": 1.0, "alpha": 0.7, "linestyle": "--", "zorder": 3}
    if state in ("pruned", "stopped"):
        return {"color": _PRUNED, "linewidth": 0.9, "alpha": 0.45, "zorder": 2}
    return {"color": _DONE, "linewidth": 1.2, "alpha": 0.75, "zorder": 4}


def _curves(ax: Axes, result: TuneResult, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    frame = result.results
    rows = {row.get("trial"): row for row in result.rows}
    best = result.best_index
    best_trial = None if best is None else result.rows[best].get("trial")
    for trial, reports in frame.dropna(subset=[metric]).groupby("trial"):
        style = _style(rows.get(trial, {}), trial == best_trial)
        # One point makes no line.
        marker = "o" if len(reports) < 2 else ""
        label = f"trial {best_trial}, the best" if trial == best_trial else "_"
        ax.plot(
            reports["training_iteration"], reports[metric], marker=marker, markersize=4,
            label=label, **style,
        )  # fmt: skip
    dress(ax, metric, "iteration")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    states = [row.get("state") for row in result.rows]
    pruned = states.count("pruned")
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        title = plural(len(states), "trial") + (f", {pruned} pruned (faded)" if pruned else "")
        ax.legend(fontsize=8, frameon=False, title=title, title_fontsize=8)


def _scatter(ax: Axes, result: TuneResult, metric: str, param: str) -> None:
    facts = _facts(result, param)
    best = result.best_index
    tuned = metric == result.metric
    for i, row in enumerate(result.rows):
        x = _place(facts, mapping(row.get("config")).get(param))
        y = number(row.get("best") if tuned else mapping(row.get("last")).get(metric))
        if x is None or y is None or not math.isfinite(y):
            continue
        style = _style(row, i == best)
        ax.scatter(
            [x], [y], s=46 if i == best else 22, color=style["color"], alpha=style["alpha"],
            zorder=style["zorder"], edgecolors="none",
        )  # fmt: skip
    dress(ax, f"{'best ' if tuned else ''}{metric} by {param}", param)
    if facts["choices"] is not None:
        ax.set_xticks(range(len(facts["choices"])), [_short(c) for c in facts["choices"]])
    elif facts["log"]:
        _log_axis(ax)


def _log_axis(ax: Axes) -> None:
    """A logarithmic x axis with a few labels that have room; matplotlib writes every tenth."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    between = (1.0, 2.0, 5.0) if high < 30 * low else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(subs=between, numticks=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value)))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _parallel(ax: Axes, result: TuneResult, metric: str) -> None:
    params = result.params[:MAX_AXES]
    facts = [_facts(result, p) for p in params]
    spans = [_span(result, p, f) for p, f in zip(params, facts, strict=True)]
    values = [number(row.get("best")) for row in result.rows]
    finite = [v for v in values if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    best = result.best_index
    for i, row in enumerate(result.rows):
        value = values[i]
        if value is None or not math.isfinite(value):
            continue  # no end on the metric's axis
        ys: list[float] = []
        for param, fact, span in zip(params, facts, spans, strict=True):
            at = _place(fact, mapping(row.get("config")).get(param))
            ys.append(math.nan if at is None else _scaled(at, span, fact["log"]))
        ys.append(_scaled(value, (low, high), False))
        ax.plot(range(len(ys)), ys, **_style(row, i == best))
    dress(ax, f"best {metric} by parameters")
    ax.grid(False)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    names = [*(clean_line(p, 24) for p in params), clean_line(metric, 24)]
    ax.set_xticks(range(len(names)), names)
    for label in ax.get_xticklabels():
        label.set_parse_math(False)
    ax.set_xlim(-0.15, len(names) - 0.85)
    ax.set_ylim(-0.12, 1.12)
    marks: list[tuple[dict[str, Any] | None, tuple[float, float]]]
    marks = [*zip(facts, spans, strict=True), (None, (low, high))]
    for x, (of_axis, (start, end)) in enumerate(marks):
        ax.axvline(x, color=LINE, linewidth=0.8, zorder=1)
        ticks = [(0.0, start), (1.0, end)]
        if of_axis is not None and of_axis["choices"] is not None:
            n = len(of_axis["choices"])
            ticks = [(k / max(1, n - 1), c) for k, c in enumerate(of_axis["choices"])][:12]
        for y, text in ticks:
            ax.annotate(
                _short(text), (x, y), xytext=(3, 2), textcoords="offset points", fontsize=7,
                color=MUTED, parse_math=False, zorder=6,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
            )  # fmt: skip


def _facts(result: TuneResult, param: str) -> dict[str, Any]:
    """A parameter's scale, from the record; choices also where there is no order of numbers."""
    found = next((p for p in mappings(result.record.get("params")) if p.get("name") == param), {})
    values = [mapping(row.get("config")).get(param) for row in result.rows]
    choices = found.get("choices")
    known = choices if isinstance(choices, list) and choices else None
    if known is None and not all(number(v) is not None for v in values if v is not None):
        known = list(dict.fromkeys(map(_short, values)))
    positive = all((number(v) or 0) > 0 for v in values if v is not None)
    return {"choices": known, "log": bool(found.get("log")) and positive}


def _place(facts: Mapping[str, Any], value: Any) -> float | None:
    if value is None:
        return None
    choices = facts["choices"]
    if choices is None:
        return number(value)
    for k, choice in enumerate(choices):
        if choice == value or _short(choice) == _short(value):
            return float(k)
    return None


def _span(result: TuneResult, param: str, facts: Mapping[str, Any]) -> tuple[float, float]:
    if facts["choices"] is not None:
        return 0.0, max(1.0, len(facts["choices"]) - 1.0)
    places = [_place(facts, mapping(row.get("config")).get(param)) for row in result.rows]
    known = [p for p in places if p is not None and math.isfinite(p)]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _scaled(value: float, span: tuple[float, float], log: bool) -> float:
    low, high = span
    if log and low > 0 and value > 0:
        value, low, high = np.log(value), np.log(low), np.log(high)
    return 0.5 if high == low else float((value - low) / (high - low))


def _short(value: object) -> str:
    text = format_value(value) if number(value) is not None else clean_line(value, 16)
    return clean_line(text, 16)
