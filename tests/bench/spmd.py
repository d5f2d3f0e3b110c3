"""A ``%%distributed`` cell with one all_reduce and its result shown: cell to result.

Run by hand: ``python tests/bench/spmd.py [--rounds 40] [--nbdistributed PYTHON]``, where PYTHON is
the interpreter of an environment that has nbdistributed: the peer's time is taken there,
in the same run. The bars: a median of at most 50 ms, and half of nbdistributed's.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PREPARE = "t = torch.ones(1)"
CELL = "dist.all_reduce(t)\nt"


def cells(shell, magic: str, rounds: int) -> list[float]:
    shell.run_cell(f"{magic}{PREPARE}", store_history=True)
    found = []
    for turn in range(rounds + 3):
        began = time.perf_counter()
        shell.run_cell(f"{magic}{CELL}  # {turn}", store_history=True)
        if turn >= 3:
            found.append(time.perf_counter() - began)
        time.sleep(0.1)
    return found


def new_shell(directory: str):
    os.environ["IPYTHONDIR"] = directory
    from IPython.core.interactiveshell import InteractiveShell

    return InteractiveShell.instance()


def peer(rounds: int) -> None:
    """In nbdistributed's environment: prints the times."""
    from IPython.utils.capture import capture_output

    with tempfile.TemporaryDirectory() as directory:
        # Whatever it does when something goes wrong, it must not end others' processes by name.
        stub = pathlib.Path(directory, "pkill")
        stub.write_text("#!/bin/sh\nexit 0\n")
        stub.chmod(0o755)
        # Its workers are what is called python there.
        own = os.path.dirname(sys.executable)
        os.environ["PATH"] = os.pathsep.join([directory, own, os.environ["PATH"]])
        shell = new_shell(directory)
        shell.run_cell("%load_ext nbdistributed")
        shell.run_cell("%dist_init -n 2")
        shell.run_cell("%dist_mode -d")  # else it sends every cell by itself
        time.sleep(10)  # it loses cells that are sent before its ranks are connected
        try:
            times = cells(shell, "%%distributed\n", rounds)
            with capture_output() as captured:
                shell.run_cell("%%distributed\nprint('SUM', float(t))")
            if "SUM" in captured.stdout:  # else it did nothing, and fast
                print("TIMES", *times, flush=True)
        finally:
            # Its own shutdown looks for processes by their names; these are its workers.
            import psutil

            for child in psutil.Process().children(recursive=True):
                child.kill()
            os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--nbdistributed", metavar="PYTHON")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.rounds)
        return
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        from raynb import workers
        from raynb._ray import cluster

        shell = new_shell(directory)
        cluster.start_local(num_cpus=4)
        shell.run_cell("%load_ext raynb")
        shell.run_cell("%raynb workers up -n 2").raise_error()
        times["raynb"] = cells(shell, "%%distributed\n", args.rounds)
        workers.down()
        import ray

        ray.shutdown()
    if args.nbdistributed:
        command = [args.nbdistributed, str(pathlib.Path(__file__).resolve()), "--peer"]
        done = subprocess.run(
            [*command, "--rounds", str(args.rounds)], stdout=subprocess.PIPE, text=True, timeout=300
        )
        for line in done.stdout.splitlines():
            if line.startswith("TIMES"):
                times["nbdistributed"] = [float(t) for t in line.split()[1:]]
        if "nbdistributed" not in times:
            print(done.stdout[-2000:], file=sys.stderr)
    print(f"\n{'':16}{'median':>10}{'min':>10}{'max':>10}  milliseconds, cell to result")
    for kind, found in times.items():
        row = (statistics.median(found), min(found), max(found))
        print(f"{kind:16}" + "".join(f"{v * 1000:10.1f}" for v in row))


if __name__ == "__main__":
    main()
