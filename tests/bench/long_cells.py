"""Long ``%%distributed`` cells: one that prints all along, one that is silent.

Run by hand: ``python tests/bench/long_cells.py [--printing 60] [--silent 600]``. Two warm ranks
print the time ten times a second, then sleep. Prints how old lines were when they reached the
notebook, the longest time without one, and whether the silent cell came back with its value (bars:
every line is there, none of them older than 2 seconds; the silent cell does not time out).
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import sys
import tempfile
import time

PRINTING = """%%distributed
import time
for turn in range({turns}):
    print("AT", turn, time.time(), flush=True)
    time.sleep(0.1)"""
SILENT = """%%distributed -o slept
import time
time.sleep({seconds})
rank"""


class Arrivals:
    """Stands for the notebook's output stream: when each line came, and how old it was."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []

    def write(self, text: str) -> int:
        now = time.time()
        self.found += [(now, now - float(at)) for at in re.findall(r"AT \d+ ([\d.]+)", text)]
        return len(text)

    def flush(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--printing", type=float, default=60)
    parser.add_argument("--silent", type=float, default=600)
    args = parser.parse_args()

    from raynb import workers
    from raynb._ray import cluster

    with tempfile.TemporaryDirectory() as directory:
        os.environ["IPYTHONDIR"] = directory
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance()
        cluster.start_local(num_cpus=4)
        shell.run_cell("%load_ext raynb")
        shell.run_cell("%raynb workers up -n 2").raise_error()
        turns = int(args.printing * 10)
        arrivals, stdout = Arrivals(), sys.stdout
        sys.stdout = arrivals  # type: ignore[assignment]
        try:
            shell.run_cell(PRINTING.format(turns=turns)).raise_error()
        finally:
            sys.stdout = stdout
        came = [at for at, _ in arrivals.found]
        ages = [age for _, age in arrivals.found]
        gap = max(b - a for a, b in itertools.pairwise(came))
        print(f"printing for {args.printing:.0f} s: {len(ages)} of {2 * turns} lines came")
        print(f"  age when shown: median {statistics.median(ages) * 1000:.0f} ms,", end=" ")
        print(f"most {max(ages) * 1000:.0f} ms; longest time without a line {gap:.2f} s")
        began = time.monotonic()
        shell.run_cell(SILENT.format(seconds=args.silent)).raise_error()
        took = time.monotonic() - began
        print(
            f"silent for {args.silent:.0f} s: back after {took:.1f} s with {shell.user_ns['slept']}"
        )
        workers.down()
        import ray

        ray.shutdown()


if __name__ == "__main__":
    main()
