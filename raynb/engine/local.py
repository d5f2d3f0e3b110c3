"""Local mode: Ray's ``num_workers=0``, the train function in this process."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raynb._ray.local import train_context_of_this_run
from raynb.engine.collector import Collector, RunFacts
from raynb.engine.supervisor import Outcome


class LocalCollector(Collector):
    """The collector of a run in this process; keeps the checkpoints, which Ray does not here."""

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self.checkpoints: list[tuple[Any, dict[str, Any]]] = []
        self.group_starting(1)

    def local_report(self, metrics: Mapping[Any, Any], checkpoint: Any) -> None:
        """Copy a reported checkpoint to storage: the train function's own directory may go."""
        if checkpoint is None:
            return
        import pyarrow.fs as pafs
        import ray.train

        filesystem, run_dir = self.storage
        path = f"{run_dir}/checkpoint_{len(self.checkpoints):06d}"
        filesystem.create_dir(path, recursive=True)
        pafs.copy_files(
            checkpoint.path,
            path,
            source_filesystem=checkpoint.filesystem,
            destination_filesystem=filesystem,
        )
        kept = ray.train.Checkpoint(path, filesystem)
        self.checkpoints.append((kept, dict(metrics)))


def fit_here(
    make_trainer: Callable[[], Any], collector: LocalCollector
) -> tuple[Outcome, BaseException | None]:
    """Run ``fit()`` of the trainer that ``make_trainer`` makes, here, and tell how it ended.

    Returns
    -------
    Outcome
    BaseException or None
        The train function's own exception, with its traceback, for the debugger.
    """
    collector.set_state("training", "in this process")
    raised: BaseException | None = None
    result: Any = None
    try:
        with _own_signal_handler(), _quiet(), train_context_of_this_run():
            result = make_trainer().fit()
        state = "finished"
    except KeyboardInterrupt as error:
        raised, state = error, "stopped"
    except BaseException as error:
        raised, state = error, "failed"
    failure = collector.first_failure() if state == "failed" else None
    shown = None
    if failure is not None:
        from raynb.engine.supervisor import shown_error

        assert raised is not None
        shown = shown_error(failure, raised)
    result = _ray_result(result, collector)
    collector.history.flush()
    collector.set_state(state, shown["title"] if shown else "", error=shown)
    collector.write_record()
    return Outcome(state, result, raised if state == "failed" else None, failure, 0), raised


def _ray_result(result: Any, collector: LocalCollector) -> Any:
    """Ray's Result with what local mode leaves out: the path and the kept checkpoints."""
    import pandas as pd
    import ray.train

    filesystem, run_dir = collector.storage
    kept = collector.checkpoints
    return ray.train.Result(
        metrics=kept[-1][1] if kept else getattr(result, "metrics", None),
        checkpoint=kept[-1][0] if kept else None,
        error=None,
        path=run_dir,
        best_checkpoints=list(kept),
        metrics_dataframe=pd.DataFrame([m for _, m in kept]) if kept else None,
        return_value=getattr(result, "return_value", None),
        _storage_filesystem=filesystem,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # The panel shows what Ray Train would log into the cell.
    logger = logging.getLogger("ray.train")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _own_signal_handler() -> Iterator[None]:
    # Ray's fit() on the main thread replaces the handler of SIGINT and never puts it back.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
