"""Ray Tune's internals: its controller, Train's API inside a trial, and a Tuner's parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray.tune

# Imported before a trial seems to be none: a train function may start a trainer of its own in the
# way that Ray documents, whose callback asks whether it is in one.
import ray.tune.integration.ray_train
import ray.tune.trainable.trainable_fn_utils as tune_fn_utils
from ray.train._internal.session import get_session
from ray.train.v2._internal.execution import train_fn_utils


def tell_controller(told: Callable[[Any], None]) -> None:
    """Let ``told`` have the TuneController of each ``Tuner.fit()`` in this process.

    Reason for the internals: only the controller can stop one trial at once, or a search that
    waits, and no callback, stopper or scheduler is handed it without taking the user's own one's
    place. The supervisor's process hosts one search, so nobody else's is touched.
    """
    import ray.tune.tune as home

    base = home.TuneController

    class Told(base):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            told(self)

    home.TuneController = Told


class _TrialFnUtils(train_fn_utils.LocalTrainFnUtils):
    """``ray.train`` in a trial: a worker group of one, whose reports are Tune's."""

    def __init__(self, name: str, shards: Mapping[str, Any], send: Callable[..., None]) -> None:
        super().__init__(name, dict(shards))
        self._send = send

    def report(self, metrics: Any, checkpoint: Any = None, *args: Any, **kwargs: Any) -> None:
        self._send(metrics, checkpoint=checkpoint)

    def get_checkpoint(self) -> Any:
        return ray.tune.get_checkpoint()


@contextlib.contextmanager
def train_api_in_trial(name: str, shards: Mapping[str, Any]) -> Iterator[Callable[..., None]]:
    """Let ``ray.train``'s functions work inside a Tune trial, until the block ends.

    ``ray.train.report`` and ``ray.tune.report`` then take the same way, so that one hook sees
    both. Reason for the internals: Ray refuses ``ray.train.report`` in a trial, and one cell has to
    run under ``%%distributed_train`` and ``%%distributed_tune`` alike.

    Parameters
    ----------
    name : str
        The search's name.
    shards : dict of str to DataIterator

    Yields
    ------
    callable
        Reports to Tune without any hook.
    """
    session: Any = get_session()
    send = session.report
    train_fn_utils.set_train_fn_utils(_TrialFnUtils(name, shards, send))
    in_session = tune_fn_utils._in_tune_session

    def report(metrics: Any, checkpoint: Any = None) -> None:
        train_fn_utils.get_train_fn_utils().report(metrics, checkpoint)

    session.report = report
    tune_fn_utils._in_tune_session = lambda: False
    try:
        yield send
    finally:
        tune_fn_utils._in_tune_session = in_session
        del session.report
        train_fn_utils.set_train_fn_utils(None)


def report_queue(callback: Any) -> Any:
    """The queue by which a ``TuneReportCallback`` takes a Train run's metrics to its trial.

    Reason for the internals: ``raynb.log`` is a report of the trial where it holds the tuned
    metric, and Train's own ``report`` would make every rank wait for it.
    """
    return callback._training_actor_item_queue


def most_of_a_trial(scheduler: Any) -> tuple[str, float] | None:
    """What ASHA or HyperBand counts, and how much of it ends a trial; None for other schedulers.

    Reason for the internals: a trial that came to ``max_t`` ends as a pruned one does, and only
    these two values tell them apart.
    """
    most = getattr(scheduler, "_max_t", None) or getattr(scheduler, "_max_t_attr", None)
    counted = getattr(scheduler, "_time_attr", None)
    return None if most is None or counted is None else (str(counted), float(most))


def tuner_parts(tuner: Any) -> dict[str, Any]:
    """What a user's Tuner is made of, to build an equal one in another process.

    Reason for the internals: a Tuner gives none of it back, and pickled it loses its trainable.

    Returns
    -------
    dict
        ``trainable``, ``param_space``, ``tune_config``, ``run_config``, and ``resume_config`` for a
        restored one, else None.
    """
    inner = tuner._local_tuner
    return {
        "trainable": inner.trainable,
        "param_space": inner.param_space,
        "tune_config": inner._tune_config,
        "run_config": inner._run_config,
        "resume_config": inner._resume_config if inner._is_restored else None,
    }


def restored(
    path: str, trainable: Any, param_space: Any, resume_config: Any, filesystem: Any
) -> Any:
    """``Tuner.restore`` with a whole resume config, which the public flags can't express."""
    return ray.tune.Tuner.restore(
        path,
        trainable,
        param_space=param_space,
        storage_filesystem=filesystem,
        _resume_config=resume_config,
    )


def run_config_of(tuner: Any) -> Any:
    """A Tuner's run config, to add callbacks to one that was restored."""
    return tuner._local_tuner._run_config
