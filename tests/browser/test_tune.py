"""A search as a person meets it: a real JupyterLab in a real Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import Notebook

TRIALS = 20

SETUP = """%load_ext raynb
from ray import tune
space = {"lr": tune.loguniform(1e-4, 1.0), "batch_size": tune.choice([16, 32, 64])}"""

#: A linear model on the digits; what differs between good and bad rates shows at once.
CELL = """%%distributed_tune --space space --metric val_accuracy --mode max {options}
import os, tempfile, time, torch, ray.train
from torch.utils.data import DataLoader
from raynb.demo import Digits

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
loader = DataLoader(Digits(train=True), batch_size=config["batch_size"], shuffle=True)
held_out = DataLoader(Digits(train=False), batch_size=500)
for epoch in range({epochs}):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
    print("epoch", epoch, "of <b>lr</b>", config["lr"])
    with tempfile.TemporaryDirectory() as directory:
        torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
        ray.train.report(
            {{"val_accuracy": right / len(held_out.dataset)}},
            checkpoint=ray.train.Checkpoint.from_directory(directory),
        )
    time.sleep({pause})"""


def rows(notebook: Notebook) -> list[dict[str, str]]:
    """The table's rows in view, by column; none while there is no table."""
    if notebook.panel.locator(".rn-trials").count() == 0:
        return []
    found: list[dict[str, str]] = notebook.panel.evaluate(
        """e => [...e.querySelectorAll('.rn-trials .rn-row')].map(row =>
             Object.fromEntries([...row.querySelectorAll('tr:first-child > td')].map(cell =>
               [cell.className.split(' ')[0].slice(5), cell.textContent.trim()])))"""
    )
    return found


def wait(condition: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def painted(notebook: Notebook, colour: tuple[int, int, int]) -> int:
    """How many pixels of the learning curves are of a colour."""
    found: int = notebook.page.evaluate(
        """(colour) => {
             let found = 0;
             for (const canvas of document.querySelectorAll('.raynb-panel .rn-curves canvas')) {
               const { width, height } = canvas;
               const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
               for (let i = 0; i < data.length; i += 4) {
                 if (data[i + 3] < 128) continue;
                 if ([0, 1, 2].every(k => Math.abs(data[i + k] - colour[k]) < 12)) found++;
               }
             }
             return found;
           }""",
        list(colour),
    )
    return found


def test_a_search_of_20_trials_with_asha(
    open_notebook: Callable[..., Notebook], shot: Callable[..., None], tmp_path: Path
) -> None:
    options = (
        f"--num-samples {TRIALS} --scheduler asha --scheduler-arg grace_period=2 --seed 7 "
        f"--max-concurrent 2 --num-to-keep 1 --name asha --storage-path {tmp_path}"
    )
    cell = CELL.format(options=options, epochs=8, pause=0.1)
    notebook = open_notebook("asha.ipynb", [SETUP, cell], viewport=(1300, 1400))
    notebook.run_all()
    panel = notebook.panel
    panel.wait_for(timeout=150_000)  # importing Ray Tune takes its time
    notebook.wait_state("Searching")

    # The best so far, what the cluster does, a curve of the best, its row marked.
    best = panel.locator(".rn-best-card")
    wait(lambda: "val_accuracy" in best.inner_text() and "trial" in best.inner_text(), "no best")
    wait(lambda: re.search(r"CPU\s+[\d.]+ of \d+", panel.inner_text()), "no use of the cluster")
    wait(lambda: painted(notebook, (0xD5, 0x5E, 0x00)) > 20, "the best trial has no curve")
    wait(lambda: panel.locator(".rn-best-row .rn-best-star").count() == 1, "no mark")
    wait(lambda: any("pruned by" in row["reason"] for row in rows(notebook)), "nothing is pruned")
    # Far enough for a picture that tells something, with as much to come.
    share = panel.locator(".rn-glance-total")
    wait(lambda: int(share.inner_text().split()[0]) >= TRIALS // 2, "too few trials end")
    assert notebook.wide() == []
    shot(notebook, "search-running")

    # A trial's log is its own, as text.
    one = next(row["rank"] for row in rows(notebook) if "pruned" in row["state"])
    panel.get_by_label(f"Logs of trial {one}", exact=True).click()
    panel.locator(".rn-log").locator("text=of <b>lr</b>").first.wait_for(timeout=20_000)
    assert panel.locator(".rn-log b").count() == 0
    notebook.tab("parameters").locator(".rn-scatters .rn-card").nth(1).wait_for()
    assert notebook.wide() == []
    shot(notebook, "search-parameters")

    # In the end the record: all trials, their curves, the best.
    notebook.wait_text("✓ Finished", 400)
    notebook.wait_idle()
    text = notebook.text()
    assert "★" in text and "val_accuracy" in text
    image = notebook.output("img").first
    assert image.evaluate("e => e.complete && e.naturalWidth > 400")
    shot(notebook, "search-record", "✓ Finished")
    assert notebook.execute("print(len(result), result.state)") == f"{TRIALS} finished"
    ended = notebook.execute("print(sorted({r['reason_kind'] for r in result.rows}))")
    assert ended == "['finished', 'pruned']"
    code = (
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "result.best.load(into=model)\n"
        "from raynb.demo import Digits\n"
        "x, y = zip(*Digits(train=False))\n"
        "right = (model(torch.stack(x)).argmax(1) == torch.tensor(y)).float().mean()\n"
        "best = result.rows[result.best_index]['best']\n"
        "print(abs(float(right) - best) < 1e-6, best > 0.8)"
    )
    assert notebook.execute(code) == "True True"
    notebook.save()
    outputs = [o for c in notebook.stored().cells for o in c.outputs]
    records = [o["data"] for o in outputs if "text/html" in o.get("data", {})]
    assert records and "application/vnd.jupyter.widget-view+json" not in records[0]


def test_one_trial_and_then_all_are_stopped(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    options = f"--num-samples 4 --max-concurrent 2 --name stopped --storage-path {tmp_path}"
    cell = CELL.format(options=options, epochs=100_000, pause=0.2)
    notebook = open_notebook("stopped.ipynb", [SETUP, cell], viewport=(1300, 1400))
    notebook.run_all()
    panel = notebook.panel
    panel.wait_for(timeout=150_000)

    def in_state(state: str) -> list[str]:
        return [r["rank"] for r in rows(notebook) if r["state"] == state]

    def reporting() -> list[str]:
        return [r["rank"] for r in rows(notebook) if r["state"] == "running" and r["best"] != "n/a"]

    trial = wait(reporting, "no trial reports")[0]
    panel.get_by_label(f"Stop trial {trial}", exact=True).first.click()
    row = panel.locator(".rn-trials .rn-row").filter(
        has=notebook.page.get_by_label(f"Logs of trial {trial}", exact=True)
    )
    row.get_by_text("sure?").wait_for()
    assert in_state("stopped") == []  # only asked
    row.locator(".rn-ask-yes").click()
    wait(lambda: in_state("stopped") == [trial], "the trial goes on")
    # The others go on, and another takes its place.
    wait(lambda: len(in_state("running")) == 2, "the search ended")

    title = panel.locator(".rn-title")
    title.locator(".rn-stop").click()
    title.locator(".rn-ask-yes").click()
    notebook.wait_text("Stopped")
    notebook.wait_idle()
    assert notebook.execute("print(result.state)") == "stopped"
