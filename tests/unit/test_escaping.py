"""Markup and terminal sequences in every text of a run, and every way in which it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from garbage import put, saved_run
from rich.console import Console
from test_tune_result import record as search_record
from test_tune_result import result as search_result

import raynb
from raynb.engine.collector import Collector, RunFacts
from raynb.panel import cells, workers
from raynb.panel.terminal import progress_line, render, state_line
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.mirror import Mirror

MARKUP = "<img src=x onerror=hacked()>"
#: A title, a link, colours, a cleared screen, a reversed direction; then markup.
EVIL = f"\x1b]0;t\x07\x1b]8;;http://x\x07\x1b[31m\x1b[2J\u202e\x9b5n{MARKUP}"
#: What a terminal would obey.
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\r")
#: Values that are looked up, and tell nobody anything.
KNOWN = {"state", "status", "kind", "format", "via", "level"}


def poisoned(value: Any, key: str = "") -> Any:
    """The same with every text, also those that are keys, made evil."""
    if isinstance(value, dict):
        return {k: poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, key) for v in value]
    return value + EVIL if isinstance(value, str) and key not in KNOWN else value


def check(shown: Any) -> str:
    """Nothing of it runs in a page or is obeyed by a terminal; gives all of it."""
    bundle = shown._repr_mimebundle_()
    html, text = bundle["text/html"], bundle["text/plain"]
    assert "<img src=x" not in html
    for what in (html, text, repr(shown)):
        assert [c for c in OBEYED if c in what] == []
    return str(html)


def test_a_run_whose_every_text_is_evil(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    path = run / "raynb" / "record.json"
    record = poisoned(json.loads(path.read_text()))
    record["dropped"] = {EVIL: 3}
    record["options"][EVIL] = EVIL
    record["hints"] = [
        {"id": "x", "kind": "nan", "level": "warn", "title": EVIL, "evidence": EVIL, "ranks": [0],
         "threshold": EVIL, "fix": EVIL, "since": 1.0, "until": None}
    ]  # fmt: skip
    path.write_text(json.dumps(record))
    html = check(raynb.open(run))
    assert html.count("&lt;img src=x") > 20
    check(raynb.runs(tmp_path))
    saved_run(tmp_path, "other")
    check(raynb.compare(run, tmp_path / "other"))


def test_a_search_whose_every_text_is_evil() -> None:
    grid = search_result(**poisoned(search_record()))
    assert check(grid).count("&lt;img src=x") > 10


def test_the_view_of_a_terminal(tmp_path: Path) -> None:
    collector = Collector(RunFacts("run", str(tmp_path / "run"), (f"loss{EVIL}", "min")))
    collector.hello({"rank": 0, "world_size": 1, "node": EVIL, "ip": EVIL, "pid": 1})
    records = RecordBatch.of([Record(0.0, 1.0, {f"loss{EVIL}": 1.0, EVIL: EVIL})])
    sample = {"device": EVIL, "note": EVIL}
    shard = {"name": EVIL, "rows_total": 3, "rows_seen": 1}
    failure = {"type": EVIL, "message": EVIL, "traceback": EVIL, "at": 1.0,
               "cell": {"label": EVIL, "line": 1, "text": EVIL}}  # fmt: skip
    collector.ingest(
        Batch(0, 0, 1, records, sample, [shard], {"where": EVIL}, [(1, "out", EVIL)], None, failure)
    )
    collector.set_state(
        "failed", EVIL, error={"title": EVIL, "rank": 0, "text": EVIL, "line": EVIL}
    )
    mirror = Mirror()
    mirror.apply(collector.poll("w", 0))
    collector.close()
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(render(mirror))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (shown, state_line(mirror), progress_line(mirror)):
        assert MARKUP[:10] in text and [c for c in OBEYED if c in text] == []


def test_the_warm_workers() -> None:
    rank = {
        "rank": 0,
        "node": EVIL,
        "pid": EVIL,
        "device": EVIL,
        "memory": 1,
        "left": {"files": [EVIL]},
    }
    found = {"ranks": [rank], "phase": "idle", "job": None, "idle": None, "jobs": 0, "restarts": 0}
    assert "<img" not in workers.as_html(found) and "&lt;img" in workers.as_html(found)
    assert [c for c in OBEYED if c in workers.as_text(found)] == []
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL,
             "cell": {"label": EVIL, "line": 1, "text": EVIL}}  # fmt: skip
    raised = cells._error({0: error}, 2)
    assert MARKUP in str(raised) and [c for c in OBEYED if c in str(raised)] == []


@pytest.mark.parametrize("place", [("name",), ("options", "num_workers"), ("workers", 0, "node")])
def test_other_types_where_text_belongs(tmp_path: Path, place: tuple[Any, ...]) -> None:
    run = saved_run(tmp_path)
    path = run / "raynb" / "record.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(put(whole, place, {EVIL: [EVIL]})))
    check(raynb.open(run))
