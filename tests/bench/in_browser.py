"""Simulated ranks watched where people watch: a real kernel, JupyterLab and Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psutil

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "browser"))

from lab import Notebook, launched_chromium, running_lab  # noqa: E402

START = """from many_ranks import simulate
from raynb.panel.views import open_view

simulation = simulate({directory!r}, {ranks}, {processes}, open_view)
sent = [sender.run.remote({seconds}, {hz}) for sender in simulation.senders]"""

#: What the processes are called in the tables, by a word of their command line.
ROLES = {
    "ray::Supervisor": "supervisor",
    "ray::Ranks": "senders",
    "ipykernel_launcher": "kernel",
    "jupyterlab": "JupyterLab's server",
    "--type=renderer": "Chromium's page",
    "chromium": "Chromium, rest",
}


@dataclass
class Watched:
    """A notebook that shows a run of simulated ranks.

    Attributes
    ----------
    notebook : Notebook
    sent : list of (float, int)
        When the kernel sent each of its messages to the panel, in UNIX seconds, and its size.
    """

    notebook: Notebook
    sent: list[tuple[float, int]] = field(default_factory=list)
    _cpu: dict[str, float] = field(default_factory=dict)

    def count(self, payload: str | bytes) -> None:
        if isinstance(payload, bytes) and (header := _header(payload))["msg_type"] == "comm_msg":
            self.sent.append((datetime.fromisoformat(header["date"]).timestamp(), len(payload)))

    def rates(self, begin: float, end: float) -> tuple[float, float]:
        """Messages and bytes a second that the kernel sent in this time."""
        sent = [(at, size) for at, size in self.sent if begin <= at <= end]
        if len(sent) < 2:
            return 0.0, 0.0
        took = sent[-1][0] - sent[0][0]
        return (len(sent) - 1) / took, sum(size for _, size in sent[1:]) / took

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU time by role since the last question."""
        now: dict[str, float] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                role = next((r for word, r in ROLES.items() if word in line), "Ray, rest")
                now[role] = now.get(role, 0.0) + sum(process.cpu_times()[:2])
        found = {role: at - self._cpu.get(role, 0.0) for role, at in now.items()}
        self._cpu = now
        return found


def _header(frame: bytes) -> dict[str, Any]:
    """The message's header in a frame of JupyterLab's v1.kernel.websocket.jupyter.org protocol."""
    # The number of offsets and the offsets themselves lead; the channel and the header follow.
    begin, end = (int.from_bytes(frame[at : at + 8], "little") for at in (16, 24))
    header: dict[str, Any] = json.loads(frame[begin:end])
    return header


@contextlib.contextmanager
def watched(ranks: int, seconds: float, hz: float, processes: int = 2) -> Iterator[Watched]:
    """Ranks that log ``hz`` times a second for so long, and the panel that shows them."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base,
        running_lab(pathlib.Path(base), PYTHONPATH=path) as lab,
        launched_chromium() as chromium,
    ):
        page = chromium.new_page(viewport={"width": 1100, "height": 1300})
        cell = START.format(
            directory=base, ranks=ranks, processes=processes, seconds=seconds, hz=hz
        )
        found = Watched(Notebook(page, lab, lab.write("bench.ipynb", [cell])))

        def on_socket(socket: Any) -> None:
            if "/api/kernels/" in socket.url:
                socket.on("framereceived", found.count)

        page.on("websocket", on_socket)
        found.notebook.open()
        found.notebook.run_all()
        found.notebook.wait_state("Training")
        found.notebook.wait_idle()
        yield found
