"""The panel and the record as a person meets them: a real JupyterLab in a real Chromium."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbconvert import HTMLExporter

from raynb.demo import build_notebook

#: Set to a directory to keep screenshots, such as those under docs/images.
SHOTS = os.environ.get("RAYNB_SCREENSHOTS")

#: A run whose length the test decides: it trains until it is stopped.
ENDLESS = """%%distributed_train -n 2 {options}
import time, raynb, torch, ray.train.torch
from torch.utils.data import DataLoader
from raynb.demo import Digits

loader = ray.train.torch.prepare_data_loader(DataLoader(Digits(train=True), batch_size=50))
step = 0
while True:
    for images, labels in loader:
        raynb.log({{"loss": 2.0 / (1 + step) ** 0.5}})
        print(f"\\x1b[32mstep\\x1b[0m {{step}} <b>bold?</b>")
        step += 1
        time.sleep(0.1)"""


def shot(notebook: Any, name: str, record: str = "") -> None:
    """Keep a picture of the panel, or of the record that has the text, where SHOTS says."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        found = notebook.page.locator(".jp-OutputArea-output", has_text=record)
        area = (found if record else panel(notebook)).first
        area.scroll_into_view_if_needed()
        area.screenshot(path=str(Path(SHOTS, f"{name}.png")))


def panel(notebook: Any) -> Any:
    return notebook.output(".raynb-panel")


def wait_state(notebook: Any, word: str, timeout_s: float = 120) -> None:
    panel(notebook).locator(".rn-status", has_text=word).first.wait_for(timeout=timeout_s * 1000)


def steps(notebook: Any) -> list[int]:
    """The workers' steps as the table shows them, -1 for n/a."""
    cells = panel(notebook).locator(".rn-workers tbody .rn-c-step").all_inner_texts()
    found = [re.match(r"[\d,]+", c.strip()) for c in cells]
    return [int(m.group().replace(",", "")) if m else -1 for m in found]


def colours(notebook: Any) -> list[int]:
    """How many pixels of the chart are of rank 0's and of rank 1's colour."""
    return notebook.page.evaluate(
        """() => {
             const canvas = document.querySelector('.jp-OutputArea-output .raynb-panel canvas');
             const { width, height } = canvas;
             const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
             const near = (i, c) => [0, 1, 2].every(k => Math.abs(data[i + k] - c[k]) < 40);
             const found = [0, 0];
             for (let i = 0; i < data.length; i += 4) {
               if (data[i + 3] < 128) continue;
               if (near(i, [0, 114, 178])) found[0]++;
               else if (near(i, [213, 94, 0])) found[1]++;
             }
             return found;
           }"""
    )


def test_quickstart_on_fashion_mnist(open_notebook: Callable[..., Any], tmp_path: Path) -> None:
    """The quickstart's cell, live and afterwards, also without its kernel."""
    source = build_notebook(rows=1536, epochs=1, name="quickstart", storage_path=str(tmp_path))
    cells = [c.source for c in source.cells if c.cell_type == "code"]
    notebook = open_notebook("quickstart.ipynb", cells)
    notebook.run_all()
    panel(notebook).wait_for(timeout=60_000)  # at once, before Ray is there
    wait_state(notebook, "Starting", 30)
    assert "n/a" in panel(notebook).inner_text()  # no worker yet: unknown, not 0
    wait_state(notebook, "Training")

    deadline = time.monotonic() + 120
    while min(steps(notebook) or [-1]) < 2:
        assert time.monotonic() < deadline, "no steps arrive"
        time.sleep(0.2)
    before = steps(notebook)
    while min(steps(notebook)) <= max(before):
        assert time.monotonic() < deadline, "the steps do not grow"
        time.sleep(0.2)
    assert min(colours(notebook)) > 30, "two lines are drawn, one a rank"
    text = panel(notebook).inner_text()
    assert "CPU" in text and re.search(r"CPU\s+\d+\s*%", text), "utilisation of each worker"
    assert len(re.findall(r"rows [\d,]+ / 768", text)) == 2
    assert re.search(r"[\d,]+ of 1,536 rows", text), "shard totals add up to the data"
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


@pytest.mark.usefixtures("other_kernels")
@pytest.mark.parametrize("kernel", ["python3", "ipykernel-7.3.0", "ipykernel-6.29.5"])
def test_stop_while_the_cell_blocks(
    open_notebook: Callable[..., Any], tmp_path: Path, kernel: str
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
    wait_state(notebook, "Training")
    while min(steps(notebook) or [-1]) < 3:
        time.sleep(0.2)
    log = panel(notebook).locator(".rn-log").inner_text()
    assert "step" in log and "<b>bold?</b>" in log and "\x1b" not in log
    if kernel == "python3":
        # At 800 pixels, in the dark theme, nothing is cut off.
        notebook.page.set_viewport_size({"width": 800, "height": 1300})
        notebook.command("application:toggle-left-area")
        notebook.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
        time.sleep(1.5)
        wide = panel(notebook).evaluate(
            "e => [...e.querySelectorAll('*')].filter(c => !c.closest('.rn-log')"
            " && c.getBoundingClientRect().right > e.getBoundingClientRect().right + 1).length"
        )
        assert wide == 0, f"{wide} elements reach beyond the panel's edge"
        shot(notebook, "panel-running-dark")
        notebook.command("apputils:change-theme", {"theme": "JupyterLab Light"})
    began = time.monotonic()
    panel(notebook).locator("button.rn-stop").click()
    notebook.wait_text("Stopped", 20)
    notebook.wait_idle(20)
    assert time.monotonic() - began < 10 + 2  # two seconds for the browser and the record
    if not kernel.endswith("6.29.5"):
        # There a click can't reach a kernel that runs a cell, and the panel interrupts it.
        assert "KeyboardInterrupt" not in notebook.text()
    # The kernel lives, the result is bound, and the next run works.
    notebook.page.evaluate(
        """async () => {
             const { context } = window.jupyterapp.shell.currentWidget;
             const kernel = context.sessionContext.session.kernel;
             const run = async (code) => {
               const future = kernel.requestExecute({ code, stop_on_error: false });
               let text = '';
               future.onIOPub = (m) => { text += m.content.text ?? m.content.evalue ?? ''; };
               await future.done;
               return text;
             };
             window.raynbSaid = await run("print(result.state, len(result.history) >= 6)");
           }"""
    )
    assert notebook.page.evaluate("() => window.raynbSaid").strip() == "stopped True"


def test_failure_shows_rank_line_and_text(
    open_notebook: Callable[..., Any], tmp_path: Path
) -> None:
    """What a worker says is shown as text, never run: in the panel, the record and its HTML."""
    evil = "<img src=x onerror=window.raynbHacked=1><script>window.raynbHacked=1</script>"
    notebook = open_notebook(
        "failure.ipynb",
        [
            "%load_ext raynb",
            f"%%distributed_train -n 2 --name failing --storage-path {tmp_path}\n"
            "import time, raynb, ray.train\n"
            f"evil = {evil!r}\n"
            "for step in range(30):\n"
            "    raynb.log({'loss ' + evil: 1.0 / (1 + step)})\n"
            "    print(evil)\n"
            "    time.sleep(0.1)\n"
            "if ray.train.get_context().get_world_rank() == 1:\n"
            "    raise ValueError('bad batch ' + evil)\n"
            "time.sleep(1e6)",
        ],
    )
    notebook.run_all()
    wait_state(notebook, "Training")
    notebook.wait_text(evil, 60)
    assert notebook.page.evaluate("() => window.raynbHacked") is None
    notebook.wait_text("✗ Failed", 60)
    notebook.wait_idle()
    text = notebook.text()
    assert "rank 1" in text and "Cell In[2], line 9" in text and "bad batch" in text
    assert notebook.page.evaluate("() => window.raynbHacked") is None
    notebook.save()
    html, _ = HTMLExporter().from_notebook_node(notebook.stored())
    assert evil not in html
    errors = [o for c in notebook.stored().cells for o in c.outputs if o.output_type == "error"]
    assert len(errors) == 1 and errors[0].ename == "TrainingError"


def test_a_reloaded_page_gets_the_whole_picture(
    open_notebook: Callable[..., Any], tmp_path: Path
) -> None:
    notebook = open_notebook(
        "reload.ipynb",
        [
            "%load_ext raynb",
            ENDLESS.format(options=f"--background -o run --name again --storage-path {tmp_path}"),
        ],
    )
    notebook.run_all()
    wait_state(notebook, "Training")
    while min(steps(notebook) or [-1]) < 5:
        time.sleep(0.2)
    notebook.save()
    notebook.page.reload()
    notebook.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context")
    wait_state(notebook, "Training", 60)
    before = min(steps(notebook))
    assert before >= 5
    end = time.monotonic() + 30
    while min(colours(notebook)) < 30 or min(steps(notebook)) <= before:
        assert time.monotonic() < end, "the panel is not live after the reload"
        time.sleep(0.2)
    panel(notebook).locator("button.rn-stop").click()
    wait_state(notebook, "Stop", 15)
