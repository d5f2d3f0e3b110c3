"""Hints where they are shown: the record's page, its plain text, the terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from raynb.panel.terminal import MAX_HINT_LINES, TerminalView, render
from raynb.results.hints import MAX_HINTS, MAX_HTML, hint_rows, hints_html, hints_text
from raynb.results.page import Page
from raynb.results.static import render_html, render_text
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.mirror import Mirror

START = 1_000_000.0


def hint(kind: str = "leak", **more: Any) -> dict[str, Any]:
    return {
        "id": kind,
        "kind": kind,
        "level": "warn",
        "title": f"{kind} title",
        "ranks": [1],
        "evidence": "first line\nrank 1: <b>x</b>",
        "threshold": "over 5 %",
        "fix": "Do this:\n    loss.item()",
        "since": START + 12,
        "until": None,
        **more,
    }


def test_the_page_shows_evidence_threshold_and_fix() -> None:
    ended = hint("silent", until=START + 30, level="error")
    record = {"name": "r", "state": "finished", "started": START, "hints": [ended, hint()]}
    html = render_html(Page(record))
    for told in ("leak title", "&lt;b&gt;x&lt;/b&gt;", "over 5 %", "    loss.item()", "from 12 s"):
        assert told in html
    assert "<b>x</b>" not in html
    assert "from 12 s to 30 s" in html
    assert html.index("leak title") < html.index("silent title"), "what is still true comes first"
    text = render_text(Page(record))
    assert "! warning: leak title (from 12 s)" in text and "        loss.item()" in text
    assert "hint" not in render_html(Page({**record, "hints": []}))


def test_the_worst_come_first_and_the_section_is_bounded() -> None:
    many = [hint(f"k{i}", level="info", evidence="<" * 5_000) for i in range(MAX_HINTS + 5)]
    many.append(hint("bad", level="error"))
    rows, cut = hint_rows(many, START)
    assert rows[0].title == "bad title" and len(rows) == MAX_HINTS and "6 more hints" in cut
    html = hints_html(many, START)
    assert len(html.encode()) <= MAX_HTML + 500 and "more hints left out here" in html


def test_odd_hints_break_nothing() -> None:
    odd: list[Any] = [3, {}, {"level": ["x"], "title": 7, "since": "soon", "evidence": None}]
    assert hints_html(odd, None) and hints_text(odd, "x")
    assert hints_html(None, None) == "" and hints_text("text", None) == []


def watched(*hints: dict[str, Any]) -> Mirror:
    digest, mirror = Digest("r"), Mirror()
    digest.set_run(state="training", started=START)
    digest.set_hints(hints)
    mirror.apply(digest.since(Cursor()))
    return mirror


def test_the_terminal_shows_what_is_true_now() -> None:
    many = [hint(f"k{i}") for i in range(MAX_HINT_LINES + 2)]
    console = Console(file=io.StringIO(), width=120)
    console.print(render(watched(*many, hint("over", until=START + 20))))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "! hint: k0 title (first line" in shown and "2 more hints" in shown
    assert "over title" not in shown


def test_a_pipe_gets_each_hint_once() -> None:
    stream = io.StringIO()
    view, mirror = TerminalView(stream), watched(hint())
    view.open(mirror)
    for _ in range(3):
        view.update(mirror)
    assert stream.getvalue().count("hint: leak title\n    first line") == 1
