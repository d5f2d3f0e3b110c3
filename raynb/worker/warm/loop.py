"""The train function of a warm group: takes jobs from the group's supervisor and runs them."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any

import psutil
from ray import cloudpickle

from raynb.worker.program import CellProgram
from raynb.worker.runtime import Link, Runtime, assigned_gpu
from raynb.worker.warm.baseline import Baseline, Left
from raynb.worker.warm.interrupts import Interrupts
from raynb.worker.warm.peers import Peers
from raynb.worker.warm.spmd import CellOrder, Namespace


@dataclass
class JobOrder:
    """One attempt of a job, as the ranks get it.

    Attributes
    ----------
    job, attempt : int
    link : Link
        The job's; its supervisor is the job's port.
    program : CellProgram or None
    run_config : ray.train.RunConfig
    begin : dict
        What the attempt starts from.
    payload : bytes or list of one ObjectRef
        The train function and its config, pickled.
    large : list of at most one ObjectRef
        The cell's captured values in the object store.
    """

    job: int
    attempt: int
    link: Link
    program: CellProgram | None
    run_config: Any
    begin: dict[str, Any]
    payload: Any = field(repr=False)
    large: list[Any] = field(default_factory=list)


@dataclass
class End:
    """How a rank's attempt ended.

    Attributes
    ----------
    status : str
        ``finished``, ``failed``, ``interrupted``, or ``lost`` with its process.
    value : bytes or None
        What the train function returned, pickled.
    error : bytes or None
        What it raised, pickled.
    text : str
        The error for people.
    """

    status: str = "finished"
    value: bytes | None = None
    error: bytes | None = None
    text: str = ""


@dataclass
class WarmLoop:
    """The group's train function.

    Attributes
    ----------
    host : ActorHandle
        The group's supervisor.
    timeout_s : int
        Seconds that a collective may take.
    """

    host: Any
    timeout_s: int
    __name__: str = field(default="warm_workers", repr=False)

    def __call__(self, config: dict[str, Any]) -> None:
        WarmWorker(self.host, self.timeout_s).work()


class WarmWorker:
    """One rank of a warm group."""

    def __init__(self, host: Any, timeout_s: int) -> None:
        import ray
        import ray.train

        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        self.world_size: int = context.get_world_size()
        self._ray = ray
        self._host = host
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._current: _Work | _Cell | None = None
        self._lock = threading.Lock()
        self._called_off: Any = None
        self._peers = Peers(self.rank, self.world_size, timeout_s)
        self._meetings = 0
        runtime = ray.get_runtime_context()
        self._incarnation: int = ray.get(
            host.join.remote(
                {
                    "rank": self.rank,
                    "world_size": self.world_size,
                    "node": os.uname().nodename,
                    "ip": ray.util.get_node_ip_address(),
                    "pid": os.getpid(),
                    "node_id": runtime.get_node_id(),
                    "actor": runtime.current_actor,
                }
            ),
            timeout=60,
        )

    def work(self) -> None:
        """Run jobs until the group ends."""
        _import_what_jobs_need()
        baseline = Baseline()
        threading.Thread(target=self._listen, name="raynb-orders", daemon=True).start()
        names = Namespace()
        left: Left | None = None
        fresh = True  # the process is as it was, and its group new
        self._renew(baseline, left)
        while True:
            kind, order = self._inbox.get()
            if kind == "end":
                return
            if kind == "cell":
                fresh = False
                self._cell(order, names)
                continue
            if kind == "run":
                if not fresh:  # a cell may have changed what a run must not see
                    baseline.restore()
                self._run(order)
                order = None
                left = baseline.restore(names.names)
                fresh = True
            self._renew(baseline, left)

    def _renew(self, baseline: Baseline, left: Left | None) -> None:
        """Join a new process group, and be ready."""
        self._peers.renew(self._tell)
        baseline.keep(self._peers.environ)
        self._host.ready.remote(self._incarnation, self.rank, self._state(left))

    def _cell(self, order: CellOrder, names: Namespace) -> None:
        if self.rank not in order.ranks:
            return
        cell = _Cell(order)
        with self._lock:
            self._current = cell
            if self._called_off == cell.number:
                cell.interrupts.interrupt()
        names.set_up()
        end = names.run(
            order,
            cell.interrupts,
            lambda lines: self._host.cell_lines.remote(order.number, self.rank, lines),
        )
        with self._lock:
            self._current = None
        self._host.cell_ended.remote(order.number, self.rank, end)

    def _run(self, order: JobOrder) -> None:
        work = _Work(order, self.rank, self._peers)
        with self._lock:
            self._current = work
            if self._called_off == work.number:
                work.interrupts.interrupt()
        # A thread of its own: what torch keeps for a thread (grad mode, autocast, the current
        # device) ends with it, and so does an interrupt that comes too late.
        thread = threading.Thread(target=work.run, name="raynb-job", daemon=True)
        thread.start()
        thread.join()
        with self._lock:
            self._current = None
        port = order.link.supervisor
        self._ray.get(port.ended.remote(order.attempt, self.rank, work.end))

    def _tell(self, data: Any) -> Any:
        self._meetings += 1
        return self._ray.get(
            self._host.tell.remote(self._incarnation, self.rank, self._meetings, data)
        )

    def _state(self, left: Left | None) -> dict[str, Any]:
        memory = psutil.Process().memory_info().rss
        return {"device": _device(), "memory": memory, "left": None if left is None else vars(left)}

    # -- the thread that hears orders ------------------------------------------------------------

    def _listen(self) -> None:
        seen = -1
        while True:
            try:
                orders = self._ray.get(self._host.orders.remote(self._incarnation, self.rank, seen))
            except Exception:
                # The supervisor is gone, and Ray ends with it what it started.
                self._inbox.put(("end", None))
                return
            for number, kind, what in orders:
                seen = number
                if kind in ("interrupt", "abort"):
                    self._obey(kind, what)
                else:
                    self._inbox.put((kind, what))
                if kind == "end":
                    return
            orders = what = None  # a job's data is not kept until the next order comes

    def _obey(self, kind: str, what: Any) -> None:
        with self._lock:
            work = self._current
            if kind == "interrupt":
                self._called_off = what  # also where it is still in the inbox
            if work is None or work.number != what:
                return
        if kind == "abort":
            self._peers.abort()
        if kind == "interrupt" or isinstance(work, _Work):
            work.interrupts.interrupt()


class _Cell:
    """A cell on this rank."""

    def __init__(self, order: CellOrder) -> None:
        self.number = ("cell", order.number)
        self.interrupts = Interrupts()


class _Work:
    """One attempt of a job on this rank."""

    def __init__(self, order: JobOrder, rank: int, peers: Peers) -> None:
        self.order = order
        self.number = (order.job, order.attempt)
        self.interrupts = Interrupts()
        self.end = End()
        self._rank = rank
        self._peers = peers
        self._interrupted = False
        self._background: BaseException | None = None

    def run(self) -> None:
        """Run it; never raises."""
        from ray.train.torch import TorchConfig

        from raynb._ray.jobs import job_context

        order = self.order
        try:
            with (
                job_context(
                    order.link.supervisor, order.run_config, {}, order.begin, self._upload_failed
                ),
                TorchConfig().train_func_context(),
                _JobRuntime(order.link, order.program, self.interrupts) as runtime,
            ):
                self._call(runtime)
            if self._background is not None:
                raise self._background
        except BaseException as error:
            self._failed(error)

    def _call(self, runtime: Runtime) -> None:
        try:
            with self.interrupts.open():
                self._user_code(runtime)
        except BaseException:
            # Of now: a rank that fails because of this one may have the others interrupted soon.
            self._interrupted = self.interrupts.asked
            if not self._interrupted:
                self.order.link.supervisor.failed.remote(self.order.attempt, self._rank)
            # At once: ranks that wait for this one in a collective get an error.
            self._peers.abort()
            raise

    def _user_code(self, runtime: Runtime) -> None:
        from raynb._ray.jobs import check_returned

        payload = self.order.payload
        if isinstance(payload, list):
            import ray

            payload = ray.get(payload[0])
        function, config = cloudpickle.loads(payload)
        if self.order.large:
            function.large = self.order.large[0]
        value = runtime.run(function, config)
        check_returned(value)
        if self._rank == 0:
            self.end.value = cloudpickle.dumps(value)

    def _upload_failed(self, error: BaseException) -> None:
        self._background = error
        self.interrupts.interrupt()

    def _failed(self, error: BaseException) -> None:
        from raynb._ray.jobs import worker_error

        if self._interrupted and self._background is None:
            self.end = End("interrupted", text=f"{type(error).__name__}: {error}")
            return
        error = self._background or error
        text = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps(worker_error(error, text))
        except Exception:
            pickled = cloudpickle.dumps(RuntimeError(text))
        self.end = End("failed", error=pickled, text=text)


class _JobRuntime(Runtime):
    """A rank's telemetry for one job, which can be interrupted."""

    def __init__(self, link: Link, program: CellProgram | None, interrupts: Interrupts) -> None:
        super().__init__(link, program)
        self._interrupts = interrupts

    def _tell_end(self, error: BaseException | None) -> None:
        if error is not None and self._interrupts.asked and isinstance(error, KeyboardInterrupt):
            self.channel.put("status", "stopped")
        else:
            super()._tell_end(error)


def _device() -> str:
    """What the rank trains on, as ``cpu``, or as ``GPU 3 (cuda:0)`` where others are hidden."""
    import ray.train.torch

    device = ray.train.torch.get_device()
    gpu, _ = assigned_gpu()
    return str(device) if gpu is None else f"GPU {gpu} ({device})"


def _import_what_jobs_need() -> None:
    """Import now what each job's first line would else wait for."""
    import pyarrow.fs  # noqa: F401
    import ray.train.torch  # noqa: F401
    import torch.distributed
    import torch.utils.data  # noqa: F401

    import raynb._ray.jobs
    import raynb._ray.worker
    import raynb.worker.checkpoints  # noqa: F401
