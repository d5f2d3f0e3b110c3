"""What a cell on every rank shows: its output line by line, and its results grouped by rank."""

from __future__ import annotations

import json
import time
from typing import Any

from ray import cloudpickle

from raynb.errors import RaynbError
from raynb.results.mount import in_notebook
from raynb.telemetry.events import printable

#: Seconds for which a line that may go on is held back.
HOLD_S = 0.2
#: Tracebacks that an error shows; more ranks are counted.
MAX_ERRORS = 4


class DistributedError(RaynbError):
    """A cell failed on some ranks.

    Attributes
    ----------
    errors : dict of int to dict
        Each failed rank's error: ``type``, ``message``, ``cell`` and ``traceback``.
    """

    errors: dict[int, Any]


class Output:
    """Prints the ranks' lines as they come; called with the lines and whether they are the last.

    The newest line of a rank may go on, as a progress bar does: it is printed once it has stayed
    as it is for a moment.
    """

    def __init__(self, ranks: int) -> None:
        self._width = len(str(max(0, ranks - 1)))
        self._open: dict[tuple[int, str], tuple[int, str, float]] = {}

    def __call__(self, lines: list[tuple[int, int, str, str]], last: bool) -> None:
        now = time.monotonic()
        for rank, seq, stream, text in lines:
            before = self._open.get((rank, stream))
            if before is not None and before[0] != seq:
                self._print(rank, before[1])
            self._open[rank, stream] = (seq, text, now)
        for (rank, stream), (_, text, since) in list(self._open.items()):
            if last or now - since > HOLD_S:
                self._print(rank, text)
                del self._open[rank, stream]

    def _print(self, rank: int, text: str) -> None:
        print(f"[rank {rank:{self._width}}] {text}", flush=True)


def ranks_text(ranks: list[int]) -> str:
    """Ranks in words.

    Examples
    --------
    >>> ranks_text([0, 1, 2, 5])
    'ranks 0-2, 5'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs]
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(parts)}"


def show_result(found: Any, program: Any) -> list[list[Any]]:
    """Show what the ranks gave, and return the values that were asked for, by rank.

    Raises
    ------
    DistributedError
        When it failed on a rank.
    """
    ends = dict(sorted(found.ends.items()))
    grouped: dict[str, list[int]] = {}
    for rank, end in ends.items():
        grouped.setdefault(json.dumps(end.shown, sort_keys=True), []).append(rank)
    for text, ranks in grouped.items():
        for bundle in json.loads(text):
            _show(ranks_text(ranks), bundle)
    if found.note:
        print(f"raynb: {found.note}")
    failed = {rank: end.error for rank, end in ends.items() if end.error is not None}
    if failed:
        raise _error(failed, len(ends))
    return [cloudpickle.loads(end.values) for end in ends.values() if end.values is not None]


def _show(who: str, bundle: dict[str, Any]) -> None:
    text = bundle.get("text/plain", "")
    plain = f"[{who}] {text}" if "\n" not in text else f"[{who}]\n{text}"
    if set(bundle) <= {"text/plain"} or not in_notebook():
        print(plain)
        return
    from IPython.display import publish_display_data

    print(f"[{who}]")
    publish_display_data(bundle)


def _error(failed: dict[int, Any], ranks: int) -> DistributedError:
    """One error of all ranks', equal ones together."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for rank, error in failed.items():
        cell = error.get("cell") or {}
        line = f"{cell['label']}, line {cell['line']}: {cell['text'].strip()}" if cell else ""
        # A terminal would obey what is no text in them.
        key = (printable(error["type"]), printable(error["message"]), printable(line))
        grouped.setdefault(key, []).append(rank)
    # The others' errors follow from the first one's, as a closed connection does.
    order = sorted(grouped.items(), key=lambda g: (_follows(g[0]), g[1]))
    (kind, message, _), first = order[0]
    parts = []
    for (kind_, message_, line), group in order[:MAX_ERRORS]:
        text = printable(failed[group[0]]["traceback"]).rstrip()
        parts.append(
            f"{ranks_text(group)}: {kind_}: {message_[:500]}" + (f"\n{line}" if line else "")
        )
        parts.append("\n".join(f"  {row}" for row in text.splitlines()))
    if len(order) > MAX_ERRORS:
        parts.append(f"({len(order) - MAX_ERRORS} more kinds of errors on other ranks)")
    raised = DistributedError(
        f"{ranks_text(first)} of {ranks}: {kind}: {message[:500]}", detail="\n".join(parts)
    )
    raised.errors = failed
    return raised


def _follows(key: tuple[str, str, str]) -> bool:
    kind, message, _ = key
    return kind in ("RuntimeError", "DistBackendError") and (
        "Connection closed by peer" in message or "abort" in message.lower()
    )
