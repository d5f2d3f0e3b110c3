"""What a printed line costs a worker, beside printing to a file.

Run by hand: ``python tests/bench/print_cost.py [--lines 1000000] [--pairs 3]``. Loops of ``print``
to a file as Python opens it, to one that is written line by line as Ray has a worker's stdout, and
to raynb's stdout with the channel's thread at work; a loop's time is the whole time until it ends.
Prints the medians in microseconds a line, ratios and differences (bar: at most 3 more than a file).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from raynb.telemetry.channel import Channel
from raynb.worker.stdio import LogPump


class Nowhere:
    """A transport that delivers at once."""

    lost = 0

    def send(self, batch: Any) -> bool:
        return True

    def drain(self, timeout: float) -> bool:
        return True


def loop(file: Any, lines: int) -> float:
    """Microseconds a line."""
    began = time.perf_counter()
    for k in range(lines):
        print("epoch 3 step", k, file=file)
    return (time.perf_counter() - began) / lines * 1e6


def to_file(directory: str, lines: int, buffering: int) -> float:
    with open(os.path.join(directory, "file"), "w", buffering, encoding="utf-8") as file:
        return loop(file, lines)


def to_worker(directory: str, lines: int) -> float:
    path = os.path.join(directory, "logs", "rank-00000.log")
    pump = LogPump(path)
    channel = Channel(Nowhere(), 0, 0)
    channel.collectors.append(lambda: pump.pump(channel))
    pump.install()
    try:
        found = loop(sys.stdout, lines)
    finally:
        pump.uninstall()
        channel.close()
        pump.close()
    with open(path, "rb") as file:
        assert file.read().count(b"\n") == lines, "a line was lost"
    os.remove(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[float]] = {"file": [], "file, line by line": [], "raynb": []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(args.pairs):
            found["file"].append(to_file(directory, args.lines, -1))
            found["file, line by line"].append(to_file(directory, args.lines, 1))
            found["raynb"].append(to_worker(directory, args.lines))
    median = {kind: statistics.median(costs) for kind, costs in found.items()}
    print(f"{args.lines:,} lines, {args.pairs} times; microseconds a line")
    print(f"{'':20}{'median':>8}{'min':>8}{'max':>8}")
    for kind, costs in found.items():
        print(f"{kind:20}{median[kind]:8.2f}{min(costs):8.2f}{max(costs):8.2f}")
    for kind in ("file", "file, line by line"):
        more = median["raynb"] - median[kind]
        print(f"raynb / {kind}: {median['raynb'] / median[kind]:.2f}, {more:+.2f} us a line")
    print("bar: at most +3 us a line")


if __name__ == "__main__":
    main()
