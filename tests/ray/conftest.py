"""One real local Ray for all tests here; each test cleans up what it starts."""

from __future__ import annotations

import contextlib
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

    before = set(_children())
    ray_cluster.start_local(num_cpus=4)
    yield
    ray.shutdown()
    end = time.monotonic() + 20
    while (left := _children(before)) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left, f"Processes are left: {left}"


def _children(besides: set[int] | None = None) -> dict[int, str]:
    """The commands of this process's children, by id."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(child.cmdline())
            # Python's own helper, which any test may start, stays as long as this process.
            if (
                child.pid not in (besides or ())
                and child.status() != psutil.STATUS_ZOMBIE
                and "multiprocessing.resource_tracker" not in command
            ):
                found[child.pid] = command
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

    from raynb.processes import runs

    # The state API's own default is the machine's newest cluster, which may be somebody else's.
    address = ray.get_runtime_context().gcs_address

    def check(pids: list[int], seconds: float = 10.0) -> None:
        def left() -> list[str]:
            # Ray Data's own two are the cluster's, not a run's.
            shared = {"_AutoscalingCoordinatorActor", "_StatsActor"}
            # Filtered there: what comes without is cut off at a hundred, most of them dead.
            actors = list_actors(address=address, filters=[("state", "!=", "DEAD")])
            found = [a.class_name for a in actors if a.class_name not in shared]
            groups = list_placement_groups(address=address, filters=[("state", "!=", "REMOVED")])
            found += [f"group {g.state}" for g in groups]
            found += [f"process {p}" for p in pids if runs(p)]
            taken = 4 - ray.available_resources().get("CPU", 0)
            return found + ([f"{taken} CPUs"] if taken else [])

        end = time.monotonic() + seconds
        while left() and time.monotonic() < end:
            time.sleep(0.2)
        assert left() == []

    return check
