"""Mount: live widgets in the places that static HTML leaves for them, and nothing in the file.

A widget's own output is an error message in a notebook that is opened without its kernel. So what
is displayed is the static record alone. Beside it, and in no output, a model tells the browser
which widgets belong into which places of it; the browser shows them there while the kernel lives.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

#: Mounts that are kept; the controls of what was displayed before them go.
MAX_MOUNTS = 24

Build = Callable[[], Mapping[str, Any]]
_mounts: OrderedDict[str, Mount] = OrderedDict()


def shell() -> Any:
    """The IPython shell that runs this code, or None; never imports IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code."""
    return getattr(shell(), "kernel", None) is not None


def mount(token: str, build: Build) -> str:
    """Offer widgets for the places of what is displayed now.

    Parameters
    ----------
    token : str
        What an earlier call returned for the same thing, or ``""``.
    build : callable
        Makes the widgets, by the name of their place; called when a browser asks for them.

    Returns
    -------
    str
        The token that :func:`raynb.results.static.place` marks the places with; ``""`` where no
        kernel runs.
    """
    if not in_notebook():
        return ""
    if token not in _mounts:
        token = uuid.uuid4().hex[:12]
        try:
            _mounts[token] = Mount(token, build)
        except Exception:
            # Without widgets the record is as good as it is in a file.
            return ""
    _mounts.move_to_end(token)
    if len(_mounts) > MAX_MOUNTS:
        _mounts.popitem(last=False)[1].end()
    return token


class Mount(anywidget.AnyWidget):
    """The model that the browser asks for the widgets; it has no view of its own.

    Parameters
    ----------
    token : str
    build : callable
    """

    _esm = traitlets.Unicode("").tag(sync=True)
    token = traitlets.Unicode("").tag(sync=True)

    def __init__(self, token: str, build: Build) -> None:
        source = pathlib.Path(__file__).with_name("mount.js").read_text(encoding="utf-8")
        super().__init__(_esm=source, token=token)
        self._build = build
        self._built: Mapping[str, Any] | None = None
        self.on_msg(self._message)

    def _message(self, _: Any, content: Any, buffers: Any) -> None:
        if not isinstance(content, dict) or content.get("kind") != "hello":
            return
        if self._built is None:
            self._built = self._build()
        ids = {name: widget.model_id for name, widget in self._built.items()}
        self.send({"kind": "places", "ids": ids})

    def end(self) -> None:
        """Take the widgets away; the static record comes back in their place."""
        _mounts.pop(self.token, None)
        with contextlib.suppress(Exception):
            for widget in (self._built or {}).values():
                _close(widget)
            self.close()


def _close(widget: Any) -> None:
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
