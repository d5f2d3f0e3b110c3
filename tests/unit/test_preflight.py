"""Preflight: what can't start is said with a way out that works; what must wait says why."""

from __future__ import annotations

from typing import Any

import pytest

from raynb.engine.preflight import (
    check_accelerator,
    check_resources,
    choose_gpu,
    fits,
    local_machine,
)
from raynb.engine.spec import RunSpec
from raynb.errors import ResourceError


@pytest.mark.parametrize(
    ("bundle", "count", "nodes", "strategy", "held"),
    [
        ({"CPU": 1}, 4, [{"CPU": 8}], "PACK", 4),
        ({"CPU": 1}, 9, [{"CPU": 8}], "PACK", 8),
        ({"CPU": 3}, 4, [{"CPU": 4}, {"CPU": 4}], "PACK", 2),  # whole bundles on a node
        ({"CPU": 3}, 4, [{"CPU": 4}, {"CPU": 4}], "SPREAD", 2),
        ({"CPU": 1}, 4, [{"CPU": 3}, {"CPU": 2}], "STRICT_PACK", 3),
        ({"CPU": 1}, 4, [{"CPU": 8}, {"CPU": 8}, {"GPU": 1}], "STRICT_SPREAD", 2),
        ({"CPU": 0.1}, 99, [{"CPU": 0.3}], "PACK", 3),
        ({"CPU": 0.5, "GPU": 0.5}, 99, [{"CPU": 4, "GPU": 2}], "PACK", 4),
        ({"GPU": 0.6}, 99, [{"GPU": 2}], "PACK", 2),  # a share of one GPU, not of two
        ({"GPU": 0.1}, 99, [{"GPU": 2}], "PACK", 20),
        ({"GPU": 2}, 3, [{"GPU": 3}, {"GPU": 4}], "PACK", 3),
        ({"CPU": 1, "special": 0.001}, 4, [{"CPU": 8}], "PACK", 0),
        ({"CPU": 0}, 4, [{}], "PACK", 4),
        ({"CPU": 1}, 4, [], "PACK", 0),
        ({"CPU": 1}, 4, [], "STRICT_PACK", 0),
    ],
)
def test_fits(
    bundle: dict[str, float], count: int, nodes: list[Any], strategy: str, held: int
) -> None:
    assert fits(bundle, count, nodes, strategy) == held


def refusal(spec: RunSpec, nodes: list[Any], free: Any = None, **more: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        check_resources(spec, nodes, nodes[0] if free is None else free, **more)
    return str(caught.value)


def test_eight_gpus_where_there_is_one() -> None:
    assert refusal(RunSpec(num_workers=8, use_gpu=True), [{"CPU": 16, "GPU": 1}]) == (
        "asked for 8 GPUs (8 workers x 1 GPU); the cluster has 1 GPU (1 GPU free)\n"
        "Way out: use -n 1, or --no-gpu"
    )


def test_eight_gpus_where_there_is_none() -> None:
    assert refusal(RunSpec(num_workers=8, use_gpu=True), [{"CPU": 2}]) == (
        "asked for 8 GPUs (8 workers x 1 GPU); the cluster has 0 GPUs (0 GPUs free)\n"
        "Way out: use --no-gpu -n 2"
    )


def test_64_workers_on_two_cpus() -> None:
    spec = RunSpec(num_workers=64, use_gpu=False)
    assert refusal(spec, [{"CPU": 2}], {"CPU": 1}, where="this machine") == (
        "asked for 64 CPUs (64 workers x 1 CPU); this machine has 2 CPUs (1 CPU free)\n"
        "Way out: use -n 2"
    )


@pytest.mark.parametrize(
    ("options", "nodes", "way_out"),
    [
        (
            {"num_workers": 2, "resources_per_worker": {"CPU": 4}},
            [{"CPU": 2}],
            "use less for each worker with --resources",
        ),
        (
            {"num_workers": 3, "placement_strategy": "STRICT_PACK"},
            [{"CPU": 2}, {"CPU": 2}],
            "use -n 2, or --placement-strategy PACK",
        ),
        (  # PACK would not help here
            {"num_workers": 64, "placement_strategy": "STRICT_PACK"},
            [{"CPU": 2}],
            "use -n 2",
        ),
        (
            {"num_workers": 1, "resources_per_worker": {"special": 1}},
            [{"CPU": 2}],
            "start a larger cluster, or --local for a try",
        ),
        (  # --no-gpu would contradict the resources
            {"num_workers": 2, "resources_per_worker": {"GPU": 1}, "use_gpu": True},
            [{"CPU": 2}],
            "start a larger cluster, or --local for a try",
        ),
        (  # without its GPU, a worker still needs a CPU
            {"num_workers": 4, "resources_per_worker": {"disk": 1}, "use_gpu": True},
            [{"CPU": 2, "disk": 8}],
            "use --no-gpu -n 2",
        ),
    ],
)
def test_the_way_out_works(options: dict[str, Any], nodes: list[Any], way_out: str) -> None:
    assert refusal(RunSpec(**options), nodes).endswith(f"Way out: {way_out}")


def test_strict_placement_is_named() -> None:
    spec = RunSpec(num_workers=3, placement_strategy="STRICT_SPREAD")
    assert "(3 workers x 1 CPU, STRICT_SPREAD)" in refusal(spec, [{"CPU": 8}])


def test_no_node_at_all() -> None:
    assert "has 0 CPUs (0 CPUs free)" in refusal(RunSpec(num_workers=1), [], {})


def test_a_cluster_that_grows_is_waited_for() -> None:
    spec, nodes = RunSpec(num_workers=8, use_gpu=True), [{"CPU": 4}]
    assert check_resources(spec, nodes, {"CPU": 4}, {"CPU": 64, "GPU": 8}) == (
        "the cluster has to grow: needs 8 GPUs, has 0 GPUs"
    )
    assert "asked for 8 GPUs" in refusal(spec, nodes, {"CPU": 4}, limits={"CPU": 64, "GPU": 4})


def test_a_busy_cluster_is_waited_for() -> None:
    spec = RunSpec(num_workers=4)
    assert check_resources(spec, [{"CPU": 4}], {"CPU": 1}) == (
        "waiting for resources: needs 4 CPUs, free: 1 CPU"
    )
    assert check_resources(spec, [{"CPU": 4}], {"CPU": 4}) == ""
    # 3 x 0.1 is a little more than 0.3
    tenths = RunSpec(num_workers=3, resources_per_worker={"CPU": 0.1})
    assert check_resources(tenths, [{"CPU": 0.3}], {"CPU": 0.3}) == ""


def test_an_elastic_group_needs_its_least() -> None:
    assert check_resources(RunSpec(num_workers=(2, 99)), [{"CPU": 2}], {"CPU": 2}) == ""


@pytest.mark.parametrize(
    ("options", "total", "gpu"),
    [
        ({"num_workers": 2}, {"GPU": 2}, True),
        ({"num_workers": 2}, {"GPU": 1}, False),
        ({"num_workers": 2}, {}, False),
        ({"num_workers": (1, 8)}, {"GPU": 1}, True),
        ({"num_workers": 0}, {"GPU": 1}, False),
        ({"num_workers": 2, "use_gpu": True}, {}, True),
        ({"num_workers": 2, "use_gpu": False}, {"GPU": 8}, False),
        ({"num_workers": 2, "resources_per_worker": {"GPU": 0.5}}, {"GPU": 1}, True),
        ({"num_workers": 2, "resources_per_worker": {"GPU": 0}}, {"GPU": 8}, False),
    ],
)
def test_choose_gpu(options: dict[str, Any], total: dict[str, float], gpu: bool) -> None:
    assert choose_gpu(RunSpec(**options), total) is gpu


@pytest.mark.parametrize(("visible", "gpus"), [("", 0), ("-1", 0), ("0", 1), ("0, GPU-ab", 2)])
def test_local_machine(monkeypatch: pytest.MonkeyPatch, visible: str, gpus: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = local_machine()
    assert machine["GPU"] == gpus and machine["CPU"] >= 1


def test_an_accelerator_type_that_no_node_has() -> None:
    nodes = [{"CPU": 4.0, "GPU": 1.0, "accelerator_type:T4": 1.0}, {"CPU": 4.0}]
    spec = RunSpec(accelerator_type="A100", use_gpu=True)
    with pytest.raises(ResourceError, match="'A100'; the cluster has T4") as found:
        check_accelerator(spec, nodes)
    assert "or use T4" in str(found.value)
    with pytest.raises(ResourceError, match="the cluster has none"):
        check_accelerator(spec, [{"CPU": 2.0}])
    check_accelerator(spec, [{"CPU": 2.0}], limits={"GPU": 8.0})  # it may grow
    check_accelerator(RunSpec(accelerator_type="T4"), nodes)


def test_workers_leave_a_cpu_to_ray_data() -> None:
    class Rows:
        """Stands for a dataset that is not read yet."""

    spec = RunSpec(num_workers=2, use_gpu=False, datasets={"train": Rows()})
    assert refusal(spec, [{"CPU": 2}], where="this machine") == (
        "the workers would take all 2 CPUs of this machine, and leave none to Ray Data, which "
        "reads 'train' in tasks of its own\nWay out: use -n 1"
    )
    alone = RunSpec(num_workers=1, use_gpu=False, datasets={"train": Rows()})
    assert "--resources CPU=0.5" in refusal(alone, [{"CPU": 1}])
    assert check_resources(spec, [{"CPU": 3}], {"CPU": 3}) == ""
    assert check_resources(spec, [{"CPU": 2}], {"CPU": 2}, limits={"CPU": 8}) == ""
    assert check_resources(RunSpec(num_workers=2, use_gpu=False), [{"CPU": 2}], {"CPU": 2}) == ""


def test_nodes_that_come_and_go_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from raynb.engine import nodes

    def node(host: str, **resources: float) -> dict[str, Any]:
        return {
            "NodeManagerHostname": host,
            "NodeManagerAddress": f"10.0.0.{host[-1]}",
            "Resources": resources,
        }

    there = {"a": node("node-1", CPU=4.0), "b": node("node-2", CPU=4.0)}
    monkeypatch.setattr(nodes, "_nodes", lambda: dict(there))
    roll = nodes.Roll()
    workers = {0: {"ip": "10.0.0.1"}, 1: {"ip": "10.0.0.2"}, 2: {"ip": "10.0.0.2"}}
    assert roll.news(workers) == []
    del there["b"]
    there["c"] = node("node-3", CPU=8.0, GPU=2.0)
    there["d"] = node("node-4")
    told = roll.news(workers)
    assert told[0] == ("node node-2 (10.0.0.2) left the cluster; ranks 1, 2 ran there", "warn")
    assert sorted(told[1:]) == [
        ("node node-3 (10.0.0.3) joined the cluster with 8 CPU, 2 GPU", "info"),
        ("node node-4 (10.0.0.4) joined the cluster", "info"),
    ]
    assert roll.news(workers) == []
