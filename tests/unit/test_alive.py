"""A run's sign of life: who writes into a directory, and who did until it died."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from raynb.engine import alive
from raynb.engine.alive import Pulse, refuse_running
from raynb.engine.spec import write_record
from raynb.errors import OptionError

FILES = pafs.LocalFileSystem()


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run's directory whose record says that it goes on."""
    monkeypatch.setattr(alive, "BEAT_S", 0.4)
    write_record(FILES, str(tmp_path), {"state": "running"})
    return str(tmp_path)


def test_a_run_that_goes_on_is_refused(run_dir: str) -> None:
    pulse, ended = Pulse(FILES, run_dir), threading.Event()
    pulse.beat()

    def beat() -> None:
        while not ended.wait(0.05):
            assert not pulse.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(OptionError, match="'one' is going on already") as raised:
            refuse_running(run_dir, "one")
        assert "--name" in str(raised.value)
    finally:
        ended.set()
        thread.join()
    pulse.end()
    assert os.listdir(Path(run_dir, "raynb")) == ["record.json"]
    refuse_running(run_dir, "one")


def test_a_run_that_died_is_not(run_dir: str) -> None:
    Pulse(FILES, run_dir).beat()
    began = time.monotonic()
    refuse_running(run_dir, "one")
    assert time.monotonic() - began >= 0.5  # it waited for a sign
    sign = Path(run_dir, "raynb", "alive")
    os.utime(sign, (time.time() - 60, time.time() - 60))
    began = time.monotonic()
    refuse_running(run_dir, "one")
    assert time.monotonic() - began < 0.2  # long ago: no need to wait
    assert sorted(os.listdir(sign.parent)) == ["alive", "record.json"]


def test_a_run_that_ended_needs_no_look(run_dir: str) -> None:
    Pulse(FILES, run_dir).beat()
    write_record(FILES, run_dir, {"state": "failed"})
    began = time.monotonic()
    refuse_running(run_dir, "one")
    assert time.monotonic() - began < 0.2


def test_two_that_began_together_notice(run_dir: str) -> None:
    one, two = Pulse(FILES, run_dir), Pulse(FILES, run_dir)
    assert not one.beat() and not two.beat()
    time.sleep(0.45)
    assert one.beat() and two.beat()
    one.end()  # it is the other's sign, and stays
    assert Path(run_dir, "raynb", "alive").exists()
    two.end()
    assert not Path(run_dir, "raynb", "alive").exists()


def test_storage_that_fails_is_no_matter(tmp_path: Path) -> None:
    pulse = Pulse(FILES, str(tmp_path / "nowhere"))
    assert not pulse.beat() and not pulse.beat()
    pulse.end()
    refuse_running(str(tmp_path / "nowhere"), "one")
