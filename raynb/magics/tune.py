"""The magic ``%%distributed_tune``: parse, build a spec, capture, search."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from IPython.core.magic import line_cell_magic, magics_class

from raynb.errors import OptionError
from raynb.magics import cells
from raynb.magics.options import (
    CELL,
    DATA,
    LOCAL,
    MAX_FAILURES,
    NUM_TO_KEEP,
    STORAGE,
    WORKERS,
    Group,
    Option,
    build_spec,
    look_up,
    look_up_path,
    options,
    pairs,
    whole,
)
from raynb.magics.options import NAME as NAME_OPTION
from raynb.magics.train import RunInterrupted, TrainMagics

NAME = "distributed_tune"

SPACE = Option(
    ("--space",),
    "what is searched: a variable of the notebook, a dict of ray.tune domains",
    metavar="VAR",
    example="--space space",
    variable=True,
)
METRIC = Option(
    ("--metric",),
    "what is tuned; every report has it",
    metavar="NAME",
    example="--metric val_accuracy",
)
MODE = Option(
    ("--mode",),
    "whether less or more of the metric is better: min or max",
    metavar="MODE",
    example="--mode max",
    choices=("min", "max"),
)
NUM_SAMPLES = Option(
    ("--num-samples",),
    "trials, or repetitions of a grid; without it 1 for a grid alone, else 10; -1 for no end",
    metavar="N",
    example="--num-samples 50",
)
SCHEDULER = Option(
    ("--scheduler",),
    "what ends bad trials early: asha, median, pbt, hyperband or none",
    metavar="NAME",
    example="--scheduler asha",
    choices=("asha", "median", "pbt", "hyperband", "none"),
)
SCHEDULER_ARG = Option(
    ("--scheduler-arg",),
    "an option of the scheduler: a literal, or a variable of the notebook; repeatable",
    metavar="NAME=VALUE",
    example="--scheduler-arg grace_period=2",
    variable=True,
    repeat=True,
)
SEARCH = Option(
    ("--search",),
    "where trials' values come from: random, grid, optuna, hyperopt or bohb",
    metavar="NAME",
    example="--search random",
    choices=("random", "grid", "optuna", "hyperopt", "bohb"),
)
MAX_CONCURRENT = Option(
    ("--max-concurrent",),
    "trials at a time; what the cluster holds without it",
    metavar="N",
    example="--max-concurrent 4",
)
TIME_BUDGET = Option(
    ("--time-budget-s",),
    "seconds after which the search ends",
    metavar="SECONDS",
    example="--time-budget-s 600",
)
STOP = Option(
    ("--stop",),
    "a trial ends when this is met; repeatable",
    metavar="METRIC>=NUMBER",
    example="--stop val_accuracy>=0.95",
    repeat=True,
)
SEED = Option(
    ("--seed",),
    "draws the same values again",
    metavar="N",
    example="--seed 7",
)
RESUME = Option(
    ("--resume",),
    "a search that goes on where it was stopped: a variable with its result, or its directory",
    metavar="RESULT|PATH",
    example="--resume result",
    variable=True,
)

SEARCHING = Group(
    "search",
    (SPACE, METRIC, MODE, NUM_SAMPLES, SCHEDULER, SCHEDULER_ARG, SEARCH, MAX_CONCURRENT,
     TIME_BUDGET, STOP, SEED),
)  # fmt: skip
OF_A_TRIAL = Group("workers of each trial", tuple(o for o in WORKERS.options if o is not LOCAL))
STORING = Group("storage and failures", (NAME_OPTION, STORAGE, MAX_FAILURES, NUM_TO_KEEP, RESUME))
TUNE_GROUPS = (SEARCHING, OF_A_TRIAL, DATA, STORING, CELL)


@magics_class
class TuneMagics(TrainMagics):
    """The cell magic that searches."""

    @line_cell_magic
    @options(f"%%{NAME} [options]", TUNE_GROUPS)
    def distributed_tune(self, line: str, cell: str | None = None) -> None:
        """Search for the config with which the code of this cell does best.

        The cell is what %%distributed_train takes: the train function's body, or the definition
        of `train_func(config)`. Each trial runs it with a config from the space, and reports the
        metric with ray.train.report, ray.tune.report or raynb.log. The outcome is bound to
        `result`.
        """
        __tracebackhide__ = True
        here = None if cell is None else cells.locate(self.shell, NAME, line, cell)
        self._magic(NAME, self.distributed_tune, line, here)

    def _spec(self, args: argparse.Namespace) -> Any:
        return tune_spec(args, self.shell.user_ns, self.defaults)

    def _start(self, spec: Any, capture: Any, *, background: bool, echo: bool) -> Any:
        from raynb.api_tune import tune_cell

        return tune_cell(spec, capture, background=background, echo=echo)

    def _interrupted(self, spec: Any, out: str) -> RunInterrupted:
        return RunInterrupted(
            f"search {spec.name} stopped; `{out}` holds what came, and --resume {out} goes on"
        )


def tune_spec(args: argparse.Namespace, namespace: Mapping[str, Any], defaults: Any) -> Any:
    """Make the spec of a search from a magic line and the configured defaults.

    Raises
    ------
    OptionError
    """
    from raynb.tuning.spec import Criterion, TuneSpec

    if args.space is None:
        raise OptionError(
            "--space is missing: what is searched?",
            hint='space = {"lr": tune.loguniform(1e-4, 1e-1)} in a cell before, then --space space',
        )
    resume = args.resume
    args.local, args.best, args.resume = False, None, None
    run = build_spec(args, namespace, defaults)
    return TuneSpec(
        **{f.name: getattr(run, f.name) for f in dataclasses.fields(run)}
        | {"resume": None if resume is None else look_up_path(RESUME, resume, namespace)},
        space=look_up(SPACE, args.space, namespace),
        metric=args.metric or "",
        mode=args.mode or "",
        num_samples=whole(NUM_SAMPLES, args.num_samples, -1, None),
        scheduler=args.scheduler or "none",
        scheduler_args={
            name: _value(text, namespace) for name, text in pairs(SCHEDULER_ARG, args.scheduler_arg)
        },
        search=args.search or "random",
        max_concurrent=whole(MAX_CONCURRENT, args.max_concurrent, 1, None),
        time_budget_s=_seconds(args.time_budget_s),
        stop=tuple(Criterion.parse(text) for text in args.stop or ()),
        seed=whole(SEED, args.seed, 0, None),
    )


def _value(text: str, namespace: Mapping[str, Any]) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return look_up(SCHEDULER_ARG, text, namespace)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise OptionError(
            f"{TIME_BUDGET.title} {text!r} is not a number of seconds",
            hint=f"for example {TIME_BUDGET.example}",
        ) from None
