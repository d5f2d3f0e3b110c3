"""Cases from public reports that no other test has, and workers that mean harm."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import ray

import raynb
from raynb.errors import CaptureError, TrainingError

pytestmark = pytest.mark.usefixtures("cluster")
SECRET = "hunter2-s3cr3t"


def cell(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_unpicklable_values_are_named_with_their_lines_before_anything_starts(
    notebook: Any,
) -> None:
    """C1."""
    notebook.run("import threading, torch\nguard, gen = threading.Lock(), torch.Generator()")
    error = notebook.error("%%distributed_train -n 2\nwith guard: x = torch.rand(3, generator=gen)")
    assert isinstance(error, CaptureError)
    text = str(error)
    assert "`guard` (lock) on line 2: cannot pickle '_thread.lock' object" in text
    assert "`gen` (torch.Generator) on line 2" in text and "inside the cell" in text


def test_what_a_run_owes_at_once(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """C2, C8, C9, C13; garbage from a worker; secrets. One run, for time."""
    notebook.run("import numpy as np, raynb\ntable = np.zeros((120, 1024, 1024), dtype=np.uint8)")
    body = cell(
        """
        import os, time, numpy as np, ray.train, torch
        import raynb.worker.runtime as runtime
        from raynb.telemetry.events import Batch, Record, RecordBatch
        assert os.environ["TOKEN"].startswith("hunter2")
        rank = ray.train.get_context().get_world_rank()
        raynb.log({"n": int(table.nbytes), "shared": float(not table.flags.owndata)})
        for k in range(10):
            ray.train.report({"loss": 1.0 / (k + 1), "tensor": torch.tensor(2.0), "i": np.int64(k)})
        raynb.log({float("nan"): 1.0, (1, 2): 2.0, "big": {i: "x" * 1000 for i in range(100_000)},
                   "bytes": bytes(50_000_000), "last": 5.0})
        if rank == 1:
            tell = runtime._current.link.supervisor.ingest.remote
            one = RecordBatch.of([Record(0.0, time.time(), {"stray": 1.0})])
            for message in (b"\\x80garbage", {"rank": 1}, Batch(7, 0, 1, records=one),
                            Batch(1, 9, 1, records=one), Batch(1, 0, 1, records=one, run="other")):
                ray.get(tell(message))
            ray.get(tell(Batch(1, 0, 1, sample={"util": [[]]}, logs=[(1, "out", 7)], run="owes")))
        """
    )
    notebook.run(
        f"%%distributed_train -n 2 --storage-path runs --name owes --env TOKEN={SECRET}\n{body}"
    )
    result = notebook["result"]
    history, record = result.history, result.record
    # C2: once a node, and told.
    assert (history["n"].dropna() == 120 * 2**20).all() and (history["shared"].dropna() == 1).all()
    [row] = [c for c in record["capture"] if c["name"] == "table"]
    assert (row["kind"], row["size"], row["via"]) == ("ndarray", 120 * 2**20, "object store")
    assert "Ray Data" in row["note"]
    # C8: each rank's ten reports, although Ray keeps none without a checkpoint.
    reported = history[history["loss"].notna()]
    assert reported.groupby("rank").size().to_dict() == {0: 10, 1: 10}
    assert result.metrics is None and "Ray keeps metrics only with a checkpoint" in repr(result)
    # C9: odd ones are kept as they can be, and lose nothing beside them.
    assert (reported["tensor"] == 2.0).all() and reported["i"].max() == 9
    last = history[history["last"] == 5.0]
    assert len(last) == 2 and (last["nan"] == 1.0).all() and (last["(1, 2)"] == 2.0).all()
    assert last["big"].str.startswith("a dict of 100,000").all()
    # C13: a relative path is one, and shown as it is found.
    there = notebook.directory / "runs" / "owes"
    assert result.path == str(there) and str(there) in repr(result)
    # What was no message of this run is counted and told, and is nowhere else.
    assert "stray" not in history and record["dropped"]["refused"] == 7
    told = " ".join(event["text"] for event in record["events"])
    for why in ("what is no message", "another run", "a rank or an attempt", "a sample's field"):
        assert why in told
    assert "7 pieces of messages that were refused" in repr(result._repr_mimebundle_())
    # The secret is where its run needs it, and in nothing that raynb writes or shows.
    files = [p for p in (notebook.directory / "runs").rglob("*") if p.is_file()]
    assert len(files) > 2 and not [p for p in files if SECRET.encode() in p.read_bytes()]
    captured = "".join(capsys.readouterr())
    assert SECRET not in captured + repr(result) + str(result._repr_mimebundle_())
    assert SECRET not in raynb.open(there)._repr_mimebundle_()["text/html"]


def test_a_module_that_a_worker_does_not_have(
    notebook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C6: one error, which names the module and the node."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "only_here.py").write_text("def width():\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    notebook.run("from only_here import width")
    error = notebook.error("%%distributed_train -n 1\nprint(width())")
    assert isinstance(error, TrainingError) and error.rank == 0
    text = str(error)
    assert "No module named 'only_here'" in text
    assert f"({ray.util.get_node_ip_address()}) does not have that module" in text


def test_the_secrets_of_a_search_are_not_on_its_storage(notebook: Any) -> None:
    notebook.run("import raynb\nfrom ray import tune\nspace = {'lr': tune.grid_search([1.0])}")
    notebook.run(
        "%%distributed_tune --space space --metric loss --mode min --name hidden "
        f"--env TOKEN={SECRET}\n"
        "import os\n"
        "assert os.environ['TOKEN'].startswith('hunter2')\n"
        "raynb.log({'loss': config['lr']})"
    )
    result = notebook["result"]
    assert result.state == "finished" and result.num_errors == 0
    files = [p for p in Path(result.experiment_path).rglob("*") if p.is_file()]
    # Ray Tune's own saved state among them.
    assert any(p.suffix == ".pkl" for p in files)
    assert not [p for p in files if SECRET.encode() in p.read_bytes()]
    assert SECRET not in repr(result) + str(result._repr_mimebundle_())
