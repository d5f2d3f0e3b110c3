"""``%raynb`` and the commands that it shares with the terminal, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from IPython.core.interactiveshell import InteractiveShell

from raynb import cli
from raynb._ray import head
from raynb.errors import OptionError, ResourceError
from raynb.magics import loading
from raynb.processes import left
from raynb.troubleshooting import topics


@pytest.fixture
def ip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    # This process may be connected for other tests.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    shell = InteractiveShell()
    loading.load_ipython_extension(shell)
    yield shell
    loading.unload_ipython_extension(shell)


def say(ip: InteractiveShell, line: str) -> None:
    ip.run_line_magic("raynb", line)


def test_alone_it_says_what_there_is(
    ip: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("", "--help"):
        say(ip, line)
        said = capsys.readouterr().out
        assert all(word in said for word in ("runs", "attach", "stop", "cluster"))
    say(ip, "cluster up --help")
    assert "--num-cpus" in capsys.readouterr().out


def test_help_shows_the_section_that_an_error_names(
    ip: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ResourceError("asked for 9 GPUs")
    more = error.whole().splitlines()[-1]
    say(ip, more.removeprefix("More: %raynb ").partition(" (")[0])
    said = capsys.readouterr().out
    assert said.startswith("resources\n") and "the request can never be met" in said.lower()
    assert "](" not in said and "### pending" not in said
    say(ip, "help")
    listed = capsys.readouterr().out
    assert all(f"\n  {topic} " in listed.replace("\n", " \n") for topic in topics())
    assert len(topics()) > 25 and max(map(len, listed.splitlines())) <= 100
    assert cli.main(["help", "resources"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("help resorces", "did you mean resources"),
        ("atach x", "atach"),
        ("cluster", "up.down.status"),
        ("cluster up --num-cpus two", "two"),
        ("cluster up --num-cpus 0", "0 CPUs"),
        ("attach a b", "b"),
        ("attach a -o 1x", "1x"),
        ("cluster down", "no cluster of raynb is up"),
        ("runs 'open", "quote"),
    ],
)
def test_what_can_not_be_is_one_error(ip: InteractiveShell, line: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        say(ip, line)


@pytest.mark.parametrize("line", ["attach", "attach x", "stop x"])
def test_without_a_cluster_it_names_the_way_to_one(ip: InteractiveShell, line: str) -> None:
    with pytest.raises(ResourceError, match="cluster up"):
        say(ip, line)


def test_the_commands_fail_with_a_status(
    ip: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stop", "x"]) == 1
    assert "cluster up" in capsys.readouterr().err
    assert cli.main(["cluster", "status"]) == 0
    assert "no cluster" in capsys.readouterr().out


def test_only_the_very_process_is_taken_for_the_cluster(ip: InteractiveShell) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        file = Path(head._directory(), "cluster.json")
        facts = {"pid": process.pid, "address": "127.0.0.1:1", "log": "x"}
        file.write_text(json.dumps({**facts, "created": time.time()}))
        assert head.find() is not None
        # Another process has the number now.
        file.write_text(json.dumps({**facts, "created": time.time() - 3600}))
        assert head.find() is None
        for text in ("", "[]", "{}", '{"pid": 1}'):
            file.write_text(text)
            assert head.find() is None
    finally:
        process.communicate(b"\n")


def test_a_directory_of_another_user_is_not_used(ip: InteractiveShell, tmp_path: Path) -> None:
    place = tmp_path / f"raynb-{os.getuid()}"
    place.symlink_to(tmp_path)
    assert head.find() is None
    with pytest.raises(ResourceError, match="another user"):
        head.up()


def test_a_zombie_counts_as_ended() -> None:
    """A container's first process seldom reaps what lost its parent."""
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    ended, runs = subprocess.Popen(sleeping), subprocess.Popen(sleeping)
    try:
        ended.kill()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        both = [psutil.Process(p.pid) for p in (ended, runs)]
        assert left(both, 0.2) == both[1:]
        assert head._end(both[1]) == []
    finally:
        for process in (ended, runs):
            process.kill()
            process.wait()
