"""Workers' output in real runs: whole in the files, its newest lines with the watcher."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import raynb
from raynb.errors import TrainingError


def log_file(path: str | Path, rank: int) -> str:
    return Path(path, "raynb", "logs", f"rank-{rank:05d}.log").read_bytes().decode()


@pytest.mark.usefixtures("cluster")
def test_bars_colours_long_lines_and_c_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        import ctypes
        import logging
        import os
        import subprocess
        import sys
        import time

        import ray.train
        from torch.utils.data import DataLoader, Dataset
        from tqdm import tqdm  # type: ignore[import-untyped]

        class Loud(Dataset[int]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, k: int) -> int:
                print("item", k)
                return k

        rank = ray.train.get_context().get_world_rank()
        print("no newline", end="")
        time.sleep(0.6)  # is looked at in between
        print(" so far")
        print("\x1b[31mred\x1b[0m <b>")
        for k in tqdm(range(100_000), desc=f"bar {rank}"):
            if k % 25_000 == 0:
                print("step", k)
        print("x" * 10_000_000)
        logging.getLogger("mine").warning("a warning")
        ctypes.CDLL(None).printf(b"from C\n")
        time.sleep(0.6)
        os.write(2, b"to descriptor 2\n")
        subprocess.run(["echo", "from a child"], check=True)
        list(DataLoader(Loud(), num_workers=2, multiprocessing_context="fork"))
        print("end of", rank, end="", file=sys.stderr)

    run: Any = raynb.train(
        train_func, num_workers=2, storage_path=str(tmp_path), block=False, show=False, name="logs"
    )
    result = run.wait()
    assert result.state == "finished"
    for rank in (0, 1):
        text = log_file(result.path, rank)
        assert text.count("x" * 10_000_000 + "\n") == 1
        shown = [line for _, line in sorted(run.mirror.logs[rank].items())]
        texts = [line for _, line in shown]
        for line in ("no newline so far", "\x1b[31mred\x1b[0m <b>", "from C", "from a child"):
            assert ("out", line) in shown
            assert text.count(line + "\n") == 1
        assert ("err", "to descriptor 2") in shown
        assert ("err", f"end of {rank}") in shown and text.endswith(f"end of {rank}")
        assert sum("a warning" in line for line in texts) == 1 == text.count("a warning")
        [bar] = [line for line in shown if f"bar {rank}:" in line[1]]
        assert bar[0] == "err" and "100000/100000" in bar[1]
        assert text.count("\rbar") > 1 and "100000/100000" in text
        steps = [line for line in texts if line.startswith("step ")]
        assert steps == [f"step {k}" for k in range(0, 100_000, 25_000)]
        assert sorted(line for line in texts if line.startswith("item ")) == [
            f"item {k}" for k in range(4)
        ]
        [long] = [line for line in texts if line.startswith("xxx")]
        assert len(long) < 2_100 and long.endswith("(cut)")
        # In the order of what happened, whoever wrote it.
        order = [texts.index(line) for line in ("step 75000", long, "from C", "from a child")]
        assert order == sorted(order)
    seen = "".join(capfd.readouterr())
    assert "from C" not in seen and "step 0" not in seen and "bar 0" not in seen


@pytest.mark.usefixtures("cluster")
def test_the_last_words_of_a_crash_are_in_the_file(tmp_path: Path) -> None:
    def train_func() -> None:
        import ctypes

        import ray.train

        rank = ray.train.get_context().get_world_rank()
        print("hello from", rank)
        if rank == 1:
            ctypes.string_at(0)
        ray.train.report({"loss": 1.0})

    with pytest.raises(TrainingError):
        raynb.train(train_func, num_workers=2, storage_path=str(tmp_path), show=False, name="crash")
    text = log_file(tmp_path / "crash", 1)
    assert text.startswith("hello from 1\n")
    assert "Segmentation fault" in text
    # faulthandler's words: the line where it happened.
    assert "string_at" in text


LOG_TO_DRIVER = """
import sys
import ray
ray.init(address="local", num_cpus=2, log_to_driver=True, include_dashboard=False)
import raynb

def train_func():
    import os, ray.train
    print("printed")
    os.write(1, b"by descriptor\\n")
    os.write(2, b"by descriptor\\n")
    if ray.train.get_context().get_world_rank() == 0:
        print("done", file=sys.stderr)

result = raynb.train(train_func, num_workers=2, storage_path=sys.argv[1], show=False, name="x")
print("state", result.state)
"""


def test_a_cluster_that_tells_the_driver_tells_nothing_of_it(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(LOG_TO_DRIVER))
    found = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert "state finished" in found.stdout, found.stderr[-3000:]
    said = found.stdout + found.stderr
    assert "printed" not in said and "by descriptor" not in said and "done" not in said
    assert log_file(tmp_path / "x", 0).count("by descriptor\n") == 2
