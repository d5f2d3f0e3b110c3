"""Live controls of what is displayed: choose a metric, load a checkpoint, sort a table."""

from __future__ import annotations

import keyword
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from raynb.engine.spec import join_storage
from raynb.errors import RaynbError
from raynb.results.checkpoints import VARIABLE, CheckpointRow
from raynb.results.fetch import watching
from raynb.results.loaders import load_checkpoint
from raynb.results.mount import shell
from raynb.results.text import clean, format_count
from raynb.telemetry.units import human_bytes, human_seconds

#: Models of the notebook that are offered.
_MAX_MODELS = 50
#: Seconds between two looks at a load that goes on.
_TICK_S = 0.25

_NOTE = "font-size:12px;line-height:1.5;overflow-wrap:anywhere"
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:12px"


def curve_chooser(
    metrics: Sequence[str], metric: str, draw: Callable[[str, str], bytes | None]
) -> Any:
    """Choose what the chart shows.

    Parameters
    ----------
    metrics : sequence of str
    metric : str
        The one to begin with.
    draw : callable
        From a metric and ``"step"`` or ``"time"`` to a PNG.

    Returns
    -------
    ipywidgets.VBox
    """
    which = widgets.Dropdown(
        options=[(clean(name, 60), name) for name in metrics],
        value=metric,
        description="metric",
        layout={"width": "260px"},
        style={"description_width": "50px"},
    )
    over = widgets.ToggleButtons(
        options=[("steps", "step"), ("time", "time")],
        tooltips=["over steps", "over seconds since the first record"],
        style={"button_width": "64px"},
    )
    picture = widgets.Image(format="png", layout={"width": "720px", "max_width": "100%"})
    said = widgets.HTML()

    def show(_: object = None) -> None:
        try:
            picture.value = draw(which.value, over.value) or b""
            said.value = ""
        except Exception as error:
            said.value = _note(f"The chart can't be drawn: {type(error).__name__}: {error}", "bad")

    which.observe(show, "value")
    over.observe(show, "value")
    show()
    return widgets.VBox([widgets.HBox([which, over]), picture, said])


def table_sorter(columns: Sequence[str], column: str, render: Callable[[str, bool], str]) -> Any:
    """Choose a table's order.

    Parameters
    ----------
    columns : sequence of str
    column : str
        The one to begin with, from high to low.
    render : callable
        From a column, and whether high values come first, to HTML.

    Returns
    -------
    ipywidgets.VBox
    """
    by = widgets.Dropdown(
        options=list(columns), value=column, description="sort by", layout={"width": "220px"},
        style={"description_width": "50px"},
    )  # fmt: skip
    order = widgets.ToggleButtons(
        options=[("high first", True), ("low first", False)], style={"button_width": "84px"}
    )
    table = widgets.HTML()

    def show(_: object = None) -> None:
        table.value = render(by.value, order.value)

    by.observe(show, "value")
    order.observe(show, "value")
    show()
    return widgets.VBox([widgets.HBox([by, order]), table])


class LoadControls:
    """Load buttons of a run's checkpoints, and the form that says where to and what came of it.

    Parameters
    ----------
    rows : sequence of CheckpointRow
    uri : str
        The run's path or URI.
    namespace : dict
        The notebook's variables.

    Attributes
    ----------
    buttons : dict of int to ipywidgets.Button
        By the checkpoint's index.
    form : ipywidgets.VBox
    """

    def __init__(
        self, rows: Sequence[CheckpointRow], uri: str, namespace: MutableMapping[str, Any]
    ) -> None:
        self._uri = uri
        self._namespace = namespace
        self._loading: threading.Thread | None = None
        self.buttons: dict[int, Any] = {}
        for row in rows:
            button = widgets.Button(
                description="Load",
                icon="download",
                tooltip=f"load {clean(row.name, 80)} into the variable named below",
                button_style="success" if row.best else "",
                layout={"width": "74px", "height": "24px", "margin": "0"},
            )
            button.style.font_size = "12px"
            button.on_click(lambda _, row=row: self.load(row))
            self.buttons[row.index] = button
        self.into = widgets.Combobox(
            value=VARIABLE,
            description="load into",
            ensure_option=False,
            continuous_update=True,
            layout={"width": "300px"},
            style={"description_width": "62px"},
            tooltip="a new variable, or a model of this notebook, which gets the weights",
        )
        self.replace = widgets.Checkbox(
            description="replace a variable of this name", indent=False, layout={"width": "auto"}
        )
        self.progress = widgets.FloatProgress(
            min=0, max=1, layout={"width": "300px", "height": "10px", "display": "none"}
        )
        self.said = widgets.HTML()
        self.form = widgets.VBox(
            [widgets.HBox([self.into, self.replace]), self.progress, self.said],
            layout={"margin": "4px 0"},
        )
        self.refresh()
        _watch_cells(self)

    def refresh(self) -> None:
        """Offer the models that the notebook has now."""
        torch = sys.modules.get("torch")
        # Without torch there is no model.
        found = [
            name
            for name, value in list(self._namespace.items())
            if torch is not None and not name.startswith("_")
            and isinstance(value, torch.nn.Module)
        ]  # fmt: skip
        options = tuple(dict.fromkeys([VARIABLE, *found[-_MAX_MODELS:]]))
        if options != self.into.options:
            self.into.options = options

    def load(self, row: CheckpointRow) -> None:
        """Begin to load a checkpoint into what the form says; returns at once."""
        if self._loading is not None and self._loading.is_alive():
            return
        name = self.into.value.strip()
        if not name.isidentifier() or keyword.iskeyword(name):
            self._tell(f"{name!r} can't be the name of a variable.", "bad")
            return
        note, into = "", ""
        if name in self._namespace and not self.replace.value:
            if _is_model(self._namespace[name]):
                into = name
            else:
                free = next(f"{name}_{k}" for k in range(2, 10**6)
                            if f"{name}_{k}" not in self._namespace)  # fmt: skip
                note = f"{name} exists and was left as it is. "
                name = free
        for button in self.buttons.values():
            button.disabled = True
        self._loading = threading.Thread(
            target=self._load, args=(row, name, into, note), name="raynb-load", daemon=True
        )
        self._loading.start()

    def _load(self, row: CheckpointRow, name: str, into: str, note: str) -> None:
        began = time.monotonic()
        size = None if row.files is None else row.files.size
        fetched: list[int] = []
        ended = threading.Event()
        ticker = threading.Thread(
            target=self._tick, args=(row, size, fetched, began, ended), daemon=True
        )
        ticker.start()
        address = join_storage(self._uri, row.name) if self._uri else row.address
        target = self._namespace.get(into) if into else None
        text, tone = "", "bad"
        try:
            with watching(fetched.append):
                value = load_checkpoint(address, target)
            if not into:
                self._namespace[name] = value
            took = human_seconds(time.monotonic() - began)
            what = f"the weights are in {into}" if into else f"{name} is {_what(value)}"
            text, tone = f"Loaded [{row.index}] in {took}: {what}.", "good"
        except RaynbError as error:
            text = f"{type(error).__name__}: {error}"
        except Exception as error:
            text = f"{type(error).__name__}: {clean(error, 1_000)}"
        finally:
            ended.set()
            ticker.join()
            self.progress.layout.display = "none"
            for button in self.buttons.values():
                button.disabled = False
            self._tell(note + text, tone, row.code(name, into))
            self.refresh()

    def _tick(
        self,
        row: CheckpointRow,
        size: int | None,
        fetched: list[int],
        began: float,
        ended: threading.Event,
    ) -> None:
        """Say how far it is; a load that is over at once shows no bar."""
        while not ended.wait(_TICK_S):
            share = fetched[-1] / size if fetched and size else None
            self.progress.value = 1.0 if share is None else min(1.0, share)
            self.progress.bar_style = "info" if share is None or share < 1 else "success"
            self.progress.layout.display = ""
            told = human_bytes(size)
            if share is not None and share < 1:
                told = f"{human_bytes(fetched[-1])} of {told} fetched"
            took = human_seconds(time.monotonic() - began)
            self._tell(f"Loading [{row.index}] {clean(row.name, 80)}: {told}, {took}")

    def _tell(self, text: str, tone: str = "", code: str = "") -> None:
        line = (
            f'<pre style="{_MONO};margin:2px 0;white-space:pre-wrap;background:transparent">'
            f"{escape(code)}</pre>"
            if code
            else ""
        )
        self.said.value = line + _note(text, tone)


def load_places(
    rows: Sequence[CheckpointRow], uri: str, namespace: MutableMapping[str, Any]
) -> dict[str, Any]:
    """The Load widgets by the names of their places in the record."""
    if not rows:
        return {}
    controls = LoadControls(rows, uri, namespace)
    buttons = {f"load-{index}": button for index, button in controls.buttons.items()}
    return {**buttons, "load": controls.form}


def _note(text: str, tone: str = "") -> str:
    colour = {"good": "#1a7f37", "bad": "#c4271a"}.get(tone)
    style = f"{_NOTE};color:{colour}" if colour else _NOTE
    return f'<div style="{style}">{escape(clean(text, 3_000)).replace(chr(10), "<br>")}</div>'


def _is_model(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _what(value: object) -> str:
    """A loaded object in a few words."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {kind} of {format_count(len(value))} entries"
    return f"a {kind}"


_forms: weakref.WeakSet[LoadControls] = weakref.WeakSet()
_watched: list[Any] = []


def _watch_cells(controls: LoadControls) -> None:
    """Refresh the offered models after each cell, as long as the controls are there."""
    _forms.add(controls)
    here = shell()
    if here is not None and here not in _watched:
        _watched.append(here)
        here.events.register("post_run_cell", _after_cell)


def _after_cell(*_: object) -> None:
    for controls in list(_forms):
        controls.refresh()
