"""Log lines as the panel keeps them, and the ranks' log files on storage."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow.fs as pafs

#: Lines kept a rank, and over all ranks where that is fewer a rank.
MAX_LOG_LINES, MAX_ALL_LOG_LINES = 300, 12_000
#: Lines that a rank keeps however many ranks there are.
MIN_LOG_LINES = 20
#: A line is cut here in the panel; the file on storage has all of it.
MAX_LINE = 2_000

Line = TypeVar("Line")


def lines_a_rank(world_size: int) -> int:
    """Lines kept of each rank of a group."""
    return max(MIN_LOG_LINES, min(MAX_LOG_LINES, MAX_ALL_LOG_LINES // max(1, world_size)))


def cut(text: str) -> str:
    """A line as long as the panel shows it."""
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + " … (cut)"


def keep_line(lines: OrderedDict[int, Line], seq: int, line: Line, limit: int) -> None:
    """Add or replace a line; ``lines`` are ordered by ``seq`` and the newest stay.

    Depends on the numbers alone, not on when a line came: so a watcher that sees only some of the
    states in between ends with the same lines.
    """
    late = seq not in lines and lines and seq < next(reversed(lines))
    lines[seq] = line
    if late:
        for earlier in sorted(lines):
            lines.move_to_end(earlier)
    trim(lines, limit)


def trim(lines: OrderedDict[int, Line], limit: int) -> None:
    while len(lines) > limit:
        lines.popitem(last=False)


def log_name(rank: int) -> str:
    """Name of a rank's log file."""
    return f"rank-{rank:05d}.log"


def read_log(
    filesystem: pafs.FileSystem, directory: str, rank: int, max_bytes: int
) -> tuple[bytes, bool] | None:
    """A rank's log file, at most its last ``max_bytes``.

    Returns
    -------
    (bytes, bool) or None
        The content, and whether it is all of it; None when there is no such file.
    """
    import pyarrow.fs as pafs  # workers import this module too, and read no files

    path = f"{directory}/{log_name(rank)}"
    info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        return None
    with filesystem.open_input_file(path) as file:
        # Its size of now: a worker may be writing.
        start = max(0, file.size() - max_bytes)
        file.seek(start)
        return file.read(max_bytes), start == 0
