"""One real local Ray for all tests here; each test cleans up what it starts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local cluster with four logical CPUs, whatever the machine has."""
    import ray

    from raynb._ray import cluster as ray_cluster

    before = {p.pid for p in psutil.Process().children(recursive=True)}
    ray_cluster.start_local(num_cpus=4)
    yield
    ray.shutdown()
    end = time.monotonic() + 20
    left = _children() - before
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left = _children() - before
    assert not left, f"Ray processes are left: {left}"


def _children() -> set[int]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


class Notebook:
    """An IPython shell with raynb loaded: cells in, errors out."""

    def __init__(self, shell: Any, directory: Path) -> None:
        self.shell = shell
        self.directory = directory

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]

    def run(self, source: str) -> Any:
        """Run a cell; raises what the cell raised."""
        outcome = self.shell.run_cell(source, store_history=True)
        if outcome.error_before_exec is not None:
            raise outcome.error_before_exec
        if outcome.error_in_exec is not None:
            raise outcome.error_in_exec
        return outcome.result

    def error(self, source: str) -> BaseException:
        """Run a cell that must fail, and give its error."""
        with pytest.raises(BaseException) as found:
            self.run(source)
        return found.value


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook whose directory and storage are the test's own."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext raynb")
    shell.run_cell(f"%config RayNB.storage_path = {str(tmp_path / 'storage')!r}")
    yield Notebook(shell, tmp_path)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


@pytest.fixture
def nothing_left(cluster: None) -> Callable[..., None]:
    """Checks that a run's workers, actors and placement groups are gone."""
    import ray
    from ray.util.state import list_actors, list_placement_groups

    # The state API's own default is the machine's newest cluster, which may be somebody else's.
    address = ray.get_runtime_context().gcs_address

    def check(pids: list[int], seconds: float = 10.0) -> None:
        def left() -> list[str]:
            # Ray Data's own two are the cluster's, not a run's.
            shared = {"_AutoscalingCoordinatorActor", "_StatsActor"}
            actors = [a.class_name for a in list_actors(address=address) if a.state != "DEAD"]
            found = [a for a in actors if a not in shared]
            groups = list_placement_groups(address=address)
            found += [f"group {g.state}" for g in groups if g.state != "REMOVED"]
            found += [f"process {p}" for p in pids if _alive(p)]
            taken = 4 - ray.available_resources().get("CPU", 0)
            return found + ([f"{taken} CPUs"] if taken else [])

        end = time.monotonic() + seconds
        while left() and time.monotonic() < end:
            time.sleep(0.2)
        assert left() == []

    return check


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
