"""Schedulers and search algorithms by name: what each needs, and how it is made."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

from raynb.errors import OptionError
from raynb.tuning import space as spaces

if TYPE_CHECKING:
    from raynb.tuning.spec import TuneSpec

#: Name -> Ray Tune's class in ``ray.tune.schedulers``.
SCHEDULERS = {
    "asha": "ASHAScheduler",
    "median": "MedianStoppingRule",
    "pbt": "PopulationBasedTraining",
    "hyperband": "HyperBandScheduler",
    "none": "FIFOScheduler",
}
#: Name -> the packages that it needs, as they are imported and as pip knows them.
SEARCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "random": (),
    "grid": (),
    "optuna": (("optuna", "optuna"),),
    "hyperopt": (("hyperopt", "hyperopt"),),
    "bohb": (("hpbandster", "hpbandster"), ("ConfigSpace", "ConfigSpace")),
}
#: Those that limit by themselves how many trials there are at a time.
OWN_LIMIT = ("random", "grid")
#: Set from the search's own options.
_GIVEN = ("self", "metric", "mode")


def make_scheduler(spec: TuneSpec) -> Any:
    """The scheduler that a spec asks for.

    Raises
    ------
    OptionError
        For an option that it does not have or does not take.
    """
    import ray.tune.schedulers as home

    name = spec.scheduler
    if spec.search == "bohb":
        if name not in ("hyperband", "none"):
            raise OptionError(
                f"--search bohb goes with its own scheduler, not with {name}",
                hint="leave out --scheduler, or use --scheduler hyperband",
            )
        kind: Any = home.HyperBandForBOHB
    else:
        kind = getattr(home, SCHEDULERS[name])
    known = [p for p in inspect.signature(kind.__init__).parameters if p not in _GIVEN]
    for key in spec.scheduler_args:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise OptionError(
                f"the scheduler {name} has no option {key!r}",
                hint=f"did you mean {near[0]}?"
                if near
                else (f"it has {', '.join(known)}" if known else "it has none"),
            )
    args = dict(spec.scheduler_args)
    if name == "pbt" and "hyperparam_mutations" not in args:
        # What is searched is what may change during training.
        args["hyperparam_mutations"] = {
            key: value for key, value in spec.space.items() if spaces.is_domain(value)
        }
    try:
        return kind(**args)
    except Exception as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in spec.scheduler_args.items())
        raise OptionError(
            f"the scheduler {name} does not take {shown or 'its defaults'}: {error}",
            hint="change or leave out --scheduler-arg"
            if shown
            else "give what it needs with --scheduler-arg",
        ) from error


def make_search(spec: TuneSpec) -> Any:
    """The search algorithm that a spec asks for.

    Raises
    ------
    OptionError
        When a package is missing, or the space has what the algorithm can't search.
    """
    name = spec.search
    missing = [pip for module, pip in SEARCHES[name] if importlib.util.find_spec(module) is None]
    if missing:
        raise OptionError(
            f"--search {name} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"pip install {' '.join(missing)}, on the cluster's nodes too; or --search random",
        )
    if name in OWN_LIMIT:
        from ray.tune.search.basic_variant import BasicVariantGenerator

        return BasicVariantGenerator(
            random_state=spec.seed, max_concurrent=spec.max_concurrent or 0
        )
    grids = [key for key, value in spaces.leaves(spec.space) if spaces.is_grid(value)]
    if grids:
        raise OptionError(
            f"--search {name} can't take the grid of {grids[0]!r}",
            hint="use tune.choice([…]) for it, or --search grid",
        )
    if name == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(seed=spec.seed)
    if name == "hyperopt":
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(random_state_seed=spec.seed)
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(seed=spec.seed)
