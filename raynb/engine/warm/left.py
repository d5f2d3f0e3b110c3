"""What a job left on a rank, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raynb.telemetry.units import human_bytes


def left_text(left: Mapping[str, Any] | None) -> str:
    """What a run left on a rank, in words; empty when it is nothing."""
    if not left:
        return ""
    parts = []
    if left.get("cuda"):
        held = f": {', '.join(left['cuda_by'][:3])}" if left.get("cuda_by") else ""
        parts.append(f"{human_bytes(left['cuda'])} of GPU memory{held}")
    for what, names in (("thread", left.get("threads")), ("open file", left.get("files"))):
        if names:
            plural = "s" if len(names) != 1 else ""
            more = ", …" if len(names) > 3 else ""
            parts.append(f"{len(names)} {what}{plural} ({', '.join(names[:3])}{more})")
    said = []
    if parts:
        said.append(
            "the last run left " + " and ".join(parts) + "; %raynb workers restart frees it"
        )
    if left.get("restored"):
        said.append("put back what it had replaced: " + ", ".join(left["restored"][:3]))
    return "; ".join(said)
