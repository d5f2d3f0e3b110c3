"""What a worker did not find is told with the node and the directory where it looked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raynb.engine.collector import Collector, RunFacts
from raynb.engine.run import training_error
from raynb.engine.supervisor import Outcome, shown_error
from raynb.telemetry.channel import Channel
from raynb.telemetry.mirror import Mirror
from raynb.worker.runtime import Link, Runtime, _Direct


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("open('labels.txt')", "node far-node (10.0.0.9) in directory {there}: give a path"),
        ("import no_such_module_here", "node far-node (10.0.0.9) does not have that module"),
    ],
)
def test_the_error_names_node_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    collector = Collector(RunFacts("run", str(tmp_path / "run")))
    collector.hello({"rank": 1, "world_size": 2, "node": "far-node", "ip": "10.0.0.9", "pid": 1})
    monkeypatch.chdir(tmp_path)
    runtime = Runtime(Link("run", collector, str(tmp_path), local=True), None)
    runtime.channel = Channel(_Direct(collector), 1, 0, 2, "run")
    try:
        exec(code, {})
    except Exception as error:
        runtime._tell_end(error)
    runtime.channel.close()
    failure = collector.first_failure()
    assert failure is not None and failure["cwd"] == os.getcwd()
    collector.set_state("failed", error=shown_error(failure, ValueError()))
    mirror = Mirror()
    mirror.apply(collector.poll("w", 0))
    collector.close()
    raised = training_error(Outcome("failed", None, None, failure, 0), mirror, None)
    assert says.format(there=os.getcwd()) in str(raised) and "rank 1: " in str(raised)
