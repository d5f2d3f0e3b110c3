"""Limits that the container puts on this process, from Linux control groups of both versions."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def cgroup_cpus(root: Path = ROOT) -> float | None:
    """CPUs that the container may use.

    Parameters
    ----------
    root : Path
        Where control groups are mounted.

    Returns
    -------
    float or None
        None without a limit.
    """
    limits = []
    for directory in _cgroup_directories(root):
        words = _read(directory / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            limits.append(int(words[0]) / int(words[1]))
    quota = _read(root / "cpu" / "cpu.cfs_quota_us")
    period = _read(root / "cpu" / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        limits.append(int(quota) / int(period))
    return min(limits, default=None)


def cgroup_memory(root: Path = ROOT) -> tuple[int, int] | None:
    """Memory that the container may use, and what it uses, in bytes.

    Parameters
    ----------
    root : Path
        Where control groups are mounted.

    Returns
    -------
    (int, int) or None
        None without a limit.
    """
    v2 = [(d, "memory.max", "memory.current", "inactive_file") for d in _cgroup_directories(root)]
    v1 = (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    found = []
    for directory, limit_file, usage_file, cache in (*v2, v1):
        limit = _read(directory / limit_file)
        usage = _read(directory / usage_file)
        if limit.isdigit() and usage.isdigit():
            # Cached files count as used, and the kernel drops them when memory is needed.
            stat = dict(
                words
                for line in _read(directory / "memory.stat").splitlines()
                if len(words := line.split()) == 2
            )
            found.append((int(limit), max(int(usage) - int(stat.get(cache, 0)), 0)))
    return min(found, default=None)


def _cgroup_directories(root: Path) -> list[Path]:
    """This process's control group and those around it, in version 2's single hierarchy."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            own = root / line.removeprefix("0::/")
            return [own, *(p for p in own.parents if p == root or root in p.parents)]
    return [root]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
