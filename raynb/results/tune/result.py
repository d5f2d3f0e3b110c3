"""TuneResult: what is left of a search, as Ray's ResultGrid with each trial's RunResult."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
from ray.tune import ResultGrid

from raynb.engine.collector import TERMINAL
from raynb.errors import OptionError, TrainingError
from raynb.results.chart import given_or_new
from raynb.results.page import duration_of
from raynb.results.text import mapping, mappings, number
from raynb.results.tune.trial import (
    TrialResult,
    config_of,
    directory_of,
    metrics_of,
    trial_result,
)
from raynb.telemetry.trials import better, records_of, results_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")


class TuneResult(ResultGrid):
    """The trials of a search.

    Made from raynb's record and history alone: opening a search runs no code that lies beside
    it, as restoring Ray's own state would.

    Attributes
    ----------
    name : str
    record : dict
        The content of the search's ``raynb/record.json``.
    uri : str
        The search's directory as a path or URI that :func:`raynb.open` takes.
    error : BaseException or None
        Why the search as a whole failed.
    """

    def __init__(
        self,
        record: dict[str, Any],
        table: pa.Table,
        *,
        error: BaseException | None = None,
        filesystem: pafs.FileSystem | None = None,
        path: str = "",
        uri: str = "",
    ) -> None:
        self.record = record
        self.error = error
        if error is None and record.get("state") == "failed":
            self.error = TrainingError(str(record.get("message") or "the search failed"))
        self.name = str(record.get("name") or posixpath.basename(path.rstrip("/")))
        self.uri = uri or path
        self.written: float | None = None
        self._table = table
        self._fs = filesystem or pafs.LocalFileSystem()
        self._path = path
        # What lies on storage may be anything.
        rows = [row for row in mappings(record.get("trials")) if type(row.get("trial")) is int]
        self._rows = sorted(rows, key=lambda row: row["trial"])
        self._made: dict[int, TrialResult] = {}
        self._frame: pd.DataFrame | None = None
        self._notes: list[str] = []

    @classmethod
    def of(
        cls,
        ray_result: Any,
        *,
        record: dict[str, Any],
        history: pa.Table,
        error: BaseException | None = None,
        filesystem: pafs.FileSystem | None = None,
        path: str = "",
        uri: str = "",
    ) -> TuneResult:
        """As :meth:`RunResult.of`; Ray's own grid is not needed."""
        return cls(record, history, error=error, filesystem=filesystem, path=path, uri=uri)

    # -- the search ------------------------------------------------------------------------------

    @property
    def metric(self) -> str | None:
        """What was tuned."""
        metric = self.record.get("metric")
        return metric if isinstance(metric, str) else None

    @property
    def mode(self) -> str | None:
        """``min`` or ``max``."""
        mode = self.record.get("mode")
        return mode if mode in ("min", "max") else None

    @property
    def state(self) -> str:
        """``finished``, ``failed`` or ``stopped``; ``running`` while nothing says how it ended."""
        state = str(self.record.get("state"))
        return state if state in TERMINAL else "failed" if self.error is not None else "running"

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None when they aren't known."""
        return duration_of(self.record)

    @property
    def experiment_path(self) -> str:
        """The search's directory."""
        return self._path

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system of :attr:`experiment_path`."""
        return self._fs

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The trials as the panel's table has them, a dict each."""
        return [{k: v for k, v in row.items() if k != "details"} for row in self._rows]

    @property
    def params(self) -> list[str]:
        """Names of the parameters that differ between trials by intent."""
        return [
            str(p.get("name"))
            for p in mappings(self.record.get("params"))
            if p.get("kind") != "fixed"
        ]

    # -- trials ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> TrialResult:
        """The i'th trial's result."""
        index = range(len(self._rows))[i]
        if index not in self._made:
            self._made[index] = trial_result(self, self._rows[index])
        return self._made[index]

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the trials that failed."""
        return [e for i in self._failed() if (e := self[i].error) is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return len(self._failed())

    @property
    def num_terminated(self) -> int:
        """How many trials ended without an error, pruned ones too."""
        ended = ("finished", "pruned", "stopped")
        return sum(row.get("state") in ended and bool(row.get("started")) for row in self._rows)

    def _failed(self) -> list[int]:
        return [i for i, row in enumerate(self._rows) if row.get("state") == "failed"]

    @property
    def best(self) -> TrialResult | None:
        """The trial with the best value of the metric at any iteration; None without one."""
        i = self.best_index
        return None if i is None else self[i]

    @property
    def best_index(self) -> int | None:
        """The number of :attr:`best`."""
        best: tuple[int, float] | None = None
        for i, row in enumerate(self._rows):
            value = number(row.get("best"))
            if value is not None and better(self.mode, value, best and best[1]):
                best = i, value
        return None if best is None else best[0]

    @property
    def best_config(self) -> dict[str, Any] | None:
        """The config of :attr:`best`."""
        i = self.best_index
        return None if i is None else config_of(self._rows[i])

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> TrialResult:
        """Ray's question for the best trial; by default each trial's last value counts.

        Parameters
        ----------
        metric, mode : str, optional
            The search's own by default.
        scope : {"last", "all", "avg", "last-5-avg", "last-10-avg"}
        filter_nan_and_inf : bool

        Raises
        ------
        OptionError
        RuntimeError
            When no trial has reported the metric.
        """
        metric, mode = metric or self.metric, mode or self.mode
        if metric is None or mode not in ("min", "max"):
            raise OptionError(
                "which metric is best, and whether less or more is, isn't known",
                hint='for example get_best_result("val_accuracy", "max")',
            )
        if scope not in SCOPES:
            raise OptionError(f"scope must be one of {', '.join(SCOPES)}, not {scope!r}")
        frame = self.results
        best: tuple[int, float] | None = None
        values = frame.dropna(subset=[metric]) if metric in frame else frame.iloc[:0]
        for trial, of_trial in values.groupby("trial", sort=True):
            series = of_trial[metric]
            score = float(
                series.iloc[-1] if scope == "last"
                else (series.max() if mode == "max" else series.min()) if scope == "all"
                else series.mean() if scope == "avg"
                else series.tail(5 if scope == "last-5-avg" else 10).mean()
            )  # fmt: skip
            if filter_nan_and_inf and not math.isfinite(score):
                continue
            if best is None or (score > best[1] if mode == "max" else score < best[1]):
                best = self._index_of(trial), score
        if best is None:
            raise RuntimeError(f"No best trial found: no trial has reported {metric!r}.")
        return self[best[0]]

    def _index_of(self, trial: Any) -> int:
        return next(i for i, row in enumerate(self._rows) if row.get("trial") == trial)

    # -- tables ----------------------------------------------------------------------------------

    @property
    def results(self) -> pd.DataFrame:
        """Every report of every trial: ``trial``, ``training_iteration``, ``time``, metrics."""
        if self._frame is None:
            self._frame = results_of(self._table)
        return self._frame

    @property
    def dataframe(self) -> pd.DataFrame:
        """One row a trial: number, state, parameters, metric (best, last), iterations, seconds."""
        metric = self.metric or "metric"
        return pd.DataFrame(
            [
                {
                    "trial": row.get("trial"),
                    "state": row.get("state"),
                    **{name: mapping(row.get("config")).get(name) for name in self.params},
                    f"best {metric}": row.get("best"),
                    f"last {metric}": row.get("latest"),
                    "best at": row.get("best_step"),
                    "iterations": row.get("iterations"),
                    "seconds": row.get("time_s"),
                    "reason": row.get("reason"),
                }
                for row in self._rows
            ]
        )

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """One row a trial as Ray has it: last result, or the best one by a metric, and config."""
        rows = []
        frame = self.results
        for i, row in enumerate(self._rows):
            last = _flat(metrics_of(row))
            if filter_metric is not None and filter_metric in frame:
                reports = frame[frame["trial"] == row.get("trial")].dropna(subset=[filter_metric])
                if len(reports):
                    values = reports[filter_metric].to_numpy()
                    at = int(values.argmin() if filter_mode == "min" else values.argmax())
                    found = reports.iloc[at]
                    kept = {
                        k: v for k, v in found.dropna().items() if k not in ("trial", "attempt")
                    }
                    last |= {str(k): v for k, v in kept.items() if k != "time"}
            if not last:
                continue
            config = {f"config/{k}": v for k, v in mapping(row.get("config")).items()}
            rows.append({**last, **config, "logdir": directory_of(self, row), "trial": i})
        return pd.DataFrame(rows)

    @property
    def history(self) -> pd.DataFrame:
        """Every record of every trial's ranks: ``trial``, ``rank``, ``attempt``, ``step``, …"""
        return records_of(self._table, self.lanes)

    @property
    def table(self) -> pa.Table:
        """All records as Arrow has them: a trial's ranks by lane, Tune's results below 0."""
        return self._table

    @property
    def lanes(self) -> int:
        """Ranks that a trial can have."""
        lanes = self.record.get("lanes")
        return lanes if isinstance(lanes, int) and lanes > 0 else 1

    # -- plots and display -----------------------------------------------------------------------

    def plot(
        self,
        kind: str = "curves",
        metric: str | None = None,
        param: str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the search.

        Parameters
        ----------
        kind : {"curves", "parallel", "scatter"}
            Learning curves of all trials, pruned ones faded; parallel coordinates; a metric
            against one parameter.
        metric : str, optional
            The tuned one by default.
        param : str, optional
            For ``scatter``; the first one that is searched by default.
        ax : matplotlib.axes.Axes, optional

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        OptionError
        """
        from raynb.results.tune import plots

        metric = metric or self.metric
        named = self.record.get("metrics")
        known = [m for m in (named if isinstance(named, list) else ()) if m in self.results]
        if metric is None or metric not in known:
            raise OptionError(
                f"no trial reported {metric!r}",
                hint=f"they reported {', '.join(known)}" if known else "",
            )
        if kind not in plots.KINDS:
            raise OptionError(f"kind must be one of {', '.join(plots.KINDS)}, not {kind!r}")
        if kind == "scatter":
            param = param or next(iter(self.params), None)
            if param not in self.params:
                raise OptionError(
                    f"there is no searched parameter {param!r}",
                    hint=f"there are {', '.join(self.params)}",
                )
        ax = given_or_new(ax)
        plots.draw(ax, self, kind, metric, param)
        return ax

    def add_notes(self, *notes: str) -> None:
        """Remarks for the display, such as what could not be read."""
        self._notes += [note for note in notes if note]

    @property
    def notes(self) -> Sequence[str]:
        """The remarks."""
        return tuple(self._notes)

    def __repr__(self) -> str:
        from raynb.results.tune.page import short_text

        try:
            return short_text(self)
        except Exception as error:
            return f"TuneResult(its text can't be made: {type(error).__name__}: {error})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        from raynb.results.tune.page import bundle

        try:
            return dict(bundle(self))
        except Exception as error:
            told = f"The full display can't be made: {type(error).__name__}: {error}"
            return {"text/plain": f"{self!r}\n{told}"}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == "config" and not above:
            continue
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{above}{key}/")
        else:
            flat[f"{above}{key}"] = value
    return flat
