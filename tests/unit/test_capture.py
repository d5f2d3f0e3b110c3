"""What a cell takes from the notebook: names, kinds, sizes, and what is refused."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import linecache
import random
import re
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from raynb.engine.capture import Capture, Captured, capture_cell, format_table
from raynb.errors import CaptureError
from raynb.telemetry.units import human_bytes, human_seconds
from raynb.worker.program import load_values, run_program

FILENAME = "<cell-capture>"


def notebook(source: str = "", /, **names: Any) -> dict[str, Any]:
    """Run a notebook cell and return the notebook's namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(source, "<notebook>", "exec", dont_inherit=True), namespace)
    return namespace


def capture(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Capture:
    return capture_cell(
        source, filename=FILENAME, label="Cell In[3]", namespace=namespace or {}, **options
    )


def captured_names(source: str, namespace: dict[str, Any]) -> set[str]:
    return {row.name for row in capture(source, namespace).table}


def row_of(name: str, captured: Capture) -> Captured:
    return next(row for row in captured.table if row.name == name)


# --- names ----------------------------------------------------------------------------------

ABC = {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print(a, b)", "a b"),
        ("x = a\nx + 1", "a"),
        ("[a for a in range(3)]", ""),
        ("[a for x in b if x]", "a b"),
        ("{a: b for a, b in c}", "c"),
        ("[y := 1 for _ in range(2)]\ny", ""),
        ("if (a := 3): a", ""),
        ("f = lambda a, b=b: a + b + c", "b c"),
        ("def f(a, *b, **c): return a, b, c", ""),
        ("def f():\n    return a\nf()", "a"),
        ("def f():\n    a = 1\n    def g():\n        nonlocal a\n        a += b\n    g()", "b"),
        ("def f():\n    global a\n    a = 1\nf()", ""),
        ("def f():\n    global a\n    return a", "a"),
        ("def f(x=a) -> None: x", "a"),
        ("def f(x: a) -> b: c", "a b c"),
        ("from __future__ import annotations\ndef f(x: a) -> b: c", "c"),
        ("def f():\n    x: a = 1", ""),
        ("@a\ndef f(): pass", "a"),
        ("class K(a):\n    b = 1\n    d = b\n    def m(self): return c", "a c"),
        ("class K:\n    a = 1\n    def m(self): return a", "a"),
        ("class K:\n    def m(self): return __class__", ""),
        ("match a:\n    case [b, *c]: b, c\n    case {'k': b, **c}: b, c", "a"),
        ("match 1:\n    case a if b: a", "b"),
        ("try:\n    pass\nexcept a as b:\n    b", "a"),
        ("with a as b: b", "a"),
        ("for a in b: a\nelse: c", "b c"),
        ("import os as a, b.sub\na, b", ""),
        ("a: int = 1\na", ""),
        ("a.x = 1\nb[c] = 2", "a b c"),
        ("f'{a!r:{b}}'", "a b"),
        ("a = 1\ndel a", ""),
        ("async def f():\n    async for a in b: await c", "b c"),
        ("return a + b", "a b"),
        ("c = 1\nreturn [a for a in range(c)]", ""),
        ("if False: a", ""),
        ("config['lr'], __name__, __file__, exit, quit", ""),
    ],
)
def test_names_follow_python(source: str, expected: str) -> None:
    assert captured_names(source, notebook(**ABC)) == set(expected.split())


@pytest.mark.parametrize(
    ("source", "captured"),
    [
        ("a = a + 1", True),
        ("a += 1", True),
        ("def f(x): return x\na = f(a)", True),
        ("if b: a = 1\nprint(a)", True),
        ("if b: a = 1\nelse: a = 2\nprint(a)", False),
        ("if b: raise SystemExit\nelse: a = 2\nprint(a)", False),
        ("if b:\n    a = 1\n    print(a)", False),
        ("for a in b: pass\nprint(a)", False),
        ("while b: a = 1\nprint(a)", False),
        ("try: a = 1\nexcept ValueError: pass\nprint(a)", False),
        ("try: pass\nexcept ValueError: a = 1\nprint(a)", True),
        ("with b: a = 1\nprint(a)", False),
        ("match b:\n    case 1: a = 1\n    case _: a = 2\nprint(a)", False),
        ("match b:\n    case 1: a = 1\nprint(a)", True),
        ("for _ in range(2):\n    print(a)\n    a = 1", True),
        ("def f(): return a\na = 1\nf()", False),
        ("def f(): return a\nif b: a = 1\nf()", True),
        # Found by random cells.
        ("def f(): return a\nf()\na = 1", True),
        ("def f(): return a\ndef g(): return f()\ng()\na = 1", True),
        ("f = lambda: a\na = 1\nf()", False),
        ("f = lambda: a\nf()\na = 1", True),
        ("(lambda: a)()\na = 1", True),
        ("@b\ndef f(): return a\na = 1", True),
        ("class K:\n    def m(self): return a\na = 1\nK().m()", False),
        ("class K:\n    def m(self): return a\nK().m()\na = 1", True),
        ("class K:\n    def a(self): return a\n    a(0)\na = 1", True),
        ("(a := 1) if b else 2\nprint(a)", True),
        ("b and (a := 1)\nprint(a)", True),
        ("(a := 1) and b\nprint(a)", False),
        ("assert b, (a := 1)\nprint(a)", True),
        ("class K:\n    if b: a = 1\n    print(a)", True),
        ("class K:\n    a = 1\n    print(a)", False),
        ("class K:\n    a = 1\n    del a\n    print(a)", True),
        ("class K:\n    try: pass\n    except b as a: pass\n    print(a)", True),
        # Of a class that a function makes, the order of its lines is not followed.
        (
            "def f():\n    class K:\n        match b:\n            case [*a]: pass\n        d = a",
            True,
        ),
        ("class K:\n    global a\n    a = 1\nprint(a)", False),
        ("def f():\n    global a\n    a = 1\nf()\nprint(a)", True),
        ("try: a\nexcept NameError: a = 1", True),
        ("class K:\n    a = a", True),
        ("del a", True),
        ("print(a)\nreturn 1\na = 2", True),
    ],
)
def test_names_read_before_they_are_bound(source: str, captured: bool) -> None:
    assert ("a" in captured_names(source, notebook(**ABC))) is captured


@pytest.mark.parametrize(
    "source",
    [
        "if config: a = 1\nprint(a)",
        "for _ in range(2):\n    if _: print(a)\n    a = 1",
        "try: a\nexcept NameError: pass",
        "def f():\n    try: return a\n    except (KeyError, NameError): return 0",
        "from math import *\nsin(a)",
        "def f():\n    global a\n    a = 1\nf()\nprint(a)",
        "try: get_ipython()\nexcept NameError: pass",
        "del a",
    ],
)
def test_absent_names_that_may_be_fine(source: str) -> None:
    assert capture(source).table == []


@pytest.mark.parametrize("value", [threading.Lock(), np.zeros(2000)], ids=["lock", "large"])
def test_optional_names_are_left_out_when_they_cost_something(value: object) -> None:
    source = "if config: a = 1\nprint(a)"
    assert capture(source, notebook(a=value), limit=1000).table == []


def test_a_name_surely_read_first_is_required() -> None:
    with pytest.raises(CaptureError, match="`a` on line 2"):
        capture("a = a + 1")
    large = np.zeros(2000)
    assert capture("a = a + 1", notebook(a=large), limit=1000).large["a"] is large


def test_undefined_names_are_one_error_with_lines_and_matches() -> None:
    source = "x = 1\nmodle(x)\ndef f():\n    return lenght(x), qqq\n"
    with pytest.raises(CaptureError) as caught:
        capture(source, notebook(model=print, length=1))
    assert caught.value.detail.splitlines() == [
        "`modle` on line 3: did you mean `model`?",
        "`lenght` on line 5: did you mean `length`?",
        "`qqq` on line 5",
    ]


def test_builtins_are_captured_only_when_rebound() -> None:
    @functools.wraps(open)
    def wrapped_open(*args: Any) -> Any: ...

    source = "print(sum([1])), max, open"
    assert captured_names(source, notebook(sum=sum, max=7, open=wrapped_open)) == {"max"}


@pytest.mark.parametrize("name", ["get_ipython", "In", "Out"])
def test_names_of_the_kernel_are_refused(name: str) -> None:
    with pytest.raises(CaptureError, match=f"`{name}` on line 3"):
        capture(f"x = 1\n{name}", notebook(**{name: []}))


def test_display_goes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display").display
    monkeypatch.setattr("builtins.display", display, raising=False)
    found = capture("display(1)")
    assert row_of("display", found).via == "name"
    assert load_values(found.payload) == {"display": display}


def test_line_is_that_of_the_first_global_read() -> None:
    found = capture("def f(a): return a\n\nx = a\nx = a", notebook(**ABC))
    assert row_of("a", found).line == 4


# --- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\r\nif x:\r\n\treturn a\r\n",
        "x = 1\rif x:\r\treturn a",
        "x = 'ü\u2028\x0c'\nif x:\n  return a  \n\n   \n",
        "'doc'\nfrom __future__ import annotations\nreturn a  ",
    ],
)
def test_text_is_taken_as_it_is(source: str) -> None:
    found = capture(source, notebook(a=5))
    assert row_of("a", found).line == 4
    assert run_program(found.program, load_values(found.payload)) == 5


@pytest.mark.parametrize("source", ["", "\n\n", "# only\n  # comments\n"])
def test_empty_cell(source: str) -> None:
    with pytest.raises(CaptureError, match="empty cell"):
        capture(source)


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\ny = (2,\n", 3, "y = (2,"),
        ("x = 1\n  y = 2\n", 3, "  y = 2"),
        ("for x in y:\n    pass\nbreak\n", 4, "break"),
        ("b = a % 2\nx = [1,\n% 3]", 4, "% 3]"),
        ("def f():\n    nonlocal q\n", 3, "    nonlocal q"),
        ("def train_func():\n    pass\nawait x\n", 4, "await x"),
    ],
)
def test_syntax_errors_are_the_cells_own(source: str, line: int, text: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        capture(source)
    error = caught.value
    assert (error.filename, error.lineno) == (FILENAME, line)
    assert error.text is not None and error.text.rstrip("\n") == text
    assert error.offset is not None and error.offset >= 1


@pytest.mark.parametrize(
    "line",
    ["!ls -l", "%time x", "%%bash", "x?", "np.zeros??", "?x", "f = !ls", "f = %pwd", "  %cd .."],
)
def test_ipython_syntax_names_its_line(line: str) -> None:
    with pytest.raises(CaptureError, match=r"line 4") as caught:
        capture(f"x = 5 \\\n% 3\n{line}\n")
    assert line.strip() in caught.value.message
    assert "cell of its own" in caught.value.hint


# --- forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "form", "takes_config"),
    [
        ("x = 1", "body", None),
        ("def train_func(): pass", "function", False),
        ("def train_func(config): pass", "function", True),
        ("def train_func(c, /): pass", "function", True),
        ("def train_func(config=None): pass", "function", True),
        ("def train_func(lr=0.1, *args, k=1, **kw): pass", "function", False),
        ("@print\ndef train_func(c): pass", "function", None),
        ("train_func = print", "function", None),
        ("train_func: object = print", "function", None),
        ("from os import getcwd as train_func", "function", None),
        ("async def train_func(): pass", "body", None),
        ("if 1:\n    def train_func(): pass", "body", None),
        ("train_func: object", "body", None),
        ("def other(a, b): pass", "body", None),
    ],
)
def test_form(source: str, form: str, takes_config: bool | None) -> None:
    program = capture(source).program
    assert (program.form, program.takes_config) == (form, takes_config)


@pytest.mark.parametrize("args", ["a, b", "a, b, c=1", "*, key", "a, /, b"])
def test_more_required_arguments_are_refused(args: str) -> None:
    with pytest.raises(CaptureError, match=re.escape(f"`train_func({args})` on line 3")):
        capture(f"x = 1\ndef train_func({args}): pass")


def test_named_function_of_the_notebook() -> None:
    namespace = notebook("def fit(config): return config['lr'] * k\nk = 2")
    found = capture("# nothing", namespace, func_name="fit", func_explicit=True)
    assert (found.program.form, found.program.takes_config) == ("function", True)
    assert row_of("fit", found).line == 1
    assert run_program(found.program, load_values(found.payload), {"lr": 3}) == 6


def test_named_function_in_the_cell_wins() -> None:
    namespace = notebook("def fit(): return 'notebook'")
    found = capture("def fit(): return 'cell'", namespace, func_name="fit", func_explicit=True)
    assert found.table == []
    assert run_program(found.program, load_values(found.payload)) == "cell"


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ({"fits": len}, "`fit` is defined neither.*did you mean `fits`"),
        ({"fit": 3}, "`fit` is defined neither"),
        ({"fit": lambda a, b: 0}, r"`fit\(a, b\)` on line 1"),
    ],
)
def test_named_function_that_cannot_be(namespace: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture("x = 1", namespace, func_name="fit", func_explicit=True)


# --- values ---------------------------------------------------------------------------------


def test_kinds_and_ways() -> None:
    namespace = notebook(
        "import numpy as np\nfrom torch.nn import Linear\n"
        "def helper(): return 1\nclass Net: pass\nnet = Net()\ncount = 3",
        array=np.zeros(10),
        tensor=torch.zeros(6),
        frame=pd.DataFrame({"x": [1.0, 2.0]}),
    )
    found = capture("np, Linear, helper, Net, net, count, array, tensor, frame", namespace)
    kinds = {row.name: (row.kind, row.via) for row in found.table}
    assert kinds == {
        "np": ("module", "name"),
        "Linear": ("class", "name"),
        "helper": ("function", "value"),
        "Net": ("class", "value"),
        "net": ("Net", "value"),
        "count": ("int", "value"),
        "array": ("ndarray", "value"),
        "tensor": ("Tensor", "value"),
        "frame": ("DataFrame", "value"),
    }
    sizes = {row.name: row.size for row in found.table}
    assert (sizes["np"], sizes["Linear"], sizes["array"], sizes["tensor"]) == (None, None, 80, 24)
    assert sizes["frame"] == namespace["frame"].memory_usage().sum()
    assert 0 < (sizes["count"] or 0) < 20 < (sizes["helper"] or 0)


@pytest.mark.parametrize(
    "value",
    [np.zeros(2000), torch.zeros(2000), torch.zeros(2000)[:2], pd.DataFrame({"x": range(2000)})],
    ids=["ndarray", "Tensor", "view", "DataFrame"],
)
def test_large_data_is_not_pickled_to_be_measured(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("pickled")

    monkeypatch.setattr("raynb.engine.capture._Survey.dump", refuse)
    found = capture("x", {"x": value}, limit=1000)
    assert found.large["x"] is value
    row = row_of("x", found)
    assert row.via == "object store" and row.size is not None and row.size >= 8000
    assert "Ray Data" in row.note
    assert load_values(found.payload) == {}


def test_large_objects_are_measured_by_pickling() -> None:
    value = {"weights": [np.zeros(500), np.zeros(500)]}
    found = capture("x", {"x": value}, limit=1000)
    assert found.large["x"] is value
    assert 8000 <= (row_of("x", found).size or 0) < 9000


def test_large_objects_bring_their_classes() -> None:
    namespace = notebook("class Net: pass\nnet = Net()", data=np.zeros(2000))
    namespace["net"].data = namespace["data"]
    found = capture("net", namespace, limit=1000)
    assert set(found.large) == {"net"}
    assert set(load_values(found.payload)) == {"Net"}


def test_shared_identities_survive() -> None:
    shared = [1]
    values = load_values(capture("x, y", {"x": shared, "y": {"in": shared}}).payload)
    assert values["y"]["in"] is values["x"]


def test_redefined_helpers_are_seen() -> None:
    namespace = notebook("def scale(x): return x * 2")
    results = []
    for factor in (2, 3):
        exec(f"def scale(x): return x * {factor}", namespace)
        found = capture("return scale(1)", namespace)
        results.append(run_program(found.program, load_values(found.payload)))
    assert results == [2, 3]


def test_helpers_bring_their_own() -> None:
    namespace = notebook("k = 5\ndef inner(): return k\ndef outer(): return inner()")
    found = capture("return outer()", namespace)
    assert [row.name for row in found.table] == ["outer"]
    namespace["k"] = 6
    assert run_program(found.program, load_values(found.payload)) == 5


def test_transitive_definitions_do_not_hide_builtins() -> None:
    namespace = notebook("def sum(x): return 7\ndef f(): return g([1])\ng = sum\ndel sum")
    found = capture("return f(), sum([1])", namespace)
    assert run_program(found.program, load_values(found.payload)) == (7, 1)


def test_sources_of_other_cells_come_along() -> None:
    source = "def helper():\n    return 1 / 0\n"
    linecache.cache["<other>"] = (len(source), None, source.splitlines(True), "<other>")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<other>", "exec"), namespace)
    found = capture("helper()", namespace, labels={"<other>": "Cell In[1]"})
    (cell,) = found.program.other_cells
    assert (cell.filename, cell.label, cell.source) == ("<other>", "Cell In[1]", source)


def test_submodules_that_the_cell_reaches() -> None:
    import xml
    import xml.etree.ElementTree

    found = capture("xml.etree.ElementTree.Element('a')", notebook(xml=xml))
    assert found.program.imports == ("xml.etree", "xml.etree.ElementTree")


def test_local_modules_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynet.py").write_text("class Net: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    namespace = notebook("import mynet, os\nfrom mynet import Net")
    found = capture("mynet, Net, os", namespace, notebook_dir=tmp_path)
    monkeypatch.delitem(sys.modules, "mynet")
    assert {row.name: row.note for row in found.table} == {
        "mynet": "local file",
        "Net": "local file",
        "os": "",
    }


def test_modules_made_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("handmade")
    module.value = 4  # type: ignore[attr-defined]
    found = capture("return handmade.value", {"handmade": module})
    assert row_of("handmade", found).via == "value"
    assert run_program(found.program, load_values(found.payload)) == 4
    monkeypatch.setitem(sys.modules, "handmade", module)
    with pytest.raises(CaptureError, match="workers can't import it"):
        capture("handmade", {"handmade": module})


def test_copied_random_state_is_noted() -> None:
    found = capture("a, b", {"a": random.Random(1), "b": np.random.default_rng(1)})
    assert all("same numbers" in row.note for row in found.table)


def test_without_shipping_values_stay_themselves() -> None:
    lock, array = threading.Lock(), np.zeros(2000)
    found = capture("lock, array", {"lock": lock, "array": array}, limit=1, skip_pickle=True)
    assert found.large["lock"] is lock and found.large["array"] is array
    assert {row.via for row in found.table} == {"kernel"}
    assert load_values(found.payload) == {}


# --- refusals -------------------------------------------------------------------------------


def test_every_refused_value_is_named_in_one_error() -> None:
    namespace = notebook(guard=threading.Lock(), gen=torch.Generator(), torch=torch)
    with pytest.raises(CaptureError) as caught:
        capture("x = 1\nwith guard:\n    x = torch.rand(3, generator=gen)", namespace)
    first, second = caught.value.detail.splitlines()
    assert first.startswith("`guard` (lock) on line 3: cannot pickle '_thread.lock'")
    assert second.startswith("`gen` (torch.Generator) on line 4:") and "same numbers" in second
    assert "inside the cell" in caught.value.hint


class OnDevice(torch.Tensor):
    """A CPU tensor that says it lives on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def _cuda_tensor() -> torch.Tensor:
    return torch.Tensor._make_subclass(OnDevice, torch.zeros(2000))


def _loader_iterator() -> object:
    return iter(torch.utils.data.DataLoader([1, 2]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (functools.partial(open, __file__), "open file"),
        (functools.partial(open, __file__, "rb"), "open file"),
        (socket.socket, "open socket"),
        (lambda: (x for x in [1]), "generator in progress"),
        (lambda: iter([1]), "iteration in progress"),
        (lambda: zip([1], [2], strict=True), "iteration in progress"),
        (_loader_iterator, "DataLoader's iteration"),
        (_cuda_tensor, r"cuda:0.*\.cpu\(\)"),
        (torch.Generator, "same numbers"),
    ],
)
@pytest.mark.parametrize("limit", [10**9, 1000], ids=["small", "large"])
def test_refused_types(make: Any, reason: str, limit: int) -> None:
    value = make()
    with contextlib.ExitStack() as stack:
        if hasattr(value, "close"):
            stack.callback(value.close)
        stack.enter_context(pytest.raises(CaptureError, match=reason))
        capture("x", {"x": value}, limit=limit)


@pytest.mark.parametrize("value", [io.StringIO("a"), io.BytesIO(b"a"), range(3)])
def test_lookalikes_are_not_refused(value: object) -> None:
    assert captured_names("x", {"x": value}) == {"x"}


def test_standard_streams_go_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert load_values(capture("x", {"x": stream}).payload)["x"] is stream


@pytest.mark.parametrize(
    ("setup", "path"),
    [
        ("def x(): return guard.locked()", "x -> global guard, lock"),
        ("def x():\n    def inner(): return guard\n    return inner", "x -> global guard, lock"),
        ("def make(g):\n    return lambda: g\nx = make(guard)", "x -> variable g, lock"),
        ("def x(g=guard): pass", "x -> defaults -> [0], lock"),
        ("class X: pass\nx = X()\nx.held = {'k': [guard]}", "x -> .held -> ['k'] -> [0], lock"),
        ("class x:\n    held = guard", "x -> .held, lock"),
        ("class X:\n    def m(self): pass\nx = X()\nx.g = gen\nx = x.m", "self -> .g, torch.Gen"),
        ("def f(): return gen\ndef x(): return f()", "x -> global f -> global gen, torch.Gen"),
        ("x = [1, 2]\nx += [x, guard]", "x -> [3], lock"),
    ],
)
def test_the_path_inside_is_shown(setup: str, path: str) -> None:
    namespace = notebook(setup, guard=threading.Lock(), gen=torch.Generator())
    with pytest.raises(CaptureError, match=re.escape(path)):
        capture("x", namespace)


def test_errors_of_the_values_own_code_are_shown() -> None:
    class Stubborn:
        def __reduce__(self) -> str:
            raise RuntimeError("not me")

    with pytest.raises(CaptureError, match=r"`x` \(.*Stubborn\) on line 2: not me"):
        capture("x", {"x": Stubborn()})


def test_standard_output_stays_as_it_is() -> None:
    before = sys.stdout
    with pytest.raises(CaptureError):
        capture("x", {"x": threading.Lock()})
    assert sys.stdout is before


# --- rendering ------------------------------------------------------------------------------


def test_table_as_text() -> None:
    table = [
        Captured("np", "module", None, "name", 2),
        Captured("table", "ndarray", 120 * 2**20, "object store", 12, "a note"),
    ]
    assert format_table(table).splitlines() == [
        "name   kind     size     how           line  note",
        "np     module   n/a      name          2",
        "table  ndarray  120 MiB  object store  12    a note",
    ]
    assert format_table([]) == "The cell takes nothing from the notebook."


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "n/a"),
        (float("nan"), "n/a"),
        (0, "0 B"),
        (1023, "1023 B"),
        (4096, "4.0 kiB"),
        (10189, "10 kiB"),
        (120 * 2**20, "120 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (3 * 2**60, "3072 PiB"),
    ],
)
def test_human_bytes(count: float | None, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "n/a"),
        (float("inf"), "n/a"),
        (0.35, "350 ms"),
        (0.9999, "1.0 s"),
        (4.21, "4.2 s"),
        (42.4, "42 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7380, "2 h 03 min"),
    ],
)
def test_human_seconds(seconds: float | None, text: str) -> None:
    assert human_seconds(seconds) == text


def test_capture_accepts_any_mapping() -> None:
    found = capture_cell(
        "a", filename=FILENAME, label="Cell", namespace=collections.ChainMap({"a": 1})
    )
    assert found.program.label == "Cell"
