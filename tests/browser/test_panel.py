"""The panel and the record as a person meets them: a real JupyterLab in a real Chromium."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Notebook
from nbconvert import HTMLExporter

from raynb.demo import build_notebook

TABS = ("overview", "workers", "data", "logs", "hints")

#: A run whose length the test decides: it trains until it is stopped, and has its flaws.
ENDLESS = """%%distributed_train -n 2 {options}
import time, raynb, ray.train.torch
from torch.utils.data import DataLoader, TensorDataset
from raynb.demo import Digits

class SlowDisk(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)

rows = SlowDisk(*Digits(train=True).tensors)
loader = ray.train.torch.prepare_data_loader(DataLoader(rows, batch_size=50, shuffle=True))
step = 0
while True:
    for images, labels in loader:
        raynb.log({{"loss": 2.0 / (1 + step) ** 0.5}})
        print(f"\\x1b[32mstep\\x1b[0m {{step}} <b>bold?</b>")
        step += 1"""


def colours(notebook: Notebook) -> list[int]:
    """How many pixels of the first chart are of rank 0's and of rank 1's colour, in any theme."""
    found: list[int] = notebook.page.evaluate(
        """() => {
             const canvas = document.querySelector('.jp-OutputArea-output .raynb-panel canvas');
             if (canvas === null || canvas.width === 0) return [0, 0];
             const { width, height } = canvas;
             const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
             const near = (i, colours) => colours.some(
               c => [0, 1, 2].every(k => Math.abs(data[i + k] - c[k]) < 40));
             const found = [0, 0];
             for (let i = 0; i < data.length; i += 4) {
               if (data[i + 3] < 128) continue;
               if (near(i, [[0, 114, 178], [92, 179, 236]])) found[0]++;
               else if (near(i, [[213, 94, 0], [255, 138, 61]])) found[1]++;
             }
             return found;
           }"""
    )
    return found


def wait_lines(notebook: Notebook, timeout_s: float = 90) -> None:
    """Wait until the chart on the open Overview shows a line of each rank."""
    end = time.monotonic() + timeout_s
    while min(found := colours(notebook)) < 30:
        assert time.monotonic() < end, f"not two lines, one a rank: {found}"
        time.sleep(0.2)


def test_quickstart_on_fashion_mnist(
    open_notebook: Callable[..., Notebook], shot: Callable[..., None], tmp_path: Path
) -> None:
    """The quickstart's cell, live and afterwards, also without its kernel."""
    source = build_notebook(rows=1536, epochs=1, name="quickstart", storage_path=str(tmp_path))
    cells = [c.source for c in source.cells if c.cell_type == "code"]
    notebook = open_notebook("quickstart.ipynb", cells)
    notebook.run_all()
    notebook.panel.wait_for(timeout=60_000)  # at once, before Ray is there
    notebook.wait_state("Starting", 90)
    assert "n/a" in notebook.panel.inner_text()  # no worker yet: unknown, not 0
    notebook.wait_state("Training")

    notebook.wait_steps(2)
    before = notebook.steps()
    notebook.wait_steps(max(before) + 1)
    rows = notebook.panel.locator(".rn-workers-view .rn-row")
    used = rows.locator(".rn-c-util").all_inner_texts()
    assert [bool(re.search(r"\d+ %", text)) for text in used] == [True, True], used
    assert "CPU" in rows.locator(".rn-c-device").first.inner_text()
    data = notebook.tab("data").inner_text()
    assert re.search(r"[\d,]+ of 1,536 rows", data), "shard totals add up to the data"
    assert len(re.findall(r"\b768\b", data)) >= 2, "each rank's share"
    overview = notebook.tab("overview").inner_text()
    assert len(re.findall(r"[\d,]+ / 768 rows", overview)) == 2
    wait_lines(notebook)
    shot(notebook, "panel-running")

    notebook.wait_text("✓ Finished", 120)
    notebook.wait_idle()
    notebook.save()
    shot(notebook, "record-finished", "✓ Finished")
    stored = notebook.stored()
    outputs = [o for c in stored.cells for o in c.outputs if "text/html" in o.get("data", {})]
    record = outputs[0]["data"]
    assert "image/png" in record
    assert "application/vnd.jupyter.widget-view+json" not in record
    assert "widgets" not in stored.metadata or not stored.metadata["widgets"]
    assert "quickstart" in HTMLExporter().from_notebook_node(stored)[0]

    # Reopened when its kernel is gone, the record is there.
    notebook.page.evaluate("() => window.jupyterapp.serviceManager.kernels.shutdownAll()")
    notebook.open(kernel=False)
    notebook.wait_text("✓ Finished", 30)
    image = notebook.output("img").first
    image.wait_for()
    assert image.evaluate("e => e.complete && e.naturalWidth > 400")
    assert "not found" not in notebook.text()


@pytest.mark.skipif("RAYNB_SCREENSHOTS" not in os.environ, reason="only for its picture")
def test_picture_of_a_failed_run(
    open_notebook: Callable[..., Notebook], shot: Callable[..., None], tmp_path: Path
) -> None:
    source = build_notebook(rows=1200, epochs=2, name="broken", storage_path=str(tmp_path))
    cells = [c.source for c in source.cells if c.cell_type == "code"][:3]
    step = "        loss = criterion("
    bug = f"        if epoch == 1:\n            labels = labels[len(labels)]  # off by one\n{step}"
    assert step in cells[2]
    notebook = open_notebook("broken.ipynb", [*cells[:2], cells[2].replace(step, bug)])
    notebook.run_all()
    notebook.wait_text("✗ Failed", 180)
    assert "IndexError: index 128 is out of bounds" in notebook.text()
    notebook.output("img").first.wait_for()
    shot(notebook, "record-failed", "✗ Failed")


@pytest.mark.usefixtures("other_kernels")
@pytest.mark.parametrize("kernel", ["python3", "ipykernel-7.3.0", "ipykernel-6.29.5"])
def test_stop_while_the_cell_blocks(
    open_notebook: Callable[..., Notebook], tmp_path: Path, kernel: str
) -> None:
    notebook = open_notebook(
        f"stop-{kernel}.ipynb",
        [
            "%load_ext raynb",
            ENDLESS.format(options=f"--name stopped --storage-path {tmp_path}"),
        ],
        kernel=kernel,
    )
    notebook.run_all()
    notebook.wait_state("Training")
    notebook.wait_steps(3)
    log = notebook.tab("logs").inner_text()
    assert "step" in log and "<b>bold?</b>" in log and "\x1b" not in log
    began = time.monotonic()
    notebook.panel.locator("button.rn-stop").click()
    notebook.wait_text("Stopped", 20)
    notebook.wait_idle(20)
    assert time.monotonic() - began < 10 + 2  # two seconds for the browser and the record
    if not kernel.endswith("6.29.5"):
        # There a click can't reach a kernel that runs a cell, and the panel interrupts it.
        assert "KeyboardInterrupt" not in notebook.text()
    # The kernel lives, the result is bound, and the next run works.
    said = notebook.execute("print(result.state, len(result.history) >= 6)")
    assert said == "stopped True"


def test_looks_keys_and_a_reload(
    open_notebook: Callable[..., Notebook], shot: Callable[..., None], tmp_path: Path
) -> None:
    """One run in the background: on a narrow page, by keyboard alone, and after a reload."""
    notebook = open_notebook(
        "looks.ipynb",
        [
            "%load_ext raynb",
            ENDLESS.format(options=f"--background -o run --name digits --storage-path {tmp_path}"),
        ],
    )
    notebook.run_all()
    notebook.wait_state("Training")
    notebook.wait_steps(5)

    # At 800 pixels nothing is cut off and the page does not scroll sideways.
    notebook.page.set_viewport_size({"width": 800, "height": 1300})
    for theme in ("Dark", "Light"):
        notebook.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
        dark = str(theme == "Dark").lower()
        notebook.page.wait_for_function(
            f"() => document.querySelector('.raynb-panel').dataset.theme === '{theme.lower()}'"
            f" && ({dark} === (document.body.dataset.jpThemeLight === 'false'))"
        )
        for tab in TABS:
            notebook.tab(tab)
            time.sleep(0.3)
            assert notebook.wide() == [], f"the {tab} tab in the {theme} theme"
        notebook.tab("overview")
        wait_lines(notebook)
        if theme == "Dark":
            shot(notebook, "panel-running-dark")
    notebook.page.set_viewport_size({"width": 1100, "height": 1300})
    hints = notebook.tab("hints")
    for flaw in ("for data", "in the same order"):
        hints.locator(".rn-hint", has_text=flaw).wait_for(timeout=90_000)
    shot(notebook, "panel-hints")

    # A reload in mid-run brings everything back.
    notebook.wait_steps(5)
    before = min(notebook.steps())
    notebook.tab("overview")
    notebook.save()
    notebook.page.reload()
    notebook.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context")
    notebook.wait_state("Training")
    assert notebook.page.locator(".rn-tab[aria-selected=true]").inner_text() == "Overview"
    wait_lines(notebook)
    assert re.search(r"[\d,]+ / [\d,]+ rows", notebook.tab("overview").inner_text())
    notebook.tab("workers").locator(".rn-row").nth(1).wait_for()
    assert min(notebook.steps()) >= before
    notebook.wait_steps(max(notebook.steps()) + 1)  # and it is live
    assert re.search(r"[\d,]+ of [\d,]+ rows", notebook.tab("data").inner_text())
    lines = notebook.tab("logs")
    lines.locator(".rn-log-line", has_text="<b>bold?</b>").first.wait_for()
    assert "last" in lines.inner_text()
    assert notebook.tab("hints").locator(".rn-hint").count() >= 2

    # Without a mouse: Tab gets to Stop and to the tabs, arrows go between tabs, Enter stops.
    keyboard = notebook.page.keyboard
    selected = ".rn-tab[aria-selected=true]"
    notebook.panel.locator(".rn-name").click()
    keyboard.press("Tab")
    assert notebook.page.evaluate("() => document.activeElement.className") == "rn-stop"
    while notebook.page.evaluate("() => document.activeElement.role") != "tab":
        keyboard.press("Tab")
    assert notebook.page.locator(selected).inner_text().startswith("Hints")
    for key, tab in [
        ("ArrowRight", "Overview"),
        ("ArrowRight", "Workers"),
        ("End", "Hints"),
        ("ArrowLeft", "Logs"),
        ("Home", "Overview"),
    ]:
        keyboard.press(key)
        focused = notebook.page.locator(f"{selected}:focus")
        assert focused.inner_text().startswith(tab)
        panel = notebook.panel.locator(f".rn-tab-panel[data-tab={tab.lower()}]")
        assert panel.is_visible()
    keyboard.press("Shift+Tab")
    assert notebook.page.evaluate("() => document.activeElement.className") == "rn-stop"
    keyboard.press("Enter")
    notebook.wait_state("Stopped", 20)
    assert notebook.execute("print(run.wait(20).state)") == "stopped"
    # The record's place is known to the page before the reload only: here, the panel stays.
    notebook.page.wait_for_timeout(4_000)
    notebook.wait_state("Stopped", 1)
