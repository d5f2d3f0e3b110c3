"""Warm workers as a person meets them: a real JupyterLab in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import Notebook

UP = "%load_ext raynb\n%raynb workers up -n 2"
ON_ALL = """%%distributed
import time
from IPython.display import HTML, display
t = torch.full((1,), float(rank))
for turn in range(3):
    print("turn", turn)
    time.sleep(0.5)
dist.all_reduce(t)
display(HTML("<b class='rich'>rich</b>"))
t.tolist()"""
TRAIN = """%%distributed_train -n 2 --name warm-run --storage-path {path}
import raynb
for step in range(20):
    raynb.log({{"loss": 1.0 / (1 + step)}})"""


def test_the_workers_view_and_cells_on_every_rank(
    open_notebook: Callable[..., Notebook], shot: Callable[..., None], tmp_path: Path
) -> None:
    notebook = open_notebook("warm.ipynb", [UP, ON_ALL, TRAIN.format(path=tmp_path)])
    notebook.run_all()
    view = notebook.page.locator(".jp-OutputArea-output", has_text="Warm workers: 2 ranks").first
    view.locator("button", has_text="Restart").wait_for(timeout=150_000)
    assert re.search(r"rank 1\s+\S+\s+pid \d+\s+cpu\s+[\d.]+ [MG]iB", view.inner_text())
    pids = re.findall(r"pid (\d+)", view.inner_text())

    # Equal results are shown once, rich ones stay so, and lines have their rank.
    notebook.wait_text("[ranks 0-1] [1.0]", 60)
    text = notebook.text()
    assert "[rank 0] turn 2" in text and "[rank 1] turn 2" in text
    assert notebook.output("b.rich").count() >= 1

    notebook.wait_text("✓ Finished warm-run", 60)
    notebook.wait_idle()
    view.locator("button", has_text="Refresh").click()
    view.get_by_text("1 run so far").wait_for(timeout=20_000)
    shot(notebook, "warm-workers", "Warm workers: 2 ranks")

    # New processes, and then none.
    view.locator("button", has_text="Restart").click()
    _until(notebook, view, lambda text: len(set(re.findall(r"pid (\d+)", text)) - {*pids}) == 2)
    assert "started anew 1 time" in view.inner_text()
    view.locator("button", has_text="Down").click()
    view.get_by_text("No warm workers are up").wait_for(timeout=60_000)
    assert notebook.execute("import raynb; print(raynb.workers.status())") == "None"


def _until(notebook: Notebook, view: Any, holds: Callable[[str], bool]) -> None:
    for _ in range(300):
        if holds(view.inner_text()):
            return
        notebook.page.wait_for_timeout(200)
    raise AssertionError(view.inner_text())
