"""Cells on every rank, as far as they need no Ray: namespace, results, grouping, options."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from ray import cloudpickle

from raynb.engine.warm.cells import Cell
from raynb.errors import OptionError
from raynb.magics import loading, spmd
from raynb.panel.cells import DistributedError, Output, ranks_text, show_result
from raynb.worker.program import CellProgram
from raynb.worker.warm.interrupts import Interrupts
from raynb.worker.warm.spmd import CellEnd, CellOrder, Namespace, about, bundle_of, completions


@pytest.fixture(autouse=True)
def no_figures() -> None:
    """Other tests' figures are no cell's."""
    import matplotlib.pyplot as plt

    plt.close("all")


def run(names: Namespace, source: str, **more: Any) -> CellEnd:
    order = CellOrder(1, CellProgram(source, "<cell>", "Cell In[1]", "cell", ""), (0,), **more)
    names.names.setdefault("rank", 0)
    sent: list[Any] = []
    end = names.run(order, Interrupts(), sent.extend)
    end.lines = [*sent, *end.lines]
    return end


def test_a_namespace_lasts_and_shows_its_last_line() -> None:
    names = Namespace()
    assert run(names, "x = 20\ndef f(y):\n    return x + y").shown == []
    assert run(names, "f(22)").shown == [{"text/plain": "42"}]
    assert run(names, "f(1);").shown == []
    assert run(names, "print('a'); x").lines[-1][1:] == ("out", "a")
    end = run(names, "y = x", pull=("x", "y"), push=cloudpickle.dumps({"x": 5}))
    assert cloudpickle.loads(end.values or b"") == [5, 5]


def test_classes_of_a_cell_can_be_pickled() -> None:
    names = Namespace()
    end = run(
        names, "import pickle\nclass A:\n    pass\npickle.loads(pickle.dumps(A())).__class__ is A"
    )
    assert end.shown == [{"text/plain": "True"}] and end.error is None


def test_errors_name_the_cells_line() -> None:
    names = Namespace()
    end = run(names, "x = 1\n\nx / 0")
    assert end.error["type"] == "ZeroDivisionError"
    assert end.error["cell"] == {"label": "Cell In[1]", "line": 3, "text": "x / 0"}
    assert "spmd.py" not in end.error["traceback"]
    assert run(names, "pass", pull=("nowhere",)).error["type"] == "NameError"


def test_an_interrupt_ends_a_cell() -> None:
    names, interrupts = Namespace(), Interrupts()
    order = CellOrder(1, CellProgram("import time\ntime.sleep(1e6)", "<c>", "c", "cell", ""), (0,))
    ends: list[CellEnd] = []
    thread = threading.Thread(
        target=lambda: ends.append(names.run(order, interrupts, lambda lines: None))
    )
    thread.start()
    time.sleep(0.3)
    interrupts.interrupt()
    thread.join(5)
    assert ends[0].interrupted and ends[0].error["type"] == "KeyboardInterrupt"


def test_output_streams_while_the_cell_runs() -> None:
    names, seen = Namespace(), []
    source = "import time\nfor i in range(4):\n    print(i)\n    time.sleep(0.1)"
    order = CellOrder(1, CellProgram(source, "<c>", "c", "cell", ""), (0,))
    end = names.run(order, Interrupts(), lambda lines: seen.append((time.monotonic(), lines)))
    assert len(seen) >= 2
    texts = [text for _, lines in seen for _, _, text in lines] + [t for *_, t in end.lines]
    assert texts == ["0", "1", "2", "3"]


def test_ipythons_display_shows_too() -> None:
    import IPython.display as names_there

    original, names = names_there.display, Namespace()
    source = (
        "from IPython.display import HTML, display\n"
        "display(HTML('<b>rich</b>'), 7)\n"
        "display({'text/plain': 'raw', 'text/html': '<i>raw</i>', 'x': 1}, raw=True)"
    )
    html, seven, raw = run(names, source).shown
    assert html["text/html"] == "<b>rich</b>" and seven == {"text/plain": "7"}
    assert raw == {"text/plain": "raw", "text/html": "<i>raw</i>"}
    assert names_there.display is original
    # The name that a cell has imported goes on to show in later ones.
    assert run(names, "display(8)").shown == [{"text/plain": "8"}]


def test_rich_values() -> None:
    class Rich:
        def __repr__(self) -> str:
            return "rich"

        def _repr_html_(self) -> str:
            return "<b>rich</b>"

        def _repr_png_(self) -> bytes:
            raise ValueError

    assert bundle_of(Rich()) == {"text/plain": "rich", "text/html": "<b>rich</b>"}

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert "repr failed: ValueError: no" in bundle_of(Broken())["text/plain"]


def test_figures_are_kept() -> None:
    names = Namespace()
    end = run(
        names,
        "import matplotlib\nmatplotlib.use('agg')\n"
        "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
    )
    assert end.error is None
    assert [set(b) for b in end.shown] == [{"text/plain", "image/png"}]


def test_completion_and_about() -> None:
    names = {"model": 1, "models": [3]}
    assert completions("x = mod", names) == ["model", "models"]
    assert "models.append" in completions("models.app", names)
    assert "Type:      list" in (about("models?", names) or "")
    assert about("nothing?", names) is None


def test_equal_results_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [{"text/plain": "7"}]
    found = _Found({0: CellEnd(shown), 1: CellEnd(shown), 2: CellEnd([{"text/plain": "8"}])})
    assert show_result(found, None) == []
    assert capsys.readouterr().out == "[ranks 0-1] 7\n[rank 2] 8\n"
    assert ranks_text([3]) == "rank 3" and ranks_text([0, 2, 3]) == "ranks 0, 2-3"


def test_errors_are_one_and_the_first_cause_leads() -> None:
    def error(kind: str, message: str) -> dict[str, Any]:
        return {"type": kind, "message": message, "cell": None, "traceback": f"{kind}: {message}"}

    closed = error("RuntimeError", "Connection closed by peer [127.0.0.1]:1")
    found = _Found(
        {
            0: CellEnd(error=closed),
            1: CellEnd(error=error("ValueError", "bad")),
            2: CellEnd(error=closed),
        }
    )
    with pytest.raises(DistributedError) as raised:
        show_result(found, None)
    assert str(raised.value).startswith("rank 1 of 3: ValueError: bad")
    assert "ranks 0, 2: RuntimeError" in str(raised.value)
    assert set(raised.value.errors) == {0, 1, 2}


def test_unfinished_lines_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(2)
    output([(0, 1, "out", "10 %")], False)
    output([(0, 1, "out", "20 %")], False)
    assert capsys.readouterr().out == ""
    output([(0, 1, "out", "100 %"), (1, 1, "out", "a"), (1, 2, "out", "b")], False)
    assert capsys.readouterr().out == "[rank 1] a\n"
    output([], True)
    assert capsys.readouterr().out == "[rank 0] 100 %\n[rank 1] b\n"


class _Found:
    def __init__(self, ends: dict[int, CellEnd]) -> None:
        self.ends, self.note = ends, ""


def test_peers_of_a_failed_rank_are_released() -> None:
    told: list[str] = []
    order = CellOrder(3, CellProgram("", "", "", "cell", ""), (0, 1))
    cell = Cell(order, lambda kind, what: told.append(kind), lambda ranks: told.append("give up"))
    error = {"type": "ValueError", "message": "", "cell": None, "traceback": ""}
    assert not cell.ended(1, CellEnd(error=error))
    time.sleep(1.3)
    assert told == ["abort"] and cell.aborted
    assert cell.ended(0, CellEnd(error=error))
    news = cell.watch(0, 0.0)
    assert set(news.ends or {}) == {0, 1} and "process group" in news.note


@pytest.fixture
def ip() -> Any:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    loading.load_ipython_extension(shell)
    yield shell
    spmd.auto.on = False
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%%distributed\nx", "none are up"),
        ("%raynb auto on", "none are up"),
        ("%raynb workers down", "no warm workers are up"),
        ("%raynb workers restart", "no warm workers are up"),
        ("%%distributed_train --warm\nx = 1", "none are up"),
        ("%raynb wrkers", "'wrkers'"),
        ("%raynb workers upp", "did you mean up?"),
        ("%raynb workers up -n 0", "a run needs a worker"),
        ("%raynb workers up -n 1:2", "fixed"),
        ("%raynb workers up --idle-timeout soon", "number of minutes"),
        ("%raynb workers down --now", "--force is the only one"),
        ("%%distributed --ranks a\nx", "no list of ranks"),
        ("%%distributed_train --warm --fresh\nx = 1", "contradict"),
    ],
)
def test_bad_input_is_one_clear_error(ip: InteractiveShell, cell: str, text: str) -> None:
    with pytest.raises(OptionError) as raised:
        ip.run_cell(cell).raise_error()
    assert text in str(raised.value)


def test_auto_sends_plain_cells_only(ip: InteractiveShell) -> None:
    assert ip.transform_cell("x = 1\n") == "x = 1\n"
    spmd.auto.on = True
    assert "distributed" in ip.transform_cell("x = 1\n")
    assert "run_line_magic('raynb'" in ip.transform_cell("%raynb auto off\n")
    assert "distributed'" not in ip.transform_cell("!ls\n")


def test_the_workers_view() -> None:
    from raynb.panel.workers import as_html, as_text

    assert "%raynb workers up" in as_text(None)
    left = {"cuda": 0, "threads": ["<mine>"], "files": [], "restored": ["torch.relu"]}
    found = {
        "phase": "idle",
        "why": "",
        "idle": 60.0,
        "idle_timeout": 1800.0,
        "jobs": 2,
        "restarts": 0,
        "job": None,
        "ranks": [
            {
                "rank": 0,
                "node": "n<1>",
                "pid": 7,
                "device": "GPU 3 (cuda:0)",
                "memory": 2**30,
                "left": left,
            },
            {"rank": 1, "node": "n", "pid": 8, "memory": None, "left": None},
        ],
    }
    text = as_text(found)
    assert "2 ranks, idle" in text and "2 runs so far" in text
    assert "1 thread (<mine>)" in text and "torch.relu" in text and "n/a" in text
    html = as_html(found)
    assert "GPU 3 (cuda:0)" in text and "GPU 3 (cuda:0)" in html
    assert "n&lt;1&gt;" in html and "&lt;mine&gt;" in html and "<mine>" not in html
