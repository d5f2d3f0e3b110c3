"""A real kernel for ``compare.py``: cells with what they cost, and processes that it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

PEERS_DIR = Path(__file__).parent / "peers"
RANKS = 2
WARM_UP = 10  # steps that count for no rate
#: Seconds that a cell gets before it is interrupted, as a person would.
PATIENCE = 100


@dataclass
class Ran:
    """A cell that has run."""

    began: float
    ended: float
    interrupted: float | None  #: when, by the one who waits
    outputs: list[Any]
    died: bool = False

    @property
    def failed(self) -> bool:
        return self.died or any(o["output_type"] == "error" for o in self.outputs)

    def text(self) -> str:
        """What was printed, and errors, without colours."""
        parts = [
            "\n".join(o["traceback"]) + "\n" if o["output_type"] == "error" else o["text"]
            for o in self.outputs
            if o["output_type"] in ("stream", "error")
        ]
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(parts))


class Kernel:
    """A kernel of a peer's interpreter, and every process that was seen below it."""

    def __init__(self, python: str, directory: Path) -> None:
        self.ticks = directory / f"ticks-{time.time():.3f}"
        self.ticks.mkdir()
        spec = directory / "jupyter" / "kernels" / "peer" / "kernel.json"
        spec.parent.mkdir(parents=True, exist_ok=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": "peer", "language": "python"}))
        os.environ["JUPYTER_PATH"] = str(directory / "jupyter")
        home, bin_dir = directory / "home", directory / "bin"
        for path in (home, bin_dir):
            path.mkdir(exist_ok=True)
        # A peer that ends processes by their names must not end those of others.
        stub = bin_dir / "pkill"
        stub.write_text("#!/bin/sh\nexit 0\n")
        stub.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYNB_"))}
        self.env = kept | {
            "HOME": str(home),
            "PATH": os.pathsep.join([str(bin_dir), str(Path(python).parent), kept["PATH"]]),
            "PYTHONPATH": str(PEERS_DIR),
            "DATA": str(directory / "data.pt"),
            "COMPARE_TICKS": str(self.ticks),
            # One core a rank, on loopback, for all of them.
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.notebook = nbformat.v4.new_notebook()
        self.client = NotebookClient(
            self.notebook,
            kernel_name="peer",
            allow_errors=True,
            timeout=None,
            store_widget_state=False,
            resources={"metadata": {"path": str(home)}},
        )
        self.seen: set[psutil.Process] = set()

    def __enter__(self) -> Kernel:
        self.client.km = self.client.create_kernel_manager()
        # Ray ends its processes when its driver exits, which takes longer than the default allows.
        self.client.km.shutdown_wait_time = 30
        self._alive = contextlib.ExitStack()
        self._alive.enter_context(self.client.setup_kernel(env=self.env))
        self.process = psutil.Process(self.client.km.provisioner.pid)
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._look()
        if exc[0] is not None:  # a cell may be running, and a busy kernel would be killed
            with contextlib.suppress(OSError):
                os.killpg(self.client.km.provisioner.pgid, signal.SIGINT)
        with contextlib.suppress(Exception):
            self._alive.close()
        self._stop.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(psutil.Error):
            self.seen.update(self.process.children(recursive=True))

    def wait_for_connections(self, seconds: float = 60) -> None:
        """Wait until each rank has a connection to the kernel."""
        end = time.time() + seconds
        while time.time() < end:
            ports = {
                c.laddr.port
                for c in self.process.net_connections("tcp")
                if c.status == psutil.CONN_LISTEN
            }
            connected = 0
            for child in self.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found = child.net_connections("tcp")
                    connected += any(c.raddr and c.raddr.port in ports for c in found)
            if connected >= RANKS:
                return
            time.sleep(0.1)

    def left(self) -> list[psutil.Process]:
        """Processes that were started below the kernel and are alive."""
        found = []
        for process in list(self.seen):
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def run(
        self, source: str, patience: float = PATIENCE, when: Callable[[], bool] | None = None
    ) -> Ran:
        """Run a cell; interrupt it once when something is so, or when patience ends."""
        cell = nbformat.v4.new_code_cell(source)
        self.notebook.cells.append(cell)
        over, interrupted = threading.Event(), []

        def wait() -> None:
            end = time.time() + patience
            while time.time() < end and not (when and when()):
                if over.wait(0.02):
                    return
            interrupted.append(time.time())
            # As Jupyter does it: to the kernel's process group.
            os.killpg(self.client.km.provisioner.pgid, signal.SIGINT)
            if not over.wait(60):
                print("  the interrupt did not end the cell; the kernel is ended", flush=True)
                self.process.terminate()

        waiter = threading.Thread(target=wait, daemon=True)
        began, died = time.time(), False
        waiter.start()
        try:
            self.client.execute_cell(cell, len(self.notebook.cells) - 1)
        except DeadKernelError:
            died = True
        ended = time.time()
        over.set()
        waiter.join()
        return Ran(began, ended, interrupted[0] if interrupted else None, cell.outputs, died)

    def steps(self, run: str) -> list[list[float]]:
        """When each rank of a run has taken its steps."""
        return [
            # The last line may be half written.
            [float(line) for line in file.read_text().rpartition("\n")[0].split()]
            for file in self.ticks.glob(f"{run}.*")
        ]

    def first_step(self, run: str) -> float | None:
        """When the last rank had taken its first one."""
        ranks = self.steps(run)
        return max(r[0] for r in ranks) if len(ranks) == RANKS else None

    def rate(self, run: str, steps: int) -> float | None:
        """Steps a second of the slower rank."""
        ranks = self.steps(run)
        if len(ranks) < RANKS or min(map(len, ranks)) < steps:
            return None
        skip = min(WARM_UP, steps // 3)
        return min((steps - skip - 1) / (r[steps - 1] - r[skip]) for r in ranks)


def merge_streams(outputs: list[Any]) -> None:
    """Join neighbours of one stream, as front ends do before they save."""
    for k in reversed(range(1, len(outputs))):
        one, two = outputs[k - 1], outputs[k]
        if one.get("name") and one.get("name") == two.get("name"):
            one["text"] += two["text"]
            del outputs[k]


def memory(processes: list[psutil.Process]) -> tuple[int, float]:
    """How many processes, and their memory in MB."""
    sizes = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sizes.append(process.memory_full_info().pss / 1e6)
    return len(sizes), sum(sizes)


def end(processes: list[psutil.Process]) -> None:
    """End what a kernel has left behind; these processes and no others."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=10)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
