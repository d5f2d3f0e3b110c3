"""Workers whose process has ended without Ray Train having noticed it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from raynb.processes import runs

#: What a worker's row says while its process has to be there.
_AT_WORK = ("running", "waiting")
#: Ray Train's own limit for a worker that does not answer, and its default, in seconds.
_LIMIT = ("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "600")


class Gone:
    """Tells of workers that are gone while their run takes itself to be training.

    Ray Train asks all workers how they are, and one whose code holds Python's lock does not
    answer: until then it says nothing of another one's death either.
    """

    def __init__(self) -> None:
        self._missed: set[int] = set()
        self._told: set[int] = set()

    def news(self, ip: str, workers: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Events since the last call, text and level.

        A process is missed when it was not there at two looks, so that Ray Train, which needs a
        second, is first.

        Parameters
        ----------
        ip : str
            Of this node: no other one's processes can be looked at.
        workers : dict of int to dict
            The workers' rows of a run that trains.
        """
        gone = {
            pid: rank
            for rank, row in sorted(workers.items())
            if row["ip"] == ip and row["status"] in _AT_WORK and (pid := row["pid"])
            if not runs(pid)
        }
        told = self._missed & gone.keys() - self._told
        self._missed = set(gone)
        self._told |= told
        limit = os.environ.get(*_LIMIT)
        return [
            (
                f"rank {gone[pid]}'s process {pid} has ended, which Ray Train has not seen yet: "
                "another rank does not answer it, for example because code in C holds Python's "
                f"lock. It waits up to {limit} s; Stop ends the run now",
                "error",
            )
            for pid in sorted(told)
        ]
