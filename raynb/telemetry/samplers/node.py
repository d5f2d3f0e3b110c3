"""Network and disk rates of the node, and its fastest link."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any

import psutil

#: Seconds for which the speed of the links is taken as known.
LINK_S = 60.0


class NodeRates:
    """Bytes a second over the network and to and from the disks; None until a second look."""

    def __init__(self) -> None:
        self._last: tuple[float, dict[str, int | None]] | None = None
        self._speed: float | None = None
        self._speed_until = 0.0

    def sample(self) -> dict[str, Any]:
        """``net_in``, ``net_out``, ``disk_read``, ``disk_write`` and ``net_speed``."""
        now = time.monotonic()
        counts = _counts()
        rates: dict[str, Any] = dict.fromkeys(counts)
        if self._last is not None and now > self._last[0]:
            seconds, before = now - self._last[0], self._last[1]
            for key, count in counts.items():
                earlier = before[key]
                # A device that went away takes its count along: no rate, rather than a wrong one.
                if count is not None and earlier is not None and count >= earlier:
                    rates[key] = (count - earlier) / seconds
        self._last = now, counts
        if now >= self._speed_until:
            self._speed_until = now + LINK_S
            self._speed = _link_speed()
        return {**rates, "net_speed": self._speed}


def _counts() -> dict[str, int | None]:
    counts: dict[str, int | None] = dict.fromkeys(("net_in", "net_out", "disk_read", "disk_write"))
    # A container may hide these; then they stay unknown.
    with contextlib.suppress(Exception):
        nics = psutil.net_io_counters(pernic=True)
        names = _real("net", (name for name in nics if not _is_loopback(name)))
        if names:
            counts["net_in"] = sum(nics[name].bytes_recv for name in names)
            counts["net_out"] = sum(nics[name].bytes_sent for name in names)
    with contextlib.suppress(Exception):
        disks = psutil.disk_io_counters(perdisk=True)
        names = _real("block", (name for name in disks if _is_disk(name)))
        if names:
            counts["disk_read"] = sum(disks[name].read_bytes for name in names)
            counts["disk_write"] = sum(disks[name].write_bytes for name in names)
    return counts


def _real(kind: str, names: Iterable[str]) -> list[str]:
    """The devices with hardware behind them; all where none has, as in a container.

    What passes a bridge, a bond or a volume group passes the hardware too, and counts once.
    """
    listed = list(names)
    paths = f"/sys/class/{kind}" if kind == "net" else f"/sys/{kind}"
    return [n for n in listed if os.path.exists(f"{paths}/{n}/device")] or listed


def _is_disk(name: str) -> bool:
    # Partitions are listed too, and count in their disk.
    whole = not os.path.exists("/sys/block") or os.path.exists(f"/sys/block/{name}")
    return whole and not name.startswith(("loop", "ram", "zram"))


def _is_loopback(name: str) -> bool:
    return name == "lo" or name.startswith("lo0") or "Loopback" in name


def _link_speed() -> float | None:
    with contextlib.suppress(Exception):
        links = psutil.net_if_stats()
        # Mbit/s; 0 where the link doesn't tell, as in most virtual machines.
        speeds = [
            s.speed for name, s in links.items() if s.isup and s.speed and not _is_loopback(name)
        ]
        if speeds:
            return max(speeds) * 1e6 / 8
    return None
