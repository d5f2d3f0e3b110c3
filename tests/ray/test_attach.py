"""Runs that outlive their kernel: a cluster that stays, a killed kernel, two that attach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raynb.processes import left

#: Each of two ranks logs until it is told to end, and writes to a file of its own beside it.
TRAIN = """
import os, time, raynb, ray.train
def train_func(config):
    rank, step = ray.train.get_context().get_world_rank(), 0
    with open(os.path.join(config["there"], f"rank{rank}.txt"), "w") as file:
        while not os.path.exists(os.path.join(config["there"], "end")):
            loss = 1 / (1 + step) + rank
            raynb.log({"loss": loss})
            print(repr(loss), file=file, flush=True)
            step += 1
            time.sleep(0.1)
    return "done"
"""
START = (
    TRAIN
    + """
run = raynb.train(train_func, config={"there": THERE}, num_workers=2, name="long",
                  storage_path=THERE, block=False, show=False)
while run.state != "training":
    time.sleep(0.1)
print("training", flush=True)
time.sleep(600)
"""
)
#: A kernel that has raynb's magics, and nothing from the one before.
ATTACH = """
import json, time, raynb
from IPython.testing.globalipapp import start_ipython
ip = start_ipython()
ip.run_line_magic("load_ext", "raynb")
ip.run_line_magic("raynb", "runs " + THERE)
ip.run_line_magic("raynb", "attach long")
run = ip.user_ns["run"]
print("attached", flush=True)
if STOP:
    ip.run_line_magic("raynb", "stop long")
run._done.wait(120)
frame = run.result.history
print(json.dumps({
    "state": run.result.state, "value": str(run.result.return_value),
    "rows": {str(rank): part["loss"].tolist() for rank, part in frame.groupby("rank")},
}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment without a cluster; ends the one that a test leaves."""
    # A cluster that this process has started leaves its mode of authentication behind.
    env = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    # Where the cluster's file lies: no other test's, and none of the user's.
    env["TMPDIR"] = str(tmp_path_factory.mktemp("own"))
    yield env
    subprocess.run([sys.executable, "-m", "raynb", "cluster", "down", "--force"], env=env)


def command(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raynb", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
    )


def processes_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def start(env: dict[str, str], code: str, there: Path, **values: Any) -> subprocess.Popen[str]:
    """Start Python on some code, with what it is told as variables."""
    values["THERE"] = str(there)
    told = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return subprocess.Popen(
        [sys.executable, "-c", told + textwrap.dedent(code)],
        env=env, cwd=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def attached(process: subprocess.Popen[str]) -> str:
    """What a kernel says until it has attached."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == "attached\n":
            return "".join(lines)
        lines.append(line)
    raise AssertionError(process.communicate()[1][-4000:])


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON on the last line of what a process has printed."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-4000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def begin(env: dict[str, str], there: Path) -> None:
    """Start the long run, and kill its kernel once it trains."""
    kernel = start(env, START, there)
    try:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "training\n", kernel.communicate()[1][-4000:]
        time.sleep(1.0)
    finally:
        # As a crash does: nothing of it gets to say goodbye.
        kernel.send_signal(signal.SIGKILL)
        kernel.wait()


def test_a_run_outlives_its_kernel_and_others_watch_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    env = environment
    assert "no cluster" in command(env, "cluster", "status").stdout
    none = command(env, "attach")
    assert none.returncode == 1 and "cluster up" in none.stderr

    up = command(env, "cluster", "up", "--num-cpus", "4")
    assert up.returncode == 0, up.stderr
    twice = command(env, "cluster", "up")
    assert twice.returncode == 1 and "up already" in twice.stderr
    record = json.loads(Path(env["TMPDIR"], f"raynb-{os.getuid()}", "cluster.json").read_text())
    everything = processes_of(record["pid"])
    listening = {
        c.laddr.ip
        for process in everything
        for c in process.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    }
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    begin(env, tmp_path)
    status = command(env, "cluster", "status").stdout
    assert "runs that go on: long" in status and "CPU: 2 of 4 free" in status
    refused = command(env, "cluster", "down")
    assert refused.returncode == 1 and "runs go on there: long" in refused.stderr
    unknown = command(env, "attach", "other")
    assert unknown.returncode == 1 and "these do: long" in unknown.stderr

    # Two at once, which see the same, and all of it.
    watchers = [start(env, ATTACH, tmp_path, STOP=False) for _ in range(2)]
    for heard in map(attached, watchers):
        assert "going on (%raynb attach NAME): long" in heard
    (tmp_path / "end").touch()
    for seen in map(said, watchers):
        assert (seen["state"], seen["value"]) == ("finished", "done")
        for rank in ("0", "1"):
            lines = (tmp_path / f"rank{rank}.txt").read_text().splitlines()
            assert len(lines) > 10
            assert seen["rows"][rank] == [float(line) for line in lines]
    wait_until(lambda: "runs that go on: none" in command(env, "cluster", "status").stdout)

    # Another run, and a kernel that only came to stop it.
    second = tmp_path / "second"
    second.mkdir()
    begin(env, second)
    seen = said(start(env, ATTACH, second, STOP=True))
    assert seen["state"] == "stopped" and len(seen["rows"]["0"]) > 5

    everything = processes_of(record["pid"])
    down = command(env, "cluster", "down")
    assert down.returncode == 0, down.stderr
    assert not left(everything, 10)
    assert "no cluster" in command(env, "cluster", "status").stdout


def wait_until(holds: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
