"""A worker's stdout and stderr: complete in a file, the newest lines on the channel."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import threading
from collections import OrderedDict, deque
from typing import IO, Any, TextIO

from raynb.telemetry.channel import Channel
from raynb.telemetry.digest import MAX_LINE
from raynb.telemetry.events import clean_text

#: Characters kept between two looks of the channel's thread; past it, a write settles them itself.
MAX_BACKLOG = 2_000_000
#: What a write costs on top of its characters.
WRITE_COST = 100
#: Lines handed to the channel at a time; of a flood, the rest is counted and is in the file.
MAX_LINES = 500
#: An unfinished line that is this many lines back, and so out of sight, goes on as a new one.
MAX_LINES_BACK = 200


class _Tee(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``; a write costs an append."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, pump: LogPump, stream: str, original: TextIO) -> None:
        self._pump = pump
        self._stream = stream
        self._original = original

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._pump.closed:
            # A logging handler may hold on to this after the run.
            return self._original.write(text)
        self._pump.take(self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Nothing to wait for: the channel's thread writes the file out."""
        self._pump.flush_fork()

    def reconfigure(self, **_: Any) -> None:
        """Accepted and without effect."""

    @property
    def buffer(self) -> IO[bytes]:
        return self._original.buffer

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

    Attributes
    ----------
    closed : bool
    lines_dropped : int
        Lines that were not kept for the channel since :meth:`take_dropped`; the file has them.
    """

    def __init__(self, path: str, attempt: int = 0) -> None:
        self.path = path
        self._pid = os.getpid()
        self._taken: deque[tuple[str, str]] = deque()
        self._backlog = 0  # about: threads may miscount, until the next look
        self._settling = threading.RLock()
        self._open_line = {"out": (-1, ""), "err": (-1, "")}
        self._seq = attempt << 32
        self._lines: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._fork_lines: dict[str, str] = {}
        self._write_error = ""
        self.lines_dropped = 0
        self.closed = False
        self._originals: tuple[TextIO, TextIO] | None = None
        self._fd = self._open(path)

    def _open(self, path: str) -> int:
        # No buffer of its own: a forked process would inherit what is in it, and write it again.
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            self._tell(error)
            return os.open(os.devnull, os.O_WRONLY)

    def _tell(self, error: OSError) -> None:
        """Let the panel say what the file lacks: a full disk must not end the training."""
        self._keep(self._next(), "err", f"raynb: the log file can't be written: {error}")

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
        """Take what was written; costs an append, and no I/O unless too much waits already."""
        if os.getpid() != self._pid:
            self._take_in_fork(stream, text)
            return
        self._taken.append((stream, text))
        self._backlog += len(text) + WRITE_COST
        if self._backlog > MAX_BACKLOG:
            self._settle()

    def pump(self, channel: Channel) -> None:
        """Write the file out and hand the newest lines on; runs on the channel's thread."""
        with self._settling:
            self._settle()
            lines, self._lines = self._lines, OrderedDict()
        for seq, (stream, text) in lines.items():
            channel.put_log(seq, stream, text)

    def take_dropped(self) -> int:
        """Lines dropped since the last call."""
        with self._settling:
            dropped, self.lines_dropped = self.lines_dropped, 0
        return dropped

    def close(self) -> None:
        with self._settling:
            if not self.closed:
                self._settle()
                self.closed = True
                os.close(self._fd)

    # -- to the file and into lines --------------------------------------------------------------

    def _settle(self) -> None:
        with self._settling:
            self._backlog = 0
            # popleft and not a swap: a write on another thread must not go to the old list.
            taken = [self._taken.popleft() for _ in range(len(self._taken))]
            self._write("".join(text for _, text in taken))
            for stream, texts in itertools.groupby(taken, key=lambda one: one[0]):
                self._cut(stream, "".join(text for _, text in texts))

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            self._write_error = ""
        except OSError as error:
            if str(error) != self._write_error:
                self._write_error = str(error)
                self._tell(error)

    def _cut(self, stream: str, text: str) -> None:
        seq, head = self._open_line[stream]
        if 0 <= seq < self._seq - MAX_LINES_BACK:
            seq = -1
        *whole, tail = (head + text).split("\n")
        # An open line was counted when it was shown first, so it is never among the skipped.
        for at, line in enumerate(whole):
            if at < len(whole) - MAX_LINES and seq < 0:
                self.lines_dropped += 1
                continue
            self._keep(seq if seq >= 0 else self._next(), stream, _shown(line))
            seq = -1
        if tail and seq < 0:
            seq = self._next()
        if tail:
            shown = _shown(tail)
            if shown:
                self._keep(seq, stream, shown)
            # Only the last state of an unfinished line matters, which also bounds it.
            tail = shown + "\r" if tail.endswith("\r") else shown
        self._open_line[stream] = (seq, tail)

    def _keep(self, seq: int, stream: str, text: str) -> None:
        if seq not in self._lines and len(self._lines) >= MAX_LINES:
            self._lines.popitem(last=False)
            self.lines_dropped += 1
        self._lines[seq] = (stream, text)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    # -- in a forked process ---------------------------------------------------------------------

    def _take_in_fork(self, stream: str, text: str) -> None:
        # A forked DataLoader worker has no channel thread, so it writes the file itself, line by
        # line: each goes whole to the end of the file that it shares.
        text = self._fork_lines.pop(stream, "") + text
        whole = text.rfind("\n") + 1
        if whole < len(text):
            self._fork_lines[stream] = text[whole:]
        self._write_in_fork(text[:whole])

    def flush_fork(self) -> None:
        """Write the unfinished lines of a forked process; elsewhere there are none."""
        if self._fork_lines and os.getpid() != self._pid:
            lines, self._fork_lines = self._fork_lines, {}
            self._write_in_fork("".join(lines.values()))

    def _write_in_fork(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))


def _shown(line: str) -> str:
    """What a terminal would show of a line with carriage returns: the last thing written.

    Cut just past what the digest shows, so that it can tell that there is more.
    """
    parts = [part for part in line.split("\r") if part]
    return clean_text(parts[-1][: MAX_LINE + 1]) if parts else ""
