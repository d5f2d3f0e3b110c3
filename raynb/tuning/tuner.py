"""From a spec to a Tuner, and from a user's Tuner to one that tells what it does."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs

from raynb.engine.spec import filesystem_of, join_storage
from raynb.engine.trainer import TrainerMaker
from raynb.tuning.algorithms import OWN_LIMIT, make_scheduler, make_search
from raynb.tuning.spec import TuneSpec
from raynb.worker.program import CellProgram
from raynb.worker.runtime import Link
from raynb.worker.trial import RankEntry, TrialLink, run_trial


@dataclass
class TunerMaker:
    """Makes the search's Tuner where ``fit()`` is called.

    Attributes
    ----------
    spec : TuneSpec
        Checked, with ``use_gpu`` decided.
    fn : callable
        The train function.
    program : CellProgram or None
        The cell it came from.
    link : Link
    reports : bool or None
        Whether the train function calls ``report`` itself; None when nobody knows.
    concurrent : int or None
        Trials at a time, where Tune can't find it out by itself.
    env : dict of str to str
        Ray Train's settings for the trials that have worker groups.
    """

    spec: TuneSpec
    fn: Callable[..., Any]
    program: CellProgram | None
    link: Link
    reports: bool | None = None
    concurrent: int | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> Any:
        from ray import tune

        from raynb._ray.tune import most_of_a_trial
        from raynb.tuning.callback import SearchCallback, SearchStopper

        spec = self.spec
        if self.concurrent is not None:
            spec = dataclasses.replace(spec, max_concurrent=self.concurrent)
        trainable = tune.with_resources(self._trainable(), self._resources())
        filesystem, root = filesystem_of(spec.restore or spec.storage_path)
        # fsspec's: from the URI alone Ray could not make it.
        own = filesystem if isinstance(filesystem, pafs.PyFileSystem) else None
        if spec.restore is not None:
            return tune.Tuner.restore(
                root if own else spec.restore,
                trainable,
                resume_errored=True,
                storage_filesystem=own,
            )
        checkpoints: dict[str, Any] = {"num_to_keep": spec.num_to_keep}
        if spec.num_to_keep is not None:
            checkpoints |= {
                "checkpoint_score_attribute": spec.metric,
                "checkpoint_score_order": spec.mode,
            }
        scheduler = make_scheduler(spec)
        title = scheduler_title(spec.scheduler)
        callback = SearchCallback().named(title, most_of_a_trial(scheduler))
        return tune.Tuner(
            trainable,
            param_space=spec.param_space,
            tune_config=tune.TuneConfig(
                metric=spec.metric,
                mode=spec.mode,
                num_samples=spec.num_samples or 1,
                scheduler=scheduler,
                search_alg=make_search(spec),
                max_concurrent_trials=None if spec.search in OWN_LIMIT else spec.max_concurrent,
                time_budget_s=spec.time_budget_s,
            ),
            run_config=tune.RunConfig(
                name=spec.name,
                storage_path=root if own else spec.storage_path,
                storage_filesystem=own,
                stop=SearchStopper(spec.metric, spec.stop),
                # A worker group restarts itself.
                failure_config=tune.FailureConfig(
                    max_failures=0 if spec.distributed else spec.max_failures
                ),
                checkpoint_config=tune.CheckpointConfig(**checkpoints),
                callbacks=[callback],
                verbose=0,
            ),
        )

    def _resources(self) -> Any:
        from ray.tune import PlacementGroupFactory

        if self.spec.distributed:
            # Its workers have a placement group of their own, and the driver only waits for them.
            # Tune wants a resource: a byte is nothing that they could miss.
            return PlacementGroupFactory([{"memory": 1.0}])
        bundle = dict(self.spec.bundle)
        if self.spec.accelerator_type:
            bundle[f"accelerator_type:{self.spec.accelerator_type}"] = 0.001
        return PlacementGroupFactory([bundle])

    def _trainable(self) -> Callable[[dict[str, Any]], Any]:
        # Plain functions of one name: Tune restores a search by it.
        if self.spec.distributed:
            return self._group_trial()
        # Not the spec: what makes and checks it would be imported for each trial.
        link, fn, program, reports = self.link, self.fn, self.program, self.reports
        metric, datasets, env = self.spec.metric, self.spec.datasets, self.spec.env

        def trial(config: dict[str, Any]) -> Any:
            import ray.tune

            trial_id = ray.tune.get_context().get_trial_id()
            out = run_trial(
                link,
                TrialLink(trial_id, metric, reports),
                fn,
                program,
                config,
                datasets=datasets,
                env=env,
            )
            # Tune takes these as a last report, and refuses anything else.
            return out if isinstance(out, (dict, float)) else None

        return trial

    def _group_trial(self) -> Callable[[dict[str, Any]], Any]:
        link, fn, program, spec, reports, env = (
            self.link, self.fn, self.program, self.spec, self.reports, self.env
        )  # fmt: skip

        def trial(config: dict[str, Any]) -> None:
            import ray.tune
            from ray.tune.integration.ray_train import TuneReportCallback

            from raynb._ray.controller import name_own_cluster
            from raynb._ray.tune import report_queue

            for name, value in env.items():
                os.environ.setdefault(name, value)
            context = ray.tune.get_context()
            directory = os.path.basename(str(context.get_trial_dir()).rstrip("/"))
            callback = TuneReportCallback()
            trial_link = TrialLink(
                context.get_trial_id(), spec.metric, reports, report_queue(callback)
            )
            path = join_storage(join_storage(spec.storage_path, spec.name), directory)
            of_trial = spec.of_trial(path, config)
            entry = RankEntry(link, trial_link, fn, program)
            trainer = TrainerMaker(of_trial, entry, program, link).plain()
            trainer.run_config.callbacks = [callback]
            name_own_cluster()
            trainer.fit()

        return trial


def scheduler_title(scheduler: str) -> str:
    """A scheduler as texts name it."""
    return {
        "asha": "ASHA",
        "pbt": "PBT",
        "hyperband": "HyperBand",
        "median": "the median rule",
    }.get(scheduler, "the scheduler")


@dataclass
class GivenTuner:
    """A Tuner that the user built, watched.

    Attributes
    ----------
    parts : dict
        From :func:`raynb._ray.tune.tuner_parts`.
    link : Link
    """

    parts: dict[str, Any]
    link: Link

    def __call__(self) -> Any:
        from ray import tune

        from raynb._ray.tune import most_of_a_trial, restored, run_config_of
        from raynb.tuning.callback import SearchCallback

        parts = self.parts
        trainable = with_telemetry(parts["trainable"], self.link)
        tune_config = parts["tune_config"]
        name = type(tune_config.scheduler).__name__ if tune_config.scheduler else "the scheduler"
        watched = SearchCallback().named(name, most_of_a_trial(tune_config.scheduler))
        run_config = copy.copy(parts["run_config"])
        # The panel shows what Tune would print into the supervisor's output.
        run_config.verbose = 0
        run_config.progress_reporter = None
        if parts["resume_config"] is not None:
            path = join_storage(str(run_config.storage_path), run_config.name)
            tuner = restored(
                path, trainable, parts["param_space"], parts["resume_config"],
                run_config.storage_filesystem,
            )  # fmt: skip
            own = run_config_of(tuner)
            kept = [c for c in own.callbacks or () if not isinstance(c, SearchCallback)]
            own.callbacks = [*kept, watched]
            return tuner
        run_config.callbacks = [*(run_config.callbacks or ()), watched]
        return tune.Tuner(
            trainable,
            param_space=parts["param_space"],
            tune_config=tune_config,
            run_config=run_config,
        )


def with_telemetry(trainable: Any, link: Link) -> Any:
    """A user's function with telemetry around it; classes and registered names stay as they are."""
    if not inspect.isfunction(trainable) or inspect.isgeneratorfunction(trainable):
        return trainable
    # Its files are in the directory that Tune gives each trial.
    link = dataclasses.replace(link, cwd="")

    @functools.wraps(trainable)
    def trial(config: dict[str, Any]) -> Any:
        import ray.tune

        told = TrialLink(ray.tune.get_context().get_trial_id(), None, True)
        return run_trial(link, told, trainable, None, config, datasets={}, env={})

    return trial
