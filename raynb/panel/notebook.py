"""The notebook's view: the live panel while a run lasts, its record once it has ended."""

from __future__ import annotations

import contextlib
import time
import uuid
from html import escape as html_escape
from typing import Any

from raynb.engine.run import Run
from raynb.panel.widget import LivePanel, missing_bundle
from raynb.results.page import Page
from raynb.results.static import bundle as page_bundle
from raynb.results.static import running_html
from raynb.telemetry.update import Update
from raynb.tuning.search import Search

#: Seconds between two drawings of the static view, where there is no live panel.
STATIC_S = 2.0


class NotebookView:
    """Shows one run in notebook cells; each cell it was shown in gets the record at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._display_ids: list[str] = []
        self._drawn = 0.0
        self._note = missing_bundle()
        self.widget: LivePanel | None = None
        if self._note is None:
            stop_trial = run.stop_trial if isinstance(run, Search) else None
            self.widget = LivePanel(
                run.mirror, run.lock, run.stop, run.pin, run.log_file, stop_trial
            )
        run.listen(self._update)

    def show(self) -> None:
        """Show the view in the current cell as well."""
        from IPython.display import publish_display_data

        display_id = uuid.uuid4().hex
        self._display_ids.append(display_id)
        publish_display_data(self._bundle(), transient={"display_id": display_id})
        if self.widget is not None:
            self.widget.introduce()

    def _bundle(self) -> dict[str, Any]:
        with self._run.lock:
            html = running_html(self._run.mirror)
            text = f"raynb run {self._run.name!r}: {self._run.state}"
        if self._note:
            html += f"<p><small>No live panel: {html_escape(self._note)}</small></p>"
        bundle: dict[str, Any] = {"text/plain": text, "text/html": html}
        if self.widget is not None:
            live, *_ = self.widget._repr_mimebundle_()
            bundle = {**live, **bundle}
        return bundle

    def _update(self, update: Update) -> None:
        if self.widget is not None and update.whole:
            self.widget.push_snapshot()
        elif self.widget is not None:
            self.widget.push(update)
        elif time.monotonic() - self._drawn > STATIC_S:
            self._drawn = time.monotonic()
            self._replace(self._bundle())

    def close(self) -> None:
        """Put the record in the place of the panel, in every cell that shows it."""
        result = self._run.result
        if result is not None:
            bundle = result._repr_mimebundle_()
        else:
            with self._run.lock:
                bundle = page_bundle(Page.of_mirror(self._run.mirror))
        self._replace(bundle)
        if self.widget is not None:
            self.widget.finish()
            self.widget = None

    def _replace(self, bundle: dict[str, Any]) -> None:
        from IPython.display import update_display

        for display_id in self._display_ids:
            with contextlib.suppress(Exception):
                update_display(bundle, display_id=display_id, raw=True)
