"""UNIX time that never jumps while a process lives: what durations on one machine are made of."""

from __future__ import annotations

import time


class Clock:
    """Tells UNIX seconds as the machine's clock had them when this was made, and counts on.

    A clock that is set anew in mid-run, by hand or by NTP after a virtual machine slept, would make
    hints out of nothing, let a history go back in time, and runs last for hours or less than none.
    """

    def __init__(self) -> None:
        self._at = time.time() - _ticks()

    def now(self) -> float:
        """UNIX seconds."""
        return self._at + _ticks()


def _ticks() -> float:
    # Goes on while the machine sleeps, which the monotonic clock of Linux does not.
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_clock = Clock()


def now() -> float:
    """UNIX seconds by this process's own :class:`Clock`."""
    return _clock.now()
