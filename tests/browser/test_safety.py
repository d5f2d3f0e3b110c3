"""What a worker says is text, wherever it is shown, and a flood of it leaves the page quick."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from lab import Notebook
from nbconvert import HTMLExporter

#: Markup of which each one, run as markup, sets the canary; short, as records cut long names.
EVILS = ("<img src=x onerror=__pwned=1>", "<script>__pwned=1</script>", '"><svg onload=__pwned=1>')
EVIL = "".join(EVILS)

HOSTILE = """%%distributed_train -n 2 --name hostile --storage-path {storage}
import pathlib, sys, time, raynb, ray.train.torch
from torch.utils.data import DataLoader, Dataset

evils = {evils!r}
evil = "".join(evils)
rank = ray.train.get_context().get_world_rank()
items = {{"__len__": lambda self: 80, "__getitem__": lambda self, i: float(i)}}
rows = type(evil, (Dataset,), items)()
loader = ray.train.torch.prepare_data_loader(DataLoader(rows, batch_size=8, shuffle=True))
while not pathlib.Path({end!r}).exists():
    for batch in loader:
        for one in evils:
            raynb.log({{"loss " + one: 1.0, "nan loss " + one: float("nan"), "text " + one: evil}})
        print(evil)
        print(evil, file=sys.stderr)
        time.sleep(0.1)
if rank == 1:
    raise type("Error" + evil, (ValueError,), {{}})("bad batch " + evil)  # {evil}
time.sleep(1e6)"""

FLOOD = """%%distributed_train -n 2 --background -o run --name flood --storage-path {storage}
import pathlib, time, ray.train, raynb

rank = ray.train.get_context().get_world_rank()
signs = pathlib.Path({storage!r})
print("ready")
while not (signs / "go").exists():
    time.sleep(0.05)
for i in range({lines}):
    print(f"rank {{rank}} says line {{i}}")
(signs / f"done-{{rank}}").touch()
time.sleep(1e6)"""
LINES = 200_000


def pwned(notebook: Notebook) -> bool:
    return bool(notebook.page.evaluate("() => window.__pwned !== undefined"))


def test_markup_from_workers_stays_text(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    """In the panel, the record, the record of a reopened notebook, and nbconvert's page."""
    end = tmp_path / "end"
    notebook = open_notebook(
        "hostile.ipynb",
        [
            "%load_ext raynb",
            HOSTILE.format(storage=tmp_path, evils=EVILS, evil=EVIL, end=str(end)),
        ],
    )
    notebook.run_all()
    notebook.wait_state("Training")
    shown = {
        "overview": f"loss {EVILS[0]}",  # a chart's name
        "workers": "running",
        "data": EVIL,  # the dataset's class
        "logs": EVIL,
        "hints": f"nan loss {EVILS[0]}",
    }
    for tab, text in shown.items():
        notebook.tab(tab).get_by_text(text).first.wait_for(timeout=90_000)
        assert text in notebook.tab(tab).inner_text()
        assert not pwned(notebook), tab

    end.touch()
    notebook.wait_text("✗ Failed", 120)
    notebook.wait_idle()
    notebook.save()

    def check_record(where: str) -> None:
        text = notebook.text()
        assert f"bad batch {EVIL}" in text and f"Error{EVIL}" in text, where
        assert "rank 1" in text and "Cell In[2], line 19" in text, where
        assert f"nan loss {EVILS[0]}" in text, where
        for section in notebook.output("details").all():
            section.evaluate("e => { e.open = true; }")
        text = notebook.text()
        for evil in EVILS:
            assert f"text {evil}" in text and f"nan loss {evil}" in text, where
        time.sleep(0.5)  # an image that fails to load, or is seen now, would tell by now
        assert not pwned(notebook), where

    check_record("the record")
    shown_errors = [
        o for c in notebook.stored().cells for o in c.outputs if o.output_type == "error"
    ]
    assert [e.ename for e in shown_errors] == ["TrainingError"]

    notebook.page.evaluate("() => window.jupyterapp.serviceManager.kernels.shutdownAll()")
    notebook.open(kernel=False)
    notebook.wait_text("✗ Failed", 30)
    check_record("the reopened notebook")

    page = tmp_path / "hostile.html"
    page.write_text(HTMLExporter().from_notebook_node(notebook.stored())[0])
    notebook.page.goto(page.as_uri())
    notebook.wait_text("✗ Failed", 30)
    check_record("nbconvert's page")

    # The canary is alive: as markup, the same text sets it.
    notebook.page.evaluate("(evil) => { document.body.innerHTML += evil; }", EVIL)
    notebook.page.wait_for_function("() => window.__pwned === 1")


def test_a_flood_of_lines(open_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    """The page stays quick, the panel bounded, and a rank's whole log can be saved."""
    notebook = open_notebook(
        "flood.ipynb",
        ["%load_ext raynb", FLOOD.format(storage=str(tmp_path), lines=LINES)],
    )
    notebook.run_all()
    notebook.wait_state("Training")
    logs = notebook.tab("logs")
    logs.locator(".rn-log-line", has_text="ready").nth(1).wait_for(timeout=120_000)
    (tmp_path / "go").touch()
    trips, over = [], 0.0
    end = time.monotonic() + 180
    # While it lasts, and for two seconds in which the panel gets the rest of it.
    while not over or time.monotonic() < over + 2:
        began = time.monotonic()
        notebook.page.evaluate("() => 1")
        trips.append(time.monotonic() - began)
        if not over and all((tmp_path / f"done-{rank}").exists() for rank in (0, 1)):
            over = time.monotonic()
        assert time.monotonic() < end, "the flood does not end"
        time.sleep(0.01)
    trips.sort()
    print(f"{len(trips)} round trips, median {statistics.median(trips):.4f} s, {trips[-3:]} s")
    # A frozen page, not a slow machine; how quick it is, tests/bench/panel_frames.py tells.
    assert statistics.median(trips) < 1 and trips[-1] < 20
    assert notebook.page.locator(".rn-log-line").count() < 200, "lines out of view are not drawn"

    notebook.tab("logs")
    logs.locator("select").select_option("1")
    with notebook.page.expect_download() as caught:
        logs.get_by_role("button", name="download").click()
    assert caught.value.suggested_filename == "rank-00001.log"
    saved = Path(caught.value.path()).read_text().splitlines()
    assert saved == ["ready", *(f"rank 1 says line {i}" for i in range(LINES))]
    logs.get_by_text("Saved rank-00001.log.").wait_for()
    assert notebook.execute("print(run.stop(20), run.state)") == "None stopped"
