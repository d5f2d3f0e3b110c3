"""The demo command and the quickstart notebook, in a real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from raynb.demo import DEBIAN_FILES, build_notebook

pytestmark = pytest.mark.notebook
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_demo_trains_and_leaves_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raynb", "demo", "--epochs", "1", "--limit", "768"]
    found = subprocess.run(
        [*command, "--json", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=400,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    lines = found.stdout.splitlines()
    assert len(lines) == 1, "stdout is for the JSON alone"
    said = json.loads(lines[0])
    assert said["state"] == "finished"
    assert said["dataset"] == ("fashion-mnist" if DEBIAN_FILES.is_dir() else said["dataset"])
    assert said["num_workers"] == 2 and said["ranks"] == [0, 1]
    assert said["history_rows"] == 2 * (3 + 1)  # 384 rows a rank in batches of 128, one report
    assert 0 <= said["metrics"]["accuracy"] <= 1
    assert Path(said["checkpoint"], "model.pt").is_file()
    assert 0 < said["seconds_to_first_step"] < said["seconds"]
    assert "finished" in found.stderr and "training" in found.stderr.lower()

    notebook = nbformat.read(said["notebook"], as_version=4)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    record = next(o for o in outputs if "image/png" in o.get("data", {}))
    assert "✓ Finished" in record["data"]["text/plain"]
    assert Path(said["notebook"]).stat().st_size < 300_000
    html = Path(said["html"]).read_text()
    assert "Finished" in html and "data:image/png;base64" in html


def test_papermill_needs_no_widget(tmp_path: Path) -> None:
    papermill = pytest.importorskip("papermill")
    source = tmp_path / "in.ipynb"
    notebook = build_notebook(
        dataset="digits", epochs=1, rows=256, name="mill", storage_path=str(tmp_path)
    )
    nbformat.write(notebook, source)
    papermill.execute_notebook(
        str(source), str(tmp_path / "out.ipynb"), cwd=tmp_path, progress_bar=False
    )
    ran = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    shown = json.dumps(ran)
    assert "✓ Finished" in "".join(
        o["data"].get("text/plain", "")
        for c in ran.cells
        if c.cell_type == "code"
        for o in c.outputs
        if "data" in o
    )
    assert "widget-view" not in shown


def test_the_quickstart_is_what_the_demo_runs() -> None:
    stored = nbformat.read(NOTEBOOKS / "01_quickstart.ipynb", as_version=4)
    fresh = build_notebook()
    assert [c.source for c in stored.cells] == [c.source for c in fresh.cells]
    code = [c for c in stored.cells if c.cell_type == "code"]
    assert all(c.execution_count for c in code), "stored with its outputs"
    assert any("image/png" in o.get("data", {}) for c in code for o in c.outputs)
    text = json.dumps(stored)
    assert os.path.expanduser("~") + "/" not in text or os.path.expanduser("~") == "/"
