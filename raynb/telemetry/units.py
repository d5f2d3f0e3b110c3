"""Byte counts and durations as people read them."""

from __future__ import annotations

import math


def human_bytes(n: float | None) -> str:
    """Write a byte count in binary units.

    Parameters
    ----------
    n : float or None
        The count; None when it isn't known.

    Returns
    -------
    str
        ``"n/a"``, ``"12 B"``, ``"4.0 kiB"``, ``"120 MiB"``: two to three digits that matter.
    """
    if n is None or not math.isfinite(n):
        return "n/a"
    if abs(n) < 1024:
        return f"{n:.0f} B"
    scaled, unit = n / 1024, "kiB"
    for larger in ("MiB", "GiB", "TiB", "PiB"):
        # 1023.5 and above would be written "1024 kiB".
        if abs(scaled) < 1023.5:
            break
        scaled, unit = scaled / 1024, larger
    return f"{scaled:.{1 if abs(scaled) < 9.95 else 0}f} {unit}"


def human_seconds(seconds: float | None) -> str:
    """Write a duration in the unit that suits it.

    Parameters
    ----------
    seconds : float or None
        The duration; None when it isn't known.

    Returns
    -------
    str
        ``"n/a"``, ``"350 ms"``, ``"4.2 s"``, ``"42 s"``, ``"3 min 05 s"``, ``"2 h 03 min"``.
    """
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
