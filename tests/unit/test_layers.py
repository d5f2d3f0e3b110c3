"""Layers: imports point down only, and Ray's internals have one importer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import raynb

ROOT = Path(raynb.__file__).parent
LAYERS = {
    "_version": 0,
    "errors": 0,
    "cgroups": 0,
    "processes": 0,
    "scratch": 0,
    "troubleshooting": 1,
    "_ray": 1,
    "telemetry": 2,
    "weights": 2,
    "worker": 2,
    "engine": 3,
    "tuning": 3,
    "results": 4,
    "panel": 5,
    "api": 6,
    "api_attach": 6,
    "api_tune": 6,
    "workers": 6,
    "control": 7,
    "magics": 7,
    "doctor": 7,
    "demo": 7,
    "cli": 8,
    "__main__": 9,
}
FILES = sorted(p for p in ROOT.rglob("*.py") if not {"frontend", "static"} & set(p.parts))
#: Besides ``_names``: Ray Train's second version as a package is an internal too.
INTERNAL = ("ray.train.v2",)


def module_of(path: Path) -> str:
    parts = ["raynb", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[str, int]]:
    """Dotted names that a file imports anywhere in it, and the line."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            # What is imported from a package may be a module of it.
            found += [(f"{home}.{alias.name}", node.lineno) for alias in node.names]
    return found


def layer_of(module: str) -> int | None:
    parts = module.split(".")
    return LAYERS.get(parts[1]) if parts[0] == "raynb" and len(parts) > 1 else None


def test_every_module_has_a_layer() -> None:
    unknown = {
        module_of(p) for p in FILES if module_of(p) != "raynb" and layer_of(module_of(p)) is None
    }
    assert not unknown


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    module = module_of(path)
    if module == "raynb":
        return  # its names are looked up when they are asked for
    own = layer_of(module)
    assert own is not None
    for name, line in imports(path):
        other = layer_of(name)
        if other is None:
            # `from raynb import x`: the package itself may be asked for a public name by the
            # layers on top alone.
            assert not name.startswith("raynb.") or own >= LAYERS["api"], f"{path}:{line}: {name}"
            continue
        assert other <= own, f"{path}:{line}: layer {own} imports {name} of layer {other}"
        if module.startswith("raynb.telemetry"):
            assert not name.startswith("raynb.worker"), f"{path}:{line}: {name}"


def test_importing_raynb_imports_nothing_else() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    now = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {getattr(n, "module", None) or n.names[0].name for n in now}
    assert names == {"__future__", "typing", "raynb._version"}


def is_internal(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "ray" and (
        any(p.startswith("_") and not p.startswith("__") for p in parts[1:])
        or any(name == i or name.startswith(i + ".") for i in INTERNAL)
    )


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_one_importer_of_rays_internals(path: Path) -> None:
    if module_of(path).startswith("raynb._ray"):
        return
    assert [(n, line) for n, line in imports(path) if is_internal(n)] == []


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if module_of(p).startswith(("raynb.worker", "raynb.telemetry"))],
    ids=module_of,
)
def test_workers_need_no_notebook(path: Path) -> None:
    heavy = {"IPython", "ipywidgets", "anywidget", "matplotlib", "traitlets", "rich", "ipykernel"}
    assert [(n, line) for n, line in imports(path) if n.split(".")[0] in heavy] == []


def test_the_check_itself_sees_what_it_should(tmp_path: Path) -> None:
    assert is_internal("ray._private.state") and is_internal("ray.train.v2._internal.x")
    assert is_internal("ray.train.v2.api") and not is_internal("ray.train.torch.get_device")
    assert not is_internal("ray.__version__") and not is_internal("array._x")
    lazy = ROOT / "worker" / "runtime.py"
    assert "raynb._ray.worker.hooks" in {name for name, _ in imports(lazy)}
