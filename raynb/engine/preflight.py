"""Preflight: compares what a run asks for with what the cluster has, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from raynb.engine.spec import RunSpec
from raynb.errors import ResourceError

Resources = Mapping[str, float]
#: Allowance for sums of fractions such as 3 x 0.1.
EPSILON = 1e-9


def local_machine() -> dict[str, float]:
    """What a cluster started on this machine would have: all its CPUs, the GPUs that it shows."""
    return {"CPU": float(os.cpu_count() or 1), "GPU": float(_gpus())}


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([v for v in visible.split(",") if v.strip() and v.strip() != "-1"])
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:
        return 0


def choose_gpu(spec: RunSpec, total: Resources) -> bool:
    """``spec.use_gpu``, or where it is open: GPUs if the cluster has one for each worker."""
    if spec.use_gpu is not None:
        return spec.use_gpu
    wanted = spec.resources_per_worker.get("GPU")
    if wanted is not None:
        return wanted > 0
    return total.get("GPU", 0) >= spec.min_workers > 0


def fits(bundle: Resources, count: int, nodes: Sequence[Resources], strategy: str) -> int:
    """How many of ``count`` equal bundles the nodes can hold, whole bundles on a node.

    Parameters
    ----------
    bundle : dict of str to float
        Resources of one worker.
    count : int
    nodes : sequence of dict
        Each node's resources.
    strategy : str
        Ray's placement strategy: ``STRICT_PACK`` needs one node for all, ``STRICT_SPREAD`` a node
        for each.
    """

    def holds(node: Resources) -> int:
        held = []
        for name, amount in bundle.items():
            have = node.get(name, 0.0)
            if name == "GPU" and 0 < amount < 1:
                # Ray gives a fraction of one GPU, never parts of two.
                held.append(int(have) * int(1 / amount + EPSILON))
            elif amount > 0:
                held.append(int(have / amount + EPSILON))
        return min(held, default=count)

    each = [holds(node) for node in nodes]
    if strategy == "STRICT_PACK":
        return min(count, max(each, default=0))
    if strategy == "STRICT_SPREAD":
        return min(count, sum(1 for n in each if n))
    return min(count, sum(each))


def check_resources(
    spec: RunSpec,
    nodes: Sequence[Resources],
    free: Resources,
    limits: Resources | None = None,
    *,
    where: str = "the cluster",
) -> str:
    """Check that the cluster can hold the worker group.

    Parameters
    ----------
    spec : RunSpec
        With ``use_gpu`` decided.
    nodes : sequence of dict
        Each live node's total resources.
    free : dict
        What is free now, over all nodes.
    limits : dict or None
        What an autoscaling cluster can grow to; None when it can't grow.
    where : str
        What the message calls the place.

    Returns
    -------
    str
        Why the run will have to wait, or an empty string.

    Raises
    ------
    ResourceError
        When the group can never start here: what was asked, what exists, what is free, and an
        option that would work.
    """
    bundle, count = spec.bundle, spec.min_workers
    possible = fits(bundle, count, nodes, spec.placement_strategy)
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.items():
            total[name] = total.get(name, 0.0) + amount
    need = {name: amount * count for name, amount in bundle.items()}
    if possible < count:
        if limits is not None and all(limits.get(k, 0) >= v - EPSILON for k, v in need.items()):
            return f"the cluster has to grow: needs {_list(need)}, has {_list(total, need)}"
        raise ResourceError(
            f"asked for {_request(spec, need)}; {where} has {_list(total, need)} "
            f"({_list(free, need)} free)",
            hint=_way_out(spec, nodes, possible),
        )
    if limits is None:
        _check_room_for_data(spec, need.get("CPU", 0.0), total.get("CPU", 0.0), where)
    short = {k: v for k, v in need.items() if free.get(k, 0.0) < v - EPSILON}
    if short:
        return f"waiting for resources: needs {_list(need)}, free: {_list(free, need)}"
    return ""


def _check_room_for_data(spec: RunSpec, taken: float, total: float, where: str) -> None:
    """Check that the workers leave a CPU to Ray Data: without one, they wait for rows for ever."""
    if not taken or total - taken > EPSILON:
        return
    from ray.data.dataset import MaterializedDataset

    read = [n for n, d in spec.datasets.items() if not isinstance(d, MaterializedDataset)]
    if not read:
        return
    fewer = int((total - 1) / spec.bundle["CPU"] + EPSILON)
    raise ResourceError(
        f"the workers would take all {_list({'CPU': total})} of {where}, and leave none to Ray "
        f"Data, which reads {', '.join(map(repr, sorted(read)))} in tasks of its own",
        hint=f"use -n {fewer}" if fewer >= 1 else "use --resources CPU=0.5, or a larger cluster",
    )


def check_accelerator(
    spec: RunSpec, nodes: Sequence[Resources], limits: Resources | None = None
) -> None:
    """Check that some node has the accelerator type that was asked for.

    Raises
    ------
    ResourceError
        When none has, and the cluster can't grow.
    """
    if spec.accelerator_type is None or limits is not None:
        return
    mark = "accelerator_type:"  # how Ray names a node's type among its resources
    there = sorted({k.removeprefix(mark) for node in nodes for k in node if k.startswith(mark)})
    if spec.accelerator_type not in there:
        raise ResourceError(
            f"asked for accelerators of type {spec.accelerator_type!r}; the cluster has "
            + (", ".join(there) or "none"),
            hint="leave out --accelerator-type" + (f", or use {there[0]}" if there else ""),
        )


def _request(spec: RunSpec, need: Resources) -> str:
    group = f"{spec.min_workers} worker{'s' if spec.min_workers != 1 else ''}"
    placed = f", {spec.placement_strategy}" if spec.placement_strategy.startswith("STRICT") else ""
    return f"{_list(need)} ({group} x {_list(spec.bundle)}{placed})"


def _list(have: Resources, of: Resources | None = None) -> str:
    names = [k for k in (of or have) if (of or have)[k] > 0]
    shown = []
    for name in names:
        amount = have.get(name, 0.0)
        plural = "s" if name in ("CPU", "GPU") and amount != 1 else ""
        shown.append(f"{amount:g} {name}{plural}")
    return ", ".join(shown) or "nothing"


def _way_out(spec: RunSpec, nodes: Sequence[Resources], possible: int) -> str:
    ways = []
    if possible >= 1:
        ways.append(f"-n {possible}")
    # With GPUs among --resources, --no-gpu would contradict them.
    if spec.bundle.get("GPU") and "GPU" not in spec.resources_per_worker:
        cpu_bundle = {"CPU": 1.0, **{k: v for k, v in spec.bundle.items() if k != "GPU"}}
        on_cpu = fits(cpu_bundle, spec.min_workers, nodes, spec.placement_strategy)
        if on_cpu >= 1:
            ways.append("--no-gpu" if on_cpu == spec.min_workers else f"--no-gpu -n {on_cpu}")
    if not ways and any(v > 1 for v in spec.bundle.values()):
        ways.append("less for each worker with --resources")
    loose = fits(spec.bundle, spec.min_workers, nodes, "PACK")
    if spec.placement_strategy.startswith("STRICT") and loose == spec.min_workers:
        ways.append("--placement-strategy PACK")
    return "use " + ", or ".join(ways) if ways else "start a larger cluster, or --local for a try"
