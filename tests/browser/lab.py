"""A real JupyterLab and a real Chromium, for the tests here and the benchmarks in tests/bench."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

CHROMIUM = next(
    (p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None
)
CHROMIUM_FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


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


@contextlib.contextmanager
def running_lab(base: Path, **environment: str) -> Iterator[Lab]:
    """JupyterLab on loopback with every directory of its own, below ``base``."""
    root = base / "work"
    root.mkdir()
    settings = base / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    env = {
        **os.environ,
        **environment,
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
        shut_kernels(url, token)
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


def shut_kernels(url: str, token: str) -> None:
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


@contextlib.contextmanager
def launched_chromium() -> Iterator[Any]:
    """Debian's Chromium under Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


class Notebook:
    """A notebook open in a page, and the panel in it."""

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
        self.command("application:toggle-left-area")  # the files
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

    def execute(self, code: str) -> str:
        """Run code in the idle kernel, past the notebook; gives what it printed or raised."""
        said: str = self.page.evaluate(
            """async (code) => {
                 const { context } = window.jupyterapp.shell.currentWidget;
                 const kernel = context.sessionContext.session.kernel;
                 const future = kernel.requestExecute({ code, stop_on_error: false });
                 let text = '';
                 future.onIOPub = (m) => { text += m.content.text ?? m.content.evalue ?? ''; };
                 await future.done;
                 return text;
               }""",
            code,
        )
        return said.strip()

    # -- the panel -------------------------------------------------------------------------------

    @property
    def panel(self) -> Any:
        return self.output(".raynb-panel")

    def wait_state(self, word: str, timeout_s: float = 120) -> None:
        """Wait until the panel's head shows this state."""
        shown = self.panel.locator(".rn-status", has_text=word).first
        shown.wait_for(timeout=timeout_s * 1000)

    def tab(self, name: str) -> Any:
        """Bring a tab to the front and wait until it is drawn; gives what it shows."""
        self.panel.locator(f".rn-tab[data-tab={name}]").click()
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return self.panel.locator(f".rn-tab-panel[data-tab={name}]")

    def steps(self) -> list[int]:
        """The workers' steps as the open Workers tab shows them, -1 for n/a."""
        cells = self.panel.locator(".rn-workers-view .rn-row .rn-c-step").all_inner_texts()
        found = [re.match(r"[\d,]+", c.strip()) for c in cells]
        return [int(m.group().replace(",", "")) if m else -1 for m in found]

    def wait_steps(self, least: int, ranks: int = 2, timeout_s: float = 120) -> None:
        """Open the Workers tab and wait until each rank has come so far."""
        self.tab("workers")
        end = time.monotonic() + timeout_s
        while len(found := self.steps()) < ranks or min(found) < least:
            assert time.monotonic() < end, f"not at step {least}: {found}"
            time.sleep(0.1)

    def wide(self) -> list[str]:
        """What reaches beyond the panel's edge, or makes the page scroll sideways."""
        found: list[str] = self.panel.evaluate(
            """e => {
                 const edge = e.getBoundingClientRect().right + 1;
                 const clipped = (c) => {
                   for (let p = c.parentElement; p !== null && p !== e; p = p.parentElement)
                     if (getComputedStyle(p).overflowX !== 'visible') return true;
                   return false;
                 };
                 const beyond = (c) => c.getBoundingClientRect().right > edge && !clipped(c);
                 const shown = [...e.querySelectorAll('*')].filter(c => c.checkVisibility());
                 const out = shown.filter(beyond);
                 for (let p = e; p !== null; p = p.parentElement)
                   if (p.scrollWidth > p.clientWidth + 1 && p.clientWidth > 0) out.push(p);
                 return out.map(c => `${c.tagName}.${c.className}`);
               }"""
        )
        return found
