"""The price of watching very many ranks: what supervisor, kernel and browser have to bear.

Run by hand: ``python tests/bench/many_ranks.py [--ranks 1000] [--seconds 60] [--hz 10]``; with
``--seconds 180`` it also tells whether memory grows. Simulated ranks, many to a process, log two
metrics ten times a second and send samples, shards, timings and some lines through real channels
into a real supervisor, which has no trainer; this process is the kernel, which watches the run and
encodes all that a browser would get. Bars: every record is in the history; the supervisor takes
less than 80 % of a core, the kernel less than 25 %; at most 10 messages and 1 MB a second go to the
browser; memory after 3 minutes is within 5 % of that after one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import ray

#: Seconds that are left out of the figures: ranks join, buffers grow.
WARM_S = 10.0


class NoTrainer:
    """Stands where a run has its trainer; ``fit`` takes as long as the file is not there."""

    def __init__(self, end: str) -> None:
        self._end = pathlib.Path(end)

    def fit(self) -> str:
        while not self._end.exists():
            time.sleep(0.2)
        return "no result"


@ray.remote(num_cpus=0, max_concurrency=2)
class Ranks:
    """Some of the ranks, each with its own channel."""

    def __init__(self, supervisor: Any, ranks: range, world_size: int) -> None:
        from raynb.telemetry.channel import ActorTransport, Channel

        for rank in ranks:
            who = {"rank": rank, "world_size": world_size, "node": f"node-{rank // 8}",
                   "ip": "10.0.0.1", "pid": 4_000 + rank}  # fmt: skip
            attempt = ray.get(supervisor.hello.remote(who))
        self._channels = [
            Channel(ActorTransport(supervisor.ingest), rank, attempt, world_size) for rank in ranks
        ]
        for channel in self._channels:
            channel.put("status", "running")

    def run(self, seconds: float, hz: float) -> int:
        """Log for so long; gives the number of records."""
        began, step = time.time(), 0
        while (at := began + step / hz) < began + seconds:
            time.sleep(max(0.0, at - time.time()))
            for channel in self._channels:
                channel.log({"loss": 2 / (1 + step) + random.random(), "acc": step / 1e6})
                # Each rank's own second, as it is with real ones.
                if step % hz == channel.rank % hz:
                    self._every_second(channel, step)
            step += 1
        return step * len(self._channels)

    def _every_second(self, channel: Any, step: int) -> None:
        sample = {
            "device": f"GPU {channel.rank % 8} · NVIDIA H200",
            "device_kind": "GPU",
            "util": round(random.uniform(80, 100), 1),
            "mem_used": 2**36 + random.randrange(2**30),
            "mem_total": 2**37,
            "mem_process": 2**36,
            "temperature": 60.0 + random.randrange(5),
            "power": 500.0 + random.randrange(100),
            "cpu": random.uniform(90, 110),
            "rss": 2**33 + random.randrange(2**20),
            "threads": 8,
            "cores": 8.0,
            "net_in": random.uniform(1e8, 2e8),
            "net_out": random.uniform(1e8, 2e8),
            "disk_read": 0.0,
            "disk_write": random.uniform(0, 1e6),
            "net_speed": 5e10,
        }
        shard = {
            "name": "train",
            "kind": "map",
            "rows_seen": step * 32,
            "rows_total": 1_000_000,
            "batches_seen": step,
            "batches_total": 31_250,
            "batch_size": 32,
            "rows_dropped": 0,
            "rows_repeated": 0,
            "epoch": 1,
            "shuffle": True,
            "set_epoch": "ok",
            "eta_s": 1e5 / (1 + step),
        }
        timing = {
            "reports": 0,
            "step_s": random.uniform(0.09, 0.11),
            "wait_s": random.uniform(0, 0.01),
            "report_s": 0.0,
            "sync_s": random.uniform(0, 0.01),
            "rows_rate": random.uniform(300, 340),
            "lr": 1e-3,
        }
        channel.put("sample", sample)
        channel.put("shards", [shard])
        channel.put("timing", timing)
        if random.random() < 0.1:
            channel.put_log(step, "out", f"step {step} of rank {channel.rank}")

    def close(self) -> int:
        """Send what is left; gives the number of ranks that could not."""
        return sum(not channel.close(60) for channel in self._channels)


@dataclass
class Simulation:
    """A run of simulated ranks: ``senders`` log until they are told, the run ends with ``end``."""

    run: Any
    senders: list[Any]
    end: pathlib.Path


def simulate(
    directory: str, ranks: int, processes: int, watch: Callable[[Any], object]
) -> Simulation:
    """Start a real supervisor without a trainer, and ranks that speak to it, many to a process.

    Parameters
    ----------
    directory : str
        For the history.
    ranks, processes : int
    watch : callable
        Called with the run before its first news.
    """
    from raynb._ray import cluster
    from raynb.engine.collector import RunFacts
    from raynb.engine.run import RemoteBackend, Run

    cluster.start_local()
    facts = RunFacts("many-ranks", f"{directory}/run", ("loss", "min"))
    backend = RemoteBackend.start(facts, {})
    run = Run(facts, lambda result, **parts: parts["history"])
    watch(run)
    end = pathlib.Path(directory, "end")
    trainer = NoTrainer(str(end))
    ray.get(backend.actor.start.remote(lambda: trainer))
    ray.get(backend.actor.controller_event.remote("group_starting", {"num_workers": ranks}))
    run.attach(backend)
    size = -(-ranks // processes)
    senders = [
        Ranks.remote(backend.actor, range(k, min(k + size, ranks)), ranks)
        for k in range(0, ranks, size)
    ]
    began = time.monotonic()
    for sender in senders:
        ray.get(sender.__ray_ready__.remote())
    print(f"{ranks:,} ranks said hello in {time.monotonic() - began:.1f} s", flush=True)
    return Simulation(run, senders, end)


class Browser:
    """Counts what would be sent to one."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.messages = self.bytes = self.largest = 0
        self.ages: list[float] = []  # of the newest record when it gets here
        run.listen(self)

    def __call__(self, update: Any) -> None:
        from jupyter_client.session import json_packer

        from raynb.panel.wire import encode
        from raynb.telemetry.series import TIME

        now, started = time.time(), self._run.mirror.run["started"]
        newest = [data[TIME].max() for data in update.buffers if data.shape[1]]
        if newest:
            self.ages.append(now - max(newest))
        content, buffers = encode(update, "delta", self.messages, started)
        size = len(json_packer({"method": "custom", "content": content}))
        size += sum(len(buffer) for buffer in buffers)
        self.messages += 1
        self.bytes += size
        self.largest = max(self.largest, size)


def memory(process: psutil.Process) -> float:
    """MB of a process's own: the object store's pages are everybody's."""
    return float(process.memory_full_info().uss) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        browsers: list[Browser] = []
        started = simulate(
            directory, args.ranks, args.processes, lambda run: browsers.append(Browser(run))
        )
        run, senders, [browser] = started.run, started.senders, browsers
        sent = [sender.run.remote(args.seconds, args.hz) for sender in senders]

        kernel = psutil.Process()
        [supervisor] = [p for p in psutil.process_iter() if "Supervisor" in " ".join(_cmdline(p))]
        print(f"supervisor {supervisor.pid}, kernel {kernel.pid}", flush=True)
        marks: dict[float, tuple[float, float]] = {}
        figures: list[tuple[float, float, float, int, int]] = []

        def look() -> None:
            figures.append(
                (
                    time.monotonic(),
                    sum(supervisor.cpu_times()[:2]),
                    sum(kernel.cpu_times()[:2]),
                    browser.messages,
                    browser.bytes,
                )
            )

        time.sleep(WARM_S)
        look()
        course = []
        for at in range(20, int(args.seconds) + 1, 20):
            time.sleep(max(0.0, figures[0][0] - WARM_S + at - 1 - time.monotonic()))
            course.append((memory(supervisor), memory(kernel)))
            if at in (60, 180):
                marks[at / 60] = course[-1]
        time.sleep(max(0.0, figures[0][0] - WARM_S + args.seconds - 1 - time.monotonic()))
        look()
        records = sum(ray.get(sent))
        refused = sum(ray.get([sender.close.remote() for sender in senders]))
        threads = threading.active_count()
        started.end.touch()
        run._done.wait(120)
        rows = len(run.result)
        frame = run.result.group_by("rank").aggregate([("step", "count_distinct")])
        steps = set(frame["step_count_distinct"].to_pylist())
        supervisor_mirror = run.mirror
        dropped = supervisor_mirror.run["dropped"]

    seconds = figures[1][0] - figures[0][0]
    rates = [(b - a) / seconds for a, b in zip(figures[0], figures[1], strict=True)][1:]
    whole = rows == records and len(steps) == 1 and not refused
    bars = [
        ("records sent", f"{records:,}", "", True),
        ("rows in the history", f"{rows:,}", "all", whole),
        ("supervisor, % of a core", f"{100 * rates[0]:.1f}", "< 80", rates[0] < 0.8),
        ("kernel, % of a core", f"{100 * rates[1]:.1f}", "< 25", rates[1] < 0.25),
        ("messages/s to the browser", f"{rates[2]:.1f}", "<= 10", rates[2] <= 10.0),
        ("kB/s to the browser", f"{rates[3] / 1e3:.0f}", "< 1000", rates[3] < 1e6),
        ("largest message, kB", f"{browser.largest / 1e3:.0f}", "", True),
        (
            "newest record's age, ms",
            f"{1e3 * statistics.median(browser.ages):.0f}, p95 "
            f"{1e3 * statistics.quantiles(browser.ages, n=20)[-1]:.0f}",
            "",
            True,
        ),
    ]
    for name, at in (("supervisor", 0), ("kernel", 1)):
        for minute, found in marks.items():
            first = marks[1.0][at]
            ok = abs(found[at] / first - 1) < 0.05
            told = f"{found[at]:.0f} ({100 * (found[at] / first - 1):+.1f} %)"
            bars.append((f"{name}, MB after {minute:g} min", told, "within 5 %", ok))
    print(f"dropped {json.dumps(dropped)}, kernel threads {threads}")
    print(
        "MB every 20 s, supervisor + kernel: " + ", ".join(f"{a:.0f} + {b:.0f}" for a, b in course)
    )
    print(f"\n{'':32}{'measured':>20}{'bar':>14}")
    for name, told, bar, ok in bars:
        print(f"{name:32}{told:>20}{bar:>14}{'' if ok else '   MISSED'}")


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


if __name__ == "__main__":
    main()
