"""Ray Train's context for one job of a long-lived worker group: its own name, storage, reports.

Reason for the internals: Ray ties a run's name, storage and checkpoints to the trainer. A group
that stays warm runs many jobs under one trainer, and each is to have what a run of its own has.
Ray's own classes do it: a job gets its own ``TrainContext``, whose reports go to its own
``CheckpointManager``; only who carries them there differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import ray
import ray.train
import ray.train.v2._internal.execution.context as train_context
from ray.train.v2._internal.data_integration.dataset_manager import DatasetManager
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.checkpoint.sync_actor import SynchronizationBarrierResetError
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2.api.exceptions import WorkerGroupError
from ray.train.v2.api.result import Result


class Meeting:
    """Where the ranks of a job meet: the part of Ray's synchronization actor that reports use."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._changed = threading.Condition()
        self._there: dict[int, int] = {}  # rank -> which collective it is in
        self._data: dict[int, Any] = {}
        self._left: dict[int, int] = {}
        self._ended = False

    def broadcast_from_rank_zero(
        self, world_rank: int, data: Any, collective_seq: int | None = None, **_: Any
    ) -> Any:
        """Wait for every rank's call of this number, and give rank 0's data.

        Raises
        ------
        SynchronizationBarrierResetError
            When the job's attempt ends meanwhile.
        """
        turn = int(collective_seq or 0)
        with self._changed:
            self._there[world_rank] = turn
            if world_rank == 0:
                self._data[turn] = data
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._all_there(turn))
            if not self._all_there(turn):
                raise SynchronizationBarrierResetError("the attempt has ended")
            found = self._data[turn]
            self._left[turn] = self._left.get(turn, 0) + 1
            if self._left[turn] == self._world_size:
                del self._data[turn], self._left[turn]
            return found

    def _all_there(self, turn: int) -> bool:
        there = [1 for t in self._there.values() if t >= turn]
        return len(there) == self._world_size and turn in self._data

    def end(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Reports:
    """A job's checkpoints and datasets, where its supervisor is.

    Parameters
    ----------
    run_config : ray.train.RunConfig
        The job's: name, storage and which checkpoints are kept.
    datasets : dict of str to ray.data.Dataset
    """

    def __init__(self, run_config: Any, datasets: Mapping[str, Any]) -> None:
        self.storage = run_config.storage_context
        self._datasets = dict(datasets)
        self._data: Any = None
        # Ray's manager and its data sets' are coroutines' classes: this is their loop.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="raynb-job-reports", daemon=True
        )
        self._thread.start()
        self._manager = self._run(
            _made(CheckpointManager, run_config.checkpoint_config, self.storage)
        )
        self._queues: dict[int, deque[Any]] = {}

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def begin(self, world_size: int, node_ids: list[str]) -> dict[str, Any]:
        """An attempt begins; gives what its ranks start from."""
        self._queues = {rank: deque() for rank in range(world_size)}
        if self._datasets:
            self._end_data()
            made = {k: v() if callable(v) else v for k, v in self._datasets.items()}
            from ray.data import DataContext

            self._data = self._run(
                _made(
                    DatasetManager,
                    made,
                    ray.train.DataConfig(),
                    DataContext.get_current(),
                    world_size,
                    node_ids,
                )
            )
        latest = self._manager.latest_checkpoint_result
        return {
            "checkpoint": latest.checkpoint if latest else None,
            "index": self._manager._current_report_index,
            "datasets": sorted(self._datasets),
        }

    def report(self, rank: int, report: Any) -> None:
        """Take a rank's report; the one of all ranks goes to Ray's checkpoint manager."""
        self._run(self._take(rank, report))

    async def _take(self, rank: int, report: Any) -> None:
        self._queues[rank].append(report)
        if not all(self._queues.values()):
            return
        reports = [self._queues[r].popleft() for r in sorted(self._queues)]
        saved = [r for r in reports if r.checkpoint is not None]
        if len({r.checkpoint.path for r in saved}) > 1:
            raise RuntimeError("the ranks' checkpoints have different paths")
        one = _TrainingReport(
            checkpoint=saved[0].checkpoint if saved else None,
            metrics=reports[0].metrics,
            validation=False,
        )
        self._manager.after_report(one, [r.metrics for r in reports])

    def get_all_reported_checkpoints(self, *args: Any) -> Any:
        return self._run(self._manager.get_all_reported_checkpoints(*args))

    def dataset_shard(self, info: Any) -> Any:
        return self._run(self._data.get_dataset_shard(info))

    def result(self, return_value: Any) -> Any:
        """Ray's Result of the job, as its controller makes it."""
        latest = self._manager.latest_checkpoint_result
        best = [(r.checkpoint, r.metrics) for r in self._manager.best_checkpoint_results]
        return Result(
            metrics=latest.metrics if latest else None,
            checkpoint=latest.checkpoint if latest else None,
            error=None,
            path=self.storage.experiment_fs_path,
            best_checkpoints=best,
            metrics_dataframe=pd.DataFrame([m for _, m in best]) if best else None,
            _storage_filesystem=self.storage.storage_filesystem,
            return_value=return_value,
        )

    def release(self) -> None:
        """Let no rank wait for the others' part in a dataset any more."""
        for task in asyncio.all_tasks(self._loop):
            self._loop.call_soon_threadsafe(task.cancel)

    def _end_data(self) -> None:
        if self._data is not None:
            with contextlib.suppress(Exception):
                self._data.shutdown_data_executors()
            self._data = None

    def close(self) -> None:
        """End what reads the datasets."""
        self._end_data()
        self.release()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()


async def _made(cls: Any, *args: Any) -> Any:
    return cls(*args)


def group_error(text: str, failures: Mapping[int, BaseException]) -> BaseException:
    """The error that ``fit()`` raises when workers fail."""
    error: BaseException = WorkerGroupError(text, dict(failures))
    return error


def worker_error(error: BaseException, text: str) -> BaseException:
    """A worker's exception with its traceback's text, as Ray sends it."""
    wrapped: BaseException = UserExceptionWithTraceback(error, text)
    return wrapped


class _Queue:
    """Stands for the queue from which Ray's controller takes reports: they go to the job's host.

    The controller that looks into it belongs to the group, and is told nothing of its jobs.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send

    def put(self, report: Any) -> None:
        self._send(report)

    def get_nowait(self) -> Any:
        raise queue.Empty

    def task_done(self) -> None:
        """Nothing waits for it."""


class _Runner:
    """Stands for Ray's thread runner: an upload that fails in the background fails the job."""

    def __init__(self, group: Any, on_error: Callable[[BaseException], None]) -> None:
        self._group = group
        self._on_error = on_error

    def get_exception_queue(self) -> Any:
        return self

    def put(self, error: BaseException) -> None:
        self._on_error(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class _Shards:
    def __init__(self, host: Any, names: list[str]) -> None:
        self._host = host
        self._names = names
        self._known: dict[str, Any] = {}

    def get_dataset_shard(self, info: Any) -> Any:
        name = info.dataset_name
        if name not in self._names:
            raise KeyError(
                f"Dataset shard for '{name}' not found. Please ensure that the dataset is passed "
                "through the Trainer `datasets` argument."
            )
        if name not in self._known:
            self._known[name] = ray.get(self._host.dataset_shard.remote(info))
        return self._known[name]


@contextlib.contextmanager
def job_context(
    host: Any,
    run_config: Any,
    config: dict[str, Any],
    begin: Mapping[str, Any],
    on_error: Callable[[BaseException], None],
) -> Iterator[None]:
    """Let Ray Train's functions mean one job of this worker's group until the block ends.

    Parameters
    ----------
    host : object
        The job's actor: ``report``, ``dataset_shard``, ``broadcast_from_rank_zero`` and
        ``get_all_reported_checkpoints``, each with a ``remote``.
    run_config : ray.train.RunConfig
        The job's, with its storage context made.
    config : dict
        The train function's.
    begin : dict
        From :meth:`Reports.begin`.
    on_error : callable
        Gets what goes wrong in a background upload.
    """
    group = train_context.get_train_context()
    rank = group.get_world_rank()
    uploads = ThreadPoolExecutor(max_workers=train_context.MAX_CHECKPOINT_UPLOAD_THREADS)
    job = dataclasses.replace(
        group,
        train_run_context=dataclasses.replace(
            group.train_run_context, run_config=run_config, train_loop_config=config
        ),
        execution_context=dataclasses.replace(
            group.execution_context,
            synchronization_actor=host,
            result_queue=_Queue(lambda report: ray.get(host.report.remote(rank, report))),
            training_thread_runner=_Runner(
                group.execution_context.training_thread_runner, on_error
            ),
        ),
        storage_context=run_config.storage_context,
        controller_actor=host,
        dataset_shard_provider=_Shards(host, begin["datasets"]),
        checkpoint=begin["checkpoint"],
        current_report_index=begin["index"],
        report_call_index=begin["index"],
        collective_seq=0,
        report_order_condition=threading.Condition(),
        checkpoint_upload_threadpool=uploads,
    )
    train_context.set_train_context(job)
    try:
        yield
        uploads.shutdown()  # as Ray does at a run's end: the last checkpoint is there then
    finally:
        uploads.shutdown(wait=False, cancel_futures=True)
        train_context.set_train_context(group)


def check_returned(value: Any) -> None:
    """Refuse what Ray Train refuses to return from a train function."""
    from ray.air._internal.torch_utils import contains_tensor  # brings torch

    if contains_tensor(value):
        raise ValueError(
            "Returning objects containing Torch tensors from the training function is not "
            "supported as it will throw an exception on deserialization. You can either convert "
            "the tensors to Python objects (ex: `.numpy()`, `.item()`, etc.) or save tensors as "
            "part of the checkpoint files instead."
        )
