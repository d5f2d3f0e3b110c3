"""A worker's stdout and stderr: complete in a file, the newest lines on the channel."""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from typing import TextIO

from raynb.telemetry.channel import Channel

#: Characters kept between two looks of the channel's thread; a flood past it is counted, not kept.
MAX_BACKLOG = 2_000_000
#: Lines handed to the channel at a time.
MAX_LINES = 500


class _Tee(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``; a write costs two appends."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, pump: LogPump, stream: str, original: TextIO) -> None:
        self._pump = pump
        self._stream = stream
        self._original = original

    def write(self, text: str) -> int:
        self._pump.take(self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Nothing to wait for: the channel's thread writes the file out."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return False


class LogPump:
    """Takes both streams of a worker, keeps them whole in a file and sends the newest lines.

    A carriage return starts its line over, so a progress bar is one line that changes.

    Parameters
    ----------
    path : str
        The log file; opened for appending.
    attempt : int
        The run's attempt; keeps line numbers of a restarted rank apart from those before.
    """

    def __init__(self, path: str, attempt: int = 0) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._pid = os.getpid()
        self._taken: deque[tuple[str, str]] = deque()
        self._backlog = 0
        self._open_line = {"out": (-1, ""), "err": (-1, "")}
        self._seq = attempt << 32
        self.lines_dropped = 0
        self._originals: tuple[TextIO, TextIO] | None = None

    def install(self) -> None:
        """Take ``sys.stdout`` and ``sys.stderr``."""
        self._originals = sys.stdout, sys.stderr
        sys.stdout = _Tee(self, "out", sys.stdout)
        sys.stderr = _Tee(self, "err", sys.stderr)

    def uninstall(self) -> None:
        if self._originals:
            sys.stdout, sys.stderr = self._originals
            self._originals = None

    def take(self, stream: str, text: str) -> None:
        if os.getpid() != self._pid:
            # A forked DataLoader worker has no channel thread; its file offset is shared, so an
            # unbuffered write lands whole in the same file.
            os.write(self._file.fileno(), text.encode("utf-8", "backslashreplace"))
            return
        self._file.write(text)
        self._taken.append((stream, text))
        self._backlog += len(text)
        while self._backlog > MAX_BACKLOG and len(self._taken) > 1:
            _, old = self._taken.popleft()
            self._backlog -= len(old)
            self.lines_dropped += old.count("\n")

    def pump(self, channel: Channel) -> None:
        """Hand the newest lines to the channel; runs on the channel's thread."""
        if not self._taken:
            return
        self._file.flush()
        chunks: list[tuple[str, list[str]]] = []
        while self._taken:
            stream, text = self._taken.popleft()
            self._backlog -= len(text)
            if chunks and chunks[-1][0] == stream:
                chunks[-1][1].append(text)
            else:
                chunks.append((stream, [text]))
        for stream, texts in chunks:
            self._lines(channel, stream, "".join(texts))

    def _lines(self, channel: Channel, stream: str, text: str) -> None:
        seq, head = self._open_line[stream]
        *whole, tail = (head + text).split("\n")
        skipped = max(0, len(whole) - MAX_LINES)
        self.lines_dropped += skipped
        for line in whole[skipped:]:
            if seq < 0:
                seq = self._next()
            channel.put_log(seq, stream, _after_return(line))
            seq = -1
        if tail and seq < 0:
            seq = self._next()
        # Only the last state of an unfinished line matters, which also bounds it.
        tail = _after_return(tail)[-MAX_BACKLOG:]
        if tail:
            channel.put_log(seq, stream, tail)
        self._open_line[stream] = (seq, tail)

    def take_dropped(self) -> int:
        """Lines dropped since the last call."""
        dropped, self.lines_dropped = self.lines_dropped, 0
        return dropped

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def close(self) -> None:
        self._file.close()


def _after_return(line: str) -> str:
    """What a terminal would show of a line with carriage returns: the last thing written."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""
