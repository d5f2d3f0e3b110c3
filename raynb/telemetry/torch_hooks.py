"""Hooks in torch: the optimizers' steps, and DDP's wait for the other ranks' gradients."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from raynb.telemetry.timing import StepMeter

#: Backward passes in which all gradients are watched, to learn which one comes last.
LEARN = 3
#: Steps without that gradient after which it is looked for anew.
MISSED = 20
#: Measurements on a GPU that wait to be read; past it, passes are not measured.
MAX_PENDING = 64


def watch_steps(meter: StepMeter) -> Callable[[], None] | None:
    """Tell the meter of each step of any optimizer.

    Returns
    -------
    callable or None
        Undoes it. None as long as the process has not imported torch's optimizers; this never
        does.
    """
    module = sys.modules.get("torch.optim.optimizer")
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return None

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:  # noqa: SIM105
            meter.step(optimizer)
        except Exception:
            pass  # training goes on whatever the optimizer is

    handle = register(stepped)
    return lambda: handle.remove()


class PeerWait:
    """Measures how long a rank waits for its peers' gradients, in each backward pass of DDP.

    That is the time from the rank's own last gradient to the end of the pass, at which DDP has
    exchanged all. On a GPU both moments are marked on its stream and read later.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
    meter : StepMeter
    """

    def __init__(self, model: Any, meter: StepMeter) -> None:
        from torch.autograd import Variable

        self._queue: Callable[[Callable[[], None]], None] = (
            Variable._execution_engine.queue_callback
        )
        self._meter = meter
        # A train function may make many models: this must not keep one that it has let go.
        self._model = weakref.ref(model)
        self._handles: list[Any] = []
        self._last = -1  # which gradient came last in this pass
        self._at: Any = None  # when: a time, or an event of the GPU
        self._order: list[int] = []
        self._learning = True
        self._unseen = 0
        self._pending: deque[tuple[Any, Any]] = deque()
        self._watch(None)
        meter.on_step.append(self._stepped)
        meter.readers.append(self._read)

    def remove(self) -> None:
        """Undo it."""
        self._unhook()
        for calls, own in ((self._meter.on_step, self._stepped), (self._meter.readers, self._read)):
            if own in calls:
                calls.remove(own)

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, only: int | None) -> None:
        """Watch the gradient of one parameter, or None: of each that gets one."""
        self._unhook()
        model = self._model()
        for k, parameter in enumerate(() if model is None else model.parameters()):
            if parameter.requires_grad and parameter.is_leaf and only in (None, k):
                hook = functools.partial(self._gradient, k)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    # -- in the backward pass --------------------------------------------------------------------

    # These run in each step: `try` is free where nothing is raised, suppress() is not.

    def _gradient(self, which: int, parameter: Any) -> None:
        try:
            if self._last < 0:
                self._queue(self._ends)
            self._last = which
            if not parameter.is_cuda:
                self._at = perf_counter()
            elif not self._learning:
                self._at = _event()
        except Exception:
            pass  # the backward pass goes on

    def _ends(self) -> None:
        # DDP queues the end of its exchange at its last gradient, which may come after this was
        # queued: what is queued now comes after that.
        try:  # noqa: SIM105
            self._queue(self._exchanged)
        except Exception:
            pass

    def _exchanged(self) -> None:
        try:  # noqa: SIM105
            self._count()
        except Exception:
            pass

    def _count(self) -> None:
        now = perf_counter()
        last, self._last = self._last, -1
        at, self._at = self._at, None
        self._unseen = 0
        self._meter.passes += 1
        if isinstance(at, float):
            self._meter.synced += now - at
            self._meter.measured += 1
        elif at is not None and len(self._pending) < MAX_PENDING:
            end = _event()
            if end is not None:
                self._pending.append((at, end))
        if self._learning:
            self._order.append(last)
            if len(self._order) >= LEARN:
                self._learning = False
                self._watch(last)

    def _stepped(self) -> None:
        """Look again for the last gradient, where it does not come any more, as when frozen."""
        if self._model() is None:
            self.remove()
            return
        self._unseen += 1
        if self._unseen > MISSED:
            self._unseen, self._last = 0, -1
            self._learning = True
            self._order.clear()
            self._watch(None)

    # -- off the train function's thread ---------------------------------------------------------

    def _read(self) -> None:
        while self._pending and self._pending[0][1].query():
            start, end = self._pending.popleft()
            self._meter.synced += start.elapsed_time(end) / 1000.0
            self._meter.measured += 1


def _event() -> Any:
    """A moment on the GPU's current stream; None while that is being captured into a graph."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
