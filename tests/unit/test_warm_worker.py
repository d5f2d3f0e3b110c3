"""What a warm worker does between jobs, in a process of its own, and interrupts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from raynb._ray.jobs import Meeting
from raynb.worker.warm.interrupts import Interrupts


def in_process(code: str, directory: Path) -> list[str]:
    """Run code in a process of its own, since it changes what a process shares."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_process_is_what_it_was(tmp_path: Path) -> None:
    """Environment, directory, path, settings of torch, hooks, logging and processes."""
    out = in_process(
        """
        import logging, multiprocessing, os, subprocess, sys, warnings
        import psutil, torch
        from raynb.worker.warm.baseline import Baseline

        def state():
            return (dict(os.environ), os.getcwd(), list(sys.path), list(logging.root.handlers),
                    torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
                    torch.backends.cudnn.benchmark, torch.get_num_threads(), torch.tensor(0).device,
                    list(warnings.filters), sys.getrecursionlimit(), sys.excepthook,
                    dict(torch.nn.modules.module._global_forward_hooks))

        torch.set_num_threads(1)
        baseline = Baseline()
        before = state()
        os.environ["LEFT"] = "1"
        os.chdir("/")
        sys.path.insert(0, "/nowhere")
        sys.setrecursionlimit(5000)
        sys.excepthook = print
        logging.basicConfig(level=logging.DEBUG)
        warnings.simplefilter("error")
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(3)
        torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
        multiprocessing.set_start_method("spawn")
        child = subprocess.Popen(["sleep", "1000"])
        assert state() != before
        left = baseline.restore()
        assert state() == before, (state(), before)
        assert left.processes == 1
        assert not psutil.pid_exists(child.pid)
        multiprocessing.set_start_method("fork")  # as if nobody had chosen one
        print("fine")
        """,
        tmp_path,
    )
    assert out == ["fine"]


def test_seeds_are_as_in_a_new_process(tmp_path: Path) -> None:
    code = """
        import random, numpy, torch
        from raynb.worker.warm.baseline import Baseline
        baseline = Baseline()
        drawn = []
        for _ in range(3):
            torch.manual_seed(7); numpy.random.seed(7); random.seed(7)
            baseline.restore()
            drawn.append((random.random(), float(numpy.random.rand()), float(torch.rand(1))))
        print(all(len(set(d)) == 3 for d in zip(*drawn)))
        """
    assert in_process(code, tmp_path) == ["True"]


def test_a_users_modules_are_imported_anew(tmp_path: Path) -> None:
    """The file as it is then, whatever its time stamp says; libraries stay."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "part.py").write_text("WIDTH = 3\nseen = []\n")
    out = in_process(
        """
        import sys
        sys.path.insert(0, "")
        import torch
        from raynb.worker.warm.baseline import Baseline
        baseline = Baseline()
        for width in (4, 5):
            import mine.part
            import colorsys
            print(mine.part.WIDTH, mine.part.seen, "torch" in sys.modules)
            mine.part.seen.append(1)
            colorsys.kept = True
            with open("mine/part.py", "w") as file:
                file.write(f"WIDTH = {width}\\nseen = []\\n")
            del mine
            baseline.restore()
            assert "mine" not in sys.modules and "mine.part" not in sys.modules
        import mine.part, colorsys
        print(mine.part.WIDTH, mine.part.seen, colorsys.kept)
        """,
        tmp_path,
    )
    assert out == ["3 [] True", "4 [] True", "5 [] True"]


def test_what_a_job_replaced_in_a_library_is_put_back(tmp_path: Path) -> None:
    out = in_process(
        """
        import torch
        from raynb.worker.warm.baseline import Baseline
        baseline = Baseline()
        names = {"__name__": "__main__"}
        exec('''
        import torch
        def relu(x): return x
        def forward(self, x): return x
        torch.nn.functional.relu = relu
        torch.nn.Linear.forward = forward
        '''.replace("        ", ""), names)
        names.clear()
        print(sorted(baseline.restore().restored))
        print(torch.nn.Linear(2, 1)(torch.ones(1, 2)).shape, baseline.restore().restored)
        """,
        tmp_path,
    )
    assert out == [
        "['torch.nn.functional.relu', 'torch.nn.modules.linear.Linear.forward']",
        "torch.Size([1, 1]) []",
    ]


def test_open_files_and_threads_are_told(tmp_path: Path) -> None:
    out = in_process(
        """
        import threading, time
        from raynb.worker.warm.baseline import Baseline
        baseline = Baseline()
        file = open("kept.txt", "w")
        threading.Thread(target=time.sleep, args=(100,), name="mine", daemon=True).start()
        left = baseline.restore()
        print(left.threads, [f.rpartition("/")[2] for f in left.files])
        """,
        tmp_path,
    )
    assert out == ["['mine'] ['kept.txt']"]


@pytest.mark.parametrize("where", ["python", "sleep"])
def test_interrupts_reach_the_jobs_thread(where: str) -> None:
    interrupts = Interrupts()
    seen: list[str] = []
    began = threading.Event()

    def job() -> None:
        try:
            with interrupts.open():
                began.set()
                try:
                    while True:
                        time.sleep(1e6 if where == "sleep" else 0)
                except KeyboardInterrupt:
                    seen.append("interrupted")
                    time.sleep(0.01)  # what handles it may sleep
                    raise
        except KeyboardInterrupt:
            seen.append("out")

    thread = threading.Thread(target=job)
    thread.start()
    began.wait(5)
    time.sleep(0.1)
    interrupts.interrupt()
    thread.join(5)
    assert not thread.is_alive()
    assert seen == ["interrupted", "out"]
    assert time.sleep.__module__ == "time"


def test_an_interrupt_that_comes_first_or_last() -> None:
    first = Interrupts()
    first.interrupt()
    with pytest.raises(KeyboardInterrupt), first.open():
        raise AssertionError("the job must not begin")
    last = Interrupts()
    with last.open():
        pass
    last.interrupt()
    for _ in range(1000):
        pass
    assert last.asked


def test_ranks_meet() -> None:
    meeting = Meeting(3)
    found: list[tuple[int, int, str]] = []

    def rank(r: int) -> None:
        for turn in (1, 2):
            data = meeting.broadcast_from_rank_zero(r, f"{r}:{turn}", turn, relaxable=True)
            found.append((r, turn, data))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sorted(found) == [(r, t, f"0:{t}") for r in range(3) for t in (1, 2)]


def test_a_meeting_that_ends_lets_the_ranks_go() -> None:
    meeting = Meeting(2)
    raised: list[str] = []

    def wait() -> None:
        try:
            meeting.broadcast_from_rank_zero(0, "x", 1)
        except Exception as error:
            raised.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    meeting.end()
    thread.join(5)
    assert raised == ["SynchronizationBarrierResetError"]
