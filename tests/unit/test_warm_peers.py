"""A rank's process group between jobs, on real processes with gloo."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from typing import Any

import pytest


def rank_process(rank: int, port: int, told: Any, results: Any) -> None:
    import torch
    import torch.distributed as dist

    from raynb.worker.warm.peers import Peers

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    peers = Peers(rank, 2, 60)

    def tell(data: Any) -> Any:
        if rank == 0:
            told.put(data)
            return data
        return told.get(timeout=20)

    ports, raised, sums = [], [], []
    for turn in range(3):
        peers.renew(tell)
        ports.append(os.environ["MASTER_PORT"])
        total = torch.full((1,), float(rank + turn))
        dist.all_reduce(total)
        sums.append(float(total))
        # Each waits for the other: nobody would ever leave by itself.
        if rank == 0:
            threading.Timer(0.3, peers.abort).start()
        began = time.monotonic()
        try:
            dist.recv(torch.ones(1), src=1 - rank)
        except RuntimeError:
            raised.append(round(time.monotonic() - began, 1))
    results.put((rank, ports, sums, raised))


@pytest.mark.timeout(120)
def test_a_stuck_group_is_aborted_and_the_next_one_works() -> None:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told, results = context.Queue(), context.Queue()
    processes = [
        context.Process(target=rank_process, args=(r, port, told, results), daemon=True)
        for r in range(2)
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=100) for _ in processes)
    for process in processes:
        process.join(10)
        process.kill()
    (_, ports, sums, raised), (_, *other) = found
    assert other[0] == ports and len(set(ports)) == 3
    assert sums == other[1] == [1.0, 3.0, 5.0]
    assert len(raised) == len(other[2]) == 3
    assert max(raised + other[2]) < 5
