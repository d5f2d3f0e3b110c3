"""A flood of output from workers, in a real kernel: what the saved notebook holds of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.notebook

LINES = 1_000_000
CELL = f"""
%%distributed_train -n 2 --name flood
import sys, time
def us_a_line(file):
    began = time.perf_counter()
    for k in range({LINES}):
        print("line", k, file=file)
    return (time.perf_counter() - began) / {LINES} * 1e6
with open(f"beside-{{ray.train.get_context().get_world_rank()}}", "w") as file:
    beside = us_a_line(file)
raynb.log({{"file": beside, "stdout": us_a_line(sys.stdout)}})
"""


class CountingClient(NotebookClient):  # type: ignore[misc]
    """Counts what the kernel sends: a browser would have to take it all."""

    sent = 0

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        self.sent += len(json.dumps(msg["content"], default=str))
        self.sent += sum(memoryview(b).nbytes for b in msg.get("buffers") or [])
        return super().process_message(msg, cell, cell_index)


def test_a_million_lines_on_each_rank(tmp_path: Path) -> None:
    cells = [
        "import raynb, ray.train\n%load_ext raynb\n%config RayNB.storage_path = 'storage'",
        CELL.strip(),
        "print('microseconds a line:', result.history[['file', 'stdout']].to_dict('list'))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = CountingClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    with (tmp_path / "kernel.log").open("w") as log:
        env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        client.execute(env=env, stdout=log, stderr=log)
    saved = tmp_path / "flood.ipynb"
    nbformat.write(notebook, saved)
    size = saved.stat().st_size
    print(f"\nnotebook {size:,} bytes; sent to the browser {client.sent:,} bytes")
    print(notebook.cells[2].outputs[0]["text"])

    assert size < 300_000
    assert client.sent < 20_000_000
    shown = json.dumps(notebook.cells[1].outputs)
    assert "stream" not in {o.output_type for o in notebook.cells[1].outputs}
    # What the panel does not have is told, never silently left out.
    assert "dropped on the way" in shown
    record = json.loads((tmp_path / "storage" / "flood" / "raynb" / "record.json").read_text())
    assert record["state"] == "finished"
    assert 2 * (LINES - 50_000) < record["dropped"]["logs"] <= 2 * LINES
    for rank in (0, 1):
        path = tmp_path / "storage" / "flood" / "raynb" / "logs" / f"rank-{rank:05d}.log"
        lines = [line for line in path.read_text().splitlines() if line.startswith("line ")]
        assert lines == [f"line {k}" for k in range(LINES)]
