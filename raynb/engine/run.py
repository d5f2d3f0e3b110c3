"""Run: the kernel's handle of one execution, which watches it and never drives it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa

from raynb.engine.alive import refuse_running
from raynb.engine.collector import TERMINAL, Collector, RunFacts
from raynb.engine.hints import failures
from raynb.engine.spec import RAYNB_DIR, filesystem_of, read_record, without_secrets
from raynb.engine.supervisor import NAMESPACE, WATCHER_S, Outcome, Supervisor, supervisor_name
from raynb.engine.v1 import replacement
from raynb.errors import OptionError, RaynbError, SupervisorDiedError, TrainingError
from raynb.telemetry.history import concat, left_out, read_history, to_frame
from raynb.telemetry.loglines import read_log
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.units import human_bytes
from raynb.telemetry.update import Update

#: Seconds between two looks at the supervisor, at least: a panel gets ten messages a second.
TICK_S = 0.1
#: Bytes of a rank's log file that are handed out, its last ones.
MAX_LOG_BYTES = 20_000_000
#: Seconds in which a supervisor says how it stands.
ANSWER_S = 5.0
#: Seconds for which the way to a supervisor may be cut before it counts as gone.
UNREACHABLE_S = 30.0
#: Seconds that stopping may take before the supervisor itself is killed.
STOP_S = 15.0
#: What Ray Train V1's habits raise in V2; the warning is of a session that would do nothing.
_V1_ERRORS = ("DeprecationWarning", "AttributeError", "ImportError", "TypeError", "UserWarning")


class Backend(Protocol):
    """Where the run lives: a supervisor actor, or this process in local mode."""

    def poll(self, watcher: str, timeout: float, pinned: Sequence[int] = ()) -> Update: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def outcome(self) -> Outcome: ...
    def history(self) -> Any: ...
    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None: ...
    def release(self, watcher: str) -> None: ...


class RemoteBackend:
    """A supervisor actor on the cluster.

    Parameters
    ----------
    actor : ActorHandle
    run_path : str or None
        The run's directory, where the history is read; None: it is asked of the actor.
    """

    def __init__(self, actor: Any, run_path: str | None = None) -> None:
        import ray

        self._ray = ray
        self._run_path = run_path
        self.actor = actor
        #: Rows that the run had when its history was asked for last.
        self.rows = 0

    @classmethod
    def start(
        cls, facts: RunFacts, env: dict[str, str], actor_class: Any = Supervisor
    ) -> RemoteBackend:
        """Start a run's supervisor.

        Raises
        ------
        OptionError
            When a run of this name is going on.
        """
        from raynb.engine.nodes import on_this_node

        options = {"name": supervisor_name(facts.name), "namespace": NAMESPACE, **on_this_node()}
        # Detached: the run outlives this kernel wherever the cluster does.
        actor_class = actor_class.options(lifetime="detached", **options)
        make_way(facts.name)
        refuse_running(facts.run_path, facts.name)
        try:
            return cls(actor_class.remote(facts, env), facts.run_path)
        except ValueError:  # another kernel was as fast
            make_way(facts.name)
            raise

    def reads_from(self, run_path: str) -> None:
        """Where the run's directory is, for one that was found by its name."""
        self._run_path = run_path

    def poll(self, watcher: str, timeout: float, pinned: Sequence[int] = ()) -> Update:
        content, buffers, whole = self._ray.get(
            self.actor.poll.remote(watcher, timeout, pinned), timeout=timeout + 60
        )
        return Update(content, buffers, whole)

    def stop(self) -> None:
        self.actor.stop.remote()

    def kill(self) -> None:
        # Its controller and workers are owned by the supervisor, so Ray ends them with it.
        self._ray.kill(self.actor)

    def outcome(self) -> Outcome:
        outcome: Outcome = self._ray.get(self.actor.outcome.remote())
        return outcome

    def history(self) -> Any:
        if self._run_path is not None:
            pending, upto, self.rows = self._ray.get(self.actor.unwritten.remote())
            with contextlib.suppress(Exception):
                table = concat([read_history(*history_dir(self._run_path), upto), pending])
                if len(table) >= self.rows:
                    return table
        # This process can't read the run's storage.
        return self._ray.get(self.actor.history.remote())

    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None:
        found: tuple[bytes, bool] | None = self._ray.get(
            self.actor.log_file.remote(rank, max_bytes), timeout=60
        )
        return found

    def release(self, watcher: str) -> None:
        self.actor.release.remote(watcher)


def history_dir(run_path: str) -> tuple[Any, str]:
    """File system and path of a run's history."""
    filesystem, path = filesystem_of(run_path)
    return filesystem, f"{path}/{RAYNB_DIR}/history"


def make_way(name: str, find: Callable[[str], RemoteBackend | None] | None = None) -> None:
    """Wait for a run of this name that has ended to leave.

    Raises
    ------
    OptionError
        When it goes on.
    """
    import ray

    find = find or find_backend
    end = time.monotonic() + WATCHER_S + ANSWER_S
    while (backend := find(name)) is not None:
        try:
            goes_on = ray.get(backend.actor.state.remote(), timeout=ANSWER_S) not in TERMINAL
        except ray.exceptions.GetTimeoutError:
            goes_on = True
        except ray.exceptions.RayActorError:
            goes_on = False  # its name goes a moment later
        if goes_on:
            raise OptionError(
                f"a run called {name!r} is going on already",
                hint=f"%raynb attach {name} shows it; choose another --name for a new one",
                topic="name-taken",
            )
        if time.monotonic() > end:
            backend.kill()  # all is on storage, and nobody has come for it
        time.sleep(0.1)


def named_actors(start: str) -> list[str]:
    """Names of raynb's actors on the connected cluster that begin so, without the beginning."""
    import ray

    return sorted(
        actor["name"].removeprefix(start)
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(start)
    )


def live_runs() -> list[str]:
    """Names of the runs and searches that go on, on the connected cluster."""
    import ray

    from raynb.engine.warm.backend import live_jobs

    names = named_actors(supervisor_name(""))
    found = [(name, backend) for name in names if (backend := find_supervisor(name)) is not None]
    if not found:
        return live_jobs()
    asked = {backend.actor.state.remote(): name for name, backend in found}
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    # One that does not answer is busy, and goes on as far as anybody knows.
    going = [asked[ref] for ref in silent]
    for ref in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # it has left just now
            if ray.get(ref) not in TERMINAL:
                going.append(asked[ref])
    return sorted(going + live_jobs())


def find_backend(name: str) -> RemoteBackend | None:
    """The supervisor of the live run called ``name`` on the connected cluster, or None."""
    found = find_supervisor(name)
    if found is None:
        from raynb.engine.warm.backend import find_job

        return find_job(name)
    return found


def find_supervisor(name: str) -> RemoteBackend | None:
    """The same, of a run with workers of its own."""
    import ray

    try:
        return RemoteBackend(ray.get_actor(supervisor_name(name), namespace=NAMESPACE))
    except ValueError:
        return None


class LocalBackend:
    """Local mode: the train function runs in this process, on the main thread."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.ended: Outcome | None = None

    def poll(self, watcher: str, timeout: float, pinned: Sequence[int] = ()) -> Update:
        return self.collector.poll(watcher, timeout, pinned)

    def stop(self) -> None:
        # A real signal wakes a main thread that sleeps; interrupt_main would wait for it.
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGINT)

    def kill(self) -> None:
        self.stop()

    def outcome(self) -> Outcome:
        assert self.ended is not None
        return self.ended

    def history(self) -> Any:
        return self.collector.history_table()

    def log_file(self, rank: int, max_bytes: int) -> tuple[bytes, bool] | None:
        return self.collector.log_file(rank, max_bytes)

    def release(self, watcher: str) -> None:
        self.collector.close()


class Run:
    """One execution of a train function, as the kernel sees it.

    Attributes
    ----------
    name : str
    mirror : Mirror
        The live picture; read it under :attr:`lock`.
    result : RunResult or None
        None until the run has ended; then there whatever the end was.
    panel : object
        The view that was opened for it, or None.
    """

    def __init__(
        self,
        facts: RunFacts,
        make_result: Callable[..., Any],
        *,
        blocking: bool = True,
        attached: bool = False,
        mirror: Mirror | None = None,
    ) -> None:
        self.name = facts.name
        self.facts = facts
        self.mirror = mirror or Mirror()
        self.lock = threading.RLock()
        self.result: Any = None
        self.panel: Any = None
        self.blocking = blocking
        self._make_result = make_result
        self._backend: Backend | None = None
        self._done = threading.Event()
        self._stop_asked = threading.Event()
        self._listeners: list[Callable[[Update], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self._pinned: tuple[int, ...] = ()
        self._run = {
            **self.mirror.run,
            "name": facts.name,
            "storage": without_secrets(facts.run_path),
            # Of a run that was started elsewhere, its supervisor tells.
            "started": None if attached else self.mirror.clock.now(),
        }
        self.tell("preflight", "attaching" if attached else "")

    def __repr__(self) -> str:
        return f"<raynb.Run {self.name!r}: {self.state}>"

    # -- what users ask --------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """``preflight``, ``starting_ray``, ``waiting``, ``starting_workers``, ``training``,
        ``restarting``, ``finishing``, ``stopping``, ``finished``, ``failed`` or ``stopped``."""
        return str(self.mirror.run["state"])

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def history(self) -> pd.DataFrame:
        """Every record of every rank so far: ``rank``, ``attempt``, ``step``, ``time``, metrics."""
        if self.result is not None:
            frame: pd.DataFrame = self.result.history
            return frame
        if self._backend is None:
            return to_frame(read_history(*history_dir(self.facts.run_path)))
        return to_frame(self._backend.history())

    def stop(self, timeout: float | None = None) -> None:
        """Stop the run and keep what was reached.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for the end; by default it returns at once and :meth:`wait` waits.
        """
        self._stop_asked.set()
        if self._backend is not None and not self.done:
            self._backend.stop()
        if timeout is not None:
            self._done.wait(timeout)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end.

        A KeyboardInterrupt while waiting stops the run first and is raised again afterwards; a
        second one ends the supervisor as well.

        Returns
        -------
        RunResult

        Raises
        ------
        TrainingError
            When the run failed; its ``result`` has what was reached.
        TimeoutError
            When ``timeout`` seconds passed; the run goes on.
        """
        try:
            if not self._done.wait(timeout):
                raise TimeoutError(f"run {self.name!r} is still {self.state} after {timeout} s")
        except KeyboardInterrupt:
            self._interrupted()
            raise
        if self._error is not None:
            raise self._error
        return self.result

    def pin(self, ranks: Iterable[int]) -> None:
        """Follow these ranks' curves where there are too many ranks to follow all.

        Parameters
        ----------
        ranks : iterable of int
            The whole list, of 16 at most.
        """
        self._pinned = tuple(ranks)

    def log_file(self, rank: int) -> tuple[bytes, bool, str | None]:
        """A rank's log file as far as it is at hand.

        Returns
        -------
        bytes
        bool
            Whether that is all that the rank has written.
        str or None
            Why not.
        """
        found = self._find_log(rank)
        if found is not None:
            data, whole = found
            return data, whole, None if whole else f"the last {human_bytes(len(data))} of the file"
        with self.lock:
            lines = [text for _, text in self.mirror.logs.get(rank, {}).values()]
        why = (
            "a run in this process writes no log file: its output is in the cell"
            if isinstance(self._backend, LocalBackend)
            else "the file is not on the run's storage: these are the lines that the panel shows"
        )
        return "".join(f"{line}\n" for line in lines).encode(), False, why

    def _find_log(self, rank: int) -> tuple[bytes, bool] | None:
        with contextlib.suppress(Exception):  # the supervisor is gone, or has no access
            if self._backend is not None and not self.done:
                return self._backend.log_file(rank, MAX_LOG_BYTES)
        with contextlib.suppress(Exception):
            filesystem, path = filesystem_of(self.facts.run_path)
            return read_log(filesystem, f"{path}/{RAYNB_DIR}/logs", rank, MAX_LOG_BYTES)
        return None

    def show(self) -> None:
        """Show the panel, or the record of an ended run, in this cell."""
        from IPython.display import display

        if self.result is not None:
            display(self.result)
        elif self.panel is not None:
            self.panel.show()
        else:
            print(self)

    # -- who drives it ---------------------------------------------------------------------------

    def listen(self, listener: Callable[[Update], None]) -> None:
        """Call ``listener`` with each update, on the reader's thread."""
        with self.lock:
            self._listeners.append(listener)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the result is there, before :meth:`wait` returns."""
        self._at_end.append(callback)

    def tell(self, state: str, message: str = "", **more: Any) -> None:
        """A state that the kernel knows before there is a supervisor."""
        self._run = {**self._run, "state": state, "message": message, **more}
        self._apply(Update({"run": dict(self._run)}))

    def attach(self, backend: Backend) -> None:
        """Watch a backend from now on."""
        self._backend = backend
        if self._stop_asked.is_set():
            backend.stop()
        threading.Thread(
            target=self._read, args=(backend,), name="raynb-reader", daemon=True
        ).start()

    def abandon(self, error: BaseException) -> None:
        """The run could not be started: end it with ``error``."""
        stopped = isinstance(error, KeyboardInterrupt)
        shown = None
        if not stopped:
            shown = {"title": type(error).__name__, "rank": None, "text": str(error), "line": None}
        self.tell(
            "stopped" if stopped else "failed",
            "" if stopped else str(error).splitlines()[0],
            ended=self.mirror.clock.now(),
            stoppable=False,
            error=shown,
        )
        self._error = error
        self._done.set()

    def finish_local(self, raised: BaseException | None) -> None:
        """Local mode has ended: wait for the result, and let :meth:`wait` raise what was raised."""
        self._done.wait()
        self._error = raised

    def _apply(self, update: Update) -> None:
        run = update.content.get("run")
        if run is not None:
            # These belong to this kernel, not to the supervisor.
            run["blocking"] = self.blocking
            if self._run["started"] is not None:
                run["started"] = self._run["started"]
        # One lock for both: a snapshot taken between them would tell a view the same thing twice.
        with self.lock:
            self.mirror.apply(update)
            for listener in self._listeners:
                # A view that breaks must not end the watching.
                with contextlib.suppress(Exception):
                    listener(update)

    def _read(self, backend: Backend) -> None:
        import ray

        watcher, heard = uuid.uuid4().hex, time.monotonic()
        try:
            while self.state not in TERMINAL:
                began = time.monotonic()
                try:
                    update = backend.poll(watcher, 1.0, self._pinned)
                    heard = time.monotonic()
                except ray.exceptions.ActorUnavailableError:
                    # The way to it is cut, or it is dying: Ray says later which of the two.
                    if time.monotonic() - heard > UNREACHABLE_S:
                        raise
                    watcher = uuid.uuid4().hex
                    time.sleep(1.0)
                    continue
                except ray.exceptions.GetTimeoutError:
                    # Busy, not gone; but this answer's news is lost, so watch anew from the start.
                    watcher = uuid.uuid4().hex
                    continue
                if update:
                    self._apply(update)
                time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))
            outcome, history = backend.outcome(), backend.history()
            self._finish(outcome, history)
            self._note_missing(len(history), getattr(backend, "rows", 0))
            backend.release(watcher)
        except BaseException as error:
            self._lost(error)
        finally:
            for callback in self._at_end:
                with contextlib.suppress(Exception):
                    callback()
            self._done.set()

    def _finish(self, outcome: Outcome, history: pa.Table) -> None:
        filesystem, path = filesystem_of(self.facts.run_path)
        if n := left_out(history):
            text = (
                f"history is without the {n:,} metrics with the fewest values: with them it would "
                f"not fit into memory. {self.facts.run_path}/{RAYNB_DIR}/history has them all"
            )
            event = {"t": self.mirror.clock.now(), "level": "warn", "text": text}
            self._apply(Update({"events": [event]}))
        record = read_record(filesystem, path) or {
            **self.facts.summary,
            "name": self.name,
            "state": outcome.state,
        }
        error = outcome.error if outcome.state == "failed" else None
        self.result = self._make_result(
            outcome.result,
            record=record,
            history=history,
            error=error,
            filesystem=filesystem,
            path=path,
            uri=self.facts.run_path,
        )
        if error is not None:
            self._error = training_error(outcome, self.mirror, self.result)

    def _lost(self, error: BaseException) -> None:
        """The supervisor is gone: say so, and keep what it had written."""
        from raynb._ray import cluster

        stopped = self._stop_asked.is_set()
        where = f"what was written before is in {without_secrets(self.facts.run_path)}"
        if gone := cluster.leave_if_gone():
            lost = SupervisorDiedError(
                f"the Ray cluster at {gone} is gone, and run {self.name!r} with it",
                hint=f"{where}; start the cluster again, and this kernel",
            )
        else:
            lost = SupervisorDiedError(
                f"the supervisor of run {self.name!r} is gone: {type(error).__name__}: "
                + without_secrets(str(error)),
                hint=where,
            )
        state = "stopped" if stopped else "failed"
        shown = {"title": "SupervisorDiedError", "rank": None, "text": str(lost), "line": None}
        run = {
            **self.mirror.run,
            "state": state,
            "ended": self.mirror.clock.now(),
            "stoppable": False,
            "message": "" if stopped else lost.message,
            "error": None if stopped else shown,
        }
        self._apply(Update({"run": run}))
        try:
            history = read_history(*history_dir(self.facts.run_path))
        except Exception as unread:
            history = concat([])
            unreadable = f"{type(unread).__name__}: {unread}"
        else:
            unreadable = ""
        self._finish(Outcome(state, None, None if stopped else lost, None, 0), history)
        self.result.record.update(state=state, ended=run["ended"], error=run["error"])
        self._error = None if stopped else lost
        if unreadable:
            self.result.add_notes(f"The history can't be read: {without_secrets(unreadable)}")

    def _note_missing(self, here: int, rows: int) -> None:
        """Say so when storage can't be read just now."""
        if here < rows:
            self.result.add_notes(
                f"{rows - here:,} of {rows:,} records are on storage that can't be read now: "
                "raynb.open shows them once it can."
            )

    def _interrupted(self) -> None:
        try:
            self.stop(STOP_S)
            if not self.done:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            # Asked twice, or it took too long: end the supervisor, and with it the run.
            if self._backend is not None:
                self._backend.kill()
            self._done.wait(STOP_S)


def _missing_there(failure: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Where a worker looked for a file or a module that it did not find."""
    node = f"{row.get('node') or 'n/a'} ({row.get('ip') or 'n/a'})"
    if failure["type"] == "FileNotFoundError":
        return (
            f"the rank runs on node {node} in directory {failure.get('cwd') or 'n/a'}: give a path "
            "that every node has"
        )
    return (
        f"node {node} does not have that module: install it there, or put it beside the notebook "
        "on a path that every node has"
    )


def training_error(outcome: Outcome, mirror: Mirror, result: Any) -> RaynbError:
    """The one error that a failed run raises in the cell."""
    shown = mirror.run.get("error") or {}
    rank = shown.get("rank")
    where = f"rank {rank}: " if rank is not None else ""
    failure = outcome.failure
    if failure is None:
        return TrainingError(
            where + shown.get("title", str(outcome.error)),
            detail=shown.get("text", ""),
            hint="the panel's log and the ranks' log files in the run's directory have more",
            topic=failures.topic(None, outcome.error),
            rank=rank,
            result=result,
        )
    lines = [shown["line"]] if shown.get("line") else []
    lines.append(failure["traceback"].rstrip())
    if outcome.secondary:
        lines.append(
            f"({outcome.secondary} more rank{'s' if outcome.secondary > 1 else ''} failed after "
            "it; see the panel's events)"
        )
    hint, topic = "", failures.topic(failure, outcome.error)
    if failure["type"] in _V1_ERRORS:
        cell = failure.get("cell") or {}
        hint = replacement(failure["message"], cell.get("text", ""))
        topic = "ray-train-v1" if hint else topic
    if failure["type"] in ("ModuleNotFoundError", "FileNotFoundError"):
        hint = _missing_there(failure, mirror.workers.get(failure["rank"], {}))
    return TrainingError(
        where + f"{failure['type']}: {failure['message']}",
        hint=hint,
        detail="\n".join(lines),
        topic=topic,
        rank=rank,
        result=result,
    )
