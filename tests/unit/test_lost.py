"""A run whose supervisor or storage fails at its end has a result all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from garbage import saved_run

from raynb.engine.collector import RunFacts
from raynb.engine.run import Run
from raynb.engine.supervisor import Outcome
from raynb.errors import SupervisorDiedError
from raynb.results.run_result import RunResult
from raynb.telemetry.history import concat, read_history
from raynb.telemetry.update import Update, new_run


class Backend:
    """A supervisor that is gone, or that has only some of the rows."""

    def __init__(self, history: pa.Table | None, rows: int = 0) -> None:
        self._history = history
        self.rows = rows

    def poll(self, *args: Any) -> Update:
        if self._history is None:
            raise ConnectionError("s3://key:hunter2@bucket is gone")
        return Update({"run": {**new_run("saved"), "state": "finished"}}, whole=True)

    def outcome(self) -> Outcome:
        return Outcome("finished", None, None, None, 0)

    def history(self) -> Any:
        return self._history

    def release(self, watcher: str) -> None: ...


def ended(run_path: Path, backend: Backend) -> Run:
    run = Run(RunFacts("saved", str(run_path)), RunResult.of)
    run.attach(backend)  # type: ignore[arg-type]
    assert run._done.wait(10)
    return run


@pytest.mark.parametrize("readable", [True, False])
def test_a_supervisor_that_is_gone(tmp_path: Path, readable: bool) -> None:
    path = saved_run(tmp_path)
    there = path / "raynb" / "history"
    if not readable:
        there.rename(tmp_path / "aside")
        there.write_text("in the way")
    run = ended(path, Backend(None))
    with pytest.raises(SupervisorDiedError) as raised:
        run.wait()
    assert "hunter2" not in str(raised.value)
    assert run.result.state == "failed" and len(run.result.history) == (18 if readable else 0)
    assert ("The history can't be read" in repr(run.result)) is not readable


def test_storage_that_fails_as_the_run_ends(tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem

    path = saved_run(tmp_path)
    whole = read_history(LocalFileSystem(), str(path / "raynb" / "history"))
    run = ended(path, Backend(whole.slice(0, 5), rows=18))
    assert run.wait() is run.result and len(run.result.history) == 5
    assert "13 of 18 records are on storage that can't be read now" in repr(run.result)
    assert "can't be read" not in repr(ended(path, Backend(concat([whole]), rows=18)).result)
