"""A worker's stdout and stderr: complete in a file, the newest lines on the channel."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple, TextIO

from raynb.telemetry.channel import Channel
from raynb.worker.lines import Lines

#: Bytes kept between two looks of the channel's thread; past it, a write settles them itself.
MAX_BACKLOG = 2_000_000
#: What a write costs on top of its bytes.
WRITE_COST = 100
#: Seconds between two looks that may go into writing line by line. Past it, lines are written in
#: blocks until the next look: a flood costs little, and else a crash loses nothing.
LINE_BY_LINE_S = 0.0025
#: Size of a write that would not cost less in a block, and pieces of text in a block.
BLOCK, MAX_HELD = 8_000, 1_000
#: Bytes read at a time of what others than Python wrote.
READ = 1_000_000

STREAMS = {"out": 1, "err": 2}


class _Text(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``; a write costs an append.

    Not a ``TextIOWrapper``: before Python 3.12.5 it garbles text when a signal handler or another
    thread writes while it hands on what it holds (python/cpython#119506).
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    mode = "w"

    def __init__(self, pump: LogPump, stream: str) -> None:
        self.name = f"<std{stream}>"
        self.buffer: Any = _Binary(pump, stream)
        #: Write each line at once, not in blocks.
        self.line_buffering = True
        self._held: list[str] = []
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: forget what the parent will write."""
        self._held.clear()
        self._lock = threading.RLock()
        self._flushing = False

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        held = self._held
        held.append(text)
        if self.line_buffering:
            if "\n" in text or "\r" in text:
                self.flush()
        elif len(held) > MAX_HELD or len(text) > BLOCK:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Hand on what is held; what others write meanwhile stays behind it."""
        with self._lock:
            if self._flushing:  # a signal handler prints: what it wrote is handed on below
                return
            self._flushing = True
            try:
                while n := len(self._held):
                    text = "".join(self._held[:n])
                    del self._held[:n]
                    self.buffer.write(text.encode(self.encoding, self.errors))
            finally:
                self._flushing = False

    def reconfigure(self, **_: Any) -> None:
        """Accepted and without effect: the file is UTF-8, and is written soon enough."""

    def detach(self) -> Any:
        """The bytes below; this stream goes on."""
        self.flush()
        return self.buffer

    def close(self) -> None:
        """Never: it is the process's."""
        self.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        fileno: int = self.buffer.fileno()
        return fileno


class _Binary(io.BufferedIOBase):
    """The ``buffer`` of a stream: hands bytes to the pump."""

    def __init__(self, pump: LogPump, stream: str) -> None:
        self._pump = pump
        self._stream = stream
        self.name = f"<std{stream}>"
        self.mode = "wb"

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._pump.write(self._stream, data)
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STREAMS[self._stream]

    def close(self) -> None:
        """Never: user code that wraps it closes it when the wrapper goes."""


class _Written(NamedTuple):
    """Bytes that Python wrote, and where in the file they are: none of them when that failed."""

    stream: str
    data: bytes
    start: int
    end: int


class LogPump:
    """Takes both streams of a worker, keeps them whole in a file and sends the newest lines.

    What Python writes goes to the file at once, or in a flood in blocks. The process's file
    descriptors 1 and 2 lead to the same file, for C code, child processes and the last words of a
    process that crashes; what they wrote is read back from there.

    Parameters
    ----------
    path : str
        The log file; opened for appending.
    attempt : int
        The run's attempt; keeps line numbers of a restarted rank apart from those before.

    Attributes
    ----------
    closed : bool
    """

    def __init__(self, path: str, attempt: int = 0) -> None:
        self.path = path
        self.closed = False
        self._lines = Lines(attempt)
        self._taken: list[_Written] = []
        self._backlog = 0
        self._by_line_s = 0.0
        self._write_error = ""
        self._problems: list[str] = []
        self._make_locks()
        self._forked = False
        self._texts: dict[str, _Text] = {}
        self._undo = contextlib.ExitStack()
        # Each its own position in the file, which tells who wrote last, and where.
        self._fd, self._c_out, self._c_err = (self._open(path) for _ in range(3))
        self._seen = self._size()
        self._c_ends = [0, 0]
        _pumps.add(self)

    def _make_locks(self) -> None:
        self._writing = threading.RLock()
        self._settling = threading.RLock()

    def _open(self, path: str) -> int:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            self._tell(error)
            return os.open(os.devnull, os.O_RDWR)

    def _tell(self, error: OSError) -> None:
        """Let the panel say what the file lacks: a full disk must not end the training."""
        if str(error) != self._write_error:
            self._write_error = str(error)
            self._problems.append(f"raynb: the log file can't be written: {error}")

    def install(self) -> None:
        """Take ``sys.stdout``, ``sys.stderr`` and, when there is a file, descriptors 1 and 2."""
        streams: dict[str, TextIO] = {"out": sys.stdout, "err": sys.stderr}
        self._undo.callback(self._restore, streams)
        for stream in streams.values():
            with contextlib.suppress(Exception):
                stream.flush()
        _flush_c()
        if not self._write_error:
            for fd, file in ((1, self._c_out), (2, self._c_err)):
                self._take_fd(fd, file)
        self._texts = {stream: _Text(self, stream) for stream in streams}
        sys.stdout, sys.stderr = self._texts.values()

    def _take_fd(self, fd: int, file: int) -> None:
        try:
            before = os.dup(fd)
        except OSError:
            return  # there is none
        os.dup2(file, fd)
        self._undo.callback(os.close, before)
        self._undo.callback(os.dup2, before, fd)

    def _restore(self, streams: dict[str, TextIO]) -> None:
        sys.stdout, sys.stderr = streams.values()

    def uninstall(self) -> None:
        """Give back what :meth:`install` took."""
        self._flush()
        _flush_c()
        self._undo.close()

    def write(self, stream: str, data: bytes) -> None:
        """Take what Python writes: it goes to the file, and waits for the channel's thread."""
        with self._writing:
            if self.closed:
                # A logging handler may hold on to the stream after the run.
                _write(STREAMS[stream], data)
                return
            start, end = self._append(stream, data)
            if self._forked:
                return
            self._taken.append(_Written(stream, data, start, end))
            self._backlog += len(data) + WRITE_COST
        if self._by_line_s > LINE_BY_LINE_S and stream in self._texts:
            self._texts[stream].line_buffering = False
        if self._backlog > MAX_BACKLOG:
            self._settle()

    def pump(self, channel: Channel) -> None:
        """Hand the newest lines on; runs on the channel's thread."""
        self._flush()
        _flush_c()
        self._by_line_s = 0.0
        with self._settling:
            self._settle()
            lines = self._lines.take()
        for seq, (stream, text) in lines.items():
            channel.put_log(seq, stream, text)

    def take_dropped(self) -> int:
        """Lines since the last call that were not kept for the channel; the file has them."""
        with self._settling:
            dropped, self._lines.dropped = self._lines.dropped, 0
        return dropped

    def close(self) -> None:
        """Close the file; what is written later goes where the process's output goes."""
        with self._settling, self._writing:
            if not self.closed:
                self._settle()
                self.closed = True
                for fd in (self._fd, self._c_out, self._c_err):
                    os.close(fd)

    # -- to the file -----------------------------------------------------------------------------

    def _flush(self) -> None:
        for text in self._texts.values():
            text.flush()
            text.line_buffering = True

    def _append(self, stream: str, data: bytes) -> tuple[int, int]:
        """Write to the end of the file; gives where the bytes lie."""
        fd = self._fd
        if self._forked:
            # The position that goes with it is the parent's; this way the parent sees it as C's.
            fd = self._c_out if stream == "out" else self._c_err
        began = time.perf_counter()
        rest, error = _write(fd, data)
        if len(data) < BLOCK:
            self._by_line_s += time.perf_counter() - began
        if error is None:
            self._write_error = ""
        else:
            self._tell(error)
        end = _position(fd)
        return end - len(data) + len(rest), end

    def _size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError:
            return self._seen

    # -- into lines ------------------------------------------------------------------------------

    def _settle(self) -> None:
        with self._settling:
            with self._writing:
                size = self._size()
                taken, self._taken = self._taken, []
                self._backlog = 0
            while self._problems:
                self._lines.add("err", self._problems.pop(0))
            foreign = self._who_wrote()
            stream = "out"
            parts: list[bytes] = []
            for one in taken:
                if one.start > self._seen or one.stream != stream:
                    self._lines.cut(stream, b"".join(parts))
                    self._read(one.start, foreign)
                    stream, parts = one.stream, []
                parts.append(one.data)
                self._seen = max(self._seen, one.end)
            self._lines.cut(stream, b"".join(parts))
            self._read(size, foreign)

    def _who_wrote(self) -> tuple[int, str, str]:
        """Whose are the bytes that are not Python's: a place in the file, whose before, after.

        Exact when one of C's streams wrote since the last look, and after the last but one's end.
        """
        before, self._c_ends = self._c_ends, [_position(self._c_out), _position(self._c_err)]
        out, err = self._c_ends
        if err == before[1]:
            return 0, "out", "out"
        if out == before[0]:
            return 0, "err", "err"
        return (out, "out", "err") if out < err else (err, "err", "out")

    def _read(self, end: int, foreign: tuple[int, str, str]) -> None:
        """Read what others wrote from where all is seen up to ``end``."""
        turn, first, second = foreign
        for upto, stream in ((min(turn, end), first), (end, second)):
            while self._seen < upto:
                try:
                    data = os.pread(self._fd, min(READ, upto - self._seen), self._seen)
                except OSError:
                    data = b""
                if not data:
                    self._seen = upto
                self._lines.cut(stream, data)
                self._seen += len(data)

    # -- in a forked process ---------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget what is the parent's to write; from now on write each line at once.

        A forked DataLoader worker has no channel thread: what it writes is read by its parent.
        """
        self._forked = True
        self._make_locks()
        for text in self._texts.values():
            text.after_fork()
            text.line_buffering = True


def _write(fd: int, data: bytes) -> tuple[bytes, OSError | None]:
    """Write all; gives what could not be written, and why."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        return data, error
    return b"", None


def _position(fd: int) -> int:
    """Where the newest write through ``fd`` ended; 0 before the first."""
    try:
        return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        return 0


def _flush_c() -> None:
    """Write out what C's stdout holds back: to a file it is buffered, and by the hundred lines."""
    with contextlib.suppress(Exception):  # a platform that has it under another name
        libc = ctypes.CDLL(None)
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


_pumps: weakref.WeakSet[LogPump] = weakref.WeakSet()


def _after_fork() -> None:
    for pump in list(_pumps):
        with contextlib.suppress(Exception):
            pump.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
