"""RunResult: Ray's Result with the run's full history, its record and a rich display."""

from __future__ import annotations

import dataclasses
import posixpath
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
from ray.train import Result

from raynb.engine.collector import TERMINAL
from raynb.engine.spec import without_secrets
from raynb.errors import OptionError, TrainingError
from raynb.results.chart import MAX_LINES, chart_png, draw_lines, name_lines, user_axes
from raynb.results.checkpoints import CheckpointRow, Listing, checkpoint_rows
from raynb.results.curves import (
    Curve,
    NanRows,
    curves_of,
    default_metric,
    frame_with_nans,
    last_texts,
    last_values,
    metric_names,
)
from raynb.results.left import left_on_storage
from raynb.results.mount import mount, shell
from raynb.results.page import (
    Page,
    duration_of,
    parse_best,
    shown_checkpoints,
    state_of,
    workers_of,
)
from raynb.results.static import bundle
from raynb.results.text import (
    UNKNOWN,
    clean,
    clean_line,
    format_value,
    mapping,
    mappings,
    number,
    plural,
)
from raynb.telemetry.history import BASE_COLUMNS, concat, to_frame
from raynb.telemetry.units import human_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _no_history() -> pd.DataFrame:
    return to_frame(concat([]))


@dataclass(repr=False)
class RunResult(Result):
    """What is left of a run: Ray's own result and all that raynb recorded.

    Ray's fields (``metrics``, ``checkpoint``, ``error``, ``path``, ``metrics_dataframe``,
    ``best_checkpoints``, ``return_value``) mean what Ray's documentation says. Build one with
    :meth:`of`.

    Attributes
    ----------
    name : str
        The run's name.
    history : DataFrame
        Every record of every rank: columns ``rank``, ``attempt``, ``step``, ``time`` (UNIX
        seconds), then one a metric; NaN where a record does not have it.
    record : dict
        The content of the run's ``raynb/record.json``.
    uri : str
        The run's directory as a path or URI that :func:`raynb.open` takes.
    written : float or None
        UNIX time at which a run that did not tell its end last wrote to storage.
    """

    name: str = ""
    history: pd.DataFrame = field(default_factory=_no_history)
    record: dict[str, Any] = field(default_factory=dict)
    uri: str = ""
    written: float | None = None
    #: Where the history's NaN was logged; without it a diverged loss would look absent.
    _nan_rows: NanRows = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    #: What is wrong with the checkpoints, when not all of them can be used.
    _incomplete: str = ""
    _listing: Listing = field(default_factory=Listing)
    _live: str = ""

    @classmethod
    def of(
        cls,
        ray_result: Result | None,
        *,
        record: dict[str, Any],
        history: pd.DataFrame | pa.Table,
        error: BaseException | None = None,
        filesystem: pafs.FileSystem | None = None,
        path: str = "",
        uri: str = "",
    ) -> Self:
        """Join Ray's result and raynb's record.

        Parameters
        ----------
        ray_result : ray.train.Result or None
            What ``fit()`` returned. Without it (a failed or stopped run) what Ray left on storage
            is read, so that the checkpoints up to then can be used.
        record : dict
            ``record.json``'s content.
        history : pyarrow.Table or DataFrame
            As ``read_history`` or ``to_frame`` return it. A table is better: it tells a NaN that
            was logged from one that stands for "absent".
        error : BaseException, optional
            Why the run failed; made from the record for a failed run when not given.
        filesystem : pyarrow.fs.FileSystem, optional
            The storage's filesystem; the local one when not given.
        path : str
            The run's directory on that filesystem.
        uri : str
            The same as a path or URI that tells the filesystem too; ``path`` when not given.
        """
        note = ""
        fields: dict[str, Any] = {
            "metrics": None,
            "checkpoint": None,
            "error": None,
            "path": path,
            "_storage_filesystem": filesystem,
        }
        if ray_result is None:
            keep = mapping(record.get("options")).get("num_to_keep")
            ray_result, note = left_on_storage(path, filesystem, keep)
        if ray_result is not None:
            fields |= {f.name: getattr(ray_result, f.name) for f in dataclasses.fields(ray_result)}
        nan_rows: NanRows = {}
        if isinstance(history, pa.Table):
            history, nan_rows = frame_with_nans(history)
        error = error or fields["error"]
        if error is None and record.get("state") == "failed":
            error = _error_of(record)
        fields["error"] = error
        return cls(
            **fields,
            name=str(record.get("name") or posixpath.basename(path.rstrip("/"))),
            history=history,
            record=record,
            uri=uri or str(fields["path"]),
            _nan_rows=nan_rows,
            _notes=[note] if note else [],
            _incomplete=note,
        )

    @property
    def state(self) -> str:
        """``finished``, ``failed`` or ``stopped``; ``running`` while nothing says how it ended,
        ``unknown`` where there is no record of the run."""
        state = str(self.record.get("state"))
        if state in TERMINAL:
            return state
        # A supervisor that died could not write how the run ended.
        if self.error is not None:
            return "failed"
        return "running" if "state" in self.record else "unknown"

    @property
    def duration(self) -> float | None:
        """Seconds from the run's start to its end; None when they aren't known."""
        return duration_of(self.record)

    @property
    def num_workers(self) -> int | None:
        """Workers of the run, the last group's where it was elastic; None when it got none."""
        return workers_of(self.record)

    @property
    def checkpoints(self) -> pd.DataFrame:
        """The kept checkpoints in Ray's order.

        Columns ``index`` (in ``best_checkpoints``), ``name``, ``step``, ``best``, ``size`` in
        bytes, ``saved`` (UNIX seconds), ``files``, ``code`` (the line that loads it), then one a
        reported metric. What isn't known is None or NaN.
        """
        columns = ("index", "name", "step", "best", "size", "saved", "files", "code")
        rows = [
            {
                "index": row.index,
                "name": row.name,
                "step": row.step,
                "best": row.best,
                "size": None if row.files is None else row.files.size,
                "saved": None if row.files is None else row.files.saved,
                "files": None if row.files is None else [name for name, _ in row.files.files],
                "code": row.code(),
                **{str(k): v for k, v in row.metrics.items() if str(k) not in columns},
            }
            for row in self._checkpoint_rows()
        ]
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(columns))

    def _checkpoint_rows(self) -> list[CheckpointRow]:
        return checkpoint_rows(
            self.best_checkpoints or (),
            best=parse_best(mapping(self.record.get("options")).get("best")),
            uri=without_secrets(self.uri),
            history=self.history,
            listing=self._listing,
        )

    def curves(self, metrics: Sequence[str] | None = None) -> list[Curve]:
        """The history as curves; see :func:`raynb.results.curves.curves_of`."""
        return curves_of(self.history, self._nan_rows, metrics=metrics)

    def last_of(self, metric: str | None) -> str:
        """The mean over ranks of a metric's last values, to show."""
        values = (
            []
            if metric is None or metric not in metric_names(self.history)
            else list(last_values(self.curves([metric]), metric).values())
        )
        return format_value(sum(values) / len(values)) if values else UNKNOWN

    def add_notes(self, *notes: str) -> None:
        """Remarks for the display, such as what could not be read."""
        self._notes += [note for note in notes if note]

    def load(
        self,
        which: str | int | None = None,
        into: Any = None,
        *,
        file: str | None = None,
        key: str | None = None,
        map_location: Any = "cpu",
        strict: bool = True,
        trusted: bool = False,
        loader: str | None = None,
    ) -> Any:
        """Load one of the run's checkpoints; see :func:`raynb.load_checkpoint`.

        Parameters
        ----------
        which : str or int, optional
            ``"best"`` (by the run's ``--best``), ``"latest"``, ``"METRIC:min"`` or
            ``"METRIC:max"``, or an index of ``best_checkpoints``. Without it the best one where
            the run was started with ``--best``, else the latest.
        into : torch.nn.Module or other object with ``load_state_dict``, optional
        file, key, map_location, strict, trusted, loader
            As for :func:`raynb.load_checkpoint`.

        Returns
        -------
        object
            ``into``, or without it what the checkpoint holds.

        Raises
        ------
        CheckpointError
        """
        from raynb.results.loaders import checkpoint_of, load_checkpoint

        if self._incomplete:
            # Else "best" would silently be the best of those that are left.
            warnings.warn(self._incomplete, stacklevel=2)
        return load_checkpoint(
            checkpoint_of(self, which),
            into,
            file=file,
            key=key,
            map_location=map_location,
            strict=strict,
            trusted=trusted,
            loader=loader,
        )

    # -- display ---------------------------------------------------------------------------------

    def plot(
        self,
        metrics: str | Sequence[str] | None = None,
        ranks: int | Iterable[int] | None = None,
        x: str = "step",
        ax: Axes | None = None,
    ) -> Axes:
        """Plot metrics over steps or time, one line a rank; earlier attempts are paler.

        Parameters
        ----------
        metrics : str or sequence of str, optional
            Columns of the history; by default the first one with "loss" in its name, else the
            first one.
        ranks : int or iterable of int, optional
            All by default.
        x : {"step", "time"}
            ``time`` is seconds since the first record shown.
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure's when not given.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        OptionError
            When a metric, rank or ``x`` does not exist.
        """
        known = metric_names(self.history)
        if metrics is None:
            first = default_metric(known)
            names = [] if first is None else [first]
        else:
            names = [metrics] if isinstance(metrics, str) else _listed("metrics", metrics)
        missing = [name for name in names if name not in known]
        others = set(self.history.columns) - set(BASE_COLUMNS)
        texts = [name for name in missing if isinstance(name, str) and name in others]
        if texts:
            raise OptionError(
                f"{texts[0]!r} is no number, so it can't be plotted",
                hint=f"numbers are {', '.join(known)}" if known else "",
            )
        if missing:
            raise OptionError(
                f"the history has no metric {', '.join(map(repr, missing))}",
                hint=f"it has {', '.join(known)}" if known else "log some with raynb.log(...)",
            )
        wanted: list[int] | None = None
        if ranks is not None:
            wanted = (
                [int(ranks)] if isinstance(ranks, int | np.integer) else _listed("ranks", ranks)
            )
            there = sorted(set(self.history["rank"])) if "rank" in self.history else []
            unknown = [rank for rank in wanted if rank not in there]
            if unknown:
                raise OptionError(
                    f"the history has no rank {', '.join(map(repr, unknown))}",
                    hint=f"it has {', '.join(map(str, there))}" if there else "",
                )
        curves = curves_of(self.history, self._nan_rows, metrics=names, ranks=wanted)
        ax = user_axes(x, ax)
        draw_lines(ax, curves, x=x, several=len(names) > 1)
        if len(names) == 1:
            ax.set_ylabel(names[0], parse_math=False)
        lines = len({(c.metric, c.rank) for c in curves})
        if 1 < lines <= MAX_LINES:
            name_lines(ax)
        return ax

    def _page(self) -> Page:
        rows = self._checkpoint_rows()
        unread = [f"{clean_line(r.name, 80)} can't be read: {r.error}" for r in rows if r.error]
        notes = [*self._notes, self._still_running(), self._why_no_metrics(), *unread[:1]]
        state = "running_or_lost" if self.state == "running" else self.state
        return Page(
            self.record | {"name": self.name, "state": state} | self._error_in_record(),
            curves=self.curves(),
            texts=last_texts(self.history),
            checkpoints=rows,
            events=mappings(self.record.get("events")),
            note="\n".join(note for note in notes if note),
            path=without_secrets(self.uri or str(self.path)),
            shown=time.time(),
        )

    def _still_running(self) -> str:
        if self.state != "running":
            return ""
        ago = "at a time that isn't known"
        if self.written is not None:
            ago = f"{human_seconds(max(0.0, time.time() - self.written))} before this display"
        return f"The run did not write how it ended. It last wrote to storage {ago}."

    def _error_in_record(self) -> dict[str, Any]:
        """The error for the page, also when the record was written before it came."""
        if self.error is None or mapping(self.record.get("error")):
            return {}
        return {
            "error": {
                "title": f"{type(self.error).__name__}: {clean_line(self.error, 500)}",
                "rank": getattr(self.error, "rank", None),
                "text": "",
                "line": None,
            }
        }

    def _why_no_metrics(self) -> str:
        if self.metrics is not None or self.checkpoint is not None or not len(self.history):
            return ""
        n = len(self.history)
        kept = f"all {n:,} records are" if n > 1 else "the record is"
        return f"metrics is None: Ray keeps metrics only with a checkpoint; {kept} in .history"

    def __repr__(self) -> str:
        try:
            return "\n".join(self._short())
        except Exception as error:
            return f"RunResult(its text can't be made: {type(error).__name__}: {error})"

    def _short(self) -> list[str]:
        _, word, _ = state_of(self.state)
        facts = [f"RunResult {clean_line(self.name, 120)!r}", word.lower()]
        if self.duration is not None:
            facts[-1] += f" in {human_seconds(self.duration)}"
        if self.num_workers is not None:
            facts.append(plural(self.num_workers, "worker"))
        lines = [" · ".join(facts)]
        if self.error is not None:
            # Ray's own text is a headline alone: what failed, and where, is in the record.
            told = mapping(self.record.get("error")).get("title")
            if not told:
                first = clean(self.error, 1_000).strip().partition("\n")[0]
                told = f"{type(self.error).__name__}: {first}"
            lines.append(f"  error        {clean_line(told, 500)}")
        if self.metrics is not None:
            shown = ", ".join(
                f"{clean_line(k, 40)} {format_value(v)}"
                for k, v in list(mapping(self.metrics).items())[:6]
            )
            lines.append(f"  metrics      {shown or 'empty'} (with the latest checkpoint)")
        elif self._why_no_metrics():
            lines.append(f"  {self._why_no_metrics()}")
        names = metric_names(self.history)
        ranks = len(set(self.history["rank"]))
        told = ", ".join(clean_line(name, 40) for name in names[:8])
        lines.append(
            f"  history      {plural(len(self.history), 'record')} of {plural(ranks, 'rank')}"
            + (f": {told}{', …' if len(names) > 8 else ''}" if told else "")
        )
        kept = len(self.best_checkpoints or ())
        if self.checkpoint is not None:
            latest = posixpath.basename(str(self.checkpoint.path).rstrip("/"))
            lines.append(f"  checkpoints  {kept} kept, the latest is {clean_line(latest, 80)}")
        else:
            lines.append("  checkpoints  none")
        where = without_secrets(self.uri or str(self.path))
        lines.append(f"  path         {clean_line(where, 500)}")
        lines += [f"  note         {clean_line(note, 500)}" for note in self._notes]
        return lines

    def _controls(self) -> dict[str, Any]:
        """Widgets for the places of the display, in a live notebook."""
        from raynb.results.controls import curve_chooser, load_places

        page = self._page()
        namespace = getattr(shell(), "user_ns", {})
        places = load_places(shown_checkpoints(page), self.uri, namespace)
        metric = page.metric
        if metric is not None:
            places["curves"] = curve_chooser(
                page.metrics,
                metric,
                lambda name, x: chart_png(page.curves, name, mode=page.mode_of(name), x=x),
            )
        return places

    def controls(self) -> Any:
        """The controls that the display of a result shows in a live notebook, by themselves.

        For front ends that show widgets in outputs alone, such as VS Code.

        Returns
        -------
        ipywidgets.VBox
        """
        import ipywidgets as widgets

        places = self._controls()
        lines = []
        for row in shown_checkpoints(self._page()):
            name = widgets.Label(f"[{row.index}] {clean_line(row.name, 80)}")
            lines.append(widgets.HBox([places[f"load-{row.index}"], name]))
        rest = [places[name] for name in ("load", "curves") if name in places]
        return widgets.VBox([*lines, *rest])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        try:
            page = self._page()
            self._live = page.live = mount(self._live, self._controls)
            return bundle(page)
        except Exception as error:
            told = f"The full display can't be made: {type(error).__name__}: {error}"
            return {"text/plain": f"{self!r}\n{told}"}


def _listed(what: str, given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise OptionError(f"{what} must be one or a list, not {given!r}") from None


def _error_of(record: Mapping[str, Any]) -> TrainingError:
    error = mapping(record.get("error"))
    rank = number(error.get("rank"))
    return TrainingError(
        str(error.get("title") or record.get("message") or "the run failed"),
        detail=str(error.get("text") or ""),
        rank=None if rank is None else int(rank),
    )
