"""The chart of a run's record: a metric of every rank as a PNG that is read in any theme."""

from __future__ import annotations

import dataclasses
import io
import itertools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raynb.errors import OptionError
from raynb.results.curves import Curve, last_values
from raynb.results.text import clean_line, format_count, format_value, plural
from raynb.telemetry.events import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Past this many ranks: median, band and the worst one instead of a line each.
MAX_LINES = 16
SIZE_INCHES = (7.2, 2.6)
#: Twice what a page shows, for screens with small pixels.
DPI = 200
MAX_PNG = 48_000

# The live panel's colours and dashes, so that a rank looks the same in both. Colours (after Okabe
# and Ito) can be told apart with a colour-vision deficiency, and dashes differ between neighbours.
_COLOURS = (
    "#0072b2", "#d55e00", "#00805e", "#b0487f", "#9a6700", "#2a8fcb", "#5b4db1", "#5f5f5f",
)  # fmt: skip
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 1.8, 1.2, 1.8)))
_INK, MUTED, LINE, _GRID = "#1f2328", "#5c636b", "#a9afb6", "#d9dce0"
#: Points a line is drawn with at most: two a pixel column.
_MAX_POINTS = 2_000
_MAX_MARKS = 200
#: Matplotlib's axis arithmetic overflows above it.
_HUGE = 1e300


def rank_style(rank: int) -> tuple[str, Any]:
    """Colour and Matplotlib line style of a rank."""
    turn = rank // len(_COLOURS)
    return _COLOURS[rank % len(_COLOURS)], _DASHES[(rank + turn) % len(_DASHES)]


def draw_lines(
    ax: Axes,
    curves: Sequence[Curve],
    *,
    x: str = "step",
    width: float = 1.4,
    several: bool = False,
) -> None:
    """Draw one line a curve; earlier attempts paler, what is not finite as marks on the edge.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    curves : sequence of Curve
    x : {"step", "time"}
        ``time`` is seconds since the first record shown.
    width : float
        Line width in points.
    several : bool
        The curves are of several metrics: each metric and rank gets a style and a label of its own.
    """
    start = min((float(c.time[0]) for c in curves), default=0.0)
    newest: dict[str, int] = {}
    for curve in curves:
        newest[curve.metric] = max(curve.attempt, newest.get(curve.metric, 0))
    styles: dict[tuple[str, int], int] = {}
    labelled: set[tuple[str, int]] = set()
    # The newest attempt first, so that a label's sample is not a pale one.
    for curve in sorted(curves, key=lambda c: -c.attempt):
        key = (curve.metric, curve.rank)
        colour, dash = rank_style(styles.setdefault(key, len(styles)) if several else curve.rank)
        label = f"{curve.metric} · rank {curve.rank}" if several else f"rank {curve.rank}"
        xs = curve.step if x == "step" else curve.time - start
        pale = curve.attempt < newest[curve.metric]
        _line(ax, xs, curve.value, colour, dash, "_" if key in labelled else label, width, pale)
        labelled.add(key)
    _mark_attempts(ax, curves, x, start)


def _line(
    ax: Axes, xs: Floats, ys: Floats, colour: str, dash: Any, label: str, width: float, pale: bool
) -> None:
    ys = np.where(np.abs(ys) > _HUGE, np.copysign(np.inf, ys), ys)
    finite = np.isfinite(ys)
    shown = thin(ys, _MAX_POINTS)
    ax.plot(
        xs[shown],
        np.where(finite, ys, np.nan)[shown],
        color=colour,
        linestyle=dash,
        linewidth=width,
        # One point makes no line.
        marker="o" if finite.sum() < 2 else "",
        markersize=4,
        alpha=0.4 if pale else 1.0,
        label=label,
    )
    for which, edge, marker in (
        (np.isnan(ys), 0.0, "x"),
        (np.isposinf(ys), 1.0, "^"),
        (np.isneginf(ys), 0.0, "v"),
    ):
        at = xs[which]
        if len(at):
            at = at[np.linspace(0, len(at) - 1, min(len(at), _MAX_MARKS)).astype(np.intp)]
            ax.plot(
                at,
                np.full(len(at), edge),
                marker,
                color=colour,
                markersize=5,
                transform=ax.get_xaxis_transform(),
                clip_on=False,
                label="_",
            )


def _mark_attempts(ax: Axes, curves: Sequence[Curve], x: str, start: float) -> None:
    """A thin upright line where each attempt after the first one begins."""
    first: dict[int, float] = {}
    for curve in curves:
        at = float(curve.step[0] if x == "step" else curve.time[0] - start)
        first[curve.attempt] = min(at, first.get(curve.attempt, at))
    for attempt in sorted(first)[1:]:
        ax.axvline(first[attempt], color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), label="_")
        ax.annotate(
            f"attempt {attempt + 1}",
            (first[attempt], 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=MUTED,
        )


def thin(ys: Floats, points: int) -> NDArray[np.intp]:
    """Indices of at most ``points`` values that keep each stretch's lowest and highest."""
    n = len(ys)
    if n <= points:
        return np.arange(n)
    # The first and the last point are kept besides each bucket's two.
    buckets = (points - 2) // 2
    edges = np.linspace(0, n, buckets + 1).astype(np.intp)
    kept = [0, n - 1]
    for a, b in itertools.pairwise(edges):
        part = ys[a:b]
        kept.append(int(a + np.argmin(np.where(np.isfinite(part), part, np.inf))))
        kept.append(int(a + np.argmax(np.where(np.isfinite(part), part, -np.inf))))
    return np.unique(kept)


def draw_band(ax: Axes, curves: Sequence[Curve], worst: int | None) -> None:
    """Draw median and range over ranks, an attempt at a time, and the worst rank's line."""
    attempts = sorted({c.attempt for c in curves})
    for attempt in attempts:
        part = [c for c in curves if c.attempt == attempt]
        newest = attempt == attempts[-1]
        grid, low, middle, high = band(part)
        colour = _COLOURS[0]
        ax.fill_between(
            grid, low, high, color=colour, alpha=0.22 if newest else 0.1, linewidth=0,
            label="min to max" if newest else "_",
        )  # fmt: skip
        ax.plot(
            grid, middle, color=colour, linewidth=1.6, alpha=1.0 if newest else 0.4,
            marker="o" if len(grid) < 2 else "", markersize=4,
            label=f"median of {len(part)}" if newest else "_",
        )  # fmt: skip
        for curve in part:
            if curve.rank == worst:
                _line(
                    ax, curve.step, curve.value, _COLOURS[1], _DASHES[1],
                    f"rank {worst} (worst at end)" if newest else "_", 1.3, not newest,
                )  # fmt: skip
            else:
                _only_marks(ax, curve)
    _mark_attempts(ax, curves, "step", 0.0)


def _only_marks(ax: Axes, curve: Curve) -> None:
    broken = ~np.isfinite(curve.value)
    if broken.any():
        _line(ax, curve.step[broken], curve.value[broken], MUTED, "-", "_", 1.0, False)


def band(curves: Sequence[Curve], buckets: int = 400) -> tuple[Floats, Floats, Floats, Floats]:
    """Steps, lowest, median and highest finite value over ranks, in at most ``buckets`` steps.

    The median is over each rank's latest finite value so far, so that ranks that log at different
    steps count alike.
    """
    steps = np.unique(np.concatenate([c.step for c in curves]))
    if len(steps) > buckets:
        steps = steps[np.linspace(0, len(steps) - 1, buckets).astype(np.intp)]
    low, high = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    latest = np.full((len(curves), len(steps)), np.nan)
    for row, curve in enumerate(curves):
        fine = np.abs(curve.value) <= _HUGE
        order = np.argsort(curve.step[fine], kind="stable")
        at, values = curve.step[fine][order], curve.value[fine][order]
        if not len(at):
            continue
        column = np.searchsorted(steps, at)
        np.fmin.at(low, column, values)
        np.fmax.at(high, column, values)
        newest = np.searchsorted(at, steps, side="right") - 1
        known = newest >= 0
        latest[row, known] = values[newest[known]]
    some = ~np.isnan(latest).all(axis=0)
    middle = np.full(len(steps), np.nan)
    middle[some] = np.nanmedian(latest[:, some], axis=0)
    return steps, low, middle, high


def worst_rank(curves: Sequence[Curve], metric: str, mode: str | None = None) -> int | None:
    """The rank whose last value is worst; NaN is worse than any number.

    Parameters
    ----------
    curves : sequence of Curve
    metric : str
    mode : {"min", "max"}, optional
        Which way is better; without it a loss, error or time is better low, the rest high.
    """
    values = last_values(curves, metric)
    if not values:
        return None
    if mode is None:
        low = any(word in metric.lower() for word in ("loss", "err", "time", "perplexity"))
        mode = "min" if low else "max"
    sign = 1.0 if mode == "min" else -1.0
    return max(values, key=lambda r: np.inf if np.isnan(values[r]) else sign * values[r])


def user_axes(x: str, ax: Axes | None) -> Axes:
    """Axes for a plot that a user asked for, theirs or a new figure's, with ``x`` named.

    Raises
    ------
    OptionError
        When ``x`` is neither ``"step"`` nor ``"time"``.
    """
    if x not in ("step", "time"):
        raise OptionError(f"x must be 'step' or 'time', not {x!r}")
    ax = given_or_new(ax)
    ax.set_xlabel("step" if x == "step" else "seconds since the first record")
    return ax


def given_or_new(ax: Axes | None) -> Axes:
    """The user's axes, or those of a new figure of theirs."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    return ax


def name_lines(ax: Axes) -> None:
    """A legend whose texts are shown as they are: metrics and runs may have any name."""
    for text in ax.legend(fontsize="small", frameon=False).get_texts():
        text.set_parse_math(False)


def draw_runs(ax: Axes, runs: Sequence[tuple[str, Sequence[Curve]]], *, x: str = "step") -> None:
    """Draw one metric of several runs: a run's median over its ranks, and their range as a band.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    runs : sequence of (label, curves)
        A run without curves keeps its colour, and is told in the legend.
    x : {"step", "time"}
        ``time`` is seconds since each run's first record.
    """
    for k, (label, all_curves) in enumerate(runs):
        colour, dash = rank_style(k)
        if not all_curves:
            ax.plot([], [], color=colour, linestyle=dash, label=f"{label} (has none)")
            continue
        start = min(float(c.time[0]) for c in all_curves)
        newest = max(c.attempt for c in all_curves)
        for attempt in sorted({c.attempt for c in all_curves}):
            curves = [c for c in all_curves if c.attempt == attempt]
            if x == "time":
                curves = [dataclasses.replace(c, step=c.time - start) for c in curves]
            grid, low, middle, high = band(curves)
            told = attempt == newest
            if len(curves) > 1:
                ax.fill_between(
                    grid, low, high, color=colour, alpha=0.16 if told else 0.08, linewidth=0
                )
            ax.plot(
                grid, middle, color=colour, linestyle=dash, linewidth=1.5,
                alpha=1.0 if told else 0.4, marker="o" if len(grid) < 2 else "", markersize=4,
                label=label if told else "_",
            )  # fmt: skip
            for curve in curves:
                _only_marks(ax, curve)


def compare_png(
    runs: Sequence[tuple[str, Sequence[Curve]]], metric: str, *, x: str = "step"
) -> bytes | None:
    """The picture of :func:`draw_runs`; None when no run has the metric."""
    shown = [c for _, curves in runs for c in curves if len(c.value)]
    if not shown:
        return None
    figure, ax = new_figure()
    short = [(clean_line(label, 28), curves) for label, curves in runs]
    draw_runs(ax, short, x=x)
    _dress(ax, metric, 0)
    if x == "time":
        ax.set_xlabel("seconds since the run's first record")
    else:
        _whole_steps(ax, shown)
    _legend(ax, *ax.get_legend_handles_labels())
    _tell_broken(ax, shown)
    return png_of(figure)


def chart_png(
    curves: Sequence[Curve], metric: str, *, mode: str | None = None, x: str = "step"
) -> bytes | None:
    """Draw a metric of every rank over the steps.

    Parameters
    ----------
    curves : sequence of Curve
        Those of other metrics are left out.
    metric : str
    mode : {"min", "max"}, optional
        Which way is better, to name the worst of many ranks.
    x : {"step", "time"}
        ``time`` is seconds since the first record.

    Returns
    -------
    bytes or None
        A PNG on white of at most ``MAX_PNG`` bytes; None when there is nothing to draw.
    """
    shown = [c for c in curves if c.metric == metric and len(c.value)]
    if not shown:
        return None
    if x == "time":
        start = min(float(c.time[0]) for c in shown)
        shown = [dataclasses.replace(c, step=c.time - start) for c in shown]
    figure, ax = new_figure()
    ranks = {c.rank for c in shown}
    if len(ranks) > MAX_LINES:
        draw_band(ax, shown, worst_rank(shown, metric, mode))
    else:
        draw_lines(ax, shown)
    _dress(ax, metric, len(ranks))
    if x == "time":
        ax.set_xlabel("seconds since the first record")
    else:
        _whole_steps(ax, shown)
    _tell_broken(ax, shown)
    return png_of(figure)


def _whole_steps(ax: Axes, curves: Sequence[Curve]) -> None:
    """No half steps on the axis where all are whole."""
    from matplotlib.ticker import MaxNLocator

    if all((c.step % 1 == 0).all() for c in curves):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))


def new_figure() -> tuple[Figure, Axes]:
    # matplotlib's own Figure and no pyplot: nothing of the user's figures is touched.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot(facecolor="white")


def png_of(figure: Figure) -> bytes:
    """The figure as a PNG of at most ``MAX_PNG`` bytes."""
    png = b""
    for dpi in (DPI, DPI * 3 // 4, DPI // 2):
        out = io.BytesIO()
        with warnings.catch_warnings():
            # A metric's name may have letters that the bundled font lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(out, format="png", dpi=dpi, facecolor="white")
        png = _palettised(out)
        if len(png) <= MAX_PNG:
            break
    return png


def _palettised(png: io.BytesIO) -> bytes:
    """The picture with a palette of 64 colours: a third of the bytes, no difference to see."""
    # Matplotlib writes its own PNGs with Pillow, so it is always there.
    from PIL import Image

    out = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def dress(ax: Axes, title: str, xlabel: str = "") -> None:
    """Light axes, dark text whatever the user's style says."""
    # parse_math: a "$" in a metric's name is no formula.
    ax.set_title(
        clean_line(title, 80), loc="left", fontsize=9, fontweight="bold", color=_INK,
        parse_math=False, usetex=False,
    )  # fmt: skip
    ax.set_xlabel(
        clean_line(xlabel, 60), fontsize=8, color=MUTED, labelpad=2, parse_math=False, usetex=False
    )
    ax.grid(True, color=_GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8, colors=MUTED, length=2.5, width=0.6)
    for name, spine in ax.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LINE)
        spine.set_linewidth(0.8)


def _dress(ax: Axes, metric: str, ranks: int) -> None:
    """As :func:`dress`, with a legend of the ranks beside the chart."""
    dress(ax, metric, "step")
    ax.margins(x=0.015)
    handles, labels = ax.get_legend_handles_labels()
    if ranks < 2 or not handles:
        return
    # Curves come newest attempt first; people look for ranks in order.
    pairs = sorted(
        zip(handles, labels, strict=True),
        key=lambda pair: int(pair[1].split()[1]) if ranks <= MAX_LINES else 0,
    )
    _legend(
        ax,
        [handle for handle, _ in pairs],
        [label for _, label in pairs],
        1 if ranks <= 10 or ranks > MAX_LINES else 2,
    )


def _legend(ax: Axes, handles: Sequence[Any], labels: Sequence[str], ncols: int = 1) -> None:
    legend = ax.legend(
        handles,
        labels,
        loc="center left",
        bbox_to_anchor=(1.005, 0.5),
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        handlelength=2.6,
        ncols=ncols,
        columnspacing=1.0,
        labelspacing=0.35,
    )
    # A "$" in a run's name is no formula.
    for text in legend.get_texts():
        text.set_parse_math(False)


def _tell_broken(ax: Axes, curves: Sequence[Curve]) -> None:
    """Say in words how many values have no place on the axis."""
    values = np.concatenate([c.value for c in curves])
    parts = [
        f"{sign} {format_count(int(n))} {name}"
        for sign, name, n in (
            ("×", "NaN", np.isnan(values).sum()),
            ("▲", "+∞", (values > _HUGE).sum()),
            ("▼", "-∞", (values < -_HUGE).sum()),
        )
        if n
    ]
    if parts:
        ax.set_title(
            "not finite: " + ", ".join(parts), loc="right", fontsize=8, color="#b3261e",
            usetex=False,
        )  # fmt: skip


def chart_alt(curves: Sequence[Curve], metric: str) -> str:
    """The chart in words, for those who can't see it."""
    values = last_values(curves, metric)
    few = list(values.items())[:4]
    told = ", ".join(f"{format_value(v)} on rank {rank}" for rank, v in few)
    more = f" and {plural(len(values) - len(few), 'more rank')}" if len(values) > len(few) else ""
    return f"Chart of {clean_line(metric, 80)} over steps; last values: {told}{more}"
