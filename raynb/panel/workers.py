"""The view of the warm workers: what each rank is, holds, and kept of the last run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from raynb.engine.warm.left import left_text
from raynb.results.mount import in_notebook, mount
from raynb.results.static import place
from raynb.results.text import clean_line, plural
from raynb.telemetry.units import human_bytes, human_seconds

#: What a button does.
Action = Callable[[], dict[str, Any] | None]
_CELL = "padding:2px 12px 2px 0;text-align:left;font-variant-numeric:tabular-nums"


def show(found: dict[str, Any] | None, actions: Mapping[str, Action] | None = None) -> None:
    """Show a status of warm workers, as ``raynb.workers.status`` gives it.

    Parameters
    ----------
    found : dict or None
    actions : dict of str to callable, optional
        By a button's text, what it does; gives the status afterwards, or raises.
    """
    if not in_notebook():
        print(as_text(found))
        return
    from IPython.display import publish_display_data

    token = mount("", lambda: {"workers": _controls(found, dict(actions or {}))})
    html = place(token, "workers", as_html(found))
    publish_display_data({"text/plain": as_text(found), "text/html": html})


def _controls(found: dict[str, Any] | None, actions: dict[str, Action]) -> Any:
    """The status with buttons."""
    import ipywidgets as widgets

    shown = widgets.HTML(as_html(found))
    said = widgets.HTML()

    def press(button: Any) -> None:
        said.value = f"{escape(button.description)} …"
        try:
            shown.value = as_html(actions[button.description]())
            said.value = ""
        except Exception as error:
            said.value = escape(str(error)).replace("\n", "<br>")

    buttons = [widgets.Button(description=text) for text in actions]
    for button in buttons:
        button.on_click(press)
    return widgets.VBox([shown, widgets.HBox(buttons), said])


def as_text(found: dict[str, Any] | None) -> str:
    """A group's status as plain text."""
    lines = [headline(found)]
    for row in rows(found):
        lines.append("  " + "  ".join(row))
    return "\n".join(lines)


def as_html(found: dict[str, Any] | None) -> str:
    """A group's status as HTML without scripts."""
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows(found)
    )
    table = f'<table style="border-collapse:collapse">{body}</table>' if body else ""
    return f"<div><p>{escape(headline(found))}</p>{table}</div>"


def headline(found: dict[str, Any] | None) -> str:
    """The group in one line."""
    if found is None:
        return "No warm workers are up. Start them: %raynb workers up -n 2"
    parts = [f"Warm workers: {plural(len(found['ranks']), 'rank')}, {found['phase']}"]
    if found["job"]:
        parts.append(f"run {found['job']}")
    if found["idle"] is not None:
        left = max(0.0, found["idle_timeout"] - found["idle"])
        parts[0] += f" for {human_seconds(found['idle'])}"
        parts.append(f"they end in {human_seconds(left)}")
    parts.append(f"{plural(found['jobs'], 'run')} so far")
    if found["restarts"]:
        parts.append(f"started anew {plural(found['restarts'], 'time')}")
    return " · ".join(parts)


def rows(found: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """One row a rank: rank, node, process, device, memory, and what the last run left."""
    if found is None:
        return []
    return [
        (
            f"rank {row['rank']}",
            clean_line(row["node"]),
            clean_line(f"pid {row['pid']}"),
            clean_line(row.get("device") or "n/a"),
            human_bytes(row.get("memory")),
            clean_line(left_text(row.get("left")), 500),
        )
        for row in found["ranks"]
    ]


class Starting:
    """Says what is being waited for, in one line that changes, and goes once it is there."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __enter__(self) -> Any:
        return self._tell

    def _tell(self, text: str) -> None:
        line = f"Warm workers: {text} …"
        if not in_notebook():
            print(line, file=sys.stderr)
            return
        from IPython.display import display

        bundle = {"text/plain": line}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
