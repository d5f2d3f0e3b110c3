"""A worker's output as numbered lines: the newest few, the rest counted."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from raynb.telemetry.loglines import MAX_LINE

#: Lines kept between two looks; of a flood, the rest is counted and is in the file.
MAX_LINES = 500
#: An unfinished line that is this many lines back, and so out of sight, goes on as a new one.
MAX_LINES_BACK = 200
#: Bytes of an unfinished line that are kept: past what the panel shows, in any characters.
MAX_TAIL = 4 * (MAX_LINE + 1)
#: Lines above the newest that several progress bars, one below the other, reach.
MAX_ABOVE = 16
_DOWN_OR_UP = re.compile(rb"\n|\x1b\[1?A")

Line = tuple[int, bytes]
NO_LINE: Line = (-1, b"")


@dataclass
class _Cursor:
    """Where a stream writes: a line's number, -1 when it has none yet, and its bytes."""

    line: Line = NO_LINE
    above: list[Line] = field(default_factory=list)
    below: list[Line] = field(default_factory=list)


class Lines:
    """Cuts the bytes of both streams into lines; its cost depends on what is kept of them.

    A carriage return starts its line over, so a progress bar is one line that changes; bars below
    each other, as tqdm draws them, are as many.

    Parameters
    ----------
    attempt : int
        The run's attempt; keeps line numbers of a restarted rank apart from those before.

    Attributes
    ----------
    dropped : int
        Lines that were not kept.
    """

    def __init__(self, attempt: int = 0) -> None:
        self.dropped = 0
        self._seq = attempt << 32
        self._lines: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._cursors = {"out": _Cursor(), "err": _Cursor()}

    def take(self) -> OrderedDict[int, tuple[str, str]]:
        """Lines, by number, that are new or changed since the last call."""
        lines, self._lines = self._lines, OrderedDict()
        return lines

    def add(self, stream: str, text: str) -> None:
        """Add one whole line."""
        self._keep(self._next(), stream, text)

    def cut(self, stream: str, data: bytes) -> None:
        """Go on with a stream."""
        cursor, at = self._cursors[stream], 0
        last_up = max(data.rfind(b"\x1b[A"), data.rfind(b"\x1b[1A"))
        while cursor.below or at <= last_up:
            move = _DOWN_OR_UP.search(data, at)
            if move is None:
                break
            self._write(stream, data[at : move.start()])
            if move[0] == b"\n":
                self._down(stream)
            elif cursor.above:
                cursor.below.append(cursor.line)
                cursor.line = cursor.above.pop()
            at = move.end()
        self._write(stream, data[at:] if at else data)

    def _down(self, stream: str) -> None:
        cursor = self._cursors[stream]
        if cursor.below:
            cursor.above.append(cursor.line)
            cursor.line = cursor.below.pop()
        else:
            self._write(stream, b"\n")

    def _write(self, stream: str, data: bytes) -> None:
        """Write where a stream's cursor is; only with nothing below it, whole lines too."""
        if not data:
            return
        cursor = self._cursors[stream]
        seq, head = cursor.line
        if 0 <= seq < self._seq - MAX_LINES_BACK:
            seq = -1
        data = head + data
        done: list[Line] = []
        if seq >= 0 and b"\n" in data:
            # It was counted when it was shown first, so it is never among the skipped.
            line, data = data.split(b"\n", 1)
            done.append((seq, line))
            seq = -1
        *whole, tail = data.rsplit(b"\n", MAX_LINES + 1)
        if len(whole) > MAX_LINES:
            self.dropped += whole.pop(0).count(b"\n") + 1
        done += [(self._next(), line) for line in whole]
        for number, line in done:
            self._keep(number, stream, _shown(line))
        cursor.above += [(number, _last(line)) for number, line in done[-MAX_ABOVE:]]
        del cursor.above[:-MAX_ABOVE]
        if tail:
            # Only the last state of an unfinished line matters, which also bounds it.
            last = _last(tail)
            if seq < 0:
                seq = self._next()
            if last:
                self._keep(seq, stream, _shown(last))
            tail = last + b"\r" if tail.endswith(b"\r") else last
        cursor.line = (seq, tail)

    def _keep(self, seq: int, stream: str, text: str) -> None:
        if seq not in self._lines and len(self._lines) >= MAX_LINES:
            self._lines.popitem(last=False)
            self.dropped += 1
        self._lines[seq] = (stream, text)

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _last(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns: the last thing written."""
    if b"\r" not in line:
        return line[:MAX_TAIL]
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :][:MAX_TAIL]


def _shown(line: bytes) -> str:
    # Cut just past what the digest shows, so that it can tell that there is more.
    return _last(line).decode("utf-8", "replace")[: MAX_LINE + 1]
