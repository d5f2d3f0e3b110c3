"""Worker rows: what is known of each rank now, and which of it a watcher has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: From the samplers.
SAMPLED = (
    "device",
    "device_kind",
    "util",
    "mem_used",
    "mem_total",
    "mem_process",
    "temperature",
    "power",
    "device_wide",
    "note",
    "cpu",
    "rss",
    "threads",
    "cores",
    "net_in",
    "net_out",
    "disk_read",
    "disk_write",
    "net_speed",
)
#: From the meters: where a step's time goes, and where the train function stands.
TIMED = (
    "reports",
    "step_s",
    "wait_s",
    "report_s",
    "sync_s",
    "rows_rate",
    "lr",
    "waiting_since",
    "still_since",
    "where",
)
#: Statuses that a worker does not leave.
ENDED = ("finished", "failed", "stopped")
#: What only a worker that is at work can be in.
_AT_WORK = {"waiting_since": None, "still_since": None, "where": None}


def new_worker(rank: int) -> dict[str, Any]:
    """A worker's row before anything is known of it: unknown is None, never 0."""
    return {
        "rank": rank,
        "attempt": 0,
        "node": None,
        "ip": None,
        "pid": None,
        "status": "starting",
        **dict.fromkeys(SAMPLED),
        "device_kind": "CPU",
        **dict.fromkeys(TIMED),
        "step": None,
        "rate": None,
        "last_report": None,
        "records": 0,
        "shards": None,
    }


#: What a new attempt makes void.
_OF_ATTEMPT = {k: v for k, v in new_worker(0).items() if k in (*SAMPLED, *TIMED, "rate", "shards")}


class Rows:
    """The workers' rows, each field with the version of its last change."""

    #: The field that tells rows apart.
    key = "rank"

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self._versions: dict[int, dict[str, int]] = {}
        self._newest: dict[int, int] = {}

    def row(self, rank: int, version: int) -> dict[str, Any]:
        """A rank's row, for reading; made when it is not there."""
        if rank not in self.rows:
            self.rows[rank] = self._new(rank)
            self._versions[rank] = dict.fromkeys(self.rows[rank], version)
            self._newest[rank] = version
        return self.rows[rank]

    def set(self, rank: int, changes: Mapping[str, Any], version: int) -> None:
        """Take a rank's changes; a field that stays as it was is no news."""
        row, versions = self.row(rank, version), self._versions[rank]
        for name, value in self._all_of(row, changes).items():
            if not _same(row[name], value):
                row[name] = value
                versions[name] = self._newest[rank] = version

    def _new(self, rank: int) -> dict[str, Any]:
        return new_worker(rank)

    def _all_of(self, row: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Changes with what follows from them."""
        if changes.get("attempt", row["attempt"]) > row["attempt"]:
            changes = {**_OF_ATTEMPT, **changes}
        if changes.get("status", row["status"]) in ENDED:
            changes = {**changes, **_AT_WORK}
        return changes

    def since(self, version: int) -> list[dict[str, Any]]:
        """Rows that changed after ``version``, each with its rank and the changed fields only."""
        return [
            {self.key: rank}
            | {k: self.rows[rank][k] for k, v in self._versions[rank].items() if v > version}
            for rank in sorted(rank for rank, newest in self._newest.items() if newest > version)
        ]


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # a sampler may give anything, an array for example
        return False
