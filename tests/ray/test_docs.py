"""Blocks of README and docs that train on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docs_blocks import PAGES, ROOT, blocks_of, run_blocks


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.run == "ray" for b in blocks_of(p))],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_blocks_run(
    page: Path, cluster: None, notebook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    run_blocks(notebook.shell, [b for b in blocks_of(page) if b.run and b.language == "python"])
