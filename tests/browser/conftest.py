"""A real JupyterLab in a real Chromium, driven through Playwright."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

CHROMIUM = next(
    (p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None
)
CHROMIUM_FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.browser)


@dataclass
class Lab:
    """A running JupyterLab.

    Attributes
    ----------
    url, token : str
    root : Path
        Its working directory.
    """

    url: str
    token: str
    root: Path

    def write(self, name: str, sources: list[str], kernel: str = "python3") -> str:
        """Write a notebook of code cells and give its name."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(s) for s in sources],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel}},
        )
        nbformat.write(notebook, self.root / name)
        return name


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab on loopback with every directory of its own."""
    base = tmp_path_factory.mktemp("lab")
    root = base / "work"
    root.mkdir()
    settings = base / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(base / "config"),
        "JUPYTER_DATA_DIR": str(base / "data"),
        "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(base / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces"),
        "IPYTHONDIR": str(base / "ipython"),
    }
    port, token = _free_port(), secrets.token_hex(16)
    log = (base / "lab.log").open("w")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}",
            "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1",
            f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}",
            "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",
        ],
        cwd=root, env=env, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _until_up(url, token, process, base / "lab.log")
        yield Lab(url, token, root)
    finally:
        _shut_kernels(url, token)
        process.terminate()
        process.wait(20)
        log.close()


def _until_up(url: str, token: str, process: Any, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/api/status?token={token}", timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError("JupyterLab did not start:\n" + log.read_text()[-4000:])


def _shut_kernels(url: str, token: str) -> None:
    try:
        with urllib.request.urlopen(f"{url}/api/kernels?token={token}", timeout=5) as found:
            kernels = json.load(found)
        for kernel in kernels:
            request = urllib.request.Request(
                f"{url}/api/kernels/{kernel['id']}?token={token}", method="DELETE"
            )
            urllib.request.urlopen(request, timeout=20)
    except OSError:
        pass


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
    required = os.environ.get("RAYNB_REQUIRE_BROWSER")
    if CHROMIUM is None:
        if required:
            pytest.fail("RAYNB_REQUIRE_BROWSER is set and there is no chromium on PATH")
        pytest.skip("no chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


class Notebook:
    """A notebook open in a page."""

    def __init__(self, page: Any, lab: Lab, name: str) -> None:
        self.page = page
        self.lab = lab
        self.name = name

    @property
    def path(self) -> Path:
        return self.lab.root / self.name

    def open(self, *, kernel: bool = True) -> Notebook:
        """Open it and wait until the notebook, and its kernel, are ready."""
        self.page.goto(f"{self.lab.url}/lab/tree/{self.name}?token={self.lab.token}&reset")
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell?.currentWidget?.context", timeout=60_000
        )
        self.page.evaluate(
            """async (kernel) => {
                 const widget = window.jupyterapp.shell.currentWidget;
                 await widget.context.ready;
                 if (kernel) {
                   await widget.context.sessionContext.ready;
                   await widget.context.sessionContext.session.kernel.info;
                 }
               }""",
            kernel,
        )
        return self

    def run_all(self) -> None:
        """Start all cells; returns at once."""
        self.page.evaluate(
            "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
        )

    def command(self, name: str, args: dict[str, Any] | None = None) -> None:
        """Execute one of JupyterLab's commands."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args)", [name, args or {}]
        )

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")

    def wait_idle(self, timeout_s: float = 120) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.wait_for_function(
            """() => window.jupyterapp.shell.currentWidget.context.sessionContext
                       .session?.kernel?.status === 'idle'""",
            timeout=timeout_s * 1000,
        )

    def output(self, selector: str = "") -> Any:
        """Locator inside the output areas; cell sources never match."""
        return self.page.locator(f".jp-OutputArea-output {selector}".strip())

    def text(self) -> str:
        """All output text."""
        return "\n".join(self.page.locator(".jp-OutputArea-output").all_inner_texts())

    def wait_text(self, text: str, timeout_s: float = 120) -> None:
        self.page.wait_for_function(
            """(text) => [...document.querySelectorAll('.jp-OutputArea-output')]
                          .some(e => e.innerText.includes(text))""",
            arg=text,
            timeout=timeout_s * 1000,
        )

    def stored(self) -> Any:
        """The notebook as it is saved."""
        return nbformat.read(self.path, as_version=4)


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
        page = chromium.new_page(viewport={"width": viewport[0], "height": viewport[1]})
        pages.append(page)
        return Notebook(page, lab, lab.write(name, sources, kernel)).open()

    yield opener
    for page in pages:
        page.close()
    _shut_kernels(lab.url, lab.token)
