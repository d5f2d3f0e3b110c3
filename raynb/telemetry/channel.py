"""The channel: takes a worker's telemetry to the supervisor without ever making training wait."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import IO, Any, Protocol

from raynb.telemetry import clock
from raynb.telemetry.events import Batch, Record, RecordBatch, Value, to_value, to_values
from raynb.telemetry.loglines import lines_a_rank

#: Seconds between a rank's messages while there is something to tell: at least, and at most.
INTERVAL_S, MAX_INTERVAL_S = 0.2, 3.0
#: Messages a second of all ranks together; with many ranks, each speaks less often.
MAX_MESSAGES = 400.0
#: Messages on their way at a time; past this, records wait here and the rest is dropped.
MAX_IN_FLIGHT = 4
#: Records, and values in them, kept in memory before they go to a local file.
MAX_PENDING, MAX_PENDING_VALUES = 100_000, 2_000_000
#: Records in one message, and records times metrics: in columns, what is absent takes room too.
MAX_RECORDS, MAX_CELLS = 20_000, 500_000
#: Metrics of one record; what is more is dropped and counted.
MAX_VALUES = 10_000
#: Log lines kept while the supervisor is behind.
MAX_LOG_LINES = 2_000


def interval_s(world_size: int) -> float:
    """Seconds between a rank's messages in a group of so many."""
    return min(MAX_INTERVAL_S, max(INTERVAL_S, world_size / MAX_MESSAGES))


class Transport(Protocol):
    """Carries batches; :class:`ActorTransport` for a supervisor, a direct call in local mode.

    Attributes
    ----------
    lost : int
        Records of batches that were not taken, or may have been lost on their way.
    """

    lost: int

    def send(self, batch: Batch) -> bool:
        """Start sending; False when too much is on its way already."""

    def drain(self, timeout: float) -> bool:
        """Wait until all is delivered; False when time ran out or the other side is gone."""


class ActorTransport:
    """Fire-and-forget calls of one actor method, a few in flight at most.

    Parameters
    ----------
    method : ray.actor.ActorMethod
        Takes one :class:`Batch`.
    """

    def __init__(self, method: Any) -> None:
        import ray

        self._ray = ray
        self._method = method
        #: How many records each call on its way has.
        self._in_flight: dict[Any, int] = {}
        self._lock = threading.Lock()
        self.dead = False
        self._refused = False
        self.lost = 0

    def _reap(self, timeout: float) -> None:
        if not self._in_flight:
            return
        done, _ = self._ray.wait(
            list(self._in_flight), num_returns=len(self._in_flight), timeout=timeout
        )
        errors = self._ray.exceptions
        for ref in done:
            records = self._in_flight.pop(ref)
            try:
                self._ray.get(ref)
            except (errors.RayTaskError, errors.ActorUnavailableError):
                # This batch only: the supervisor lives. Sent again, it might be there twice.
                self._refused = True
                self.lost += records
            except Exception:
                # The supervisor is gone; training goes on without a watcher.
                self.dead = True

    def send(self, batch: Batch) -> bool:
        with self._lock:
            # Asked only when the bound is reached: each question costs Ray about a call's time.
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                self._reap(0)
            if self.dead:
                return True  # nobody to tell; holding on to it would only grow memory
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                return False
            records = 0 if batch.records is None else len(batch.records)
            self._in_flight[self._method.remote(batch)] = records
            return True

    def drain(self, timeout: float) -> bool:
        with self._lock:
            self._reap(timeout)
            return not (self._in_flight or self.dead or self._refused)


class Channel:
    """One worker's outbox: metrics are never lost, samples and log lines are bounded and counted.

    Parameters
    ----------
    transport : Transport
    rank, attempt : int
    world_size : int
        Ranks that speak at the same time.
    run : str, optional
        The run's name, which each message carries.
    """

    def __init__(
        self,
        transport: Transport,
        rank: int,
        attempt: int,
        world_size: int = 1,
        run: str | None = None,
    ) -> None:
        self.rank = rank
        self.attempt = attempt
        self.run = run
        self._interval = interval_s(world_size)
        # Ranks start together: their messages spread over the interval.
        self._phase = self._interval * (rank / max(1, world_size) % 1)
        self._max_lines = lines_a_rank(world_size)
        self._transport = transport
        self._pid = os.getpid()
        # One lock keeps steps unique and in order where several threads log; the channel's own
        # thread takes records without it.
        self._step_lock = threading.Lock()
        self._records: deque[tuple[float, float, dict[Any, Any], float]] = deque()
        # Values of all records so far: the one is the loggers', the other the channel's thread's.
        self._values_in = self._values_out = 0
        self._spool: IO[bytes] | None = None
        self._spool_read = 0
        self._spooled = 0
        self._lock = threading.Lock()  # of the three below
        self._logs: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._latest: dict[str, Any] = {}
        self._dropped = {"logs": 0, "samples": 0}
        self._last_step = -1.0
        self._fresh = False  # something was logged since the last report
        self._seq = 0
        self._unsent: Batch | None = None
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._flush_lock = threading.Lock()
        #: Epochs of the training loader done so far, asked with each record; None: not known.
        self.epoch: Callable[[], float] | None = None
        #: Called before each message, on the channel's thread (shard counters).
        self.collectors: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._loop, name="raynb-channel", daemon=True)
        self._thread.start()

    # -- the training thread calls these ---------------------------------------------------------

    def log(self, metrics: Mapping[Any, Any], step: float | None = None) -> None:
        """Take a record; costs microseconds, does no I/O."""
        given = None if step is None else to_value(step)
        self._append(self._detach(metrics), given, report=False)

    def report(self, metrics: Mapping[Any, Any]) -> None:
        """Take what goes to ``ray.train.report``: it carries the step of the logs before it."""
        self._append(self._detach(metrics), None, report=True)

    def _detach(self, metrics: Mapping[Any, Any]) -> dict[Any, Any]:
        if len(metrics) > MAX_VALUES:
            self.count_dropped("refused", len(metrics) - MAX_VALUES)
        return _detach(metrics)

    def _append(self, values: dict[Any, Any], given: Value | None, *, report: bool) -> None:
        if os.getpid() != self._pid:
            # A forked DataLoader worker has no channel thread, and may hold a lock for ever.
            return
        with self._step_lock:
            if isinstance(given, float) and math.isfinite(given):
                step = given
            elif report and self._fresh:
                step = self._last_step
            else:
                # Also for a step that is no number: nothing could be counted on from it.
                step = self._last_step + 1
            self._last_step = step
            self._fresh = not report
            self._values_in += len(values)
            self._records.append((step, clock.now(), values, self._epoch()))

    def _epoch(self) -> float:
        try:
            return math.nan if self.epoch is None else float(self.epoch())
        except Exception:  # a meter may fail, a log call may not
            return math.nan

    # -- samplers, stdio and the runtime call these ----------------------------------------------

    def put_log(self, seq: int, stream: str, text: str) -> None:
        """Take a log line; the same ``seq`` again replaces it."""
        with self._lock:
            if seq not in self._logs and len(self._logs) >= MAX_LOG_LINES:
                self._logs.popitem(last=False)
                self._dropped["logs"] += 1
            self._logs[seq] = (stream, text)

    def count_dropped(self, kind: str, n: int) -> None:
        """Add what was dropped before it came here."""
        with self._lock:
            self._dropped[kind] = self._dropped.get(kind, 0) + n

    def put(self, kind: str, value: Any) -> None:
        """Set the latest sample, shards, timing, status or failure.

        A newer one replaces an unsent one; of a timing, the fields that the newer one has.
        """
        with self._lock:
            if kind == "sample" and "sample" in self._latest and self._unsent is not None:
                # In between two messages a newer one is no loss; while they can't be sent it is.
                self._dropped["samples"] += 1
            if kind == "timing":
                value = {**self._latest.get(kind, {}), **value}
            self._latest[kind] = value
        # What ends a rank is told at once; a report's waiting, which may be many a second, is not.
        if kind == "failure" or (kind == "status" and value == "finished"):
            self._wake.set()

    def close(self, timeout: float = 10.0) -> bool:
        """Send what is left and wait for its arrival.

        Returns
        -------
        bool
            False when something could not be delivered in ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        self._closed.set()
        self._wake.set()
        self._thread.join(timeout)
        return self.flush(max(0.0, end - time.monotonic()))

    def flush(self, timeout: float = 5.0) -> bool:
        """Send everything taken so far and wait for its arrival, at most ``timeout`` seconds."""
        end = time.monotonic() + timeout
        try:
            while True:
                left = max(0.0, end - time.monotonic())
                if self._send_once(left):
                    return self._transport.drain(max(0.0, end - time.monotonic()))
                if left == 0.0:
                    return False
                self._transport.drain(min(left, 0.02))
                time.sleep(0.002)  # a transport that is gone does not wait
        except Exception:
            # As in the loop: telemetry may fail, training may not.
            return False

    # -- the channel's own thread ----------------------------------------------------------------

    def _loop(self) -> None:
        wait = self._interval + self._phase
        while not self._closed.is_set():
            self._wake.wait(wait)
            wait = self._interval
            self._wake.clear()
            try:
                self._send_once()
            except Exception:
                # Telemetry may fail, training may not; the next turn tries again.
                time.sleep(self._interval)

    def _send_once(self, timeout: float = -1) -> bool:
        """Send one message; True when nothing is left to send.

        Waits at most ``timeout`` seconds for another thread that is sending.
        """
        if not self._flush_lock.acquire(timeout=timeout):
            return False
        try:
            if self._unsent is None:
                self._unsent = self._next_batch()
            if self._unsent is None:
                return not self._records
            if not self._transport.send(self._unsent):
                self._spill()
                return False
            self._unsent = None
            return not self._records and not self._spooled
        finally:
            self._flush_lock.release()

    def _next_batch(self) -> Batch | None:
        for collect in self.collectors:
            with contextlib.suppress(Exception):  # the metrics go out all the same
                collect()
        records = self._take()
        with self._lock:
            # Lines that the next ones push out of the panel would be sent for nothing.
            late = max(0, len(self._logs) - self._max_lines)
            logs = [(seq, *line) for seq, line in islice(self._logs.items(), late, None)]
            self._logs.clear()
            latest, self._latest = self._latest, {}
            known = {**self._dropped, "metrics": self._transport.lost}
            dropped = {k: n for k, n in known.items() if n}
        if not records and not logs and not latest:
            return None
        self._seq += 1
        return Batch(
            rank=self.rank,
            attempt=self.attempt,
            seq=self._seq,
            records=RecordBatch.of(records) if records else None,
            logs=logs,
            dropped=dropped,
            sent=clock.now(),
            run=self.run,
            **latest,
        )

    def _take(self) -> list[Record]:
        if self._spooled and self._spool is not None:
            self._spool.seek(self._spool_read)
            records: list[Record] = pickle.load(self._spool)
            self._spool_read = self._spool.tell()
            self._spooled -= 1
            if not self._spooled:
                self._spool.close()
                self._spool, self._spool_read = None, 0
            return records
        return self._pop()

    def _pop(self) -> list[Record]:
        records: list[Record] = []
        values = 0
        names: set[Any] = set()
        while self._records and len(records) < MAX_RECORDS:
            step, at, metrics, epoch = self._records[0]
            names.update(metrics)
            if records and len(names) * (len(records) + 1) > MAX_CELLS:
                break
            if not _can_be_read(metrics):
                break  # it, and what came after it, goes out later: logs and samples must not wait
            self._records.popleft()
            values += len(metrics)
            records.append(Record(step, at, to_values(metrics), epoch))
        self._values_out += values
        return records

    def _spill(self) -> None:
        """Move waiting records to a local file once memory holds too many, oldest first."""
        values = self._values_in - self._values_out
        if len(self._records) < MAX_PENDING and values < MAX_PENDING_VALUES:
            return
        if self._spool is None:
            self._spool = tempfile.TemporaryFile(prefix="raynb-spool-")  # noqa: SIM115
        self._spool.seek(0, 2)
        while records := self._pop():
            end = self._spool.tell()
            try:
                pickle.dump(records, self._spool, protocol=pickle.HIGHEST_PROTOCOL)
            except OSError:
                # The disk is full: memory has to do, and half a record must not stay in the file.
                self._spool.truncate(end)
                self._records.extendleft(
                    (r.step, r.time, dict(r.values), r.epoch) for r in records[::-1]
                )
                self._values_out -= sum(len(r.values) for r in records)
                return
            self._spooled += 1


def _detach(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy that later changes can't reach: values on the CPU are read now, CUDA ones later."""
    return {
        name: _OnDevice(value) if _is_cuda_scalar(value) else to_value(value)
        for name, value in islice(metrics.items(), MAX_VALUES)
    }


def _can_be_read(metrics: Mapping[Any, Any]) -> bool:
    """Whether none of a record's values has to be waited for."""
    if _OnDevice not in map(type, metrics.values()):
        return True
    return all(value.ready() for value in metrics.values() if type(value) is _OnDevice)


def _is_cuda_scalar(value: Any) -> bool:
    try:
        return bool(getattr(value, "is_cuda", False)) and value.numel() == 1
    except Exception:  # an object may do anything when asked
        return False


class _OnDevice:
    """A CUDA value, copied on its device, and read on the channel's thread once it is there.

    ``.item()`` on the training thread would make it wait for the device. The copy is queued
    behind the work that makes the value, on the same stream, and the event marks when it is there:
    never, where that work waits for a rank that does not come.
    """

    def __init__(self, value: Any) -> None:
        self._copy: Any = None
        self._ready: Any = None
        try:
            import torch

            self._copy = value.detach().clone()
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()
        except Exception as error:  # a device that has failed: training will learn of it itself
            self._failed = error

    def ready(self) -> bool:
        """Whether :meth:`item` would not wait."""
        try:
            return self._ready is None or bool(self._ready.query())
        except Exception:  # so will reading it
            return True

    def item(self) -> Any:
        if self._ready is None:
            raise self._failed
        import torch

        # Not on this thread's own stream, which is the training's as well: there it would queue
        # behind all that training has asked for since.
        with torch.cuda.stream(_reading(self._copy.device)):
            return self._copy.item()

    def __str__(self) -> str:
        return "a CUDA value that could not be read"


@functools.cache
def _reading(device: Any) -> Any:
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
