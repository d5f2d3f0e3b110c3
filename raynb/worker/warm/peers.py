"""The ranks' process group: a new one for each job, and an end to one that is stuck."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil


class Peers:
    """This rank's membership in ``torch.distributed``'s default group.

    Made when Ray Train has set up the first one; :meth:`renew` makes the next ones like it.

    Parameters
    ----------
    rank, world_size : int
    timeout_s : int
        Seconds that a collective may take.
    """

    def __init__(self, rank: int, world_size: int, timeout_s: int) -> None:
        import torch.distributed as dist

        self._rank, self._world_size = rank, world_size
        self._timeout = timedelta(seconds=timeout_s)
        self._there = dist.is_available() and dist.is_initialized()
        self._backend = dist.get_backend() if self._there else ""
        self._address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        #: Connections that are no group's.
        self._before: set[Any] = set()
        self.environ = {k: os.environ[k] for k in ("MASTER_ADDR", "MASTER_PORT") if k in os.environ}

    def renew(self, tell: Callable[[Any], Any]) -> None:
        """End the group and join a new one.

        Parameters
        ----------
        tell : callable
            Gives every rank what rank 0 calls it with; every rank calls it.
        """
        if not self._there:
            return
        import torch.distributed as dist

        self.end()
        self._before = _connections()
        store = None
        if self._rank == 0:
            # Port 0: torch takes a free one, so that no other process can get it in between.
            store = self._store(0)
        port = tell(None if store is None else store.port)
        if store is None:
            store = self._store(port)
        self.environ = {"MASTER_ADDR": self._address, "MASTER_PORT": str(port)}
        os.environ.update(self.environ)
        dist.init_process_group(
            self._backend,
            store=store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._timeout,
        )

    def _store(self, port: int) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(
            self._address,
            port,
            self._world_size,
            is_master=self._rank == 0,
            timeout=self._timeout,
            wait_for_workers=False,
        )

    def end(self) -> None:
        """Leave the group: ranks that wait for this one in a collective get an error."""
        import torch.distributed as dist

        if self._there and dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()

    def abort(self) -> None:
        """End the group under a collective that this rank is stuck in, from another thread.

        NCCL's communicators have a way to do so. gloo has none: its connections are shut, at
        which every rank's collective raises.
        """
        if not self._there:
            return
        if "nccl" in self._backend:
            with contextlib.suppress(Exception):
                from torch.distributed.distributed_c10d import _abort_process_group

                _abort_process_group()
        for fd, *ends in _connections() - self._before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                if [connection.getsockname()[:2], connection.getpeername()[:2]] == ends:
                    connection.shutdown(socket.SHUT_RDWR)


def _connections() -> set[Any]:
    """TCP connections of this process: descriptor and both ends."""
    with contextlib.suppress(psutil.Error, OSError):
        return {
            (c.fd, tuple(c.laddr), tuple(c.raddr))
            for c in psutil.Process().net_connections("tcp")
            if c.raddr and c.fd >= 0
        }
    return set()
