"""One trial of a search as a run's result, from the search's record and history."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from ray.train import Checkpoint, Result

from raynb.engine.spec import join_storage
from raynb.results.run_result import RunResult
from raynb.results.text import mapping, mappings, number
from raynb.telemetry.history import concat
from raynb.telemetry.trials import TRAIN_DIR, result_lane

if TYPE_CHECKING:
    from raynb.results.tune.result import TuneResult

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class TrialResult(RunResult):
    """A trial's :class:`RunResult`, with its config."""

    @property
    def config(self) -> dict[str, Any] | None:
        """What the trial got; as of Ray Tune's results, which Ray Train's have no more."""
        config = mapping(self.metrics).get("config") or mapping(self.record["options"])["config"]
        return dict(mapping(config)) or None


def directory_of(search: TuneResult, row: Mapping[str, Any]) -> str:
    """The trial's directory; the search's own where the record names none."""
    name = mapping(row.get("details")).get("directory")
    # A record is data from storage: it names a directory here and no other place.
    name = posixpath.basename(str(name)) if name else ""
    home = search.experiment_path
    return f"{home}/{name}" if name not in ("", ".", "..") else home


def trial_result(search: TuneResult, row: Mapping[str, Any]) -> TrialResult:
    """The result of the trial that has this row in the record."""
    directory = directory_of(search, row)
    uri = join_storage(search.uri, posixpath.basename(directory)) if search.uri else directory
    metrics = metrics_of(row)
    grouped = search.lanes > 1
    ray_result: Result | None = None
    if not grouped:
        kept = [
            (
                Checkpoint(f"{directory}/{name}", search.filesystem),
                _numbers(mapping(c.get("metrics"))),
            )
            for c in mappings(mapping(row.get("details")).get("checkpoints"))
            if (name := posixpath.basename(str(c.get("name") or ""))) not in ("", ".", "..")
        ]
        # Ray names them by their number: the latest has the last name.
        latest = max(kept, key=lambda c: c[0].path, default=None)
        ray_result = Result(
            metrics=metrics or None,
            checkpoint=latest[0] if latest else None,
            error=None,
            path=directory,
            best_checkpoints=kept,
            metrics_dataframe=_reports(search, row),
            _storage_filesystem=search.filesystem,
        )
    else:
        directory, uri = f"{directory}/{TRAIN_DIR}", join_storage(uri, TRAIN_DIR)
    result = TrialResult.of(
        ray_result,
        record=_record_of(search, row),
        history=_history_of(search, row),
        filesystem=search.filesystem,
        path=directory,
        uri=uri,
    )
    if grouped:
        result.metrics = result.metrics or metrics or None
        result.metrics_dataframe = _reports(search, row)
    return result


def _reports(search: TuneResult, row: Mapping[str, Any]) -> pd.DataFrame | None:
    frame = search.results
    own = frame[frame["trial"] == row.get("trial")].dropna(axis="columns", how="all")
    if not len(own):
        return None
    own = own.drop(columns=["trial", "attempt"]).rename(columns={"time": "timestamp"})
    return own.reset_index(drop=True)


def _history_of(search: TuneResult, row: Mapping[str, Any]) -> pa.Table:
    """What the trial's ranks logged; of a trial without telemetry what it reported."""
    trial = int(row.get("trial") or 0)
    ranks = search.table["rank"]
    first = trial * search.lanes
    own = search.table.filter(
        pc.and_(pc.greater_equal(ranks, first), pc.less(ranks, first + search.lanes))
    )
    if not own.num_rows:
        own, first = search.table.filter(pc.equal(ranks, result_lane(trial))), result_lane(trial)
    if not own.num_rows:
        return concat([])
    kept = [name for name in own.column_names if own[name].null_count < own.num_rows]
    own = own.select(kept)
    rank = pa.array(own["rank"].to_numpy() - np.int32(first), pa.int32())
    return own.set_column(own.column_names.index("rank"), "rank", rank)


def _record_of(search: TuneResult, row: Mapping[str, Any]) -> dict[str, Any]:
    """The trial's record, from the search's."""
    first = int(row.get("trial") or 0) * search.lanes
    workers = [
        {**w, "rank": w["rank"] - first}
        for w in mappings(search.record.get("workers"))
        if isinstance(w.get("rank"), int) and first <= w["rank"] < first + search.lanes
    ]
    best = None
    if search.metric is not None and row.get("best") is not None:
        best = {"metric": search.metric, "value": row["best"], "step": None, "rank": None}
    state = row.get("state")
    score = f"{search.metric}:{search.mode}" if search.metric and search.mode else None
    options = mapping(search.record.get("options"))
    return {
        "name": f"{search.name}, trial {row.get('trial')}",
        # A pruned trial is a run that was stopped; its message says by whom.
        "state": {"finished": "finished", "failed": "failed"}.get(str(state), "stopped"),
        "message": row.get("reason") or "",
        "started": row.get("started"),
        "ended": row.get("ended"),
        "world_size": search.lanes,
        "attempts": (number(row.get("restarts")) or 0) + 1,
        "workers": workers,
        "error": row.get("error"),
        "best_seen": best,
        "options": {**options, "best": score, "config": config_of(row)},
        "capture": search.record.get("capture"),
        "source": search.record.get("source"),
        "versions": search.record.get("versions"),
    }


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's config, nested as the cell had it."""
    details = mapping(row.get("details"))
    return dict(mapping(details.get("config")) or mapping(row.get("config")))


def metrics_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's last result with its config, as Ray has it."""
    last = _numbers(mapping(mapping(row.get("details")).get("last_result")))
    return {**last, "config": config_of(row)} if last else {}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: the record holds its name."""
    return {str(k): _NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in values.items()}
