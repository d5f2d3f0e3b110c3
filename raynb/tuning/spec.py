"""TuneSpec: everything a search needs, checked before anything starts."""

from __future__ import annotations

import difflib
import math
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs

from raynb.engine.spec import (
    RunSpec,
    absolute_storage,
    filesystem_of,
    join_storage,
    json_safe,
    read_record,
    without_secrets,
)
from raynb.errors import OptionError, StorageError
from raynb.telemetry.trials import TRAIN_DIR
from raynb.tuning import space as spaces
from raynb.tuning.algorithms import SCHEDULERS, SEARCHES, make_scheduler, make_search

#: Trials of a search that says nothing and samples at random.
DEFAULT_SAMPLES = 10
#: What ``Tuner.restore`` reads; Ray Tune writes it when a search starts.
TUNER_FILE = "tuner.pkl"
#: Options that a search which is resumed keeps, for Tune has them in its own state.
_KEPT = ("metric", "mode", "num_samples", "scheduler", "search", "max_concurrent", "time_budget_s",
         "seed", "max_failures", "num_to_keep")  # fmt: skip
_OPTIONS = {"scheduler_args": "--scheduler-arg"}
_OR = " or "

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True)
class Criterion:
    """A trial ends when ``metric`` compares so with ``bound``.

    Examples
    --------
    >>> Criterion.parse("val_accuracy>=0.95").met({"val_accuracy": 0.96})
    True
    """

    metric: str
    how: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Criterion:
        """Read ``metric>=0.95``.

        Raises
        ------
        OptionError
        """
        match = re.fullmatch(r"\s*([^<>=]+?)\s*(>=|<=|>|<)\s*([^<>=]+?)\s*", text)
        bound = math.nan
        if match:
            try:
                bound = float(match[3])
            except ValueError:
                match = None
        if match is None or math.isnan(bound):
            raise OptionError(
                f"--stop {text!r} is not of the form METRIC>=NUMBER",
                hint="for example --stop val_accuracy>=0.95, or --stop training_iteration>=20",
            )
        return cls(match[1], match[2], bound)

    def met(self, result: Mapping[str, Any]) -> bool:
        value = result.get(self.metric)
        return isinstance(value, (int, float)) and _COMPARE[self.how](value, self.bound)

    def __str__(self) -> str:
        return f"{self.metric} {self.how} {self.bound:g}"


@dataclass
class TuneSpec(RunSpec):
    """A search's options: a run's, and what is searched how.

    Attributes
    ----------
    space : dict
        Names to ``ray.tune`` domains; what ``config`` holds is the same for every trial.
    metric, mode : str
        What is tuned, and ``min`` or ``max``.
    num_samples : int or None
        Trials, or with grids repetitions of the grid; -1 for no end. None: one for a grid alone,
        else :data:`DEFAULT_SAMPLES`.
    scheduler : str
        One of :data:`~raynb.tuning.algorithms.SCHEDULERS`.
    scheduler_args : dict
        The scheduler's own options.
    search : str
        One of :data:`~raynb.tuning.algorithms.SEARCHES`.
    max_concurrent : int or None
        Trials at a time; None: what the cluster holds.
    time_budget_s : float or None
        Seconds after which the search ends.
    stop : tuple of Criterion
        A trial ends when one of them is met.
    seed : int or None
        Makes the search algorithm draw the same values again.
    restore : str or None
        Directory of the search that is resumed.
    """

    name_prefix = "tune"

    space: Any = None
    metric: str = ""
    mode: str = ""
    num_samples: int | None = None
    scheduler: str = "none"
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    search: str = "random"
    max_concurrent: int | None = None
    time_budget_s: float | None = None
    stop: Sequence[Criterion] = ()
    seed: int | None = None
    restore: str | None = None

    @property
    def distributed(self) -> bool:
        """Whether a trial is a worker group of its own."""
        return self.num_workers != 1

    @property
    def lanes(self) -> int:
        """Ranks that a trial can have."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    def check(self) -> TuneSpec:
        """Check and complete the spec; see :meth:`RunSpec.check`."""
        before = self._check_resume() if self.resume is not None else None
        self._check_search()
        if before is not None:
            self._check_same_space(before)
        super().check()
        return self

    def _check_search(self) -> None:
        if self.num_workers == 0:
            raise OptionError("a search needs workers", hint="leave out num_workers=0")
        spaces.check_space(self.space)
        if not self.metric or not isinstance(self.metric, str):
            raise OptionError(
                "which metric is tuned is missing",
                hint="name one that the trials report, for example --metric val_accuracy --mode "
                "max",
            )
        if not self.mode:
            raise OptionError(
                f"--mode is missing: is less or more {self.metric!r} better?",
                hint=f"--metric {self.metric} --mode {_guess_mode(self.metric)}",
            )
        _one_of("--mode", self.mode, ("min", "max"))
        _one_of("--scheduler", self.scheduler, tuple(SCHEDULERS))
        _one_of("--search", self.search, tuple(SEARCHES))
        for what, value, least in (
            ("--num-samples", self.num_samples, 1),
            ("--max-concurrent", self.max_concurrent, 1),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool)
            endless = what == "--num-samples" and value == -1
            if value is not None and not endless and (not whole or value < least):
                raise OptionError(f"{what} must be a whole number of at least {least}: {value!r}")
        budget = self.time_budget_s
        if budget is not None and not (isinstance(budget, (int, float)) and 0 < budget < math.inf):
            raise OptionError(f"--time-budget-s must be more than 0 seconds: {budget!r}")
        if self.num_samples == -1 and budget is None:
            raise OptionError(
                "--num-samples -1 never ends by itself", hint="give --time-budget-s as well"
            )
        fixed = set(self.config or {}) & set(self.space)
        if fixed:
            raise OptionError(
                f"both config and space give {', '.join(sorted(map(repr, fixed)))}",
                hint="leave it out of one of them",
            )
        if self.search == "grid":
            self.space = spaces.as_grid(self.space)
        searched = [v for _, v in spaces.leaves(self.space) if spaces.is_searched(v)]
        if self.num_samples is None:
            self.num_samples = 1 if all(map(spaces.is_grid, searched)) else DEFAULT_SAMPLES
        # Made here only to see that they can be; the supervisor makes its own.
        make_search(self)
        if self.restore is None:
            make_scheduler(self)

    def _check_resume(self) -> dict[str, Any] | None:
        """Find the search to go on with, take its name, place and options; gives its record."""
        source, self.resume = self.resume, None
        path = getattr(source, "experiment_path", None) or source
        address = absolute_storage(getattr(source, "uri", None) or path)
        filesystem, inner = filesystem_of(address)
        inner = inner.rstrip("/")
        shown = without_secrets(address)
        if filesystem.get_file_info(f"{inner}/{TUNER_FILE}").type != pafs.FileType.File:
            raise StorageError(
                f"there is no search to resume at {shown}: it has no {TUNER_FILE}",
                hint="give the directory of a search, which `result.experiment_path` tells",
            )
        record = read_record(filesystem, inner)
        if record is not None and record.get("state") == "finished":
            raise StorageError(
                f"the search at {shown} has finished: there is nothing to resume",
                hint=f"raynb.open({shown!r}) shows it; for more trials start another search",
            )
        if record is not None:
            self._go_on_as(record)
        base, _, query = address.partition("?")
        parent, name = posixpath.split(base.rstrip("/"))
        if self.name and self.name != name:
            raise OptionError(
                f"--name {self.name} contradicts --resume: the search is called {name!r}",
                hint="leave out --name",
            )
        self.restore, self.name = address, name
        self.storage_path = f"{parent}?{query}" if query else parent
        return record

    def _go_on_as(self, record: Mapping[str, Any]) -> None:
        """Take the search's own options from its record: Tune goes on with these whatever is asked.

        Raises
        ------
        OptionError
            When an option is given that says something else.
        """
        told = {**(record.get("options") or {}), "metric": record.get("metric"),
                "mode": record.get("mode")}  # fmt: skip
        if "scheduler_args" not in told:
            raise OptionError(
                "the search to resume is one of a Tuner that raynb.fit watched",
                hint="raynb.fit(tune.Tuner.restore(path, trainable)) goes on with it",
            )
        unsaid = TuneSpec()._kept()
        for name, asked in self._kept().items():
            if name not in told or asked == told[name]:
                continue
            if asked != unsaid[name]:
                option = _OPTIONS.get(name) or f"--{name.replace('_', '-')}"
                raise _contradiction(f"{option} {asked}", told[name], f"leave out {option}")
            if name == "stop":
                self.stop = tuple(map(Criterion.parse, told["stop"].split(_OR)))
            else:
                setattr(self, name, told[name])
        lanes = record.get("lanes")
        if isinstance(lanes, int) and lanes != self.lanes:
            raise _contradiction(f"-n {self.lanes}", f"-n {lanes}", f"use -n {lanes}")

    def _check_same_space(self, record: Mapping[str, Any]) -> None:
        told = {p["name"]: p for p in record.get("params") or () if p["kind"] != "fixed"}
        asked = {p["name"]: p for p in self.facts()["params"] if p["kind"] != "fixed"}
        for name in sorted(told.keys() | asked.keys()):
            was, now = told.get(name), asked.get(name)
            if was != now:
                texts = ["nothing" if p is None else p["text"] for p in (now, was)]
                raise _contradiction(
                    f"{name!r} as {texts[0]} in the space", texts[1], "give the space of before"
                )

    def _kept(self) -> dict[str, Any]:
        """The options that a search keeps when it is resumed, as its record has them."""
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "scheduler_args": json_safe(self.scheduler_args),
            "stop": _stop_text(self.stop),
        }

    @property
    def param_space(self) -> dict[str, Any]:
        """What the Tuner gets: the fixed values and the domains."""
        return {**(self.config or {}), **self.space}

    @property
    def planned(self) -> int | None:
        """Trials in all; None when nobody knows."""
        if not self.num_samples or self.num_samples < 0:
            return None
        return self.num_samples * spaces.grid_size(self.param_space)

    def of_trial(self, trial_path: str, config: dict[str, Any]) -> RunSpec:
        """The spec of the Train run inside a trial with several workers."""
        path, _, query = trial_path.partition("?")
        storage, _, name = join_storage(path, TRAIN_DIR).rpartition("/")
        return RunSpec(
            name=name,
            num_workers=self.num_workers,
            use_gpu=self.use_gpu,
            resources_per_worker=self.resources_per_worker,
            placement_strategy=self.placement_strategy,
            accelerator_type=self.accelerator_type,
            config=config,
            storage_path=f"{storage}?{query}" if query else storage,
            max_failures=self.max_failures,
            num_to_keep=self.num_to_keep,
            best=(self.metric, self.mode),
            datasets=self.datasets,
            backend=self.backend,
            timeout_s=self.timeout_s,
            env=self.env,
        )

    def summary(self) -> dict[str, Any]:
        """The spec as JSON for the record."""
        return {
            **super().summary(),
            "best": f"{self.metric}:{self.mode}",
            "resume": None if self.restore is None else without_secrets(self.restore),
            "num_samples": self.num_samples,
            "scheduler": self.scheduler,
            "scheduler_args": json_safe(self.scheduler_args),
            "search": self.search,
            "max_concurrent": self.max_concurrent,
            "time_budget_s": self.time_budget_s,
            "stop": _stop_text(self.stop),
            "seed": self.seed,
        }

    def facts(self) -> dict[str, Any]:
        """The search's part of ``run`` on the wire and in the record."""
        return {
            "kind": "tune",
            "metric": self.metric,
            "mode": self.mode,
            "planned": self.planned,
            "num_samples": self.num_samples,
            "scheduler": self.scheduler,
            "search": self.search,
            "max_concurrent": self.max_concurrent,
            "time_budget_s": self.time_budget_s,
            "stop": _stop_text(self.stop),
            "workers": self.lanes,
            "params": [
                spaces.describe(name, value) for name, value in spaces.leaves(self.param_space)
            ],
        }


def _stop_text(criteria: Sequence[Criterion]) -> str | None:
    return _OR.join(map(str, criteria)) or None


def _contradiction(asked: str, told: Any, hint: str) -> OptionError:
    return OptionError(
        f"{asked} contradicts --resume: the search was started with "
        f"{'none' if told is None else told}",
        hint=f"{hint}; for another search, leave out --resume",
    )


def _guess_mode(metric: str) -> str:
    from raynb.telemetry.bands import worst_is

    worst = worst_is(metric, None)
    return {"max": "min", "min": "max"}.get(str(worst), "min|max")


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value).casefold(), allowed, 1)
        raise OptionError(
            f"{what} {value!r} is none of {', '.join(allowed)}",
            hint=f"did you mean {near[0]}?" if near else f"for example {what} {allowed[0]}",
        )
