"""Directories for temporary use: taken away with their block, or after their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raynb import scratch

HOLDS = """
import time
from raynb.scratch import Scratch
made = Scratch("checkpoint")
open(made.path + "/weights.pt", "w").write("w" * 1000)
print(made.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_block(temporary: Path) -> None:
    with scratch.Scratch("load") as path:
        Path(path, "file").write_text("kept while it is in use")
        assert Path(path).parent == temporary and "load" in Path(path).name
        assert scratch.sweep() == []
        assert Path(path, "file").exists()
    assert list(temporary.iterdir()) == []


def test_it_goes_when_its_process_was_killed(temporary: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert scratch.sweep() == [] and (path / "weights.pt").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert scratch.sweep() == [path.name]
    assert list(temporary.iterdir()) == []


def test_nothing_else_goes(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("not to be touched")
    (temporary / "raynb-scratch-link").symlink_to(elsewhere)
    (temporary / "raynb-scratch-file").write_text("a file, no directory")
    (temporary / "raynb-1000").mkdir()
    before = sorted(temporary.iterdir())
    assert scratch.sweep() == []
    assert sorted(temporary.iterdir()) == before and (elsewhere / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_stays(temporary: Path) -> None:
    theirs = temporary / "raynb-scratch-checkpoint-x"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    assert scratch.sweep() == [] and theirs.exists()
