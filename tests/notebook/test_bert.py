"""The notebook that tunes BERT, executed in a real kernel, and as it is stored."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.notebook
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_bert_tuning.ipynb"

#: What the notebook is left with, told by one more cell.
FACTS = """
import json
print(json.dumps({
    "epochs": EPOCHS,
    "states": {name: [row["state"] for row in r.rows] for name, r in searches.items()},
    "configs": [row["config"] for row in grid.rows],
    "never_started": sum(not row["started"] for row in asha.rows),
    "asha_lr": [row["config"]["lr"] for row in asha.rows],
    "reports": {name: len(r.results) for name, r in searches.items()},
    "seconds": {name: r.duration for name, r in searches.items()},
    "to_target": to_target,
    "commonest": commonest,
    "reported": winner.metrics_dataframe["val_accuracy"].max(),
    "loaded": accuracy(model, "val"),
    "test": accuracy(model, "test"),
    "said": said["section"].tolist(),
}))
"""


def outputs(notebook: Any) -> list[Any]:
    return [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]


def test_it_runs_without_a_download(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers: pip install 'raynb[huggingface]'")
    if not Path("/usr/share/games/fortunes/computers").is_file():
        pytest.skip("the notebook's texts: apt install fortunes")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(FACTS))
    client = NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env |= {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    with (tmp_path / "kernel.log").open("w") as log:
        client.execute(env=env, stdout=log, stderr=log)
    facts = json.loads(notebook.cells[-1].outputs[0]["text"])
    print(f"\n{time.monotonic() - began:.0f} s;", json.dumps(facts, indent=1))

    # The grid is each combination once, each to its end.
    assert len({json.dumps(c, sort_keys=True) for c in facts["configs"]}) == 9
    assert facts["states"]["grid"] == ["finished"] * 9
    assert facts["reports"]["grid"] == 9 * facts["epochs"]
    # ASHA has the same time, ends trials early, and draws from the whole range.
    assert facts["seconds"]["ASHA"] < 1.5 * facts["seconds"]["grid"] + 30
    assert "pruned" in facts["states"]["ASHA"] and "failed" not in facts["states"]["ASHA"]
    assert facts["reports"]["ASHA"] < len(facts["states"]["ASHA"]) * facts["epochs"]
    assert facts["never_started"] <= 1, "a trial is drawn when there is room for it"
    assert all(1e-4 <= lr <= 1e-2 for lr in facts["asha_lr"])
    assert all(0 < s <= facts["seconds"][name] + 1 for name, s in facts["to_target"].items())
    # The best trial's checkpoint is the model that was best, and it has learned something.
    assert facts["loaded"] == pytest.approx(facts["reported"], abs=1e-6)
    assert facts["test"] > facts["commonest"] + 0.25
    assert len(set(facts["said"])) >= 3

    pictures = [o for o in outputs(notebook) if "image/png" in o.get("data", {})]
    assert len(pictures) >= 3, "a record of each search, and the comparison"
    assert "widget-view" not in json.dumps(notebook)


def test_it_is_stored_as_it_ran() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    code = [c for c in stored.cells if c.cell_type == "code"]
    counts = [c.execution_count for c in code]
    assert counts == list(range(1, len(code) + 1)), "run from top to bottom, at once"
    assert not any(o.output_type == "error" for o in outputs(stored))
    assert sum("image/png" in o.get("data", {}) for o in outputs(stored)) >= 3
    assert NOTEBOOK.stat().st_size < 1_500_000
    text = json.dumps(stored)
    places = ["/tmp/", "/root/", os.path.expanduser("~") + "/", str(NOTEBOOK.parents[1]) + "/"]
    assert not [place for place in places if place in text]
