"""A worker's output: whole in the file, its newest lines on the channel."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raynb.worker.stdio as stdio_module
from raynb.telemetry.loglines import MAX_LINE
from raynb.worker.lines import MAX_LINES
from raynb.worker.stdio import LogPump


class Lines:
    """The channel's end: what the panel would show, by line number."""

    def __init__(self) -> None:
        self.by_seq: dict[int, tuple[str, str]] = {}
        self.calls: list[tuple[int, str, str]] = []

    def put_log(self, seq: int, stream: str, text: str) -> None:
        self.by_seq[seq] = (stream, text)
        self.calls.append((seq, stream, text))

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [line for _, line in sorted(self.by_seq.items())]


class Session:
    def __init__(self, path: Path, attempt: int = 0) -> None:
        self.path = path
        self.pump = LogPump(str(path), attempt)
        self.lines = Lines()

    def look(self) -> list[tuple[str, str]]:
        channel: Any = self.lines
        self.pump.pump(channel)
        return self.lines.shown

    def file(self) -> str:
        return self.path.read_text(encoding="utf-8")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "logs" / "rank-00000.log")


def installed(test: Callable[..., None]) -> Callable[..., None]:
    """Install the session's pump for the test's body alone: pytest exchanges the streams too."""

    @functools.wraps(test)
    def call(session: Session, **more: Any) -> None:
        session.pump.install()
        try:
            test(session=session, **more)
        finally:
            session.pump.uninstall()
            session.pump.close()

    return call


@installed
def test_print(session: Session) -> None:
    print("hello")
    print("a", 1, sep="-")
    print()
    print("oops", file=sys.stderr)
    assert session.look() == [("out", "hello"), ("out", "a-1"), ("out", ""), ("err", "oops")]
    assert session.file() == "hello\na-1\n\noops\n"
    assert sorted(session.lines.by_seq) == [1, 2, 3, 4]
    session.lines.calls.clear()
    session.look()
    assert session.lines.calls == []


@installed
def test_partial_lines_grow_in_place(session: Session) -> None:
    print("load", end="")
    assert session.look() == [("out", "load")]
    print("ing …", end="", flush=True)
    print("other", file=sys.stderr)
    assert session.look() == [("out", "loading …"), ("err", "other")]
    print(" done\nnext")
    assert session.look() == [("out", "loading … done"), ("err", "other"), ("out", "next")]
    assert session.file() == "loading …other\n done\nnext\n"


@pytest.mark.parametrize("form", ["\r{}", "{}\r"])
@installed
def test_a_progress_bar_is_one_line(session: Session, form: str) -> None:
    for k in range(0, 101, 10):
        sys.stderr.write(form.format(f"{k:3d}%"))
        if k % 30 == 0:
            print(f"step {k}")
            session.look()
    sys.stderr.write("\ndone\n")
    assert session.look() == [
        ("err", "100%"),
        ("out", "step 0"),
        ("out", "step 30"),
        ("out", "step 60"),
        ("out", "step 90"),
        ("err", "done"),
    ]
    assert {seq for seq, _, text in session.lines.calls if "%" in text} == {1}


@installed
def test_tqdm_itself(session: Session) -> None:
    tqdm = pytest.importorskip("tqdm")
    for _ in tqdm.tqdm(range(50), mininterval=0):
        session.look()
    assert len(session.look()) == 1
    [(stream, text)] = session.look()
    assert stream == "err" and "50/50" in text


@installed
def test_bars_below_each_other(session: Session) -> None:
    tqdm = pytest.importorskip("tqdm")
    for _ in tqdm.trange(3, desc="epochs", mininterval=0):
        for k in tqdm.trange(50, desc="batches", leave=False, mininterval=0):
            if k % 7 == 0:
                session.look()
            if k == 30:
                last = [text.split(":")[0] for _, text in session.look()[-2:]]
                assert last == ["epochs", "batches"]
        tqdm.tqdm.write("an epoch is done", file=sys.stderr)
    print("after", file=sys.stderr)
    shown = [text.split(":")[0].strip() for _, text in session.look()]
    assert shown == 3 * ["an epoch is done"] + ["epochs", "after"]
    assert "3/3" in session.look()[3][1]


@installed
def test_inner_bars_that_stay(session: Session) -> None:
    tqdm = pytest.importorskip("tqdm")
    for _ in tqdm.trange(3, desc="epochs", mininterval=0):
        for _ in tqdm.trange(50, desc="batches", mininterval=0):
            session.look()
    # As in a terminal: each inner bar that is done goes above.
    found = [text.split(":")[0] for _, text in session.look() if text.strip()]
    assert found == ["batches", "batches", "batches", "epochs"]


@installed
def test_a_cursor_that_goes_up_too_far(session: Session) -> None:
    sys.stdout.write("\x1b[A\x1b[Aone\n\x1b[1A\rnew\n\ntwo" + "\x1b[A" * 100 + "\rtop")
    assert session.look() == [("out", "top"), ("out", ""), ("out", "two")]


@installed
def test_a_bar_that_scrolled_away_goes_on_below(session: Session) -> None:
    sys.stderr.write("\r10%")
    session.look()
    for k in range(1_000):
        print(k)
        if k % 100 == 0:
            session.look()
    sys.stderr.write("\r20%")
    session.look()
    assert session.lines.shown[-1] == ("err", "20%")


@installed
def test_windows_line_ends_and_ansi(session: Session) -> None:
    sys.stdout.write("one\r\ntwo\r\n\x1b[31mred\x1b[0m\n")
    assert session.look() == [("out", "one"), ("out", "two"), ("out", "\x1b[31mred\x1b[0m")]


@installed
def test_any_text(session: Session) -> None:
    print("é 🙂 \udce9")
    assert session.look() == [("out", "é 🙂 \\udce9")]
    assert session.file() == "é 🙂 \\udce9\n"
    with pytest.raises(TypeError):
        sys.stdout.write(3)  # type: ignore[arg-type]


@installed
def test_one_enormous_line_is_bounded(session: Session) -> None:
    block = "x" * 1_000_000
    for _ in range(10):
        sys.stdout.write(block)
        session.look()
    assert sum(len(text) for _, _, text in session.lines.calls) <= 10 * (MAX_LINE + 1)
    sys.stdout.write("y" * 10_000_000 + "\nend\n")
    assert [text[:3] for _, text in session.look()] == ["xxx", "end"]
    # One more than the digest shows: it says that there is more.
    assert len(session.look()[0][1]) == MAX_LINE + 1
    assert len(session.file()) == 20_000_005


@installed
def test_a_flood_stays_bounded_and_the_file_complete(session: Session) -> None:
    for k in range(200_000):
        print("line", k)
        assert len(session.pump._taken) < stdio_module.MAX_BACKLOG / stdio_module.WRITE_COST + 10
    shown = session.look()
    assert len(shown) == MAX_LINES and shown[-1] == ("out", "line 199999")
    assert session.pump.take_dropped() == 200_000 - MAX_LINES
    assert session.pump.take_dropped() == 0
    assert session.file() == "".join(f"line {k}\n" for k in range(200_000))


@installed
def test_threads_lose_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_module, "MAX_BACKLOG", 20_000)
    # Text held in a TextIOWrapper changes places or is garbled within a few of these.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            session.look()

    def write(name: str) -> None:
        for k in range(30_000):
            sys.stdout.write(f"{name} {k}\n")

    looker = threading.Thread(target=look)
    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in (looker, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    looker.join()
    sys.setswitchinterval(interval)
    session.look()
    found = session.file().splitlines()
    assert len(found) == 90_000
    for name in "abc":
        assert [x for x in found if x[0] == name] == [f"{name} {k}" for k in range(30_000)]


def test_attempts_never_share_a_number(tmp_path: Path) -> None:
    first, second = Session(tmp_path / "log"), Session(tmp_path / "log", attempt=1)
    for one in (first, second):
        one.pump.write("out", b"a\nb\n")
        one.look()
        one.pump.close()
    assert not set(first.lines.by_seq) & set(second.lines.by_seq)
    assert max(first.lines.by_seq) < min(second.lines.by_seq)
    assert first.file() == "a\nb\na\nb\n"


@installed
def test_uninstall_restores_and_a_kept_stream_still_works(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    kept, ours = sys.stdout, os.fstat(1)
    print("inside")
    session.pump.uninstall()
    assert sys.stdout is not kept and os.fstat(1) != ours
    session.pump.uninstall()
    session.pump.close()
    session.pump.close()
    kept.write("after the run\n")  # as a logging handler that holds on to it
    kept.flush()
    assert session.file() == "inside\n"
    assert "after the run" in capfd.readouterr().out


@installed
def test_looks_like_a_stream(session: Session) -> None:
    assert sys.stdout.writable() and not sys.stdout.isatty() and sys.stdout.encoding == "utf-8"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdout.writelines(["a\n", "b\n"])
    assert session.look() == [("out", "a"), ("out", "b")]


@installed
def test_a_full_disk_harms_nobody(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    print("one")
    session.look()
    print("two")
    shown = session.look()
    monkeypatch.undo()
    assert [text for _, text in shown if "can't be written" not in text] == ["one", "two"]
    assert sum("No space left" in text for _, text in shown) == 1


def test_a_file_that_cannot_be_opened_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    one = Session(tmp_path / "logs" / "rank-00000.log")
    one.pump.write("out", b"hello\n")
    told, hello = one.look()
    assert "the log file can't be written" in told[1] and hello == ("out", "hello")
    one.pump.close()


# -- forks, in a process of their own ------------------------------------------------------------

FORKS = """
import os, sys, multiprocessing
from raynb.worker.stdio import LogPump

class Nowhere:
    def put_log(self, *line): pass

def child(name):
    print(f"{name} one")
    print(f"{name} two", end="")

pump = LogPump(sys.argv[1])
pump.install()
print("before")
print("held", end="")            # not yet in the file when the process forks
context = multiprocessing.get_context("fork")
children = [context.Process(target=child, args=(f"child{k}",)) for k in range(2)]
for one in children: one.start()
for one in children: one.join()
pid = os.fork()
if pid == 0:
    print("plain fork")
    sys.exit(0)                  # ends as a program does, destructors and all
os.waitpid(pid, 0)
print("after")
pump.uninstall()
pump.pump(Nowhere())
pump.close()
"""


def test_what_forked_processes_write_is_there_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    subprocess.run([sys.executable, "-c", FORKS, str(path)], check=True, timeout=60)
    text = path.read_text()
    whole = ("child0 one\n", "child1 one\n", "plain fork\n")
    for part in ("held", "child0 two", "child1 two", *whole):
        assert text.count(part) == 1
    assert text.count("before\n") == text.count("after\n") == 1
    assert text.startswith("before\n") and text.endswith("after\n")


# -- what others than Python write ---------------------------------------------------------------

C_STDOUT = ctypes.CDLL(None)


@installed
def test_c_code_and_child_processes(session: Session) -> None:
    print("one")
    os.write(1, b"two\n")
    print("three")
    subprocess.run(["sh", "-c", "echo four; echo five >&2"], check=True)
    print("six")
    C_STDOUT.printf(b"seven %d\n", 7)  # C holds it back, since it goes to a file
    shown = session.look()
    assert [text for _, text in shown] == ["one", "two", "three", "four", "five", "six", "seven 7"]
    assert session.file() == "one\ntwo\nthree\nfour\nfive\nsix\nseven 7\n"


@installed
def test_which_stream_it_was(session: Session) -> None:
    os.write(1, b"out\n")
    assert session.look()[-1:] == [("out", "out")]
    os.write(2, b"err\n")
    assert session.look()[-1:] == [("err", "err")]
    os.write(2, b"err\n")
    print("python")
    os.write(1, b"out\n")
    assert session.look()[-3:] == [("err", "err"), ("out", "python"), ("out", "out")]
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    assert session.look()[-2:] == [("out", "out"), ("err", "err")]
    os.write(1, b"unfin")
    assert session.look()[-1:] == [("out", "unfin")]
    os.write(1, b"ished \xc3")
    assert session.look()[-1:] == [("out", "unfinished \ufffd")]
    os.write(1, b"\xa9\n")
    assert session.look()[-1:] == [("out", "unfinished é")]


@installed
def test_a_flood_from_a_child_process_stays_bounded(session: Session) -> None:
    subprocess.run(["sh", "-c", "yes line | head -n 1000000"], check=True)
    assert session.look() == [("out", "line")] * MAX_LINES
    assert session.pump.take_dropped() == 1_000_000 - MAX_LINES
    assert session.path.stat().st_size == 5_000_000


@installed
def test_what_was_there_before_it_is_not_shown(session: Session) -> None:
    print("first attempt")
    session.look()
    again = Session(session.path, attempt=1)
    print("late words")  # of a process that is not gone yet, say
    session.look()
    assert again.look() == [("out", "late words")]
    again.pump.close()


def _open_files() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_descriptors_are_given_back(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")

    def now() -> list[object]:
        return [sys.stdout, sys.stderr, os.fstat(1).st_ino, os.fstat(2).st_ino, _open_files()]

    before = now()
    session.pump.install()
    os.write(1, b"inside\n")
    C_STDOUT.printf(b"inside, from C\n")
    session.pump.uninstall()
    os.write(1, b"after\n")
    session.look()
    assert now() == before
    session.pump.close()
    assert session.file() == "inside\ninside, from C\n"
    assert capfd.readouterr().out == "before\nafter\n"


# -- odd things that user code does --------------------------------------------------------------


def test_logging_handlers_from_before_and_during(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.Logger("mine")
    # As Ray's: made before the run, on a stream that leads to the descriptor.
    with open(2, "w", closefd=False) as early:
        logger.addHandler(logging.StreamHandler(early))
        logger.warning("before")
        session.pump.install()
        logger.addHandler(logging.StreamHandler())
        logger.warning("during")
        session.pump.uninstall()
        session.look()
        session.pump.close()
        logger.warning("after")
    assert session.lines.shown == [("err", "during"), ("err", "during")]
    assert session.file() == "during\nduring\n"
    assert capfd.readouterr().err == "before\nafter\nafter\n"


@installed
def test_streams_exchanged_and_wrapped(session: Session) -> None:
    ours = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()) as caught:
        print("kept")
    print("back")
    assert caught.getvalue() == "kept\n"
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, "utf-8", line_buffering=True)
    print("wrapped")
    sys.stdout = ours  # the wrapper goes, and would close what it wraps
    gc.collect()
    print("still there")
    sys.stdout.close()
    print("and closed")
    sys.stdout.buffer.write(bytearray(b"bytes\n"))
    subprocess.run(["echo", "child"], stdout=sys.stdout, check=True)
    found = ["back", "wrapped", "still there", "and closed", "bytes", "child"]
    assert session.look() == [("out", text) for text in found]
    ours.detach()  # type: ignore[union-attr]
    os.write(1, b"detached\n")
    assert session.look()[-1] == ("out", "detached")


@installed
def test_a_signal_handler_prints(session: Session) -> None:
    ticks = 0

    def tick(*_: Any) -> None:
        nonlocal ticks
        ticks += 1
        sys.stdout.write("tick\n")

    before = signal.signal(signal.SIGALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        for k in range(200_000):
            sys.stdout.write(f"line {k}\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    session.look()
    found = session.file().splitlines()
    assert found.count("tick") == ticks > 10
    assert [line for line in found if line != "tick"] == [f"line {k}" for k in range(200_000)]


LAST_WORDS = """
import faulthandler, os, signal, sys, time
from raynb.worker.stdio import LogPump
faulthandler.enable()            # as Ray does, before the run
pump = LogPump(sys.argv[1])
pump.install()
if sys.argv[2] == "again":
    faulthandler.enable()        # as user code may
for k in range(5):
    print("line", k)
os.kill(os.getpid(), int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("again", "number"), [("", signal.SIGSEGV), ("again", signal.SIGSEGV), ("", signal.SIGKILL)]
)
def test_last_words_of_a_crash(tmp_path: Path, again: str, number: int) -> None:
    path = tmp_path / "rank.log"
    command = [sys.executable, "-c", LAST_WORDS, str(path), again, str(int(number))]
    assert subprocess.run(command, timeout=60).returncode == -number
    text = path.read_text()
    assert text.startswith("".join(f"line {k}\n" for k in range(5)))
    assert ("Segmentation fault" in text) == (number == signal.SIGSEGV)


@installed
def test_a_flood_is_written_in_blocks(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    print("first")
    assert session.file() == "first\n"  # at once, without a look
    monkeypatch.setattr(stdio_module, "LINE_BY_LINE_S", 0.0)
    print("second")
    print("third")
    assert session.file() == "first\nsecond\n"
    assert session.look()[-1] == ("out", "third")
    monkeypatch.undo()
    print("fourth")
    assert session.file() == "first\nsecond\nthird\nfourth\n"
