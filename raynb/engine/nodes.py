"""The cluster's nodes: what a run needs of each, and who joins and leaves while it goes on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow.fs as pafs
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raynb._version import __version__
from raynb.engine.preflight import fits
from raynb.engine.spec import RunSpec, filesystem_of
from raynb.errors import CompatibilityError, ResourceError

#: Seconds in which nodes answer; one that does not is let be.
ANSWER_S = 60.0


def on_this_node() -> dict[str, Any]:
    """Options of an actor that runs on this process's node.

    Without a demand, Ray takes any node for an actor that needs no CPU, and for such a one it does
    not hear a wish: the loss of any node would then be the loss of the run, where the ones of its
    workers can be made up for.
    """
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


def check_nodes(spec: RunSpec, *, stores: bool = True) -> None:
    """Check that every other node that workers may come to has raynb, and sees the storage.

    Parameters
    ----------
    spec : RunSpec
        With ``use_gpu`` decided.
    stores : bool
        Whether its storage is known already.

    Raises
    ------
    CompatibilityError, ResourceError
    """
    here = ray.get_runtime_context().get_node_id()
    others = [
        node
        for node in ray.nodes()
        if node["Alive"]
        and node["NodeID"] != here
        and fits(spec.bundle, 1, [node["Resources"]], "PACK")
    ]
    if not others:
        return
    with _marker(spec.storage_path if stores else "") as marker:
        answers = _ask(others, marker)
    odd = {
        node: version for node, (version, _, _) in answers.items() if version != __version__
    }  # fmt: skip
    if odd:
        told = ", ".join(f"{n} has {v or 'none that can be imported'}" for n, v in odd.items())
        why = next((w for n, (_, w, _) in answers.items() if n in odd and w), "")
        raise CompatibilityError(
            f"every node needs raynb {__version__}, as this kernel has it: {told}",
            detail=why,
            hint=f"install it there (pip install raynb=={__version__}) and start Ray on that node "
            "anew",
            topic="raynb-on-every-node",
        )
    blind = [node for node, (_, _, sees) in answers.items() if not sees]
    if blind:
        raise ResourceError(
            f"the storage path {spec.storage_path} is local to this node; "
            f"{', '.join(blind)} can't see it",
            hint="use a path on shared storage (NFS) or a URI such as s3://bucket/path with "
            "--storage-path",
            topic="shared-storage",
        )


@contextmanager
def _marker(storage_path: str) -> Iterator[str | None]:
    """A file on local storage that other nodes should see; None where there is nothing to see."""
    filesystem, root = filesystem_of(storage_path) if storage_path else (None, "")
    if not isinstance(filesystem, pafs.LocalFileSystem):
        yield None
        return
    marker = f"{root}/.raynb-shared-{uuid.uuid4().hex}"
    with open(marker, "w"):
        pass
    try:
        yield marker
    finally:
        os.unlink(marker)


def _ask(
    nodes: Sequence[Mapping[str, Any]], marker: str | None
) -> dict[str, tuple[str | None, str, bool]]:
    """By address: raynb's version or None, why it can't be imported, whether the file is seen."""

    # Pickled by value, as it has to be on a node without raynb.
    def look(path: str | None) -> tuple[str | None, str, bool]:
        import os

        version: str | None = None
        why = ""
        try:
            from raynb._version import __version__ as found

            version = found
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        return version, why, path is None or os.path.exists(path)

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[task.options(scheduling_strategy=there).remote(marker)] = node["NodeManagerAddress"]
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    found = {}
    for ref in answered:
        try:
            found[asked[ref]] = ray.get(ref)
        except ray.exceptions.RayError:  # it has left just now
            continue
    return found


class Roll:
    """Who is there: tells of nodes that join and leave."""

    def __init__(self) -> None:
        self._known = _nodes()

    def news(self, workers: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Events since the last call, text and level.

        Parameters
        ----------
        workers : dict of int to dict
            The workers' rows, to say whose node has left.
        """
        there, known = _nodes(), self._known
        self._known = there
        told = [
            (f"node {_name(known[n])} left the cluster{_ranks(known[n], workers)}", "warn")
            for n in known.keys() - there.keys()
        ]
        for joined in there.keys() - known.keys():
            has = ", ".join(
                f"{there[joined]['Resources'][kind]:g} {kind}"
                for kind in ("CPU", "GPU")
                if there[joined]["Resources"].get(kind)
            )
            text = f"node {_name(there[joined])} joined the cluster"
            told.append((f"{text} with {has}" if has else text, "info"))
        return told


def _nodes() -> dict[str, Mapping[str, Any]]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _ranks(node: Mapping[str, Any], workers: Mapping[int, Mapping[str, Any]]) -> str:
    ranks = [
        str(r) for r, row in sorted(workers.items()) if row["ip"] == node["NodeManagerAddress"]
    ]
    if not ranks:
        return ""
    return f"; rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} ran there"
