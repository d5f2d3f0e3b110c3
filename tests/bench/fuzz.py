"""The fuzzers of tests/unit for long: what a cell takes along, and what reads messages and files.

Run by hand: ``python tests/bench/fuzz.py [--minutes 10] [--seed 0] [capture|wire|all]``. Each
gets that many minutes, prints what it tried, and ends with an error at its first finding. Of
``capture``, each random cell is run in the notebook and with nothing but what was captured; of
``wire``, messages and saved files that were changed at random are read and shown, and memory is
looked at.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import garbage
from cell_programs import cells, check_cell_program

#: Examples of a round; hypothesis keeps what it has seen in a round.
ROUND = 1_000


def rounds(minutes: float, first: int, examples: int, check: Any, strategy: Any) -> int:
    """Check examples until the time is over; gives how many rounds there were."""
    end, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        number += 1

        @seed(first + number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def one(drawn: Any) -> None:
            if time.monotonic() < end:
                check(drawn)

        one()
    return number


def memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def fuzz_capture(minutes: float, first: int) -> None:
    found: Counter[str] = Counter()

    def check(cell: tuple[str, dict[str, str]]) -> None:
        found[check_cell_program(*cell)] += 1

    rounds(minutes, first, ROUND, check, cells())
    print(f"capture: {found.total():,} cells, {dict(found)}; no finding")


def fuzz_messages(minutes: float, first: int, directory: Path) -> None:
    held: list[int] = []
    messages = refused = 0
    end, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        number += 1
        listener = garbage.Listener(directory / f"messages-{number}")
        left = min((end - time.monotonic()) / 60, minutes / 10)
        rounds(max(left, 0.01), first + 1_000 * number, ROUND, listener.take, garbage.messages())
        messages += listener.seen
        refused += listener.collector._digest.run["dropped"].get("refused", 0)
        listener.check()
        del listener
        held.append(memory())
    growth = held[-1] / held[min(2, len(held) - 1)] - 1
    print(f"messages: {messages:,}, {refused:,} pieces refused; no finding")
    print(f"memory from the third of {len(held)} collectors to the last: {growth:+.1%}")


def fuzz_files(minutes: float, first: int, directory: Path, make: Any) -> None:
    run = make(directory)
    record, parts = run / "raynb" / "record.json", garbage.parts_of(run)
    whole, part = record.read_bytes(), parts[0].read_bytes()
    told: Counter[str] = Counter()
    held: list[int] = []

    def check(changed: tuple[str, bytes, bytes]) -> None:
        which, new_record, new_part = changed
        record.write_bytes(new_record)
        parts[0].write_bytes(new_part)
        told[which] += 1
        garbage.read_saved(run, whole=which == "json" or told.total() % 10 == 0)
        if told.total() % 100 == 0:
            held.append(memory())

    rounds(minutes, first, 200, check, garbage.changed_files(whole, part))
    growth = f"{held[-1] / held[0] - 1:+.1%}" if held else "n/a"
    print(f"files of {run.name}: {told.total():,} {dict(told)}; no finding")
    print(f"memory since the first hundred: {growth}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("capture", "wire", "all"), default="all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.minutes:g} minutes each")
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory)
        each: dict[str, Callable[[], None]] = {}
        if args.what in ("capture", "all"):
            each["capture"] = lambda: fuzz_capture(args.minutes, args.seed)
        if args.what in ("wire", "all"):
            half, quarter = args.minutes / 2, args.minutes / 4
            each["messages"] = lambda: fuzz_messages(half, args.seed, there)
            each["runs"] = lambda: fuzz_files(quarter, args.seed, there / "a", garbage.saved_run)
            each["searches"] = lambda: fuzz_files(
                quarter, args.seed, there / "b", garbage.saved_search
            )
        for one in each.values():
            one()


if __name__ == "__main__":
    main()
