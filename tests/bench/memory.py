"""Memory of the tutorial's run: PSS over kernel, Ray and workers, at its peak.

Run by hand: ``python tests/bench/memory.py [--workers 2] [--python PYTHON] [--notebook FILE]
[--limit-mb 2000] [--before CODE]``. PSS counts a page that several processes share once in all.
Prints each process's part at the peak, with an idle JupyterLab server beside them as on Binder, and
ends with status 1 where the sum is above the limit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_client import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
from docs_blocks import blocks_of  # noqa: E402

MB = 1_000_000


def pss(process: psutil.Process) -> int:
    """Proportional set size; 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (OSError, ProcessLookupError):
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def kind(process: psutil.Process) -> str:
    """What a process is, in a few words."""
    try:
        words = process.cmdline() or [process.name()]
    except psutil.Error:
        return "gone"
    line = " ".join(words)
    if line.startswith("ray::"):
        return re.split(r"[\s.(]", line.removeprefix("ray::"))[0]
    for word in ("ipykernel_launcher", "raylet", "gcs_server", "log_monitor", "jupyterlab"):
        if word in line:
            return word
    script = re.search(r"([\w-]+)\.py", line)
    return script[1] if script else Path(words[0]).name


class Watch(threading.Thread):
    """Adds up a process tree's memory until it is told to end, and keeps the largest sum."""

    def __init__(self, root: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.end = threading.Event()
        self.peak: Counter[str] = Counter()
        self.count: Counter[str] = Counter()
        self.at = 0.0

    def run(self) -> None:
        began = time.monotonic()
        while not self.end.wait(0.3):
            sizes: Counter[str] = Counter()
            count: Counter[str] = Counter()
            for process in [self.root, *self.root.children(recursive=True)]:
                if size := pss(process):
                    name = kind(process)
                    sizes[name] += size
                    count[name] += 1
            if sizes.total() > self.peak.total():
                self.peak, self.count, self.at = sizes, count, time.monotonic() - began


def tutorial(workers: int, before: str) -> Any:
    """The tutorial's code as a notebook."""
    page = blocks_of(ROOT / "docs" / "tutorial.md")
    cells = [b.code for b in page if b.run]
    cells = [
        c.replace("%%distributed_train -n 2", f"%%distributed_train -n {workers}") for c in cells
    ]
    if workers == 1:  # nothing to shard, so there is no sampler that shuffles by epoch
        cells = [c.replace("    loader.sampler.set_epoch(epoch)\n", "") for c in cells]
    first = [before] if before else []
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in first + cells])


def server(python: str, directory: str) -> int:
    """PSS of a JupyterLab server that nobody has asked yet."""
    command = [python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    process = psutil.Popen(
        [*command, f"--ServerApp.root_dir={directory}", "--IdentityProvider.token=x"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(12)
    size = pss(process) + sum(map(pss, process.children(recursive=True)))
    process.terminate()
    process.wait(20)
    return size


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="of another environment")
    parser.add_argument("--notebook", help="instead of the tutorial")
    parser.add_argument("--before", default="", help="code of a first cell")
    parser.add_argument("--limit-mb", type=float, default=2000)
    args = parser.parse_args()

    if args.notebook:
        notebook = nbformat.read(args.notebook, as_version=4)
    else:
        notebook = tutorial(args.workers, args.before)
    with tempfile.TemporaryDirectory(prefix="raynb-memory-") as directory:
        lab = server(args.python, directory)
        manager = KernelManager()
        launcher = [args.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        manager.kernel_spec.argv[:] = launcher
        client = NotebookClient(notebook, km=manager, timeout=400)
        with client.setup_kernel(cwd=directory):
            watch = Watch(psutil.Process(manager.provisioner.pid))
            watch.start()
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, index)
            watch.end.set()
            watch.join()

    total = watch.peak.total() + lab
    versions = "import ray, torch; print('Ray', ray.__version__, 'torch', torch.__version__)"
    print(subprocess.run([args.python, "-c", versions], capture_output=True, text=True).stdout)
    print(f"peak {watch.at:.0f} s after the start, MB of PSS\n")
    rows = [*watch.peak.most_common(), ("jupyterlab, idle", lab)]
    for name, size in rows:
        print(f"{size / MB:8.0f}  {size / total:4.0%}  {watch.count[name] or 1:2d} x {name}")
    print(f"{total / MB:8.0f}  100%  in all; without JupyterLab {watch.peak.total() / MB:.0f}")
    fits = total / MB <= args.limit_mb
    print(f"\n{'below' if fits else 'ABOVE'} the limit of {args.limit_mb:.0f} MB")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
