"""``raynb.compare``: several runs' curves in one chart, and the options in which they differ."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from raynb.engine.spec import without_secrets
from raynb.errors import OptionError
from raynb.results.chart import compare_png, draw_runs, name_lines, user_axes
from raynb.results.curves import default_metric, metric_names
from raynb.results.mount import mount
from raynb.results.open import open as open_run
from raynb.results.page import Page, Table, best_of, source_hash, state_of, told_best
from raynb.results.run_result import RunResult
from raynb.results.static import comparison_bundle
from raynb.results.text import UNKNOWN, clean, clean_line, json_text, mapping
from raynb.telemetry.units import human_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_RUNS = 32
_MAX_DIFF_LINES = 200


def compare(*runs: RunResult | str | os.PathLike[str]) -> Comparison:
    """Compare runs: curves over each other, and the options in which they differ.

    Parameters
    ----------
    *runs : RunResult, path or URI
        Two or more; what is no result is opened as by :func:`raynb.open`.

    Returns
    -------
    Comparison
        Shown with chart and tables.

    Raises
    ------
    OptionError
        For fewer than two.
    StorageError
        When one can't be opened.
    """
    if len(runs) < 2:
        raise OptionError(
            "there is nothing to compare" if not runs else "one run alone can't be compared",
            hint="give two or more results, paths or URIs: raynb.compare(a, b)",
        )
    if len(runs) > MAX_RUNS:
        raise OptionError(f"at most {MAX_RUNS} runs are compared at once, not {len(runs)}")
    results = []
    for run in runs:
        result = open_run(run) if isinstance(run, (str, os.PathLike)) else run
        if not isinstance(result, RunResult):
            from raynb.results.tune.result import TuneResult

            raise OptionError(
                f"raynb.compare takes results, paths and URIs of runs, not {type(result).__name__}",
                hint="of a search, compare its trials: raynb.compare(result[0], result[1])"
                if isinstance(result, TuneResult)
                else "a run that goes on has its result when it ends: run.wait()",
            )
        results.append(result)
    return Comparison(results, _labels(results))


@dataclass(repr=False)
class Comparison:
    """Several runs side by side.

    Attributes
    ----------
    results : list of RunResult
    labels : list of str
        What the runs are called here: their names, made different where they are equal.
    """

    results: list[RunResult]
    labels: list[str] = field(default_factory=list)
    _live: str = ""

    @property
    def metrics(self) -> list[str]:
        """Metrics that some run has, those of all runs first."""
        names = [metric_names(result.history) for result in self.results]
        every = dict.fromkeys(name for one in names for name in one)
        return sorted(every, key=lambda name: -sum(name in one for one in names))

    @property
    def options(self) -> pd.DataFrame:
        """Options in which the runs differ: a row an option, a column a run."""
        rows = _differing([_facts(result) for result in self.results])
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=self.labels)
        frame.index.name = "option"
        return frame

    @property
    def summary(self) -> pd.DataFrame:
        """How the runs ended: a row a run with ``state``, ``duration``, ``workers``, ``best``."""
        rows = []
        for result in self.results:
            best = best_of(result.record)
            rows.append(
                {
                    "state": result.state,
                    "duration": result.duration,
                    "workers": result.num_workers,
                    "best": None if best is None else best[1],
                    "metric": None if best is None else best[0],
                }
            )
        return pd.DataFrame(rows, index=pd.Index(self.labels, name="run"))

    def plot(self, metric: str | None = None, x: str = "step", ax: Axes | None = None) -> Axes:
        """Plot a metric of all runs: each rank's median, with the range over ranks as a band.

        Parameters
        ----------
        metric : str, optional
            By default the first loss that the runs have in common.
        x : {"step", "time"}
            ``time`` is seconds since each run's first record.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        OptionError
            When no run has the metric.
        """
        known = self.metrics
        name = metric if metric is not None else default_metric(known)
        if name is not None and name not in known:
            raise OptionError(
                f"no run has a metric {name!r}",
                hint=f"there are {', '.join(known)}" if known else "none logged any",
            )
        ax = user_axes(x, ax)
        if name is not None:
            draw_runs(ax, self._groups(name), x=x)
            ax.set_ylabel(name, parse_math=False)
            name_lines(ax)
        return ax

    def chart(self, metric: str, x: str = "step") -> bytes | None:
        """The display's picture of a metric, a PNG."""
        return compare_png(self._groups(metric), metric, x=x)

    def _groups(self, metric: str) -> list[tuple[str, Any]]:
        groups = []
        for label, result in zip(self.labels, self.results, strict=True):
            known = metric in metric_names(result.history)
            groups.append((label, result.curves([metric]) if known else []))
        return groups

    def __repr__(self) -> str:
        return f"Comparison of {', '.join(clean_line(label, 80) for label in self.labels)}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        metric = default_metric(self.metrics)
        png, note = None, "" if metric is not None else "No metrics to show."
        try:
            png = self.chart(metric) if metric is not None else None
        except Exception as error:
            note = f"The chart can't be drawn: {type(error).__name__}: {error}"
        if png is not None:
            self._live = mount(self._live, self._controls)
        return comparison_bundle(
            f"{len(self.results)} runs compared",
            self._summary_table(),
            self._options_table(),
            self._code_diff(),
            png,
            metric,
            note,
            self._live,
        )

    def _controls(self) -> dict[str, Any]:
        """Widgets for the places of the display, in a live notebook."""
        from raynb.results.controls import curve_chooser

        names = self.metrics
        return {"curves": curve_chooser(names, default_metric(names) or "", self.chart)}

    def _summary_table(self) -> Table:
        metric = default_metric(self.metrics)
        rows = []
        for label, result in zip(self.labels, self.results, strict=True):
            icon, word, _ = state_of(result.state)
            rows.append(
                (
                    clean_line(label, 80),
                    f"{icon} {word}",
                    human_seconds(result.duration),
                    UNKNOWN if result.num_workers is None else str(result.num_workers),
                    told_best(best_of(result.record)) or UNKNOWN,
                    result.last_of(metric),
                    clean_line(without_secrets(result.uri), 200),
                )
            )
        last = f"last {clean_line(metric, 30)}" if metric else "last"
        heads = ("run", "state", "duration", "workers", "best", last, "stored in")
        return Table(heads, rows, "", frozenset({2, 3, 5}))

    def _options_table(self) -> Table:
        rows = _differing([_facts(result) for result in self.results])
        return Table(
            ("option", *(clean_line(label, 40) for label in self.labels)),
            [
                (clean_line(name, 80), *(clean_line(value, 160) for value in values))
                for name, values in rows.items()
            ],
        )

    def _code_diff(self) -> str:
        """How the second run's code differs from the first one's; for two runs only."""
        if len(self.results) != 2:
            return ""
        sources = [r.record.get("source") for r in self.results]
        if not all(isinstance(s, str) for s in sources) or sources[0] == sources[1]:
            return ""
        first, second = (clean(source, 100_000).splitlines() for source in sources)
        a, b = (clean_line(label, 80) for label in self.labels)
        lines = list(difflib.unified_diff(first, second, a, b, lineterm="", n=2))
        cut = len(lines) - _MAX_DIFF_LINES
        more = [f"… {cut:,} more lines"] if cut > 0 else []
        return "\n".join(lines[:_MAX_DIFF_LINES] + more)


def _labels(results: Sequence[RunResult]) -> list[str]:
    """The runs' names; with the storage path, then a number, where several are the same."""
    labels = [result.name for result in results]
    if len(set(labels)) < len(labels):
        uris = [without_secrets(result.uri) for result in results]
        labels = [
            uri if labels.count(label) > 1 and uri else label
            for label, uri in zip(labels, uris, strict=True)
        ]
    return [
        f"{label} ({labels[:k].count(label) + 1})" if labels.count(label) > 1 else label
        for k, label in enumerate(labels)
    ]


def _facts(result: RunResult) -> dict[str, str]:
    """All that two runs can differ in, flat: options, config entries, versions, devices, code."""
    facts: dict[str, str] = {}
    options = dict(mapping(result.record.get("options")))
    for told in ("name", "storage_path"):
        options.pop(told, None)
    config = options.pop("config", None)
    facts |= {str(k): json_text(v) for k, v in options.items()}
    facts |= _flat("config", config)
    versions = mapping(result.record.get("versions"))
    facts |= {f"{k} version": json_text(v) for k, v in versions.items()}
    if result.num_workers is not None:
        facts["world size"] = str(result.num_workers)
    if told_hash := source_hash(Page(result.record)):
        facts["code"] = f"sha256 {told_hash}"
    return facts


def _flat(prefix: str, value: object, depth: int = 4) -> dict[str, str]:
    if not isinstance(value, Mapping) or not depth:
        return {} if value is None else {prefix: json_text(value)}
    out: dict[str, str] = {}
    for key, inner in value.items():
        out |= _flat(f"{prefix}.{key}", inner, depth - 1)
    return out


def _differing(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for one in facts for name in one)
    rows = {name: [one.get(name, "–") for one in facts] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}
