"""Wheel and sdist as they would be released, and raynb from the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import raynb

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "raynb" / "frontend").is_dir(), reason="only a checkout can be built"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--target", "sdist"]
    subprocess.run([*command, "--directory", str(out)], cwd=ROOT, check=True, timeout=300)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_is_small_and_whole(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licences = archive.read("raynb/static/LICENSES.txt").decode()
        metadata = Parser().parsestr(
            archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        )
        entries = archive.read(next(n for n in names if n.endswith("/entry_points.txt"))).decode()
    assert {"raynb/py.typed", "raynb/static/panel.js", "raynb/static/panel.css"} <= set(names)
    assert "raynb/troubleshooting.md" in names
    assert any(n.endswith("dist-info/licenses/LICENSE") for n in names)
    assert "uPlot" in licences and "MIT License" in licences
    assert not [n for n in names if "frontend" in n or "node_modules" in n or "tests" in n]
    python = {p.relative_to(ROOT).as_posix() for p in (ROOT / "raynb").rglob("*.py")}
    expected = {n for n in python if not n.startswith("raynb/frontend/")}
    assert expected == {n for n in names if n.endswith(".py")}
    assert metadata["Version"] == raynb.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "raynb = raynb.cli:main" in entries


def test_the_sdist_needs_no_node(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"raynb/static/panel.js", "raynb/static/LICENSES.txt", "LICENSE"} <= names
    assert {"raynb/frontend/src/main.ts", "docs/conf.py", "tests/unit/test_package.py"} <= names
    assert not [n for n in names if "node_modules" in n or n.startswith("docs/_build")]


def test_raynb_runs_from_the_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(site)
    env = os.environ | {"PYTHONPATH": str(site)}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert python("-m", "raynb", "--version") == f"raynb {raynb.__version__}"
    where = "import raynb, importlib.metadata as m; print(raynb.__file__, m.version('raynb'))"
    assert python("-c", where) == f"{site}/raynb/__init__.py {raynb.__version__}"
    bundle = "from raynb.doctor import check_bundle; print(check_bundle()[0].value)"
    assert python("-c", bundle).endswith("bundle")
    # The troubleshooting page is in it: what an error points to is there without the sources.
    assert python("-m", "raynb", "help", "cuda-out-of-memory").count("\n") > 3


def test_the_version_stands_in_one_place() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("raynb/**/*.py", "pyproject.toml", "docs/*.py")
        for path in ROOT.glob(pattern)
        if f'"{raynb.__version__}"' in path.read_text(encoding="utf-8")
    ]
    assert found == ["raynb/_version.py"]
