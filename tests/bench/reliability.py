"""Break a run in each way that docs/reliability.md names, and write down what came of it.

Run by hand: ``python tests/bench/reliability.py [--times 10] [--only ROW] [--list]``. Each row is
the tests named below, each time in a process of its own, with the expensive ones, all rows once
before any of them again. Rows that did not run keep what was measured before. With ``--keep FILE``
each time adds a line of JSON to the file, and the table is of all lines there: the times may come
from several calls, and ``--times 0`` only writes it. The bars: every time as expected, and nothing
left: no process, no file for temporary use, no shared memory.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEAD = "| fault | ran | as expected | seconds, median (most) | left behind | measured |"
FAULTS, NODES = "tests/ray/test_faults.py", "tests/ray/test_nodes.py"
#: Test by row; a row's name is how docs/reliability.md calls the fault.
ROWS: Mapping[str, str] = {
    "worker killed": f"{FAULTS}::test_a_killed_worker_is_one_error_that_names_it",
    "worker killed, --max-failures": (
        f"{FAULTS}::test_a_killed_worker_is_replaced_and_goes_on_from_the_checkpoint"
    ),
    "worker killed beside one that holds Python's lock": (
        f"{FAULTS}::test_a_killed_worker_beside_one_that_does_not_answer"
    ),
    "worker stopped (SIGSTOP)": f"{FAULTS}::test_a_stopped_process_is_seen_and_can_be_stopped",
    "a rank exits, or is out of GPU memory": f"{FAULTS}::test_a_rank_that_ends_itself",
    "exception on one rank": "tests/ray/test_runs.py::test_a_failing_rank_is_one_error",
    "controller killed": f"{FAULTS}::test_a_killed_controller_is_one_error",
    "supervisor killed": "tests/ray/test_runs.py::test_dead_supervisor",
    "kernel killed": "tests/ray/test_attach.py::test_a_run_outlives_its_kernel_and_others_watch_it",
    "node lost": f"{NODES}::test_a_lost_node_without_max_failures_is_one_error",
    "node lost, --max-failures": f"{NODES}::test_a_lost_node_is_made_up_for_from_the_checkpoint",
    "network of a node cut": f"{NODES}::test_a_network_that_is_cut",
    "nodes join and leave": f"{NODES}::test_nodes_join_and_leave_an_elastic_run",
    "a node lacks raynb or the storage": (
        f"{NODES}::test_what_a_node_lacks_is_said_before_training"
    ),
    "head lost and started again": f"{NODES}::test_a_head_that_restarts",
    "disk full for a while": f"{FAULTS}::test_a_disk_that_is_full_for_a_while_loses_nothing",
    "disk full": f"{FAULTS}::test_a_full_disk_is_one_error_that_says_so",
    "storage unwritable a while": f"{FAULTS}::test_storage_that_fails_for_a_while_loses_nothing",
    "storage does not answer": f"{FAULTS}::test_storage_that_does_not_answer_holds_nothing_up",
    "two runs with one name": f"{FAULTS}::test_of_two_runs_with_one_name_one_is_refused",
    "stop: interrupts swallowed, C code, DataLoader": (
        f"{FAULTS}::test_stop_ends_what_python_can_not"
    ),
    "stop: in a collective, asleep": "tests/ray/test_runs.py::test_stop",
    "three interrupts": f"{FAULTS}::test_three_interrupts_never_end_the_kernel",
    "clock set anew": f"{FAULTS}::test_a_clock_that_jumps_changes_nothing",
    "browser killed": "tests/browser/test_killed.py::test_a_killed_browser_changes_nothing",
    "page reloaded": "tests/browser/test_panel.py::test_looks_keys_and_a_reload",
}


@dataclass
class Seen:
    """What came of a row.

    Attributes
    ----------
    seconds : list of float
        Of each time, the start of a cluster included.
    right : int
        Times that ended as expected.
    skipped : str
        Why it can't run here.
    left : list of str
    """

    seconds: list[float] = field(default_factory=list)
    right: int = 0
    skipped: str = ""
    left: list[str] = field(default_factory=list)
    date: str = ""

    def add(self, time: Mapping[str, Any]) -> None:
        """Count one more time."""
        self.date = time["date"]
        if time["skipped"]:
            self.skipped = time["skipped"]
            return
        self.seconds.append(time["seconds"])
        self.right += time["passed"]
        self.left += time["left"]

    def line(self, row: str) -> str:
        ran, today = len(self.seconds), self.date
        if not ran:
            return f"| {row} | 0 | n/a | n/a | n/a | {today}: skipped, {self.skipped} |"
        each = f"{statistics.median(self.seconds):.0f} ({max(self.seconds):.0f})"
        left = ", ".join(sorted(set(self.left))) or "nothing"
        return f"| {row} | {ran} | {self.right} | {each} | {left} | {today} |"


def once(test: str, limit_s: float) -> tuple[float, bool, str, list[str]]:
    """Run a row's test in a process of its own: seconds, whether it passed, why skipped, left."""
    before, shared = set(psutil.pids()), set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="rel-", ignore_cleanup_errors=True) as directory:
        temporary, report = Path(directory, "t"), Path(directory, "report.xml")
        temporary.mkdir()
        env = {**os.environ, "RAYNB_ALL_FAULTS": "1", "TMPDIR": str(temporary)}
        # Pytest's own directory is besides, so that what is in the other one was left by a run.
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", str(ROOT / test),
                   f"--junitxml={report}", f"--basetemp={directory}/b",
                   f"--timeout={limit_s:.0f}"]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        took = time.monotonic() - began
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        skipped = [case.find("skipped") for case in cases]
        why = next((s.get("message", "") for s in skipped if s is not None), "")
        passed = done.returncode == 0 and bool(cases) and not why
        if not passed and not why:
            print(done.stdout[-6000:], done.stderr[-2000:])
        left = [f"process {name}" for name in processes(before, 15)]
        left += [f"file {p.name}" for p in temporary.iterdir() if mine(p)]
    left += [f"shared memory {name}" for name in set(os.listdir("/dev/shm")) - shared]
    return took, passed, why, left


def mine(path: Path) -> bool:
    """Whether a run has left this; a directory for the user's cluster stays, as it says."""
    return path.name.startswith("raynb-") and path.name != f"raynb-{os.getuid()}"


def processes(before: Iterable[int], seconds: float) -> list[str]:
    """Names of new processes of Ray, raynb or a kernel that are there after so many seconds."""
    words = ("ray::", "raylet", "gcs_server", "ray/", "raynb", "ipykernel", "chromium")
    end = time.monotonic() + seconds
    while True:
        found = []
        for process in psutil.process_iter(["pid", "name", "cmdline", "status", "ppid"]):
            line = " ".join(process.info["cmdline"] or ())
            if (
                process.info["pid"] not in before
                and process.info["status"] != psutil.STATUS_ZOMBIE
                and any(word in line for word in words)
            ):
                found.append(process.info["name"])
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def write(lines: Mapping[str, str]) -> None:
    """Put the rows that ran into the page's table; the others stay."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    known = {
        line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")
    }
    rows = {row: lines.get(row) or known.get(row) for row in ROWS}
    ruler = "|" + " --- |" * HEAD.count(" |")
    body = "\n".join([HEAD, ruler, *(line for line in rows.values() if line)])
    PAGE.write_text(f"{before}{BEGIN}\n{machine()}\n\n{body}\n{END}{after}", encoding="utf-8")


def machine() -> str:
    version = importlib.metadata.version
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"Last on a machine with {os.cpu_count()} cores and {memory:.0f} GiB, without a GPU; "
        f"Python {platform.python_version()}, Ray {version('ray')}, torch {version('torch')}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", action="append", metavar="ROW", help="a row's name, or a part")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of one time")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON lines that are added to")
    parser.add_argument("--list", action="store_true", help="print the rows and their tests")
    args = parser.parse_args()
    chosen = {r: t for r, t in ROWS.items() if not args.only or any(o in r for o in args.only)}
    if args.list or not chosen:
        print("\n".join(f"{row}: {test}" for row, test in ROWS.items()))
        return
    today = datetime.date.today().isoformat()
    seen: dict[str, Seen] = {}
    if args.keep and args.keep.exists():
        for text in args.keep.read_text().splitlines():
            kept = json.loads(text)
            seen.setdefault(kept["row"], Seen()).add(kept)
    for _ in range(args.times):
        for row, test in chosen.items():
            took, passed, skipped, left = once(test, args.limit_s)
            time_ = {"row": row, "date": today, "seconds": took, "passed": passed,
                     "skipped": skipped, "left": left}  # fmt: skip
            if args.keep:
                with args.keep.open("a") as file:
                    file.write(json.dumps(time_) + "\n")
            seen.setdefault(row, Seen()).add(time_)
            # At once: hours of rows are not lost with one that hangs.
            write({row: seen[row].line(row)})
            print(seen[row].line(row), flush=True)
    write({row: found.line(row) for row, found in seen.items()})
    wrong = [row for row, found in seen.items() if found.left or found.right < len(found.seconds)]
    sys.exit(f"not as expected: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
