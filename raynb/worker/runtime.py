"""Runs the train function on a rank with its telemetry around it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raynb.scratch import Scratch, sweep
from raynb.telemetry import clock
from raynb.telemetry.channel import ActorTransport, Channel, Transport
from raynb.telemetry.events import to_value
from raynb.telemetry.loglines import log_name
from raynb.telemetry.samplers import Samplers
from raynb.telemetry.shards_ray import meter_iterator
from raynb.telemetry.shards_torch import meter_loader
from raynb.telemetry.timing import StepMeter
from raynb.telemetry.torch_hooks import PeerWait, watch_steps
from raynb.worker.program import CellProgram, describe_exception
from raynb.worker.stack import where
from raynb.worker.stdio import LogPump

#: Seconds between device samples.
SAMPLE_S = 1.0

_current: Runtime | None = None
_told_no_run = False


def log(metrics: Mapping[str, Any], step: float | None = None) -> None:
    """Log metrics of this rank, from inside a train function, without waiting for anything.

    Outside a run it does nothing, and says so once, so that the same function runs anywhere. In a
    process forked from the worker, such as a DataLoader's, it records nothing.

    Parameters
    ----------
    metrics : dict
        Numbers by name: Python and NumPy scalars, 0-d tensors (a CUDA tensor is read later, off
        the training thread). What is no number is kept as text.
    step : float, optional
        Defaults to one more than the last step this rank logged, starting at 0.

    Raises
    ------
    TypeError
        When ``metrics`` is no mapping.
    """
    global _told_no_run
    if not isinstance(metrics, Mapping):
        raise TypeError(f"raynb.log takes a dict of metrics, not {type(metrics).__name__}")
    if _current is not None:
        _current.log(metrics, step)
    elif not _told_no_run:
        _told_no_run = True
        print("raynb.log: not inside a raynb run, so nothing is recorded", file=sys.stderr)


def resume_from() -> Any:
    """The checkpoint of ``--resume`` for the run of this process; None without one."""
    return None if _current is None else _current.link.resume


@dataclass
class Link:
    """What a worker needs to know of its run.

    Attributes
    ----------
    run : str
        The run's name.
    supervisor : object
        The supervisor's actor handle, or in local mode the collector itself.
    log_dir : str or None
        Local directory for the ranks' log files; None when the storage is remote.
    remote_log_dir : (pyarrow.fs.FileSystem, str) or None
        Where the log file is copied at the end when the storage is remote.
    cwd : str
        The notebook's directory; workers change to it where it exists.
    num_cpus : float
        CPUs that Ray gives each worker.
    resume : ray.train.Checkpoint or None
        What ``--resume`` named.
    """

    run: str
    supervisor: Any
    cwd: str
    log_dir: str | None = None
    remote_log_dir: Any = None
    num_cpus: float = 1.0
    local: bool = False
    resume: Any = None


@dataclass
class TrainEntry:
    """The train function that Ray gets: the user's, with telemetry around it.

    Attributes
    ----------
    link : Link
    fn : callable
        Takes ``config`` or nothing.
    program : CellProgram or None
        The cell that ``fn`` runs, for tracebacks; None for a function from Python.
    """

    link: Link
    fn: Callable[..., Any]
    program: CellProgram | None = None
    __name__: str = field(default="train_func", repr=False)

    def __call__(self, config: dict[str, Any]) -> Any:
        with Runtime(self.link, self.program) as runtime:
            return runtime.run(self.fn, config)


class Runtime:
    """A rank's telemetry for the time its train function runs."""

    def __init__(self, link: Link, program: CellProgram | None) -> None:
        self.link = link
        # Without a cell, tracebacks have no cell lines to name.
        self.program = program or CellProgram("", "", "", "function", "train_func")
        self._stop = threading.Event()
        self._meter = StepMeter()
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._ended = False
        #: Of the log while the storage is remote.
        self._local_logs: Scratch | None = None
        self._undo = contextlib.ExitStack()
        #: What can't be watched before the user's code imports it.
        self._later: list[Callable[[], Callable[[], None] | None]] = []

    def __enter__(self) -> Runtime:
        global _current
        import ray.train

        from raynb._ray.worker import hooks, refuse_v1_session, watch_prepare

        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        # Asked before the thread starts: threads see no Ray Train context of their own.
        gpu, shared = (None, False) if self.link.local else assigned_gpu()
        attempt, transport = self._connect(context)
        self.channel = Channel(
            transport, self.rank, attempt, context.get_world_size(), self.link.run
        )
        self._pump = self._take_stdio(attempt)
        self._undo.enter_context(refuse_v1_session())
        self._undo.enter_context(hooks(on_report=self._report, on_shard=self._shard))
        self._later = [
            functools.partial(watch_prepare, on_loader=self._loader, on_model=self._model),
            functools.partial(watch_steps, self._meter),
        ]
        self._watch_torch()
        self.channel.epoch = self._meter.epoch
        self.channel.collectors.append(self._collect)
        threading.Thread(
            target=self._sample, args=(gpu, shared), name="raynb-sampler", daemon=True
        ).start()
        if not self.link.local and os.path.isdir(self.link.cwd):
            os.chdir(self.link.cwd)
            if self.link.cwd not in sys.path:
                sys.path.insert(0, self.link.cwd)
        self.channel.put("status", "running")
        _current = self
        return self

    def run(self, fn: Callable[..., Any], config: dict[str, Any]) -> Any:
        takes = any(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
            for p in inspect.signature(fn).parameters.values()
        )
        return fn(config) if takes else fn()

    def log(self, metrics: Mapping[Any, Any], step: float | None) -> None:
        self.channel.log(metrics, step)
        self._seen()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        global _current
        if os.getpid() != self._pid:
            return  # a process that the train function forked: the run is its parent's to end
        _current = None
        self._ended = True
        self._stop.set()
        with contextlib.ExitStack() as parts:  # does all of them, last in first out
            # Whatever fails here, how the training ended stays as it is.
            parts.enter_context(contextlib.suppress(Exception))
            if self._pump is not None:
                parts.callback(self._upload_log, self._pump.path)
                parts.callback(self._pump.close)
            parts.callback(self.channel.close, timeout=10.0)
            if self._pump is not None:
                parts.callback(self._pump.uninstall)
            parts.callback(self._undo.close)
            parts.callback(self._tell_end, error)

    def _tell_end(self, error: BaseException | None) -> None:
        if error is None:
            self.channel.put("status", "finished")
        else:
            failure = {**describe_exception(error, self.program), "at": clock.now()}
            with contextlib.suppress(OSError):  # it may be gone
                failure["cwd"] = os.getcwd()
            self.channel.put("failure", failure)

    # -- parts -----------------------------------------------------------------------------------

    def _connect(self, context: Any) -> tuple[int, Transport]:
        import ray

        if self.link.local:
            attempt = self.link.supervisor.hello(self._whoami(context, {}))
            return attempt, _Direct(self.link.supervisor)
        runtime = ray.get_runtime_context()
        who = self._whoami(context, {"node_id": runtime.get_node_id()})
        attempt = ray.get(self.link.supervisor.hello.remote(who), timeout=60)
        return attempt, ActorTransport(self.link.supervisor.ingest)

    def _whoami(self, context: Any, more: dict[str, Any]) -> dict[str, Any]:
        import socket

        import ray

        return {
            "run": self.link.run,
            "rank": self.rank,
            "world_size": context.get_world_size(),
            "node": socket.gethostname(),
            "ip": "127.0.0.1" if self.link.local else ray.util.get_node_ip_address(),
            "pid": os.getpid(),
            **more,
        }

    def _take_stdio(self, attempt: int) -> LogPump | None:
        if self.link.local:
            return None  # in the kernel, output belongs in the cell
        directory = self.link.log_dir
        if directory is None:
            self._local_logs = Scratch("logs")
            directory = self._local_logs.path
        pump = LogPump(os.path.join(directory, log_name(self.rank)), attempt)
        pump.install()
        return pump

    def _upload_log(self, path: str) -> None:
        if self._local_logs is None:
            return
        with self._local_logs:
            self._copy_log(path)

    def _copy_log(self, path: str) -> None:
        if self.link.remote_log_dir is None:
            return
        import pyarrow.fs as pafs

        filesystem, directory = self.link.remote_log_dir
        with contextlib.suppress(Exception):  # a lost log copy must not fail a finished training
            filesystem.create_dir(directory, recursive=True)
            pafs.copy_files(
                path,
                f"{directory}/{os.path.basename(path)}",
                source_filesystem=pafs.LocalFileSystem(),
                destination_filesystem=filesystem,
            )

    @contextlib.contextmanager
    def _report(self, metrics: Mapping[Any, Any], checkpoint: Any) -> Iterator[Any]:
        # Kept before Ray is asked: what Ray refuses or waits for is still seen.
        if isinstance(metrics, Mapping):
            self.channel.report(metrics)
            metrics = _plain(metrics)
        if self.link.local:
            self.link.supervisor.local_report(metrics, checkpoint)
        self._seen()
        self._meter.report_begins()
        self.channel.put("status", "waiting")
        try:
            yield metrics
        finally:
            self._meter.report_ends()
            self.channel.put("status", "running")

    def _loader(self, loader: Any) -> None:
        with contextlib.suppress(Exception):  # a loader that can't be counted still loads
            self._meter.shards.add(meter_loader(loader))

    def _shard(self, shard: Any, name: str) -> None:
        from raynb._ray.worker import ShareOf

        with contextlib.suppress(Exception):
            self._meter.shards.add(meter_iterator(shard, name, ShareOf(shard)))

    def _model(self, model: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        with contextlib.suppress(Exception):
            if isinstance(model, DistributedDataParallel):
                self._undo.callback(PeerWait(model, self._meter).remove)

    def _seen(self) -> None:
        """The train function logged or reported."""
        self._meter.record()
        if self._later and threading.get_ident() == self._thread:
            self._watch_torch()

    def _watch_torch(self) -> None:
        """Watch what the user's code has imported by now; its own thread must do it."""
        for watch in list(self._later):
            with contextlib.suppress(Exception):  # another torch or Ray: then it is not watched
                undo = watch()
                if undo is None:
                    continue
                self._undo.callback(undo)
            self._later.remove(watch)

    def _collect(self) -> None:
        if self._pump is not None:
            self._pump.pump(self.channel)
            self.channel.count_dropped("logs", self._pump.take_dropped())
        shards, timing = self._meter.news(final=self._ended)
        if shards is not None:
            self.channel.put("shards", shards)
        if timing is not None:
            self.channel.put("timing", timing)

    def _sample(self, gpu: str | None, shared: bool) -> None:
        if not self.link.local:
            with contextlib.suppress(Exception):
                sweep()  # of an attempt before this one, say
        samplers = Samplers(gpu, self.link.num_cpus, shared)
        while True:
            with contextlib.suppress(Exception):  # the next look may succeed
                self._meter.stand(lambda: where(self._thread, self.program))
            with contextlib.suppress(Exception):
                if row := samplers.sample():
                    self.channel.put("sample", row)
            if self._stop.wait(SAMPLE_S):
                return


class _Direct:
    """Transport of local mode: the collector is in this process."""

    lost = 0

    def __init__(self, collector: Any) -> None:
        self._collector = collector

    def send(self, batch: Any) -> bool:
        self._collector.ingest(batch)
        return True

    def drain(self, timeout: float) -> bool:
        return True


def _plain(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """Metrics as Ray takes them: 0-d tensors, which it refuses, become numbers."""
    return {
        name: to_value(value) if type(value).__module__.startswith("torch") else value
        for name, value in metrics.items()
    }


def assigned_gpu() -> tuple[str | None, bool]:
    """This rank's entry of ``CUDA_VISIBLE_DEVICES`` and whether it has but a part of that GPU.

    None and False for a worker without a GPU.
    """
    import ray

    context = ray.get_runtime_context()
    ids = context.get_accelerator_ids().get("GPU") or []
    if not ids:
        return None, False
    amount = (context.get_assigned_resources() or {}).get("GPU", 1)
    visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
    try:
        import ray.train.torch  # brings torch, which a trial without a GPU may do without

        index = ray.train.torch.get_device().index or 0
        gpu = visible[index] if index < len(visible) else str(ids[0])
    except Exception:
        gpu = str(ids[0])
    return gpu, 0 < amount < 1
