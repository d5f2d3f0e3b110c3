"""What is broken on purpose, on real processes, and what a run makes of it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import raynb
from raynb.errors import OptionError, TrainingError

pytestmark = pytest.mark.usefixtures("cluster")
STEPS = 60


def train_func(config: dict[str, Any]) -> str:
    """Logs each step, saves every tenth, goes on from there; its own files tell the truth."""
    import time
    from pathlib import Path

    import ray.train
    import torch

    import raynb

    rank = ray.train.get_context().get_world_rank()
    model = torch.nn.Linear(2, 1)
    saved = raynb.resume(model)
    first = 0 if saved is None else saved.extra["step"] + 1
    with Path(config["there"], f"rank{rank}.txt").open("a") as file:
        for step in range(first, config["steps"]):
            raynb.log({"loss": float(step)}, step=step)
            print(step, file=file, flush=True)
            time.sleep(0.05)
            if step == config.get("at") and rank == 1 and first == 0:
                exec(config["what"])
            if step % config.get("every", 10) == config.get("every", 10) - 1:
                raynb.checkpoint(model, step=step)
    return "done"


class Started:
    """A run of :func:`train_func` on two ranks."""

    def __init__(self, there: Path, **options: Any) -> None:
        self.there = there
        config = {"there": str(there), "steps": STEPS, **options.pop("config", {})}
        options = {"name": there.name, "storage_path": str(there / "runs"), **options}
        self.run = raynb.train(
            train_func, config=config, num_workers=2, block=False, show=False, **options
        )

    def reaches(self, step: int, seconds: float = 90) -> list[int]:
        """Wait until both ranks are that far; gives their process ids."""
        end = time.monotonic() + seconds
        while min((len(rows) for rows in self.written()), default=0) <= step:
            assert time.monotonic() < end and not self.run.done, self.run.mirror.run
            time.sleep(0.05)
        return [row["pid"] for _, row in sorted(self.run.mirror.workers.items())]

    def written(self) -> list[list[str]]:
        """What each rank has written itself."""
        return [p.read_text().splitlines() for p in sorted(self.there.glob("rank*.txt"))]

    def ends(self, seconds: float = 90) -> Any:
        """The result, whatever it is."""
        assert self.run._done.wait(seconds), self.run.mirror.run
        return self.run.result


def rows_of(result: Any) -> list[list[str]]:
    """The history in the words of the ranks' own files, attempt after attempt."""
    frame = result.history.sort_values(["rank", "attempt", "step"], kind="stable")
    logged = frame[frame["loss"].notna()]
    return [[str(int(s)) for s in part["step"]] for _, part in logged.groupby("rank")]


def test_a_killed_worker_is_one_error_that_names_it(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path)
    pids = started.reaches(15)
    os.kill(pids[1], signal.SIGKILL)
    result = started.ends()
    assert result.state == "failed"
    with pytest.raises(TrainingError) as raised:
        started.run.wait()
    assert raised.value.rank == 1 and "rank 1" in raised.value.message
    assert "SIGKILL" in str(raised.value) or "killed" in str(raised.value)
    assert result.checkpoint is not None  # what was saved before
    nothing_left(pids, 15)


def test_a_killed_worker_is_replaced_and_goes_on_from_the_checkpoint(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path, max_failures=1)
    pids = started.reaches(25)
    os.kill(pids[1], signal.SIGKILL)
    result = started.ends(150)
    assert result.state == "finished" and result.return_value == "done"
    frame = result.history
    assert sorted(frame["attempt"].unique()) == [0, 1]
    logged = frame[frame["loss"].notna()]
    # The second attempt begins behind the checkpoint, and reaches the end once.
    again = logged.loc[logged["attempt"] == 1, "step"].min()
    assert again % 10 == 0 and again > 0
    for rank, written in enumerate(started.written()):
        first, second = (
            [str(int(s)) for s in part["step"]]
            for _, part in logged[logged["rank"] == rank].groupby("attempt")
        )
        cut = len(written) - len(second)
        # Nothing is there twice; processes that were killed took what they had not sent yet along.
        assert second == written[cut:] == [str(s) for s in range(int(again), STEPS)]
        assert first == written[: len(first)] and cut - 40 < len(first) <= cut
    nothing_left(pids, 15)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("import os; os._exit(3)", "exit"),
        ("import sys; sys.exit(3)", "SystemExit"),
        (
            "import torch; raise torch.OutOfMemoryError("
            "'CUDA out of memory. Tried to allocate 2.00 GiB.')",
            "CUDA out of memory",
        ),
    ],
)
def test_a_rank_that_ends_itself(
    tmp_path: Path, nothing_left: Callable[..., None], what: str, says: str
) -> None:
    started = Started(tmp_path, config={"at": 12, "what": what})
    result = started.ends(120)
    assert result.state == "failed"
    with pytest.raises(TrainingError, match="rank 1") as raised:
        started.run.wait()
    assert says in str(raised.value)
    kinds = {hint["kind"] for hint in result.record["hints"]}
    assert kinds == ({"cuda_oom"} if "memory" in says else set())
    nothing_left([row["pid"] for row in started.run.mirror.workers.values()], 15)


def test_a_killed_controller_is_one_error(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    from ray.util.state import list_actors

    started = Started(tmp_path)
    pids = started.reaches(15)
    address = ray.get_runtime_context().gcs_address
    alive = [("class_name", "=", "TrainController"), ("state", "=", "ALIVE")]
    [controller] = list_actors(address=address, filters=alive)
    os.kill(controller.pid, signal.SIGKILL)
    result = started.ends()
    assert result.state == "failed"
    with pytest.raises(raynb.RaynbError, match="controller"):
        started.run.wait()
    assert len(result.history) >= 30
    nothing_left(pids, 40)


def test_storage_that_fails_for_a_while_loses_nothing(tmp_path: Path) -> None:
    started = Started(tmp_path, config={"steps": 200})
    started.reaches(20)
    there = tmp_path / "runs" / tmp_path.name / "raynb" / "history"
    aside = there.with_name("aside")
    there.rename(aside)
    there.write_text("no directory")  # root may write anywhere, but not into a file
    events = started.run.mirror.events
    end = time.monotonic() + 30
    while not any("can't be written" in event["text"] for event in events):
        assert time.monotonic() < end
        time.sleep(0.1)
    there.unlink()
    aside.rename(there)
    result = started.ends()
    assert result.state == "finished"
    assert rows_of(result) == started.written()
    assert any("written again" in event["text"] for event in result.record["events"])


def test_a_stopped_process_is_seen_and_can_be_stopped(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    started = Started(tmp_path, config={"steps": 100_000})
    pids = started.reaches(15)
    os.kill(pids[1], signal.SIGSTOP)
    end = time.monotonic() + 90
    while not any("rank 1 never called" in hint["title"] for hint in started.run.mirror.hints):
        assert time.monotonic() < end
        time.sleep(0.2)
    began = time.monotonic()
    started.run.stop()
    result = started.ends(30)
    assert result.state == "stopped" and time.monotonic() - began < 15
    nothing_left(pids, 15)


# -- storage -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    there = tmp_path / "disk"
    there.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(there)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounts a file system: needs root")
    yield there
    subprocess.run(["umount", "--lazy", str(there)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.mark.expensive
def test_a_disk_that_is_full_for_a_while_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    config = {"steps": 240, "every": 10_000}
    started = Started(tmp_path, config=config, storage_path=str(small_disk))
    started.reaches(20)
    filler = fill(small_disk)
    events = started.run.mirror.events
    end = time.monotonic() + 30
    while not any("can't be written" in event["text"] for event in events):
        assert time.monotonic() < end
        time.sleep(0.1)
    steps = len(started.written()[0])
    time.sleep(2)
    assert len(started.written()[0]) > steps + 20, "training waits for storage"
    filler.unlink()
    result = started.ends()
    assert result.state == "finished"
    assert rows_of(result) == started.written()
    assert any("written again" in event["text"] for event in result.record["events"])


@pytest.mark.expensive
def test_a_full_disk_is_one_error_that_says_so(
    small_disk: Path, tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    config = {"steps": 100_000, "every": 100}
    started = Started(tmp_path, config=config, storage_path=str(small_disk))
    pids = started.reaches(20)
    filler = fill(small_disk)
    result = started.ends(60)
    assert result.state == "failed"
    with pytest.raises(TrainingError) as raised:
        started.run.wait()
    assert "No space left on device" in str(raised.value)
    assert "#storage-full" in raised.value.whole()
    # What could not be written is in the result all the same, but for the last words of the rank
    # that Ray has killed.
    for seen, written in zip(rows_of(result), started.written(), strict=True):
        assert seen == written[: len(seen)] and len(written) - len(seen) < 40
    # Its supervisor stays until all is written, for ten minutes at most.
    filler.unlink()
    nothing_left(pids, 30)


@pytest.mark.expensive
def test_storage_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    """An S3 server that is stopped for a while: a connection that hangs, no error."""
    import pyarrow.fs as pafs

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.2)
        at = f"endpoint_override=127.0.0.1:{port}&scheme=http"
        files, _ = pafs.FileSystem.from_uri(
            f"s3://key:secret@bucket?{at}&allow_bucket_creation=true"
        )
        files.create_dir("bucket")
        started = Started(
            tmp_path,
            config={"steps": 500, "every": 10_000},
            storage_path=f"s3://key:secret@bucket/runs?{at}",
        )
        started.reaches(20)
        server.send_signal(signal.SIGSTOP)
        steps = len(started.written()[0])
        time.sleep(12)
        gone_on = len(started.written()[0]) - steps
        server.send_signal(signal.SIGCONT)
        assert gone_on > 120, "training waits for storage"
        result = started.ends(120)
        assert result.state == "finished"
        assert rows_of(result) == started.written()
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()


# -- one name ------------------------------------------------------------------------------------


def test_of_two_runs_with_one_name_one_is_refused(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    """At the same moment from two threads, and later from a kernel with another cluster."""
    together = threading.Barrier(2)
    found: list[Any] = []

    def begin(there: Path) -> None:
        there.mkdir()
        together.wait()
        try:
            found.append(
                Started(there, name="one", storage_path=str(tmp_path), config={"steps": 300})
            )
        except OptionError as error:
            found.append(error)

    threads = [threading.Thread(target=begin, args=(tmp_path / n,)) for n in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [refused] = [one for one in found if isinstance(one, OptionError)]
    [started] = [one for one in found if isinstance(one, Started)]
    assert "'one' is going on already" in str(refused) and "%raynb attach one" in str(refused)
    pids = started.reaches(20)
    code = f"""
    import raynb
    try:
        raynb.train(lambda: None, num_workers=0, name="one", storage_path={str(tmp_path)!r},
                    show=False)
    except raynb.RaynbError as error:
        print(error)
    """
    elsewhere = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert "'one' is going on already, on another cluster" in elsewhere.stdout, elsewhere.stderr
    result = started.ends()
    assert result.state == "finished" and rows_of(result) == started.written()
    assert not [e for e in result.record["events"] if e["level"] == "error"]
    nothing_left(pids, 15)
    assert not (tmp_path / "one" / "raynb" / "alive").exists()


# -- stopping ------------------------------------------------------------------------------------


def stuck(config: dict[str, Any]) -> None:
    """Each rank hangs in its own way, none of which Python can end."""
    import ctypes
    import os
    import time
    from pathlib import Path

    import ray.train
    from torch.utils.data import DataLoader, Dataset

    import raynb

    def swallow() -> None:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1e6)

    class Hangs(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            Path(config["there"], "loader.txt").write_text(str(os.getpid()))
            swallow()
            return index

    rank = ray.train.get_context().get_world_rank()
    raynb.log({"loss": 1.0})
    time.sleep(1)
    Path(config["there"], f"stuck{rank}.txt").touch()
    if rank == 0:
        swallow()
    elif rank == 1:
        ctypes.PyDLL(None).sleep(10**6)  # in C, and with the GIL: not one line of Python runs
    else:
        list(DataLoader(Hangs(), num_workers=1))


def start_stuck(there: Path) -> tuple[Any, list[int]]:
    """A run that hangs, and its processes: three ranks and a DataLoader's."""
    run = raynb.train(
        stuck, config={"there": str(there)}, num_workers=3, storage_path=str(there),
        block=False, show=False,
    )  # fmt: skip
    end = time.monotonic() + 90
    there_are = ("stuck0.txt", "stuck1.txt", "loader.txt")
    while not all((there / name).exists() for name in there_are):
        assert time.monotonic() < end and not run.done, run.mirror.run
        time.sleep(0.1)
    time.sleep(0.5)
    loader = int((there / "loader.txt").read_text())
    return run, [*(row["pid"] for row in run.mirror.workers.values()), loader]


def test_stop_ends_what_python_can_not(tmp_path: Path, nothing_left: Callable[..., None]) -> None:
    """A rank that swallows interrupts, one in C code, and a DataLoader's process."""
    run, pids = start_stuck(tmp_path)
    began = time.monotonic()
    run.stop()
    result = run.wait(timeout=15)
    took = time.monotonic() - began
    assert result.state == "stopped" and took < 15
    assert any("ending the workers" in event["text"] for event in run.mirror.events)
    nothing_left(pids, max(1.0, 15 - took))


def deaf(config: dict[str, Any]) -> None:
    """Rank 0 sits in C code with Python's lock; rank 1 logs."""
    import ctypes
    import time
    from pathlib import Path

    import ray.train

    import raynb

    rank = ray.train.get_context().get_world_rank()
    raynb.log({"loss": 1.0})
    time.sleep(2)
    Path(config["there"], f"deaf{rank}.txt").touch()
    if rank == 0:
        ctypes.PyDLL(None).sleep(10**6)
    while True:
        raynb.log({"loss": 1.0})
        time.sleep(0.1)


@pytest.mark.expensive
def test_a_killed_worker_beside_one_that_does_not_answer(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    run = raynb.train(
        deaf, config={"there": str(tmp_path)}, num_workers=2, storage_path=str(tmp_path),
        block=False, show=False,
    )  # fmt: skip
    end = time.monotonic() + 90
    while len(list(tmp_path.glob("deaf*.txt"))) < 2:
        assert time.monotonic() < end and not run.done, run.mirror.run
        time.sleep(0.1)
    time.sleep(1)
    pids = [row["pid"] for _, row in sorted(run.mirror.workers.items())]
    os.kill(pids[1], signal.SIGKILL)
    end = time.monotonic() + 30
    while not any(f"rank 1's process {pids[1]} has ended" in e["text"] for e in run.mirror.events):
        assert time.monotonic() < end, run.mirror.events
        if run.done:  # Ray Train has noticed by itself
            break
        time.sleep(0.1)
    began = time.monotonic()
    run.stop()
    assert run._done.wait(15) and time.monotonic() - began < 15
    nothing_left(pids, 15)


@pytest.mark.expensive
def test_three_interrupts_never_end_the_kernel(
    tmp_path: Path, nothing_left: Callable[..., None]
) -> None:
    """A real kernel, which gets the signals that JupyterLab sends."""
    from ipykernel.kernelspec import write_kernel_spec
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    write_kernel_spec(str(tmp_path / "kernels" / "here"))
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")])
    manager = KernelManager(kernel_name="here", kernel_spec_manager=specs)
    address = ray.get_runtime_context().gcs_address
    manager.start_kernel(
        env={**os.environ, "RAY_ADDRESS": address, "IPYTHONDIR": str(tmp_path / "ipython")},
        cwd=str(tmp_path),
    )
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        ask(client, f"%load_ext raynb\n%config RayNB.storage_path = {str(tmp_path)!r}")
        cell = textwrap.dedent(
            f"""
            %%distributed_train -n 2 --name held
            import os, time
            open(os.path.join({str(tmp_path)!r}, str(os.getpid())), "w").close()
            while True:
                try:
                    time.sleep(1e6)
                except BaseException:
                    pass
            """
        ).strip()
        sent = client.execute(cell)
        end = time.monotonic() + 90
        while len(pids := [int(p.name) for p in tmp_path.glob("[0-9]*")]) < 2:
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(1)
        began = time.monotonic()
        for _ in range(3):
            manager.interrupt_kernel()
            time.sleep(0.4)
        reply = client._recv_reply(sent, timeout=30)
        assert time.monotonic() - began < 20
        assert reply["content"]["status"] == "error"
        assert reply["content"]["ename"] == "RunInterrupted"
        assert manager.is_alive()
        assert ask(client, "import ray; ray.is_initialized()") == "True"
        nothing_left(pids, 15)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def ask(client: Any, code: str) -> str:
    """Run code in a kernel; gives its value as text."""
    values = []

    def hear(message: Any) -> None:
        if message["msg_type"] == "execute_result":
            values.append(message["content"]["data"]["text/plain"])

    reply = client.execute_interactive(code, timeout=60, output_hook=hear)
    assert reply["content"]["status"] == "ok", reply["content"]
    return values[-1] if values else ""


# -- time ----------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: Callable[..., None]
) -> None:
    """An hour ahead in a worker, two back in the supervisor, a day ahead in this process."""
    real = time.time
    ahead = "import time; time.time = (lambda was: lambda: was() + 3600)(time.time)"
    began = real()
    started = Started(tmp_path, config={"steps": 200, "at": 40, "what": ahead})
    pids = started.reaches(60)

    def back(supervisor: Any) -> float:
        import time

        was = time.time
        time.time = lambda: was() - 7200
        return time.time()

    supervisor = started.run._backend.actor
    assert ray.get(supervisor.__ray_call__.remote(back)) < began
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    time.sleep(3)
    run = started.run.mirror.run
    assert 0 < started.run.mirror.clock.now() - run["started"] < 120
    result = started.ends()
    monkeypatch.undo()
    took = real() - began
    assert result.state == "finished" and rows_of(result) == started.written()
    frame = result.history
    assert frame["time"].between(began, real()).all()
    for _, part in frame.groupby("rank"):
        assert part["time"].is_monotonic_increasing
        assert part["time"].diff().max() < 5
    record = result.record
    assert 0 < record["ended"] - record["started"] < took
    times = [event["t"] for event in record["events"]]
    assert times == sorted(times) and began - 1 < times[0] and times[-1] < real()
    assert record["hints"] == []
    rates = [row["rate"] for row in record["workers"] if row["rate"] is not None]
    assert all(math.isfinite(rate) and 1 < rate < 100 for rate in rates)
    nothing_left(pids, 15)
