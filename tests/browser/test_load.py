"""A result's live controls in a real browser: Load, the metric chooser, sorting; and after them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: Set to a directory to keep screenshots, such as those under docs/images.
SHOTS = os.environ.get("RAYNB_SCREENSHOTS")

TRAIN = """%%distributed_train --config config --num-to-keep 3 --best accuracy:max {more}
import os, tempfile, torch, ray.train
rank = ray.train.get_context().get_world_rank()
for epoch, accuracy in enumerate((0.5, 0.9, 0.7, 0.8)):
    for step in range(10):
        raynb.log({{"loss": config["lr"] * (2.0 + rank / 4) / (1 + 10 * epoch + step) ** 0.5}})
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, accuracy)
    with tempfile.TemporaryDirectory() as directory:
        torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
        ray.train.report(
            {{"accuracy": accuracy, "epoch": epoch}},
            checkpoint=ray.train.Checkpoint.from_directory(directory) if rank == 0 else None,
        )"""

#: Tells the accuracy of the checkpoint that a tensor came from.
VALUE = "print(round({}[0, 0].item(), 3))"


def shot(notebook: Any, name: str, text: str) -> None:
    """Keep a picture of the output that has the text, where SHOTS says."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        area = notebook.page.locator(".jp-OutputArea-output", has_text=text).first
        area.scroll_into_view_if_needed()
        area.screenshot(path=str(Path(SHOTS, f"{name}.png")))


def execute(notebook: Any, code: str) -> str:
    """Run code in the notebook's kernel, in no cell, and give what it printed."""
    return notebook.page.evaluate(
        """async (code) => {
             const { context } = window.jupyterapp.shell.currentWidget;
             const future = context.sessionContext.session.kernel.requestExecute({ code });
             let text = '';
             future.onIOPub = (m) => {
               text += m.content.text ?? (m.content.traceback ?? []).join('\\n');
             };
             await future.done;
             return text.trim();
           }""",
        code,
    )


@pytest.fixture
def trained(open_notebook: Callable[..., Any], tmp_path: Path, request: Any) -> Any:
    """A notebook that trained two runs, and shows the second one's record, runs and comparison.

    The second run has workers where the test asks for them.
    """
    more = f"--storage-path {tmp_path / 'runs'}"
    notebook = open_notebook(
        "load.ipynb",
        [
            "%load_ext raynb\nimport raynb, torch",
            "config, model = {'lr': 0.1}, torch.nn.Linear(3, 2)",
            TRAIN.format(more=f"--name alpha --local {more}"),
            "config = {'lr': 0.5}",
            TRAIN.format(more=f"--name beta-run {getattr(request, 'param', '--local')} {more}"),
            f"raynb.runs({str(tmp_path / 'runs')!r})",
            f"raynb.compare(result, {str(tmp_path / 'runs' / 'alpha')!r})",
        ],
        viewport=(1100, 1700),
    )
    notebook.run_all()
    end = time.monotonic() + 180
    while "2 runs compared" not in (text := notebook.text()):
        assert "Error" not in text and time.monotonic() < end, text
        time.sleep(0.5)
    notebook.wait_idle()
    return notebook


@pytest.mark.parametrize("trained", ["-n 2"], indirect=True)
def test_load_by_one_click(trained: Any, tmp_path: Path) -> None:
    notebook = trained
    record = notebook.page.locator(".jp-OutputArea-output", has_text="✓ Finished beta-run").first
    buttons = record.locator("button", has_text="Load")
    buttons.first.wait_for(timeout=60_000)
    assert buttons.count() == 3
    best = record.locator("tr", has_text="★ best").locator("button")
    best.click()
    record.get_by_text("weights is a").wait_for(timeout=60_000)
    assert execute(notebook, VALUE.format("weights['weight']")) == "0.9"
    assert 'weights = raynb.load_checkpoint("' in record.inner_text()

    # A name that is taken is not overwritten, unless asked.
    execute(notebook, "weights = 'mine'")
    best.click()
    record.get_by_text("weights_2 is a").wait_for(timeout=60_000)
    assert "weights exists and was left as it is" in record.inner_text()
    assert execute(notebook, "print(weights)") == "mine"
    assert execute(notebook, VALUE.format("weights_2['weight']")) == "0.9"
    record.locator("input[type=checkbox]").check()
    best.click()
    record.get_by_text("weights is a").wait_for(timeout=60_000)
    assert execute(notebook, "print(type(weights).__name__)") != "str"

    # Into a plain model, by a click and by the line that the click ran.
    record.locator("input[type=checkbox]").uncheck()
    field = record.locator("input[type=text]").first
    field.fill("model")
    field.press("Tab")
    best.click()
    record.get_by_text("the weights are in model").wait_for(timeout=60_000)
    assert execute(notebook, VALUE.format("model.weight")) == "0.9"
    line = record.locator("pre", has_text="into=model").inner_text()
    execute(notebook, "torch.nn.init.zeros_(model.weight)")
    assert execute(notebook, f"{line}\n{VALUE.format('model.weight')}").endswith("0.9")
    shot(notebook, "record-load", "beta-run")

    # What can't be loaded is told, and nothing is bound.
    field.fill("not a name")
    field.press("Tab")
    best.click()
    record.get_by_text("can't be the name of a variable").wait_for()

    # The metric chooser draws another picture.
    picture = record.locator("img >> visible=true").first
    before = picture.get_attribute("src")
    record.locator("select").first.select_option("accuracy")
    notebook.page.wait_for_function(
        "([e, before]) => e.src !== before && e.naturalWidth > 400",
        arg=[picture.element_handle(), before],
    )
    shot(notebook, "record-accuracy", "beta-run")


def test_runs_are_sorted_and_compared(trained: Any) -> None:
    notebook = trained
    table = notebook.page.locator(".jp-OutputArea-output", has_text="2 runs in").first
    table.locator("select").wait_for(timeout=60_000)
    names = table.locator("tbody tr td:first-child >> visible=true")
    assert [n for n in names.all_inner_texts() if n] == ["beta-run", "alpha"]
    table.locator("button", has_text="low first").click()
    notebook.page.wait_for_function(
        "e => [...e.querySelectorAll('tbody tr td:first-child')].filter(c => c.offsetParent)"
        ".map(c => c.innerText).join() === 'alpha,beta-run'",
        arg=table.element_handle(),
    )
    shot(notebook, "runs", "2 runs in")
    compared = notebook.page.locator(".jp-OutputArea-output", has_text="2 runs compared").first
    compared.locator("select").wait_for(timeout=60_000)
    assert "config.lr" in compared.inner_text() and "0.5" in compared.inner_text()
    compared.locator("select").select_option("accuracy")
    shot(notebook, "compare", "2 runs compared")


def test_the_saved_notebook_has_no_trace_of_the_controls(trained: Any) -> None:
    notebook = trained
    notebook.page.locator("button", has_text="Load").first.wait_for(timeout=60_000)
    # A reloaded page of a live kernel gets them again.
    notebook.save()
    notebook.page.reload()
    notebook.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context")
    notebook.page.locator("button", has_text="Load").first.wait_for(timeout=60_000)
    notebook.save()

    stored = notebook.stored()
    for cell in stored.cells:
        for output in cell.outputs:
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
    assert not stored.metadata.get("widgets")
    assert notebook.path.stat().st_size < 400_000

    notebook.page.evaluate("() => window.jupyterapp.serviceManager.kernels.shutdownAll()")
    notebook.open(kernel=False)
    notebook.wait_text("raynb.load_checkpoint", 30)
    assert notebook.page.locator(".jp-OutputArea-output button").count() == 0
    assert "not found" not in notebook.text()
    for text in ("★ best", "2 runs in", "2 runs compared", "config.lr"):
        assert text in notebook.text()
    shot(notebook, "record-static", "beta-run")
