"""Device samplers: what a worker's CPU or GPU is doing, one module a source."""

from __future__ import annotations

import contextlib
from typing import Any


class Samplers:
    """All registered samplers of a worker, and the one row that their answers make.

    Every row keeps the facts about the CPUs; a worker with a GPU is shown by its GPU. Samplers
    from other packages come after raynb's own, and what they tell comes over it.

    Parameters
    ----------
    gpu : str or None
        The worker's entry of ``CUDA_VISIBLE_DEVICES``; None without a GPU.
    num_cpus : float
        CPUs that Ray gave the worker.
    shared : bool
        Whether the worker has but a part of its GPU: then the figures are of other workers too.
    """

    def __init__(self, gpu: str | None, num_cpus: float, shared: bool = False) -> None:
        from importlib.metadata import entry_points

        self._shared = shared
        self._samplers: list[Any] = []
        found = sorted(
            entry_points(group="raynb.samplers"),
            key=lambda entry: (not entry.value.startswith("raynb."), entry.name),
        )
        for entry in found:
            with contextlib.suppress(Exception):  # one broken sampler must not silence the others
                self._samplers.append(entry.load()(gpu, num_cpus))

    def sample(self) -> dict[str, Any]:
        """One row of all; empty when no sampler answers."""
        rows = []
        for sampler in self._samplers:
            with contextlib.suppress(Exception):
                row = sampler.sample()
                if row:
                    rows.append(dict(row))
        return merge(rows, self._shared)


def merge(rows: list[dict[str, Any]], shared: bool = False) -> dict[str, Any]:
    """Make one row of the samplers' rows: what a GPU tells comes over what the CPU tells.

    Parameters
    ----------
    rows : list of dict
    shared : bool
        As of :class:`Samplers`.
    """
    order = {"CPU": 0, "GPU": 1}  # a row of no device only adds
    merged: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: order.get(row.get("device_kind", ""), 2)):
        merged.update(row)
    notes = [row["note"] for row in rows if row.get("note")]
    if merged:
        merged["note"] = "; ".join(notes) or None
    if shared and merged.get("device_kind") == "GPU":
        merged["device_wide"] = True
    return merged
