"""Clusters of several nodes on this machine: who is lost, who joins, what a node lacks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raynb.processes import left

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: needs root")

#: Logs each step, saves every tenth and goes on from there; its own files tell the truth.
TRAIN = """
import json, os, sys, time
import ray, raynb
from raynb._ray import cluster

def train_func(config):
    import ray.train, torch
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    model = torch.nn.Linear(2, 1)
    saved = raynb.resume(model)
    first = 0 if saved is None else saved.extra["step"] + 1
    with open(os.path.join(config["there"], f"rank{rank}.txt"), "a") as file:
        for step in range(first, config["steps"]):
            raynb.log({"loss": float(step), "size": float(size)}, step=step)
            print(step, file=file, flush=True)
            time.sleep(0.05)
            if step % 10 == 9:
                raynb.checkpoint(model, step=step)
            if os.path.exists(os.path.join(config["there"], "end")):
                break
    return "done"

def tell(**what):
    print(json.dumps(what), flush=True)

def rows():
    return [run.mirror.workers[rank] for rank in sorted(run.mirror.workers)]

def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        if run.done or time.monotonic() > end:
            tell(late=run.mirror.run, events=run.mirror.events)
            sys.exit(1)
        time.sleep(0.1)

def trains(ranks, step=15):
    return run.state == "training" and [r["rank"] for r in rows() if
        r["status"] in ("running", "waiting") and (r["step"] or 0) >= step] == list(range(ranks))

def left():
    from ray.util.state import list_actors, list_placement_groups
    at = ray.get_runtime_context().gcs_address
    shared = {"_AutoscalingCoordinatorActor", "_StatsActor"}
    found = [a.class_name for a in list_actors(address=at, filters=[("state", "!=", "DEAD")])]
    found = [name for name in found if name not in shared]
    groups = list_placement_groups(address=at, filters=[("state", "!=", "REMOVED")])
    found += [group.state for group in groups]
    taken = ray.cluster_resources().get("CPU", 0) - ray.available_resources().get("CPU", 0)
    return found + ([f"{taken} CPUs"] if taken else [])

def ends(seconds):
    if not run._done.wait(seconds):
        tell(late=run.mirror.run, events=run.mirror.events)
        sys.exit(1)
    try:
        error = None
        run.wait(1)
    except Exception as raised:
        error = raised
    frame = run.result.history
    frame = frame[frame["loss"].notna()]  # without the reports
    return {
        "state": run.result.state, "error": error and f"{type(error).__name__}: {error}",
        "events": [event["text"] for event in run.mirror.events],
        "parts": [[int(attempt), int(rank), part["step"].tolist(), part["size"].unique().tolist()]
                  for (attempt, rank), part in frame.groupby(["attempt", "rank"])],
        "pids": [row["pid"] for row in rows()],
    }

def clean(seconds=20):
    end = time.monotonic() + seconds
    while (found := left()) and time.monotonic() < end:
        time.sleep(0.3)
    return found

cluster.connect()
config = {"there": THERE, "steps": STEPS}
"""
START = """
run = raynb.train(train_func, config=config, num_workers=2, name="many", storage_path=THERE,
                  placement_strategy="SPREAD", max_failures=FAILURES, block=False, show=False)
until(lambda: trains(2))
tell(workers=rows())
"""


class Nodes:
    """A cluster whose nodes have addresses of their own: 127.0.0.2 and on, after the head's."""

    def __init__(self, there: Path) -> None:
        self.there = there
        self.port = free_port()
        # Sockets below it must have short paths.
        self.ray = Path(tempfile.mkdtemp(prefix="rn-"))
        self.temporary = there / "tmp"
        self.temporary.mkdir()
        without = ("RAY_ADDRESS", "RAY_AUTH_MODE")
        self.env = {
            **{k: v for k, v in os.environ.items() if k not in without},
            "TMPDIR": str(self.temporary),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.mine: dict[int, psutil.Process] = {}

    def start(self, cpus: int, *, host: int = 1, prefix: tuple[str, ...] = (), **env: str) -> Any:
        """Start the head, or where ``host`` is more than 1 a node at that address."""
        command = [*self.prefix(host), *prefix, sys.executable, "-m", "ray.scripts.scripts",
                   "start", "--block",
                   f"--node-ip-address={self.address(host)}", f"--num-cpus={cpus}",
                   "--object-store-memory=150000000", "--min-worker-port=0",
                   "--max-worker-port=0", "--disable-usage-stats",
                   f"--dashboard-agent-listen-port={free_port()}",
                   f"--metrics-export-port={free_port()}"]  # fmt: skip
        if host == 1:
            command += ["--head", f"--port={self.port}", f"--temp-dir={self.ray}",
                        "--dashboard-host=127.0.0.1", f"--dashboard-port={free_port()}",
                        f"--ray-client-server-port={free_port()}"]  # fmt: skip
        else:
            command += [f"--address={self.address(1)}:{self.port}"]
        log = self.there / f"node{host}-{len(self.nodes)}.log"
        with log.open("wb") as file:
            node = subprocess.Popen(
                command, env={**self.env, **env}, stdout=file, stderr=file, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self.nodes.append(node)
        end = time.monotonic() + 90
        while "block forever" not in log.read_text(errors="replace"):
            assert node.poll() is None and time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.2)
        return node

    def address(self, host: int) -> str:
        return f"127.0.0.{host}"

    def prefix(self, host: int) -> tuple[str, ...]:
        """What a command on a node starts with."""
        return ()

    def raylet(self, node: Any) -> int:
        """The process that a node is for Ray."""
        return next(p.pid for p in self.processes(node) if p.name() == "raylet")

    def processes(self, node: Any) -> list[psutil.Process]:
        """A node's processes, which are remembered."""
        process = psutil.Process(node.pid)
        found = [process, *process.children(recursive=True)]
        self.mine.update({p.pid: p for p in found})
        return found

    def kill(self, node: Any) -> None:
        """End all of a node at once, as a machine that loses its power does."""
        for process in self.processes(node):
            kill(process)
        node.wait()

    def drive(self, code: str, **values: Any) -> Driver:
        """A kernel on the head that runs some code after :data:`TRAIN`."""
        return Driver(self, code, {"STEPS": 100_000, "FAILURES": 0, **values})

    def down(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                self.kill(node)
        for process in self.mine.values():
            kill(process)
        psutil.wait_procs(list(self.mine.values()), timeout=15)
        shutil.rmtree(self.ray, ignore_errors=True)


class Driver:
    """A kernel: a Python process that connects to the cluster by its address."""

    def __init__(self, nodes: Nodes, code: str, values: dict[str, Any]) -> None:
        self.nodes = nodes
        values["THERE"] = str(nodes.there)
        told = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        script = nodes.there / "driver.py"
        script.write_text(told + TRAIN + textwrap.dedent(code))
        self.log = nodes.there / "driver.log"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [*nodes.prefix(1), sys.executable, str(script)],
                env={**nodes.env, "RAY_ADDRESS": f"{nodes.address(1)}:{nodes.port}"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                cwd=nodes.there,
            )  # fmt: skip
        nodes.mine[self.process.pid] = psutil.Process(self.process.pid)

    def says(self) -> dict[str, Any]:
        """The next thing that it tells; the code has its own limits."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                assert "late" not in found, found
                return found
        status = self.process.wait(10)
        raise AssertionError(f"ended with {status}:\n{self.log.read_text()[-4000:]}")

    def go_on(self) -> None:
        """Let it read a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finished(self) -> None:
        assert self.process.wait(60) == 0, self.log.read_text()[-4000:]


class Cabled(Nodes):
    """A cluster of two nodes, each in a network of its own, with a cable between them."""

    def __init__(self, there: Path) -> None:
        super().__init__(there)
        self.env["GLOO_SOCKET_IFNAME"] = "cable"  # the host's name is loopback to it
        holder = ["unshare", "--net", "sleep", "infinity"]
        self.networks = [subprocess.Popen(holder) for _ in range(2)]
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + 10
        while any(os.readlink(f"/proc/{n.pid}/ns/net") == own for n in self.networks):
            assert time.monotonic() < end
            time.sleep(0.05)
        self.ip(1, "link", "add", "cable", "type", "veth", "peer", "name", "cable",
                "netns", str(self.networks[1].pid))  # fmt: skip
        for host in (1, 2):
            self.ip(host, "link", "set", "lo", "up")
            self.ip(host, "address", "add", f"{self.address(host)}/24", "dev", "cable")
            self.ip(host, "link", "set", "cable", "up")

    def ip(self, host: int, *words: str) -> None:
        subprocess.run([*self.prefix(host), "ip", *words], check=True, timeout=10)

    def address(self, host: int) -> str:
        return f"10.77.0.{host}"

    def prefix(self, host: int) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.networks[host - 1].pid}/ns/net")

    def cut(self) -> None:
        """Pull the cable out of the second node: the first one hears nothing of it."""
        self.ip(2, "link", "set", "cable", "down")

    def mend(self) -> None:
        self.ip(2, "link", "set", "cable", "up")

    def down(self) -> None:
        super().down()
        for network in self.networks:
            network.kill()
            network.wait()


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    started.down()


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[Cabled]:
    if shutil.which("ip") is None or subprocess.run(["unshare", "--net", "true"]).returncode:
        pytest.skip("no networks of its own here: needs root, unshare and ip")
    started = Cabled(tmp_path)
    yield started
    started.down()


def nothing_of(nodes: Nodes, pids: list[int]) -> None:
    """No process of the run is left, and nothing in the directory for temporary files."""
    end = time.monotonic() + 15
    assert not left(pids, 15)
    # What a worker was killed in the middle of, its supervisor takes away when it leaves.
    while (kept := list(nodes.temporary.glob("raynb-[!0-9]*"))) and time.monotonic() < end:
        time.sleep(0.2)
    assert not kept


LOST = """
began = time.monotonic()
seen = ends(120)
tell(seconds=time.monotonic() - began, left=clean(), **seen)
"""


def test_a_lost_node_is_made_up_for_from_the_checkpoint(nodes: Nodes) -> None:
    nodes.start(2)
    other = nodes.start(2, host=2)
    driver = nodes.drive(START + LOST, STEPS=60, FAILURES=1)
    workers = driver.says()["workers"]
    assert len({row["ip"] for row in workers} | {"127.0.0.2"}) == 2
    assert {row["node"] for row in workers} == {socket.gethostname()}
    pids = [row["pid"] for row in workers]
    os.kill(nodes.raylet(other), signal.SIGKILL)
    seen = driver.says()
    assert seen["state"] == "finished" and seen["error"] is None, seen
    assert any("(127.0.0.2) left the cluster" in text for text in seen["events"]), seen["events"]
    steps = {(attempt, rank): part for attempt, rank, part, _ in seen["parts"]}
    assert steps.keys() == {(a, r) for a in (0, 1) for r in (0, 1)}
    again = steps[1, 0][0]
    assert again % 10 == 0 and again > 0
    assert steps[1, 0] == steps[1, 1] == list(range(again, 60))
    for rank in (0, 1):
        written = (nodes.there / f"rank{rank}.txt").read_text().splitlines()
        first = [str(step) for step in steps[0, rank]]
        # What a killed process had not sent yet went with it.
        assert first == written[: len(first)]
    assert seen["left"] == []
    driver.finished()
    nothing_of(nodes, pids + seen["pids"])


@pytest.mark.expensive
def test_a_lost_node_without_max_failures_is_one_error(nodes: Nodes) -> None:
    nodes.start(2)
    other = nodes.start(2, host=2)
    driver = nodes.drive(START + LOST)
    pids = [row["pid"] for row in driver.says()["workers"]]
    os.kill(nodes.raylet(other), signal.SIGKILL)
    seen = driver.says()
    assert seen["state"] == "failed" and seen["seconds"] < 60
    assert "TrainingError" in seen["error"] and "rank" in seen["error"]
    assert all(len(part) > 10 for _, _, part, _ in seen["parts"]) and len(seen["parts"]) == 2
    assert seen["left"] == []
    driver.finished()
    nothing_of(nodes, pids)


#: A trainer of the user's own, for Ray looks for other nodes once a minute by default.
ELASTIC = """
import ray.train.torch
run = raynb.fit(ray.train.torch.TorchTrainer(
    train_func, train_loop_config=config,
    scaling_config=ray.train.ScalingConfig(
        num_workers=(1, 2), elastic_resize_monitor_interval_s=5),
    run_config=ray.train.RunConfig(
        name="many", storage_path=THERE, failure_config=ray.train.FailureConfig(max_failures=2)),
), block=False, show=False)
until(lambda: trains(1))
tell(workers=rows())
until(lambda: trains(2, 0) and run.mirror.run["world_size"] == 2)
tell(workers=rows())
until(lambda: run.mirror.run["world_size"] == 1 and trains(1) and
      any("left the cluster" in event["text"] for event in run.mirror.events))
tell(workers=rows())
seen = ends(60)
tell(left=clean(), **seen)
"""


@pytest.mark.expensive
def test_nodes_join_and_leave_an_elastic_run(nodes: Nodes) -> None:
    nodes.start(1)
    driver = nodes.drive(ELASTIC)
    [alone] = driver.says()["workers"]
    other = nodes.start(1, host=2)
    grown = driver.says()["workers"]
    assert {row["ip"] for row in grown} == {alone["ip"], "127.0.0.2"}
    time.sleep(2)
    nodes.kill(other)
    driver.says()
    (nodes.there / "end").touch()
    seen = driver.says()
    assert seen["state"] == "finished", seen
    for text in ("(127.0.0.2) joined the cluster with 1 CPU", "(127.0.0.2) left the cluster"):
        assert any(text in event for event in seen["events"]), seen["events"]
    # Groups of one, two and one again, apart by attempt, in one history.
    sizes = {attempt: sizes for attempt, _, _, sizes in seen["parts"]}
    assert [sizes[attempt] for attempt in sorted(sizes)] == [[1.0], [2.0], [1.0]]
    # Ray may try once more with two before it knows that the node is gone.
    last = max(sizes)
    assert [(a, r) for a, r, _, _ in seen["parts"]] == [(0, 0), (1, 0), (1, 1), (last, 0)]
    assert seen["left"] == []
    driver.finished()
    nothing_of(nodes, seen["pids"])


REFUSED = """
began = time.monotonic()
try:
    raynb.train(train_func, config=config, num_workers=2, name="many", storage_path=THERE,
                placement_strategy="SPREAD", show=False)
    error = None
except raynb.RaynbError as raised:
    error = raised
tell(seconds=time.monotonic() - began, error=f"{type(error).__name__}: {error}", left=clean())
"""


@needs_root
def test_what_a_node_lacks_is_said_before_training(nodes: Nodes) -> None:
    """A node that does not see the storage, and one without raynb."""
    nodes.start(1)
    inside = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
    private = ("unshare", "--mount", "sh", "-c", inside, str(nodes.there))
    blind = nodes.start(1, host=2, prefix=private)
    driver = nodes.drive(REFUSED)
    seen = driver.says()
    assert seen["error"].startswith("ResourceError") and "127.0.0.2 can't see it" in seen["error"]
    assert "--storage-path" in seen["error"] and seen["seconds"] < 30
    assert seen["left"] == []
    driver.finished()
    nodes.kill(blind)

    lacking = nodes.there / "lacking" / "raynb"
    lacking.mkdir(parents=True)
    (lacking / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'raynb'\")\n")
    nodes.start(1, host=3, PYTHONPATH=str(lacking.parent))
    driver = nodes.drive(REFUSED)
    seen = driver.says()
    assert seen["error"].startswith("CompatibilityError")
    assert "127.0.0.3 has none" in seen["error"] and "pip install raynb==" in seen["error"]
    assert seen["left"] == [] and not list(nodes.there.glob("many"))
    driver.finished()


HEAD = """
began = time.monotonic()
seen = ends(60)
tell(seconds=time.monotonic() - began, **seen)
time.sleep(70)  # by then Ray would have ended a process that holds on to a head that is gone
tell(alive=True)
sys.stdin.readline()
config["steps"] = 5
again = raynb.train(train_func, config=config, num_workers=1, name="again", storage_path=THERE,
                    show=False)
tell(state=again.state, left=clean())
"""


@pytest.mark.expensive
def test_a_head_that_restarts(nodes: Nodes) -> None:
    head = nodes.start(2)
    driver = nodes.drive(START + HEAD)
    pids = [row["pid"] for row in driver.says()["workers"]]
    nodes.kill(head)
    seen = driver.says()
    assert seen["state"] == "failed" and seen["seconds"] < 60
    assert "SupervisorDiedError" in seen["error"] and "is gone" in seen["error"]
    assert all(len(part) > 5 for _, _, part, _ in seen["parts"]) and len(seen["parts"]) == 2
    nothing_of(nodes, pids)
    assert driver.says() == {"alive": True}
    nodes.start(2)
    driver.go_on()
    assert driver.says() == {"state": "finished", "left": []}
    driver.finished()


CUT = """
sys.stdin.readline()
tell(state=run.state, steps=[row["step"] for row in rows()], dropped=run.mirror.run.get("dropped"))
until(lambda: run.mirror.run["attempt"] == 1 and trains(2))
tell(again=[row["ip"] for row in rows()])
seen = ends(120)
tell(left=clean(), **seen)
"""


@pytest.mark.expensive
def test_a_network_that_is_cut(cabled: Cabled) -> None:
    """For a moment nothing comes of it; for longer, the node is lost, also when it is back."""
    cabled.start(2)
    other = cabled.start(2, host=2)
    driver = cabled.drive(START + CUT, FAILURES=1)
    pids = [row["pid"] for row in driver.says()["workers"]]
    cabled.cut()
    time.sleep(4)
    cabled.mend()
    time.sleep(10)
    driver.go_on()
    seen = driver.says()
    assert seen["state"] == "training" and min(seen["steps"]) > 100, seen
    there = cabled.processes(other)
    cabled.cut()
    began = time.monotonic()
    assert driver.says()["again"] == [cabled.address(1)] * 2
    assert time.monotonic() - began < 120
    cabled.mend()
    # It is told that it is out, and does not train on beside its successor.
    assert not left(there, 90)
    (cabled.there / "end").touch()
    seen = driver.says()
    assert seen["state"] == "finished" and seen["error"] is None, seen
    assert any("left the cluster" in text for text in seen["events"]), seen["events"]
    steps = {(attempt, rank): part for attempt, rank, part, _ in seen["parts"]}
    assert steps.keys() == {(a, r) for a in (0, 1) for r in (0, 1)}
    for rank in (0, 1):
        written = (cabled.there / f"rank{rank}.txt").read_text().splitlines()
        first, again = steps[0, rank], steps[1, rank]
        # Of the moment without a network nothing is missing.
        assert first == list(range(len(first))) and len(first) > 100
        assert again == list(range(again[0], again[-1] + 1)) and again[0] % 10 == 0
        assert [str(step) for step in first] == written[: len(first)]
    assert seen["left"] == []
    driver.finished()
    nothing_of(cabled, pids + seen["pids"])
