"""A shipped cell on its worker: how it runs, what its main module holds, how it fails."""

from __future__ import annotations

import inspect
import json
import linecache
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

import raynb.worker.program as program_module
from raynb.engine.capture import capture_cell
from raynb.worker.program import (
    CellProgram,
    CellSource,
    compile_cell,
    describe_exception,
    load_values,
    run_program,
    takes_config,
    user_frames,
)

FILENAME = "<cell-program>"


def cell(source: str, form: str = "body", **options: Any) -> CellProgram:
    return CellProgram(
        source="\n" + source,
        filename=FILENAME,
        label="Cell In[3]",
        form=form,
        func_name="train_func",
        **options,
    )


# --- running --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("x = 1", None),
        ("x = 1\nreturn x + k", 8),
        ("if k:\n    return config['lr']\nx = 1", 0.5),
        ("for i in range(3):\n    if i == 2:\n        return i", 2),
        ("n: int = 1\nm: str\ndef f():\n    return n\nn += 1\nreturn f()", 2),
        ("class K:\n    a: int = 1\n    def m(self): return K\nreturn K().m().__qualname__", "K"),
        ("try:\n    raise ValueError('v')\nexcept ValueError as e:\n    return str(e)", "v"),
        ("import os.path as p\nwith open(p.devnull) as f: pass\nreturn f.closed", True),
        ("[y := i for i in range(3)]\nreturn y", 2),
        ("def f():\n    global z\n    z = 4\nf()\nreturn z", 4),
        ("match [1, 2]:\n    case [a, *b]: pass\nreturn a, b", (1, [2])),
        ("x = 1\ndel x\nreturn 'x' in globals()", False),
        ("from __future__ import annotations\ndef f(a: undefined): pass\nreturn 3", 3),
        ("return globals()['k'] + (lambda: k)()", 14),
        ("return __name__", "__main__"),
        ("return", None),
    ],
)
def test_body(source: str, result: object) -> None:
    assert run_program(cell(source), {"k": 7}, {"lr": 0.5}) == result


@pytest.mark.parametrize(
    ("source", "known", "result"),
    [
        ("def train_func(config): return config", True, {"lr": 1}),
        ("def train_func(): return k", False, 7),
        ("train_func = lambda c: c", None, {"lr": 1}),
        ("train_func = lambda: k", None, 7),
        ("from os import getcwd\ntrain_func = lambda config=None: config", None, {"lr": 1}),
    ],
)
def test_function(source: str, known: bool | None, result: object) -> None:
    program = cell(source, "function", takes_config=known)
    assert run_program(program, {"k": 7}, {"lr": 1}) == result


def test_config_is_never_none() -> None:
    assert run_program(cell("return config"), {}) == {}


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("()", False),
        ("(a)", True),
        ("(a, b=1)", True),
        ("(config=None)", True),
        ("(lr=1)", False),
        ("(*args, **kw)", False),
        ("(a, b)", None),
        ("(*, k)", None),
    ],
)
def test_takes_config(signature: str, expected: bool | None) -> None:
    function = eval(f"lambda {signature[1:-1]}: 0")
    if expected is None:
        with pytest.raises(TypeError, match="the config"):
            takes_config(inspect.signature(function))
    else:
        assert takes_config(inspect.signature(function)) is expected


def test_main_module_is_replaced_and_restored() -> None:
    before = sys.modules["__main__"]
    source = "import sys\nclass Net: pass\nreturn Net, sys.modules['__main__'], globals()"
    result: Any = run_program(cell(source), {})
    net, main, names = result
    assert main.__dict__ is names and main.Net is net
    assert sys.modules["__main__"] is before is not main
    with pytest.raises(ZeroDivisionError):
        run_program(cell("1 / 0"), {})
    assert sys.modules["__main__"] is before


def test_main_module_stays_in_the_kernel() -> None:
    before = sys.modules["__main__"]
    source = "import sys\nreturn sys.modules['__main__']"
    assert run_program(cell(source), {}, replace_main=False) is before


def test_the_kernels_own_source_entry_stays() -> None:
    entry = (1, None, ["%%distributed_train\n", "1 / 0\n"], FILENAME)
    linecache.cache[FILENAME] = entry
    run_program(cell("x = 1"), {}, replace_main=False)
    assert linecache.cache[FILENAME] is entry
    run_program(cell("x = 1"), {})
    assert linecache.getline(FILENAME, 2) == "x = 1\n"


def test_source_survives_a_cache_check() -> None:
    run_program(cell("x = 1\ny = 2"), {})
    linecache.checkcache()
    assert linecache.getline(FILENAME, 3) == "y = 2\n"


def test_future_imports_of_this_package_do_not_leak() -> None:
    assert run_program(cell("def f(x: int): pass\nreturn f.__annotations__"), {}) == {"x": int}


@pytest.mark.parametrize("source", ["x = 1\nbreak\nreturn 1", "x = 1\nfrom os import *\nreturn 1"])
def test_late_syntax_errors_carry_the_line(source: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        compile_cell(source, FILENAME)
    assert (caught.value.filename, caught.value.lineno) == (FILENAME, 2)
    assert caught.value.text == source.split("\n")[1]


# --- in a fresh process ---------------------------------------------------------------------

_WORKER = """
import json, pickle, sys
from raynb.worker.program import describe_exception, load_values, run_program
assert "IPython" not in sys.modules
program, payload, large, config = pickle.load(sys.stdin.buffer)
values = load_values(payload) | pickle.loads(large)
try:
    outcome = {"result": run_program(program, values, config)}
except Exception as error:
    outcome = {"error": describe_exception(error, program)}
json.dump(outcome, open(sys.argv[1], "w"))
"""


def run_shipped(
    source: str,
    setup: str,
    tmp_path: Path,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Define a notebook, capture a cell, and run it from its bytes in a new interpreter."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<setup>"] = (len(setup), None, setup.splitlines(True), "<setup>")
    exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
    found = capture_cell(
        source,
        filename=FILENAME,
        label="Cell In[3]",
        namespace=namespace,
        labels={"<setup>": "Cell In[1]"},
        **options,
    )
    shipped = (found.program, found.payload, cloudpickle.dumps(found.large), config)
    outcome = tmp_path / "outcome.json"
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, str(outcome)],
        input=pickle.dumps(shipped),
        cwd=Path(program_module.__file__).parents[2],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(outcome.read_text())


def test_notebook_classes_pickle_by_reference_on_the_worker(tmp_path: Path) -> None:
    setup = """
import io, pickle, torch
class Block(torch.nn.Module):
    def forward(self, x): return x
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.register_buffer("weights", torch.zeros(4000))
model, small = Net(), Block()
def collate(batch): return len(batch)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return i
data = Data()
"""
    source = """
class Own: pass
buffer = io.BytesIO()
torch.save([model, small, Own()], buffer)
buffer.seek(0)
again = torch.load(buffer, weights_only=False)
same = [type(a) is type(b) for a, b in zip(again, [model, small])]
loaders = {}
for method, dataset in [("fork", data), ("spawn", torch.utils.data.TensorDataset(torch.ones(4)))]:
    loader = torch.utils.data.DataLoader(
        dataset, 2, num_workers=1, multiprocessing_context=method,
        collate_fn=collate if method == "fork" else None)
    loaders[method] = sum(1 for _ in loader)
return {"same": same, "own": type(again[2]) is Own, "loaders": loaders,
        "isinstance": isinstance(model.block, type(small)), "main": __name__ == "__main__",
        "reference": b"Data" in pickle.dumps(data)}
"""
    outcome = run_shipped(source, setup, tmp_path, limit=8000)
    assert outcome == {
        "result": {
            "same": [True, True],
            "own": True,
            "loaders": {"fork": 2, "spawn": 2},
            "isinstance": True,
            "main": True,
            "reference": True,
        }
    }


def test_function_form_ships_with_submodules(tmp_path: Path) -> None:
    setup = "import xml.etree.ElementTree\nfactor = 3\ndef scale(x): return x * factor"
    source = """
def train_func(config):
    return [scale(config["x"]), xml.etree.ElementTree.Element("tag").tag]
if __name__ == "__main__":
    factor = 5
"""
    assert run_shipped(source, setup, tmp_path, {"x": 2}) == {"result": [6, "tag"]}


def test_failures_show_the_notebooks_lines(tmp_path: Path) -> None:
    setup = "def helper(x):\n    return 1 / x\n"
    outcome = run_shipped("y = 0\nhelper(\n    y)\nreturn 1", setup, tmp_path)
    error = outcome["error"]
    assert error["type"] == "ZeroDivisionError"
    assert error["cell"] == {"label": "Cell In[3]", "line": 3, "text": "helper("}
    text = error["traceback"]
    assert "  Cell In[3], line 3, in <module>\n    helper(\n" in text
    assert "  Cell In[1], line 2, in helper\n    return 1 / x\n" in text
    assert "raynb" not in text and FILENAME not in text


# --- failures -------------------------------------------------------------------------------


def failure(source: str, **options: Any) -> tuple[BaseException, CellProgram]:
    program = cell(source, **options)
    with pytest.raises(BaseException) as caught:
        run_program(program, {})
    # The outermost frame is the one that catches: here this test's, in a run raynb's own.
    outermost = caught.value.__traceback__
    return caught.value.with_traceback(outermost.tb_next if outermost else None), program


def test_user_frames() -> None:
    error, program = failure("import json\ndef f():\n    json.loads('{')\nf()")
    frames = user_frames(error, program)
    assert [(f.filename, f.line, f.name, f.text, f.label) for f in frames[:2]] == [
        (FILENAME, 5, "<module>", "f()", "Cell In[3]"),
        (FILENAME, 4, "f", "json.loads('{')", "Cell In[3]"),
    ]
    assert frames[2].name == "loads" and frames[2].label == ""


def test_rays_own_frames_are_left_out() -> None:
    error, program = failure("from ray import cloudpickle\ncloudpickle.dumps((x for x in []))")
    info = describe_exception(error, program)
    assert [f.line for f in user_frames(error, program)] == [3]
    assert info["cell"] is not None and info["cell"]["line"] == 3
    assert "cloudpickle.py" not in info["traceback"]


@pytest.mark.parametrize(
    ("source", "kind", "message", "line"),
    [
        ("class E(Exception):\n    def __str__(self): return 1 / 0\nraise E", "E", "failed", 4),
        ("class E(Exception):\n    def __str__(self): return 3\nraise E", "E", "failed", 4),
        ("x = 1\nraise ExceptionGroup('g', [ValueError('v')])", "ExceptionGroup", "g", 3),
        ("x = 1\nexec('1 +')", "SyntaxError", "invalid syntax", 3),
        ("import json\njson.loads('')", "json.decoder.JSONDecodeError", "Expecting value", 3),
        ("def f(): f()\nf()", "RecursionError", "recursion", 2),
        ("x = 1\nraise SystemExit(3)", "SystemExit", "3", 3),
    ],
)
def test_describe(source: str, kind: str, message: str, line: int) -> None:
    info = describe_exception(*failure(source))
    assert info["type"] == kind
    assert message in info["message"]
    assert info["cell"] is not None and info["cell"]["line"] == line
    assert "Cell In[3], line" in info["traceback"]
    json.dumps(info)


def test_describe_chains_and_groups() -> None:
    source = """try:
    1 / 0
except ZeroDivisionError as e:
    error = ExceptionGroup("both", [e, ValueError("second")])
raise KeyError("outer") from error"""
    text = describe_exception(*failure(source))["traceback"]
    for part in ("ZeroDivisionError", "ValueError: second", "KeyError: 'outer'", "direct cause"):
        assert part in text
    assert "Cell In[3], line 3" in text and "Cell In[3], line 6" in text
    assert "raynb" not in text


def test_describe_finds_the_cell_behind_the_exception() -> None:
    cause, program = failure("x = 1\nx / 0")
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = cause
    cause.__context__ = wrapped
    info = describe_exception(wrapped, program)
    assert info["message"] == "outer"
    assert info["cell"] == {"label": "Cell In[3]", "line": 3, "text": "x / 0"}
    assert describe_exception(BaseExceptionGroup("g", [cause]), program)["cell"] == info["cell"]
    assert describe_exception(RuntimeError("elsewhere"), program)["cell"] is None


def test_describe_a_syntax_error_of_the_cell() -> None:
    info = describe_exception(*failure("x = 1\nbreak"))
    assert info["cell"] == {"label": "Cell In[3]", "line": 3, "text": "break"}
    assert "Cell In[3], line 3" in info["traceback"]


def test_describe_a_very_long_chain() -> None:
    error: BaseException = ValueError("first")
    for number in range(3000):
        error, previous = ValueError(str(number)), error
        error.__cause__ = previous
    assert describe_exception(error, cell("x = 1"))["message"] == "2999"


def test_other_cells_are_labelled() -> None:
    helper = CellSource("<helper>", "Cell In[1]", "def f():\n    raise ValueError\n")
    namespace: dict[str, Any] = {}
    exec(compile(helper.source, helper.filename, "exec"), namespace)
    program = cell("f()", other_cells=(helper,))
    with pytest.raises(ValueError) as caught:
        run_program(program, namespace)
    labels = [frame.label for frame in user_frames(caught.value, program)]
    assert labels[-2:] == ["Cell In[3]", "Cell In[1]"]
    info = describe_exception(caught.value, program)
    assert info["cell"] == {"label": "Cell In[3]", "line": 2, "text": "f()"}
    assert "Cell In[1], line 2, in f\n    raise ValueError\n" in info["traceback"]


def test_programs_and_payloads_are_plain_bytes() -> None:
    program = cell("x = 1", takes_config=True, imports=("os.path",))
    assert pickle.loads(pickle.dumps(program)) == program
    assert load_values(cloudpickle.dumps({"a": 1})) == {"a": 1}


def test_describe_an_exception_that_quotes_a_tensor() -> None:
    raised, program = failure("raise ValueError('first' + 'x' * 3_000_000 + 'last')")
    told = describe_exception(raised, program)
    assert len(told["message"]) < 11_000 and len(told["traceback"]) < 51_000
    assert told["message"].startswith("first") and told["message"].endswith("last")
    assert "2,990,009 characters left out" in told["message"]
    assert told["cell"] is not None and len(told["cell"]["text"]) < 200
