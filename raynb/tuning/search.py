"""Search: the kernel's handle of one search, which watches it and never drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa

from raynb.engine.collector import RunFacts
from raynb.engine.run import Backend, RemoteBackend, Run, history_dir
from raynb.engine.supervisor import Outcome
from raynb.errors import OptionError, TrainingError
from raynb.telemetry.history import read_history
from raynb.telemetry.trials import SearchMirror, records_of


class Search(Run):
    """One search, as the kernel sees it.

    Attributes
    ----------
    result : TuneResult or None
        None until the search has ended; then there whatever the end was.
    """

    mirror: SearchMirror

    def __init__(
        self, facts: RunFacts, make_result: Callable[..., Any], *, blocking: bool = True
    ) -> None:
        super().__init__(facts, make_result, blocking=blocking, mirror=SearchMirror())

    def __repr__(self) -> str:
        return f"<raynb.Search {self.name!r}: {self.state}>"

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials as they are now, a dict each; the fields are those of the panel's table."""
        with self.lock:
            return [dict(row) for _, row in sorted(self.mirror.trials.items())]

    @property
    def history(self) -> pd.DataFrame:
        """What the trials' ranks logged so far: ``trial``, ``rank``, ``attempt``, ``step``, …"""
        if self.result is not None:
            frame: pd.DataFrame = self.result.history
            return frame
        if self._backend is None:
            table = read_history(*history_dir(self.facts.run_path))
        else:
            table = self._backend.history()
        return records_of(table, int(self.mirror.run["workers"]))

    def stop_trial(self, trial: int) -> None:
        """End one trial and let the search go on.

        Parameters
        ----------
        trial : int
            Its number in :attr:`trials`.

        Raises
        ------
        OptionError
            When there is no such trial.
        """
        if trial not in self.mirror.trials:
            raise OptionError(
                f"there is no trial {trial!r}", hint=f"there are {len(self.mirror.trials)}"
            )
        backend: Backend | None = self._backend
        if isinstance(backend, RemoteBackend) and not self.done:
            backend.actor.stop_trial.remote(trial)

    def _finish(self, outcome: Outcome, history: pa.Table) -> None:
        super()._finish(outcome, history)
        error = outcome.error
        if outcome.state == "failed" and isinstance(error, TrainingError):
            # The supervisor's own words, with the way out.
            error.result = self.result
            self._error = error
