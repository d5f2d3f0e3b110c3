"""A search's picture: digest and mirror of a run, with trials instead of one worker group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch, clean_text
from raynb.telemetry.history import to_frame
from raynb.telemetry.loglines import lines_a_rank
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.rows import Rows
from raynb.telemetry.update import Update

#: States of a trial that it does not leave.
ENDED_TRIAL = ("finished", "pruned", "stopped", "failed")
TRIAL_STATES = ("pending", "running", "paused", *ENDED_TRIAL)
#: Directory of the Train run below a trial's, where a trial has several workers.
TRAIN_DIR = "train"
#: Numbers of a result that a row carries.
MAX_LAST = 50


def new_trial(index: int) -> dict[str, Any]:
    """A trial's row before anything is known of it."""
    return {
        "trial": index,
        "id": None,
        "name": None,
        "state": "pending",
        "reason": None,
        "reason_kind": None,
        "error": None,
        "config": {},
        "iterations": None,
        "latest": None,
        "best": None,
        "best_step": None,
        "last": {},
        "time_s": None,
        "started": None,
        "ended": None,
        "last_report": None,
        "checkpoint": 0,
        "restarts": 0,
        "node": None,
        "pid": None,
    }


def is_trial(row: Any) -> bool:
    """Whether a record's row is one of a trial, as far as a search counts on it."""
    if not isinstance(row, dict) or type(row.get("trial")) is not int:
        return False
    numbers = (row.get(name) for name in ("best", "best_step", "iterations", "restarts"))
    return (
        type(row.get("id")) is str
        and row.get("state") in TRIAL_STATES
        and all(n is None or type(n) in (int, float) for n in numbers)
        and type(row.get("restarts", 0)) is int
        and 0 <= row["trial"] < 2**31
    )


def lane_of(trial: int, rank: int, lanes: int) -> int:
    """The number by which a rank of a trial tells itself apart from all others."""
    return trial * lanes + rank


def result_lane(trial: int) -> int:
    """The rank under which the history keeps what Tune got from a trial."""
    return -1 - trial


def results_of(table: pa.Table) -> pd.DataFrame:
    """Tune's results in a history: ``trial``, ``training_iteration``, ``time``, metrics."""
    frame = to_frame(table.filter(pc.less(table["rank"], 0)))
    frame = frame.rename(columns={"rank": "trial", "step": "training_iteration"})
    frame["trial"] = -1 - frame["trial"]
    frame = frame.sort_values(["trial", "attempt", "time"], kind="stable", ignore_index=True)
    # The columns of what ranks logged besides.
    return frame.dropna(axis="columns", how="all") if len(frame) else frame


def records_of(table: pa.Table, lanes: int) -> pd.DataFrame:
    """What ranks logged in a search's history: ``trial``, ``rank``, ``attempt``, ``step``, …"""
    frame = to_frame(table.filter(pc.greater_equal(table["rank"], 0)))
    frame.insert(0, "trial", frame["rank"] // lanes)
    frame["rank"] %= lanes
    return frame


def better(mode: str | None, value: float, than: float | None) -> bool:
    """Whether a value is better than the best so far."""
    if mode is None or not math.isfinite(value):
        return False
    return than is None or (value > than if mode == "max" else value < than)


def new_search(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a search's ``run`` has besides a run's."""
    return {
        "kind": "tune",
        "metric": None,
        "mode": None,
        "planned": None,
        "num_samples": None,
        "scheduler": None,
        "search": None,
        "max_concurrent": None,
        "time_budget_s": None,
        "stop": None,
        "workers": 1,
        "params": [],
        "metrics": [],
        "counts": dict.fromkeys(TRIAL_STATES, 0),
        "best_trial": None,
        "cluster": None,
        **facts,
    }


class TrialRows(Rows):
    """The trials' rows, each field with the version of its last change."""

    key = "trial"

    def _new(self, rank: int) -> dict[str, Any]:
        return new_trial(rank)

    def _all_of(self, row: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
        return changes


class SearchDigest(Digest):
    """Bounded picture of a search; ranks of the base are lanes here (see :func:`lane_of`).

    Parameters
    ----------
    name : str
    facts : dict
        What is known of the search (``TuneSpec.facts()``).
    """

    def __init__(self, name: str, facts: Mapping[str, Any], **run: Any) -> None:
        super().__init__(name, None, **new_search(facts), **run)
        self._trials = TrialRows()
        self._metrics: dict[str, None] = {}

    @property
    def trials(self) -> dict[int, dict[str, Any]]:
        return self._trials.rows

    def set_trial(self, trial: int, **changes: Any) -> None:
        before = self.trials.get(trial, {}).get("state")
        self._trials.set(trial, changes, self._news(bulk=True))
        limit = lines_a_rank(len(self.trials) * self.run["workers"])
        if limit < self.run["log_lines"]:
            self.set_run(log_lines=limit)
        if before != self.trials[trial]["state"]:
            self._count()
        if self.trials[trial]["state"] in ENDED_TRIAL:
            first = lane_of(trial, 0, self.run["workers"])
            for lane in range(first, first + self.run["workers"]):
                self.trends.pop(lane, None)
                self._rate.pop(lane, None)

    def _count(self) -> None:
        counts = dict.fromkeys(TRIAL_STATES, 0)
        for row in self.trials.values():
            counts[row["state"]] += 1
        self.set_run(counts=counts)

    def add_result(
        self, trial: int, iteration: float, at: float, values: Mapping[str, Any], time_s: Any
    ) -> None:
        """Take what a trial reported to Tune: numeric metrics by name."""
        row = self._trials.row(trial, self._version)
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, (int, float))}
        metric, mode = self.run["metric"], self.run["mode"]
        changes: dict[str, Any] = {
            "iterations": int(iteration),
            "last_report": at,
            "last": dict(list(numbers.items())[:MAX_LAST]),
            "time_s": float(time_s) if isinstance(time_s, (int, float)) else row["time_s"],
        }
        if metric in numbers:
            changes["latest"] = numbers[metric]
            if better(mode, numbers[metric], row["best"]):
                changes |= {"best": numbers[metric], "best_step": int(iteration)}
        version = self._news(bulk=True)
        self._trials.set(trial, changes, version)
        x, t, none = np.array([iteration], float), np.array([at]), np.array([math.nan])
        for name, value in numbers.items():
            self._curves.add((name, trial, 0), x, t, none, np.array([value]), version)
        new = [name for name in numbers if name not in self._metrics]
        if new:
            self._metrics.update(dict.fromkeys(new))
            self.set_run(metrics=sorted(self._metrics, key=lambda name: name != metric))
        if "best" in changes:
            self._keep_best_trial(trial)

    def _keep_best_trial(self, trial: int) -> None:
        row, best = self.trials[trial], self.run["best_trial"]
        if better(self.run["mode"], row["best"], best and best["value"]):
            self.set_run(best_trial=self._as_best(row))

    @staticmethod
    def _as_best(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "trial": row["trial"],
            "id": row["id"],
            "value": row["best"],
            "step": row["best_step"],
            "config": row["config"],
        }

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the trials of before, of a search that is resumed."""
        for row in rows:
            known = new_trial(0).keys() - {"trial"}
            self.set_trial(row["trial"], **{k: v for k, v in row.items() if k in known})
            if row.get("best") is not None:
                self._keep_best_trial(row["trial"])

    # -- what is different with trials -----------------------------------------------------------

    def _take_records(self, batch: Batch, version: int) -> None:
        """Curves are of results; what the workers logged besides is in the history."""

    def _count_shards(self, rank: int, shards: Sequence[Mapping[str, Any]]) -> None:
        """Each trial reads all of the data: nothing adds up."""

    def _bulk_since(self, cursor: Cursor, update: Update, now: float) -> None:
        trials = self._trials.since(cursor.bulk)
        if trials:
            update.content["trials"] = trials
        super()._bulk_since(cursor, update, now)


class SearchMirror(Mirror):
    """A watcher's own copy of a search's digest.

    Attributes
    ----------
    trials : dict of int to dict
    """

    def clear(self) -> None:
        super().clear()
        self.run = {**self.run, **new_search({})}
        self.trials: dict[int, dict[str, Any]] = {}

    def apply(self, update: Update) -> None:
        super().apply(update)
        for row in update.content.get("trials", ()):
            self.trials.setdefault(row["trial"], new_trial(row["trial"])).update(row)

    def snapshot(self) -> Update:
        update = super().snapshot()
        update.content["trials"] = [row for _, row in sorted(self.trials.items())]
        return update


def numeric(result: Mapping[str, Any], without: Iterable[str]) -> dict[str, float]:
    """A flat result's numbers under names that JSON and Parquet can hold."""
    left_out = set(without)
    found: dict[str, float] = {}
    for name, value in result.items():
        if name in left_out or name.startswith("config/") or isinstance(value, bool):
            continue
        try:
            item = value.item() if hasattr(value, "item") else value
            if isinstance(item, (int, float)) and not isinstance(item, bool):
                found[clean_text(str(name))] = float(item)
        except Exception:  # an array, or an object that is none of ours
            continue
    return found
