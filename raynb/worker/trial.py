"""Runs the train function as a trial of a search, with its telemetry around it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raynb.telemetry.channel import ActorTransport, Transport
from raynb.telemetry.events import to_values
from raynb.worker.program import CellProgram
from raynb.worker.runtime import Link, Runtime

Send = Callable[[Mapping[str, Any]], None]


@dataclass
class TrialLink:
    """What a worker needs to know of its trial.

    Attributes
    ----------
    trial : str
        Tune's id of it.
    metric : str or None
        What is tuned.
    reports : bool or None
        Whether the train function calls ``report`` itself; None when nobody knows.
    queue : object or None
        Takes logged metrics from a Train worker to the trial that started it.
    """

    trial: str
    metric: str | None
    reports: bool | None = None
    queue: Any = None


class LoggedMetric:
    """Makes each ``raynb.log`` with the tuned metric a report, where the function reports nothing.

    Whether it does may show only at its first report, which mostly comes right after the log of
    the same values. So the first log is held back until the next one, or the end; with a report
    in between, logs stay logs.

    Parameters
    ----------
    link : TrialLink
    send : callable
        Reports to Tune.
    """

    def __init__(self, link: TrialLink, send: Send | None) -> None:
        self._metric = link.metric
        self._send = send
        self._active = link.metric is not None and send is not None and not link.reports
        self._held: dict[str, Any] | None = None
        self._decided = False

    def logged(self, metrics: Mapping[Any, Any]) -> None:
        if not self._active or self._metric not in metrics:
            return
        values: dict[str, Any] = to_values(metrics)
        if not self._decided and self._held is None:
            self._held = values
            return
        self._decided = True
        self.flush()
        self._tell(values)

    def reported(self) -> None:
        """The function reports by itself."""
        if not self._decided:
            self._active, self._held = False, None

    def flush(self) -> None:
        """Send what was held back."""
        held, self._held = self._held, None
        if held is not None:
            self._tell(held)

    def _tell(self, values: Mapping[str, Any]) -> None:
        assert self._send is not None
        self._send(values)


class TrialRuntime(Runtime):
    """A rank's telemetry in a trial; to the supervisor it speaks as its lane.

    Parameters
    ----------
    link : Link
    program : CellProgram or None
    trial : TrialLink
    send : callable or None
        Reports to Tune; None where only the function's own reports count.
    """

    def __init__(
        self, link: Link, program: CellProgram | None, trial: TrialLink, send: Send | None
    ) -> None:
        super().__init__(link, program)
        self._trial = trial
        self._logged = LoggedMetric(trial, send)

    def _connect(self, context: Any) -> tuple[int, Transport]:
        import ray

        who = self._whoami(context, {"trial": self._trial.trial})
        attempt, self.rank = ray.get(self.link.supervisor.hello.remote(who), timeout=60)
        return attempt, ActorTransport(self.link.supervisor.ingest)

    def log(self, metrics: Mapping[Any, Any], step: float | None) -> None:
        super().log(metrics, step)
        self._logged.logged(metrics)

    @contextlib.contextmanager
    def _report(self, metrics: Mapping[Any, Any], checkpoint: Any) -> Iterator[Any]:
        self._logged.reported()
        with super()._report(metrics, checkpoint) as replaced:
            yield replaced

    def _tell_end(self, error: BaseException | None) -> None:
        # Tune ends a function in this way: why it did, the search knows.
        if not isinstance(error, SystemExit):
            super()._tell_end(error)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._logged.flush()
        super().__exit__(kind, error, traceback)


@dataclass
class RankEntry:
    """The train function of a trial's Train worker group.

    Attributes
    ----------
    link : Link
    trial : TrialLink
    fn : callable
    program : CellProgram or None
    """

    link: Link
    trial: TrialLink
    fn: Callable[..., Any]
    program: CellProgram | None = None
    __name__: str = field(default="train_func", repr=False)

    def __call__(self, config: dict[str, Any]) -> Any:
        import ray.train

        first = ray.train.get_context().get_world_rank() == 0
        queue = self.trial.queue
        # Rank 0's logs stand for the trial, as its reports do.
        send = queue.put if first and queue is not None else None
        with TrialRuntime(self.link, self.program, self.trial, send) as runtime:
            return runtime.run(self.fn, config)


def run_trial(
    link: Link,
    trial: TrialLink,
    fn: Callable[..., Any],
    program: CellProgram | None,
    config: dict[str, Any],
    *,
    datasets: Mapping[str, Any],
    env: Mapping[str, str],
) -> Any:
    """Run the train function in the process of its trial."""
    from raynb._ray.tune import train_api_in_trial

    os.environ.update(env)
    shards = {name: dataset.iterator() for name, dataset in datasets.items()}
    with (
        train_api_in_trial(link.run, shards) as send,
        TrialRuntime(link, program, trial, send) as runtime,
    ):
        return runtime.run(fn, config)
