"""Hooks inside a Ray Train worker: a tee on ``report`` and on what hands out data and models."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
import ray.train.v2._internal.execution.train_fn_utils as train_fn_utils
import ray.util.debug


@contextlib.contextmanager
def hooks(
    *,
    on_report: Callable[[Mapping[Any, Any], Any], contextlib.AbstractContextManager[Any]],
    on_shard: Callable[[Any, str], None],
) -> Iterator[None]:
    """Watch what the train function does through Ray Train, until the block ends.

    Reason for the internals: ``ray.train.report`` may have been imported by name anywhere, also
    before the run; every public function of ``ray.train`` goes through this one object, so a
    subclass of it sees them all and no name the user sees is replaced.

    Parameters
    ----------
    on_report : callable
        Gets the metrics and the checkpoint, returns a context in which Ray's own report runs; the
        context's value, if not None, replaces the metrics that Ray gets.
    on_shard : callable
        Gets the ``DataIterator`` that ``get_dataset_shard`` returns, and the dataset's name.
    """
    utils = train_fn_utils.get_train_fn_utils()
    base = type(utils)

    class Watched(base):  # type: ignore[valid-type,misc]
        def report(self, metrics: Any, checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            with on_report(metrics, checkpoint) as replaced:
                return super().report(
                    metrics if replaced is None else replaced, checkpoint, *args, **kwargs
                )

        def get_dataset_shard(self, dataset_info: Any) -> Any:
            shard = super().get_dataset_shard(dataset_info)
            on_shard(shard, dataset_info.dataset_name)
            return shard

    utils.__class__ = Watched
    try:
        yield
    finally:
        utils.__class__ = base


@contextlib.contextmanager
def refuse_v1_session() -> Iterator[None]:
    """Make ``ray.air.session`` raise, until the block ends.

    In V2 its functions do nothing: they warn once in a process and return None, and what was
    reported is lost.
    """
    ray.util.debug.reset_log_once()  # a warm worker has had jobs before
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", r".*is meant to only be called inside a function that is executed by a Tuner"
        )
        yield


#: What the exchanged functions do, by their name.
_prepare: dict[str, Callable[..., Any]] = {}


def watch_prepare(
    *, on_loader: Callable[[Any], None], on_model: Callable[[Any], None]
) -> Callable[[], None] | None:
    """Let ``prepare_data_loader`` and ``prepare_model`` tell what they return.

    Reason for the internals: the functions have no hook. Their code is exchanged, so that whoever
    holds one of them already, as a train function that was pickled with it, is seen too.

    Returns
    -------
    callable or None
        Undoes it. None as long as the process has not imported ``ray.train.torch``.
    """
    home = sys.modules.get("ray.train.v2.torch.train_loop_utils")
    if not hasattr(home, "prepare_data_loader"):
        return None
    undo = contextlib.ExitStack()
    for stand_in, tell in ((_prepare_data_loader, on_loader), (_prepare_model, on_model)):
        name = stand_in.__name__.removeprefix("_")
        undo.callback(_exchange(getattr(home, name), name, stand_in, tell))
    return undo.close


def _exchange(
    function: Any, name: str, stand_in: Any, tell: Callable[[Any], None]
) -> Callable[[], None]:
    code = function.__code__
    original = types.FunctionType(code, function.__globals__, name, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__

    def call(*args: Any, **kwargs: Any) -> Any:
        prepared = original(*args, **kwargs)
        tell(prepared)
        return prepared

    def restore() -> None:
        function.__code__ = code
        del function.__wrapped__

    _prepare[name] = call
    function.__wrapped__ = original  # so that its signature still shows
    function.__code__ = stand_in.__code__
    return restore


# The code of these runs as Ray's functions, so they find what they need by importing it.


def _prepare_data_loader(*args: Any, **kwargs: Any) -> Any:
    from raynb._ray import worker

    return worker._prepare["prepare_data_loader"](*args, **kwargs)


def _prepare_model(*args: Any, **kwargs: Any) -> Any:
    from raynb._ray import worker

    return worker._prepare["prepare_model"](*args, **kwargs)


class ShareOf:
    """Asks Ray for a rank's part of a dataset: its rows, among how many ranks, and which.

    Calling it tells these three, or None until Ray has answered; raises when Ray can't know.

    Reason for the internals: Ray Data has no public way to learn how large a shard is
    (ray-project/ray#37634), nor that an equal split drops rows.

    Parameters
    ----------
    shard : ray.data.DataIterator or ray.data.Dataset
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._answer: Any = None

    def __call__(self) -> tuple[int, int, int] | None:
        coordinator = getattr(self._shard, "_coord_actor", None)
        if coordinator is None:  # each rank reads the whole dataset
            dataset = getattr(self._shard, "_base_dataset", self._shard)
            return int(dataset._meta_count()), 1, 0
        if self._answer is None:
            self._answer = coordinator.__ray_call__.remote(_split_rows)
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        rows = int(ray.get(self._answer))
        return rows, self._shard._world_size, self._shard._output_split_idx


def _split_rows(coordinator: Any) -> int | None:
    """Rows of the dataset that a coordinator splits equally; None where no metadata tells."""
    split = coordinator._base_dataset._logical_plan.dag
    rows: int | None = split.input_dependencies[0].infer_metadata().num_rows
    return rows if split.equal else None
