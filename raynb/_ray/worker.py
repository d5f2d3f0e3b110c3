"""Hooks inside a Ray Train worker: a tee on ``report`` and on what hands out data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray.train.v2._internal.execution.train_fn_utils as train_fn_utils


@contextlib.contextmanager
def hooks(
    *,
    on_report: Callable[[Mapping[Any, Any], Any], contextlib.AbstractContextManager[Any]],
    on_loader: Callable[[Any], None],
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
    on_loader : callable
        Gets the ``DataLoader`` that ``prepare_data_loader`` returns.
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
    restore = _watch_prepare_data_loader(on_loader)
    try:
        yield
    finally:
        utils.__class__ = base
        restore()


def _watch_prepare_data_loader(on_loader: Callable[[Any], None]) -> Callable[[], None]:
    """Let ``prepare_data_loader`` tell what it returns; gives back what undoes it.

    Reason for the internals: the function has no hook. Its code is exchanged where it is defined
    and where the public module shows it, so that both ways of reaching it are seen.
    """
    import ray.train.torch as public
    import ray.train.v2.torch.train_loop_utils as home

    original = home.prepare_data_loader

    def prepare_data_loader(*args: Any, **kwargs: Any) -> Any:
        loader = original(*args, **kwargs)
        on_loader(loader)
        return loader

    prepare_data_loader.__wrapped__ = original  # type: ignore[attr-defined]
    prepare_data_loader.__doc__ = original.__doc__
    for module in (public, home):
        module.prepare_data_loader = prepare_data_loader

    def restore() -> None:
        for module in (public, home):
            module.prepare_data_loader = original

    return restore
