"""The panel's messages: what is clicked reaches the run, and what it asks for comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raynb.panel.widget as widget_module
from raynb.engine.collector import RunFacts
from raynb.engine.local import LocalCollector
from raynb.engine.run import LocalBackend, Run
from raynb.engine.supervisor import Outcome
from raynb.panel.widget import LivePanel
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.tuning.search import Search


class Panel(LivePanel):
    """Keeps what it sends."""

    def __init__(self, run: Run) -> None:
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        stop_trial = run.stop_trial if isinstance(run, Search) else None
        super().__init__(run.mirror, run.lock, run.stop, run.pin, run.log_file, stop_trial)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent.append((content, list(buffers or [])))

    def ask(self, content: Any) -> None:
        self._message(self, content, [])

    def file(self) -> tuple[dict[str, Any], list[bytes]]:
        deadline = time.monotonic() + 5
        while not (found := [m for m in self.sent if m[0]["kind"] == "file"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found[0]


@pytest.fixture
def facts(tmp_path: Path) -> RunFacts:
    return RunFacts("run", str(tmp_path / "run"))


@pytest.fixture
def run(facts: RunFacts) -> Run:
    return Run(facts, lambda *a, **k: None)


def backend_of(collector: LocalCollector) -> LocalBackend:
    backend = LocalBackend(collector)
    backend.ended = Outcome("finished", None, None, None, 0)
    return backend


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("panel.js", "panel.css"):
        (tmp_path / name).write_text("export default {}" if name.endswith("js") else "")
    monkeypatch.setattr(widget_module, "STATIC", tmp_path)
    monkeypatch.setattr(widget_module, "BUNDLE", tmp_path / "panel.js")


@pytest.fixture
def panel(run: Run, bundle: None) -> Iterator[Panel]:
    one = Panel(run)
    yield one
    one.close()


@pytest.fixture
def search(tmp_path: Path) -> Search:
    facts = RunFacts("search", str(tmp_path / "search"))
    one = Search(facts, lambda *a, **k: None)
    one.mirror.run["kind"] = "tune"
    one.mirror.trials[0] = {"trial": 0, "state": "running"}
    return one


def test_a_view_that_opens_gets_everything(panel: Panel) -> None:
    panel.ask({"kind": "hello"})
    [(content, _)] = panel.sent
    assert content["kind"] == "snapshot" and content["v"] == 2
    assert {"run", "workers", "series", "bands", "focus", "logs", "events", "hints"} <= set(content)


def test_pins_reach_the_watcher(panel: Panel, run: Run, facts: RunFacts) -> None:
    collector = LocalCollector(facts)
    collector.group_starting(20)
    for rank in range(20):
        records = RecordBatch.of([Record(0, time.time(), {"loss": float(rank)})])
        collector.ingest(Batch(rank, 1, 1, records=records))
    run.attach(backend_of(collector))
    panel.ask({"kind": "pin", "ranks": [3, 7]})
    wanted = {("loss", rank, 1) for rank in (3, 7, 19)}
    deadline = time.monotonic() + 5
    while set(run.mirror.series) != wanted:
        assert time.monotonic() < deadline, run.mirror.series.keys()
        time.sleep(0.02)
    assert run.mirror.focus == {"pinned": [3, 7], "worst": {"loss": 19}}
    collector.set_state("finished")
    assert run._done.wait(5)


def test_a_log_file_is_sent(panel: Panel, tmp_path: Path) -> None:
    logs = tmp_path / "run" / "raynb" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-00003.log").write_bytes(b"all of it\n")
    panel.ask({"kind": "download", "rank": 3})
    content, buffers = panel.file()
    assert buffers == [b"all of it\n"]
    assert content == {
        "v": 2, "kind": "file", "rank": 3, "name": "rank-00003.log", "whole": True, "note": None
    }  # fmt: skip


def test_a_large_log_file_is_cut(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raynb.engine.run.MAX_LOG_BYTES", 4)
    logs = tmp_path / "run" / "raynb" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-00000.log").write_bytes(b"0123456789")
    panel.ask({"kind": "download", "rank": 0})
    content, buffers = panel.file()
    assert buffers == [b"6789"] and not content["whole"] and "last 4 B" in content["note"]


def test_lines_at_hand_stand_for_a_file_that_is_not_there(
    panel: Panel, run: Run, facts: RunFacts
) -> None:
    collector = LocalCollector(facts)
    run.attach(backend_of(collector))
    collector.ingest(Batch(0, 0, 1, logs=[(1, "out", "é"), (2, "err", "two")]))
    deadline = time.monotonic() + 5
    while 0 not in run.mirror.logs:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    panel.ask({"kind": "download", "rank": 0})
    content, buffers = panel.file()
    assert buffers == ["é\ntwo\n".encode()]
    assert not content["whole"] and "no log file" in content["note"]
    collector.set_state("finished")
    assert run._done.wait(5)


def test_the_view_fits_what_is_shown(panel: Panel, search: Search) -> None:
    assert panel.view == "run"
    of_search = Panel(search)
    assert of_search.view == "tune"
    of_search.ask({"kind": "hello"})
    [(content, _)] = of_search.sent
    assert [row["trial"] for row in content["trials"]] == [0]
    of_search.close()


def test_a_trial_that_is_to_end_is_told(search: Search, bundle: None) -> None:
    panel = Panel(search)
    panel.ask({"kind": "stop_trial", "trial": 0})
    assert panel.sent == [({"v": 2, "kind": "ack", "of": "stop_trial", "trial": 0}, [])]
    for odd in (7, "0", True, None):  # no such trial, or no number
        panel.ask({"kind": "stop_trial", "trial": odd})
    assert len(panel.sent) == 1
    panel.close()


def closed(panel: Panel, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while panel.comm is not None and time.monotonic() < end:
        time.sleep(0.01)
    return panel.comm is None


def test_a_panel_that_nobody_saw_closes_at_once(panel: Panel) -> None:
    panel.finish()
    assert panel.comm is None and panel.sent == []


def test_a_panel_closes_when_the_record_is_there(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widget_module, "KEEP_S", 0.2)
    panel.ask({"kind": "hello"})
    panel.finish()
    assert panel.sent[-1] == ({"v": 2, "kind": "ack", "of": "end"}, [])
    assert panel.comm is not None and closed(panel, 10) and panel._esm == "export default {}"


def test_a_panel_stays_on_a_page_that_the_record_does_not_reach(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widget_module, "KEEP_S", 0.2)
    panel.ask({"kind": "hello"})
    panel.finish()
    panel.ask({"kind": "keep"})
    assert not closed(panel, 0.5)
    # A page that is loaded later gets the whole picture, too.
    panel.ask({"kind": "hello"})
    assert panel.sent[-1][0]["kind"] == "snapshot"


@pytest.mark.parametrize(
    "message",
    [None, "x", {}, {"kind": "stop_trial", "trial": 0}, {"kind": "pin"},
     {"kind": "pin", "ranks": 3}, {"kind": "download"},
     {"kind": "download", "rank": "../x"}, {"kind": "download", "rank": True}],
)  # fmt: skip
def test_odd_messages_do_nothing(panel: Panel, message: Any) -> None:
    before = threading.active_count()
    panel.ask(message)
    assert not panel.sent and threading.active_count() == before
