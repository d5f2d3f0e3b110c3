"""The notebooks as they are stored: with outputs that any viewer shows, nothing of a machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 450_000
#: Paths of the machine that ran them; /home/jovyan is where Binder and Jupyter's images run.
OF_A_MACHINE = re.compile(
    r"(?<![\w.])/(?:(?:root|work|Users|opt|srv|var|tmp)/[\w.-]+|home/(?!jovyan)\w)"
)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def outputs(path: Path) -> list[Any]:
    return [output for cell in code_cells(path) for output in cell.outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestStored:
    def test_is_valid_and_small(self, path: Path) -> None:
        nbformat.validate(read(path))
        assert path.stat().st_size < MAX_BYTES

    def test_was_run_from_top_to_bottom(self, path: Path) -> None:
        counts = [cell.execution_count for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_ended_well(self, path: Path) -> None:
        assert [o.output_type for o in outputs(path) if o.output_type == "error"] == []
        assert "Traceback" not in "".join(o.get("text", "") for o in outputs(path))

    def test_shows_without_a_kernel(self, path: Path) -> None:
        data = [o.data for o in outputs(path) if "data" in o]
        assert any("image/png" in d for d in data)
        shown = {mime for d in data for mime in d}
        assert shown <= {"text/plain", "text/html", "text/markdown", "image/png"}
        assert "widgets" not in read(path).metadata

    def test_tells_nothing_of_the_machine(self, path: Path) -> None:
        for output in outputs(path):
            text = json.dumps({k: v for k, v in output.get("data", {}).items() if k[:4] == "text"})
            assert OF_A_MACHINE.findall(text + output.get("text", "")) == []

    def test_is_linked(self, path: Path) -> None:
        for page in ("README.md", "docs/notebooks.md"):
            assert f"notebooks/{path.name}" in (ROOT / page).read_text(encoding="utf-8"), page

    def test_has_a_title_and_stays_the_same_when_run_again(self, path: Path) -> None:
        cells = read(path).cells
        assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
        assert len({cell.id for cell in cells}) == len(cells)
        assert all(re.fullmatch(r"[a-z-]+-\d+", cell.id) for cell in cells)


def test_binders_quickstart_is_the_quickstart() -> None:
    from raynb.demo import build_notebook

    stored = read(ROOT / "binder" / "quickstart.ipynb")
    made = build_notebook(dataset="digits", workers=1, epochs=5, rows=None, small=True)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in made.cells]
    assert "-n 1 " in made.cells[3].source and "torchvision" not in made.cells[3].source
