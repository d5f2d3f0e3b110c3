"""Cells on every rank of a warm group: where its supervisor is, and as the kernel runs one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raynb.worker.warm.spmd import CellEnd, CellOrder

#: Lines of output that wait for the kernel; more are dropped, and counted.
MAX_LINES = 20_000
#: Seconds that ranks get to end by themselves when one has failed, before the process group is
#: aborted under those that are left.
PEERS_S = 1.0
#: Seconds after an interrupt at which the process group is aborted, and the processes are ended.
ABORT_S, GIVE_UP_S = 2.0, 10.0

#: A line of output: rank, number, stream, text.
Line = tuple[int, int, str, str]


@dataclass
class News:
    """What is new of a cell.

    Attributes
    ----------
    lines : list of Line
    seen : int
        What the next question is to tell.
    ends : dict of int to CellEnd, or None
        How it ended on each rank, once it has on all.
    note : str
        What happened to the workers because of it.
    """

    lines: list[Line]
    seen: int
    ends: dict[int, CellEnd] | None = None
    note: str = ""


class Cell:
    """One cell, where the group's supervisor is.

    Parameters
    ----------
    order : CellOrder
    tell : callable
        ``tell(kind, what)`` gives every rank an order.
    give_up : callable
        ``give_up(ranks)`` ends the group's processes.
    """

    def __init__(
        self,
        order: CellOrder,
        tell: Callable[[str, Any], None],
        give_up: Callable[[list[int]], None],
    ) -> None:
        self.order = order
        self.ends: dict[int, CellEnd] = {}
        self.aborted = False
        self.note = ""
        self._tell = tell
        self._give_up = give_up
        self._lines: list[Line] = []
        self._first = 0  # the number of the first line that is kept
        self._changed = threading.Condition()
        self._stopping = False

    @property
    def done(self) -> bool:
        return len(self.ends) == len(self.order.ranks)

    @property
    def what(self) -> Any:
        """What its orders name it by."""
        return ("cell", self.order.number)

    def watch(self, seen: int, timeout: float) -> News:
        """News since ``seen``; waits for some."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.done or self._first + len(self._lines) > seen, timeout
            )
            lines = self._lines[max(0, seen - self._first) :]
            seen = self._first + len(self._lines)
            return News(lines, seen, dict(self.ends) if self.done else None, self.note)

    def take_lines(self, rank: int, lines: list[tuple[int, str, str]]) -> None:
        with self._changed:
            self._lines += [(rank, *line) for line in lines]
            if late := max(0, len(self._lines) - MAX_LINES):
                del self._lines[:late]
                self._first += late
            self._changed.notify_all()

    def ended(self, rank: int, end: CellEnd) -> bool:
        """A rank has ended; tells whether that was the last."""
        with self._changed:
            if self.done or rank not in self.order.ranks or rank in self.ends:
                return False
            self.ends[rank] = end
            self.take_lines(rank, end.lines)
            if end.error is not None and len(self.ends) == 1:
                threading.Thread(target=self._see_to_peers, daemon=True).start()
            self._changed.notify_all()
            return self.done

    def stop(self) -> None:
        """Interrupt it on every rank."""
        with self._changed:
            if self.done or self._stopping:
                return
            self._stopping = True
        self._tell("interrupt", self.what)
        threading.Thread(target=self._see_to_end, daemon=True).start()

    def lost(self, why: str) -> None:
        """The processes are gone."""
        with self._changed:
            error = {"type": "WorkersLost", "message": why, "cell": None, "traceback": why}
            for rank in self.order.ranks:
                self.ends.setdefault(rank, CellEnd(error=error))
            self._changed.notify_all()

    def _see_to_peers(self) -> None:
        """Abort the process group under ranks that a failed one may keep waiting."""
        if not self._wait(PEERS_S):
            self._abort()

    def _see_to_end(self) -> None:
        if self._wait(ABORT_S):
            return
        self._abort()
        if not self._wait(GIVE_UP_S - ABORT_S):
            stuck = [r for r in self.order.ranks if r not in self.ends]
            self.note = (
                f"rank {', '.join(map(str, stuck))} could not be stopped in {GIVE_UP_S:g} s: the "
                "workers are started anew, and their names are gone"
            )
            self._give_up(stuck)

    def _abort(self) -> None:
        with self._changed:
            if self.done or self.aborted:
                return
            self.aborted = True
            self.note = (
                "the process group was aborted and formed anew: make objects that hold it, such as "
                "DDP models, again"
            )
        self._tell("abort", self.what)

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.done, seconds)


@dataclass
class CellResult:
    """A cell's outcome in the kernel.

    Attributes
    ----------
    ends : dict of int to CellEnd
    note : str
    seconds : float
    """

    ends: dict[int, CellEnd]
    note: str = ""
    seconds: float = field(default=0.0)


def run_cell(
    group: Any, order: CellOrder, show: Callable[[list[Line], bool], None]
) -> CellResult | str:
    """Run a cell on a warm group, and wait for its end however long it takes.

    Parameters
    ----------
    group : WarmGroup
    order : CellOrder
    show : callable
        ``show(lines, last)`` gets what the ranks write.

    Returns
    -------
    CellResult or str
        Or why it can't run now.

    Raises
    ------
    KeyboardInterrupt
        After the ranks have ended.
    """
    import ray

    began = time.monotonic()
    number = ray.get(group.actor.cell_begin.remote(order))
    if isinstance(number, str):
        return number
    seen, interrupts = 0, 0
    while True:
        try:
            news: News = ray.get(group.actor.cell_watch.remote(number, seen, 1.0))
            seen = news.seen
            show(news.lines, news.ends is not None)
            if news.ends is not None:
                break
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                group.restart()
            group.actor.cell_stop.remote(number)
    result = CellResult(news.ends, news.note, time.monotonic() - began)
    if interrupts:
        raise KeyboardInterrupt
    return result
