"""The hints of a run's record, as a section of the static page and as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from raynb.results.text import clean, clean_line, mappings, number, plural
from raynb.telemetry.units import human_seconds

MAX_HINTS = 20
#: Bytes of the section's HTML.
MAX_HTML = 16_000

#: Level -> (sign, word, colour); the worst first.
LEVELS = {
    "error": ("✗", "error", "214,60,48"),
    "warn": ("!", "warning", "200,140,20"),
    "info": ("i", "note", "70,120,200"),
}
_MUTED = "opacity:.72"
_PRE = (
    "margin:2px 0 0;padding:0;background:transparent;color:inherit;border:0;font-size:12px;"
    "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.4;"
    "font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace)"
)


@dataclass
class HintRow:
    """One hint with cleaned text."""

    sign: str
    word: str
    colour: str
    title: str
    when: str
    evidence: str
    threshold: str
    fix: str
    over: bool


def hint_rows(hints: object, started: object) -> tuple[list[HintRow], str]:
    """Hints that are still true and the worst first, and how many were left out.

    Parameters
    ----------
    hints : list of dict
        As the record and the wire have them; whatever it is, nothing raises.
    started : float
        The run's start.
    """
    found = mappings(hints)
    found.sort(key=_urgency)
    rows = [_row(hint, number(started)) for hint in found[:MAX_HINTS]]
    more = len(found) - len(rows)
    return rows, f"{plural(more, 'more hint')} left out here" if more > 0 else ""


def _urgency(hint: Mapping[str, Any]) -> tuple[bool, int]:
    level = hint.get("level")
    return hint.get("until") is not None, list(LEVELS).index(level) if isinstance(
        level, str
    ) and level in LEVELS else 9


def _row(hint: Mapping[str, Any], started: float | None) -> HintRow:
    sign, word, colour = LEVELS.get(str(hint.get("level")), LEVELS["info"])
    since, until = number(hint.get("since")), number(hint.get("until"))
    when = []
    if since is not None and started is not None:
        when.append(f"from {human_seconds(max(0.0, since - started))}")
        if until is not None:
            when.append(f"to {human_seconds(max(0.0, until - started))}")
    return HintRow(
        sign,
        word,
        colour,
        clean_line(hint.get("title") or hint.get("kind") or "hint", 200),
        " ".join(when),
        clean(hint.get("evidence") or "", 800),
        clean_line(hint.get("threshold") or "", 300),
        clean(hint.get("fix") or "", 1_500),
        until is not None,
    )


def hints_html(hints: object, started: object) -> str:
    """The section, or nothing for a run without hints; everything escaped."""
    rows, cut = hint_rows(hints, started)
    parts: list[str] = []
    size = 0
    for row in rows:
        html = _html(row)
        size += len(html.encode())
        if size > MAX_HTML:
            cut = f"{plural(len(mappings(hints)) - len(parts), 'more hint')} left out here"
            break
        parts.append(html)
    if not parts:
        return ""
    told = f'<p style="margin:4px 0;{_MUTED}">{escape(cut)}</p>' if cut else ""
    return f'<div style="margin:8px 0">{"".join(parts)}{told}</div>'


def _html(row: HintRow) -> str:
    when = f' <span style="{_MUTED}">{escape(row.when)}</span>' if row.when else ""
    evidence = escape(row.evidence).replace("\n", "<br>")
    return (
        f'<details style="margin:3px 0;padding:2px 8px;border-left:3px solid rgba({row.colour},.9);'
        f'background:rgba({row.colour},.09){";opacity:.8" if row.over else ""}">'
        f'<summary style="cursor:pointer"><span aria-hidden="true">{row.sign}</span> {row.word}: '
        f"<b>{escape(row.title)}</b>{when}</summary>"
        f'<p style="margin:4px 0">{evidence}</p>'
        f'<p style="margin:4px 0;{_MUTED}">counts from: {escape(row.threshold)}</p>'
        f'<pre style="{_PRE}">{escape(row.fix)}</pre></details>'
    )


def hints_text(hints: object, started: object) -> list[str]:
    """The section's lines as plain text; empty for a run without hints."""
    rows, cut = hint_rows(hints, started)
    lines: list[str] = [""] if rows else []
    for row in rows:
        lines.append(f"{row.sign} {row.word}: {row.title}{f' ({row.when})' if row.when else ''}")
        lines += [f"    {line}" for line in _lines(row.evidence, row.fix)]
    return lines + ([f"  … {cut}"] if cut else [])


def _lines(*texts: str) -> Sequence[str]:
    return [line for text in texts for line in text.splitlines()]


__all__ = ["LEVELS", "HintRow", "hint_rows", "hints_html", "hints_text"]
