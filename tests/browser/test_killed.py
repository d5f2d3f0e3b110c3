"""A browser that is killed in mid-run: training goes on, and another one shows it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab import CHROMIUM, CHROMIUM_FLAGS, Lab, Notebook, shut_kernels

CELL = """%%distributed_train -n 2 --background -o run --name long --storage-path {there}
import os, raynb, ray.train, time
path = os.path.join({there!r}, f"rank{{ray.train.get_context().get_world_rank()}}.txt")
with open(path, "w") as file:
    for step in range(10**6):
        raynb.log({{"loss": 2.0 / (1 + step)}})
        print(step, file=file, flush=True)
        time.sleep(0.1)"""


def browsers() -> set[int]:
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "chrom" in child.name().lower()
    }


@pytest.mark.expensive
def test_a_killed_browser_changes_nothing(chromium: Any, lab: Lab, tmp_path: Path) -> None:
    def steps() -> int:
        return min(len(p.read_text().splitlines()) for p in tmp_path.glob("rank*.txt"))

    name = lab.write("killed.ipynb", ["%load_ext raynb", CELL.format(there=str(tmp_path))])
    before = browsers()
    other = chromium.browser_type.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
    mine = browsers() - before
    assert mine
    first = Notebook(other.new_page(viewport={"width": 1100, "height": 1300}), lab, name).open()
    page = None
    try:
        first.run_all()
        first.wait_state("Training")
        first.wait_steps(5)
        first.save()
        for pid in browsers() - before | mine:
            os.kill(pid, signal.SIGKILL)
        at = steps()
        time.sleep(5)
        assert steps() > at + 30, "training waits for the browser"
        page = chromium.new_page(viewport={"width": 1100, "height": 1300})
        again = Notebook(page, lab, name).open()
        again.wait_state("Training")
        again.wait_steps(at + 30)
        # The new page has the run in hand.
        assert again.execute("run.stop(15); print(run.state, len(run.history) > 70)") == (
            "stopped True"
        )
        # The record's place is known to the dead page only: here, the panel stays.
        again.wait_state("Stopped")
        page.wait_for_timeout(4_000)
        again.wait_state("Stopped", 1)
    finally:
        if page is not None:
            page.close()
        with contextlib.suppress(Exception):  # it is dead
            other.close()
        shut_kernels(lab.url, lab.token)
