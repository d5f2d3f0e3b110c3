"""Fixtures: one JupyterLab and one Chromium for all tests here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import CHROMIUM, Lab, Notebook, launched_chromium, running_lab, shut_kernels

#: Set to a directory to keep screenshots, such as those under docs/images.
SHOTS = os.environ.get("RAYNB_SCREENSHOTS")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as started:
        yield started


#: Kernels that the Stop button is tried on, beside the installed one.
OTHER_IPYKERNELS = ("6.29.5", "7.3.0")


@pytest.fixture(scope="session")
def other_kernels(lab: Lab) -> None:
    """Kernelspecs that run other releases of ipykernel, before the installed one on the path."""
    for version in OTHER_IPYKERNELS:
        home = lab.root.parent / f"ipykernel-{version}"
        subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(home),
                f"ipykernel=={version}", "nest_asyncio",
            ],
            check=True,
        )  # fmt: skip
        spec = lab.root.parent / "data" / "kernels" / f"ipykernel-{version}"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(
            json.dumps(
                {
                    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                    "display_name": f"ipykernel {version}",
                    "language": "python",
                    "env": {"PYTHONPATH": str(home)},
                }
            )
        )


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's Chromium under Playwright; required where RAYNB_REQUIRE_BROWSER is set."""
    if CHROMIUM is None:
        if os.environ.get("RAYNB_REQUIRE_BROWSER"):
            pytest.fail("RAYNB_REQUIRE_BROWSER is set and there is no chromium on PATH")
        pytest.skip("no chromium on PATH")
    pytest.importorskip("playwright.sync_api")
    with launched_chromium() as browser:
        yield browser


@pytest.fixture
def shot() -> Callable[..., None]:
    """Keeps a picture of the panel, or of the record that has the text, where SHOTS says."""

    def take(notebook: Notebook, name: str, record: str = "") -> None:
        if not SHOTS:
            return
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        found = notebook.page.locator(
            ".jp-OutputArea-output.jp-RenderedHTMLCommon > div", has_text=record
        )
        area = (found if record else notebook.panel).first
        area.scroll_into_view_if_needed()
        area.screenshot(path=str(Path(SHOTS, f"{name}.png")))

    return take


@pytest.fixture
def open_notebook(chromium: Any, lab: Lab) -> Iterator[Callable[..., Notebook]]:
    """Opens a notebook of given cells in a page of its own; kernels end with the test."""
    pages = []

    def opener(
        name: str,
        sources: list[str],
        *,
        kernel: str = "python3",
        viewport: tuple[int, int] = (1100, 1300),
    ) -> Notebook:
        page = chromium.new_page(
            viewport={"width": viewport[0], "height": viewport[1]},
            device_scale_factor=1.5 if SHOTS else 1,
        )
        pages.append(page)
        return Notebook(page, lab, lab.write(name, sources, kernel)).open()

    yield opener
    for page in pages:
        page.close()
    shut_kernels(lab.url, lab.token)
