"""The terminal's view: bounded output, plain text from workers, and no exception into the run."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
from rich.console import Console

from raynb.panel import terminal
from raynb.panel.terminal import TerminalView, progress_line, render, state_line
from raynb.telemetry.digest import Cursor, Digest
from raynb.telemetry.events import Batch, Record, RecordBatch
from raynb.telemetry.mirror import Mirror


class Live:
    """A digest and its mirror."""

    def __init__(self, ranks: int = 2, **run: Any) -> None:
        self.digest = Digest("demo", world_size=ranks, started=time.time() - 12.2, **run)
        self.mirror = Mirror()
        self._cursor = Cursor()
        self.sync()

    def sync(self) -> Mirror:
        self.mirror.apply(self.digest.since(self._cursor))
        return self.mirror

    def state(self, state: str, message: str = "", **more: Any) -> Mirror:
        self.digest.set_run(state=state, message=message, **more)
        return self.sync()

    def log(self, rank: int, step: int, loss: float, **more: Any) -> Mirror:
        records = RecordBatch.of([Record(step, time.time(), {"loss": loss})])
        self.digest.apply(Batch(rank, 0, 0, records=records, status="running", **more))
        return self.sync()


def drawn(mirror: Mirror, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(mirror))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def shard(seen: int, total: int | None = 30_000) -> dict[str, Any]:
    return {"name": "train", "rows_seen": seen, "rows_total": total, "batches_seen": 1,
            "batches_total": None, "batch_size": None, "epoch": 1}  # fmt: skip


def test_a_pipe_gets_a_line_when_the_state_changes() -> None:
    live, out = Live(), io.StringIO()
    view = TerminalView(out)
    view.open(live.mirror)
    for _ in range(50):
        view.update(live.state("preflight"))
    for step in range(50):
        view.update(live.state("training"))
        view.update(live.log(0, step, 0.5))
    view.close(live.state("finished", ended=time.time()), "the result")
    assert out.getvalue().splitlines() == [
        "[12 s] Checking", "[12 s] Training", "[12 s] Finished", "the result",
    ]  # fmt: skip


def test_a_pipe_gets_progress_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    live, out = Live(), io.StringIO()
    view = TerminalView(out)
    view.update(live.state("training"))
    for step in range(100):
        clock[0] += 0.1
        view.update(live.log(0, step, 0.512))
    assert len(out.getvalue().splitlines()) == 1 + 2
    assert "step 4" in out.getvalue().splitlines()[1]


def test_the_progress_line() -> None:
    live = Live(state="training")
    live.log(0, 40, 0.512, shards=[shard(5_120)])
    mirror = live.log(1, 40, 0.498, shards=[shard(5_120)])
    assert progress_line(mirror) == (
        "[12 s] training · step 40 · loss 0.512 / 0.498 (2 ranks) · rows 10,240 of 60,000"
    )


def test_the_progress_line_of_many_ranks_is_one_short_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = Live(64, state="training")
    for rank in range(64):
        mirror = live.log(rank, 7, math.nan if rank == 5 else float(rank))
    live.log(0, 8, 0.0)  # one that is ahead does not stand for all
    monkeypatch.setattr("raynb.telemetry.curves.WORST_S", 0.0)
    mirror = live.log(1, 8, 0.0)
    line = progress_line(mirror)
    assert "step 7 to 8" in line
    assert "loss 0 to 63, median 32 (64 ranks), NaN on rank 5" in line
    assert len(line) < 120
    few = Live(8, state="training")
    for rank in range(8):
        mirror = few.log(rank, 7, math.nan if rank == 5 else 0.5)
    assert "loss 0.5 to 0.5, median 0.5 (8 ranks), NaN on 1" in progress_line(mirror)


def test_unknown_totals_read_na() -> None:
    mirror = Live(state="training").log(0, 1, 1.0, shards=[shard(5, None)])
    assert "rows 5 of n/a" in progress_line(mirror)
    empty = Live(1)
    empty.digest.set_run(started=None)
    assert state_line(empty.sync()) == "[n/a] Checking"
    empty.digest.set_worker(0)
    row = next(line for line in drawn(empty.sync()).splitlines() if "starting" in line)
    assert row.count("n/a") == 6
    assert " 0 %" not in row


def test_warnings_are_printed_once_and_are_bounded() -> None:
    live, out = Live(state="training"), io.StringIO()
    view = TerminalView(out)
    for k in range(100):
        live.digest.event(f"slow {k}", "warn")
        live.digest.event("quiet", "info")
        view.update(live.sync())
    text = out.getvalue()
    assert text.count("slow 3\n") == 1
    assert "quiet" not in text
    assert text.count("warn:") == terminal.MAX_PLAIN_EVENTS


def test_what_workers_write_is_no_markup_and_no_control() -> None:
    evil = "[bold]x[/bold] [link=http://a]y \x1b[2J\x07:smile:"
    live = Live(1, state="training", message=evil)
    live.digest.run["name"] = evil
    live.digest.event(evil, "error")
    live.digest.set_run(error={"title": evil, "rank": 0, "text": evil, "line": evil})
    live.digest.set_worker(0, device=evil, status=evil)
    mirror = live.log(0, 1, 1.0, logs=[(0, "out", evil)])
    text = drawn(mirror, 160)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[bold]x[/bold] [link=http://a]y :smile:") >= 5


def test_the_panel_has_a_row_a_rank_and_the_newest_lines() -> None:
    live = Live(2, state="training")
    sample = {"device": "GPU 0 · H200", "device_kind": "GPU", "util": 93.0,
              "mem_used": 2**30, "mem_total": 2**33}  # fmt: skip
    logs = [(k, "out", f"line {k}") for k in range(20)]
    live.log(0, 1_000, 0.25, sample=sample, shards=[shard(15_000)], logs=logs)
    text = drawn(live.log(1, 1_000, math.nan))
    row = next(line for line in text.splitlines() if "GPU 0" in line)
    for part in ("running", "93 %", "1.0 GiB", "1,000", "━", "15,000/30,000", "0.25"):
        assert part in row
    assert "NaN" in text
    assert "line 19" in text
    assert "line 9" not in text


def test_many_ranks_show_the_worst_and_count_the_rest() -> None:
    live = Live(40, state="training")
    for rank in range(40):
        live.log(rank, 100 if rank != 33 else 7, 0.5)
    live.digest.set_worker(20, status="failed")
    text = drawn(live.sync())
    rows = [line for line in text.splitlines() if " running " in line or "failed" in line]
    ranks = [line.split()[1] for line in rows]
    assert ranks[:2] == ["20", "33"]
    assert len(ranks) == 16
    assert "… 24 more ranks: 24 running; step 100" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_any_width_holds(width: int) -> None:
    live = Live(2, state="training")
    text = drawn(live.log(0, 1, 0.5, shards=[shard(5)], logs=[(0, "err", "x" * 1_000)]), width)
    assert max(len(line) for line in text.splitlines()) <= width


class Tty(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "FORCE_COLOR", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Tty()


def test_a_terminal_is_redrawn_in_place_and_given_back(
    tty: Tty, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = []
    monkeypatch.setattr(terminal, "render", lambda m: builds.append(1) or render(m))
    live = Live(1, blocking=True)
    view = TerminalView(tty)
    view.open(live.mirror)
    view.update(live.state("training"))
    for step in range(200):
        view.update(live.log(0, step, 0.5))
    view.close(live.state("finished", ended=time.time()), "the [bold]result")
    assert len(builds) < 20
    text = tty.getvalue()
    assert "\x1b[?25l" in text  # the cursor is hidden …
    assert "\x1b[?25h" in text  # … and shown again
    assert text.index("Finished") < text.index("the [bold]result")


def test_a_terminal_with_an_open_prompt_is_not_redrawn(tty: Tty) -> None:
    live = Live(1, blocking=False)
    view = TerminalView(tty)
    view.update(live.state("training"))
    view.close(live.state("finished"), "")
    assert "\x1b" not in tty.getvalue()
    assert "Training" in tty.getvalue()


def test_a_broken_stream_never_reaches_the_run() -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    live = Live()
    view = TerminalView(Broken())
    view.open(live.mirror)
    view.update(live.state("training"))
    view.update(live.state("finished"))
    view.close(live.mirror, "x")


def test_a_broken_picture_never_reaches_the_run(tty: Tty) -> None:
    live = Live(1, blocking=True)
    view = TerminalView(tty)
    view.update(live.state("training"))
    mirror = live.state("finishing")
    mirror.workers = None  # type: ignore[assignment]
    view.update(mirror)
    view.close(mirror, "x")
    assert "\x1b[?25h" in tty.getvalue()


def test_a_stream_without_unicode_gets_what_it_can() -> None:
    raw = io.BytesIO()
    view = TerminalView(io.TextIOWrapper(raw, encoding="ascii"))
    live = Live(state="training", message="Zürich · 1")
    view.update(live.mirror)
    view.close(live.state("finished"))
    assert b"Z?rich" in raw.getvalue()
