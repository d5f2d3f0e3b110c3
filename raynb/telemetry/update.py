"""Updates: what changed in a run's picture since a watcher's last look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raynb.telemetry.events import Floats
from raynb.telemetry.loglines import MAX_LOG_LINES

MAX_EVENTS = 200
#: Hints kept of a run; those that ended first go first.
MAX_HINTS = 50
#: Attempts whose series and bands are kept; those of earlier ones are forgotten.
MAX_ATTEMPTS = 10


@dataclass
class Update:
    """What changed since a watcher's last look.

    Attributes
    ----------
    content : dict
        JSON-able; the wire schema's fields ``run``, ``workers``, ``series``, ``bands``, ``focus``,
        ``logs``, ``logs_dropped``, ``events``, ``hints``, each present only when something changed.
    buffers : list of ndarray, shape (6 or 7, n), float64
        New buckets of series and bands.
    whole : bool
        The update holds everything, and what a watcher knew before is void.
    """

    content: dict[str, Any] = field(default_factory=dict)
    buffers: list[Floats] = field(default_factory=list)
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.content)

    def add_part(self, kind: str, who: Mapping[str, Any], start: int, data: Floats) -> None:
        """Add buckets of a series or a band (``kind``), which replace those from ``start`` on."""
        self.content.setdefault(kind, []).append(
            {**who, "start": start, "n": data.shape[1], "buf": len(self.buffers)}
        )
        self.buffers.append(data)


def new_run(name: str = "") -> dict[str, Any]:
    """A run's facts before anything is known of it."""
    return {
        "name": name,
        "state": "preflight",
        "message": "",
        "started": None,
        "ended": None,
        "now": None,
        "world_size": None,
        "detail": "ranks",
        "log_lines": MAX_LOG_LINES,
        "storage": None,
        "attempt": 0,
        "blocking": False,
        "stoppable": True,
        "shard_totals": None,
        "error": None,
        "dropped": {"metrics": 0, "samples": 0, "logs": 0, "series": 0},
        "best": None,
    }


def new_focus() -> dict[str, Any]:
    """No rank is looked at more closely than others."""
    return {"pinned": [], "worst": {}}
