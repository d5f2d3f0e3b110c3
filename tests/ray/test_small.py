"""Helpers that a run does without, and what a small machine does without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.state import list_actors

import raynb
from raynb._ray import cluster

HELPERS = ("DatasetManager", "_AutoscalingCoordinatorActor", "PlacementGroupCleaner")


def alive(job: str) -> set[str]:
    filters: Any = [("state", "=", "ALIVE"), ("job_id", "=", job)]
    # Its own search for a cluster finds any other one on the machine.
    address = ray.get_runtime_context().gcs_address
    found = list_actors(address=address, filters=filters, limit=1000)
    return {actor.class_name for actor in found}


@pytest.mark.usefixtures("cluster")
def test_helpers_without_work_are_not_started(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> str:
        import time
        from pathlib import Path

        import ray.train

        try:
            ray.train.get_dataset_shard("train")
        except KeyError as error:
            told = str(error)
        while not Path(config["end"]).exists():
            time.sleep(0.1)
        return told

    def helpers(dataset: Any) -> tuple[set[str], Any]:
        # Ray Data's own, which stay, of what ran on this cluster earlier.
        before = alive(ray.get_runtime_context().get_job_id())
        end = tmp_path / f"end{dataset is None}"
        run = raynb.train(
            train_func, config={"end": str(end)}, num_workers=2, block=False, show=False,
            storage_path=str(tmp_path), datasets={"other": dataset} if dataset else None,
        )  # fmt: skip
        until = time.monotonic() + 90
        while run.state != "training":
            assert time.monotonic() < until and not run.done, run.mirror.run
            time.sleep(0.1)
        found = alive(ray.get_runtime_context().get_job_id())
        end.touch()
        return found - before, run.wait().return_value

    found, told = helpers(None)
    assert {"TrainController", "PlacementGroupCleaner"} <= found
    assert not found & {"DatasetManager", "_AutoscalingCoordinatorActor"}
    assert "'train' not found" in told and "--dataset" in told
    # With data to split, Ray's own do their work.
    found, told = helpers(ray.data.range(8))
    assert {"DatasetManager", "PlacementGroupCleaner"} <= found
    assert "'train' not found" in told


@pytest.mark.parametrize(("asked", "small"), [("1", True), ("0", False)])
def test_a_machine_is_small_on_request(
    asked: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYNB_SMALL", asked)
    assert cluster.is_small_machine() is small


#: A run on a cluster for a small machine, whose controller is killed.
SMALL = """
import json, os, signal, sys, time, psutil, raynb, ray
from pathlib import Path

def train_func(config):
    import time, raynb
    for step in range(config["steps"]):
        raynb.log({"loss": 1.0 / (1 + step)})
        time.sleep(0.05)
    return "done"

def start(steps):
    return raynb.train(train_func, config={"steps": steps}, num_workers=2, block=False, show=False,
                       storage_path=sys.argv[1])

def processes():
    names = {}
    for p in psutil.Process().children(recursive=True):
        try:
            names[p.pid] = " ".join(p.cmdline())
        except psutil.Error:
            pass
    return names

run = start(100_000)
while run.state != "training":
    assert not run.done, run.mirror.run
    time.sleep(0.1)
found = processes()
free = ray.available_resources().get("CPU", 0.0)
os.kill(next(p for p, c in found.items() if "TrainController" in c), signal.SIGKILL)
while not run.done:
    time.sleep(0.1)
failed = run.result.state
again = start(10).wait()
until = time.monotonic() + 20
while ray.available_resources().get("CPU") != 2.0 and time.monotonic() < until:
    time.sleep(0.1)
print("FOUND", json.dumps({"processes": list(found.values()), "free": free, "state": failed,
      "value": again.return_value, "rows": len(again.history),
      "cpus": ray.available_resources().get("CPU")}))
"""


def test_a_run_on_a_small_machine(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    env = {**os.environ, "RAYNB_SMALL": "1"}
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env=env, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("FOUND")), None)
    assert line is not None, done.stdout + done.stderr
    facts = json.loads(line.removeprefix("FOUND"))
    running = "\n".join(facts["processes"])
    assert "TrainController" in running and running.count("RayTrainWorker") == 2
    for name in (*HELPERS, "StateHead", "JobHead"):
        assert name not in running
    # Nothing stays of a run whose controller died, though nobody but raynb cleans up.
    assert facts["free"] == 0.0 and facts["state"] == "failed"
    assert facts["value"] == "done" and facts["rows"] == 20 and facts["cpus"] == 2.0
