"""Runs and clusters from outside a run: what ``%raynb`` and the ``raynb`` command share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raynb.errors import OptionError, RaynbError
from raynb.troubleshooting import contents, section

if TYPE_CHECKING:
    from raynb._ray.head import Head

# What imports Ray is imported where it is used: loading the extension takes no seconds then.

#: Seconds that a stopped run gets to end.
STOP_S = 30.0
#: Takes the parsed line; gives what is to be shown, or None.
Command = Callable[[argparse.Namespace], object]


def add_commands(commands: Any) -> None:
    """Add the commands to what ``ArgumentParser.add_subparsers`` returned.

    Each sets ``run`` to a :data:`Command`.
    """
    runs = commands.add_parser("runs", help="list the runs that go on, and those on storage")
    runs.add_argument("storage", nargs="?", metavar="PATH", help="default: where runs go")
    runs.set_defaults(run=show_runs)

    attach = commands.add_parser("attach", help="watch a run that was started elsewhere")
    attach.add_argument("name", nargs="?", metavar="NAME", help="default: the only one")
    attach.add_argument("-o", "--out", metavar="VAR", default="run", help=argparse.SUPPRESS)
    attach.set_defaults(run=attach_to)

    stop = commands.add_parser("stop", help="stop a run, wherever it was started")
    stop.add_argument("name", nargs="?", metavar="NAME", help="default: the only one")
    stop.set_defaults(run=stop_run)

    explain = commands.add_parser("help", help="what to do about an error, by the topic it names")
    explain.add_argument("topic", nargs="?", metavar="TOPIC", help="default: list them")
    explain.set_defaults(run=show_help)

    cluster = commands.add_parser("cluster", help="a local cluster that outlives kernels")
    actions = cluster.add_subparsers(dest="action", metavar="up|down|status", required=True)
    up = actions.add_parser("up", help="start it")
    up.add_argument("--num-cpus", type=int, metavar="N", help="default: the machine's")
    up.add_argument("--num-gpus", type=int, metavar="N", help="default: the machine's")
    up.set_defaults(run=cluster_up)
    down = actions.add_parser("down", help="end it")
    down.add_argument("--force", action="store_true", help="with the runs that go on there")
    down.set_defaults(run=cluster_down)
    status = actions.add_parser("status", help="what it has, and what runs there")
    status.set_defaults(run=cluster_status)


# -- runs ----------------------------------------------------------------------------------------


def show_runs(args: argparse.Namespace) -> object:
    """Print the live runs, if there is a cluster, and give the table of those on storage."""
    from raynb._ray import cluster
    from raynb.engine.run import live_runs
    from raynb.results.runs import runs

    names = live_runs() if cluster.connect() else []
    if names:
        print(f"going on (%raynb attach NAME): {', '.join(names)}")
    return runs(args.storage).with_live(names)


def attach_to(args: argparse.Namespace) -> Any:
    """The handle of a live run, with its panel shown."""
    from raynb.api_attach import attach

    return attach(args.name)


def stop_run(args: argparse.Namespace) -> object:
    """Stop a live run and wait for its end."""
    from raynb.api_attach import attach

    run = attach(args.name, show=False)
    run.stop(STOP_S)
    if not run.done:
        raise RaynbError(
            f"{run.name} has not ended within {STOP_S:g} s of being stopped: {run.state}",
            hint=f"%raynb attach {run.name} shows where it stands; `raynb cluster down --force` "
            "ends it with all else on raynb's own cluster",
        )
    return f"{run.name}: {run.state}"


def show_help(args: argparse.Namespace) -> object:
    """A section of the troubleshooting page, or the list of them."""
    return contents() if args.topic is None else section(args.topic)


# -- clusters ------------------------------------------------------------------------------------


def cluster_up(args: argparse.Namespace) -> object:
    """Start a cluster that stays."""
    import ray

    from raynb._ray import head

    for number, least, what in ((args.num_cpus, 1, "CPUs"), (args.num_gpus, 0, "GPUs")):
        if number is not None and number < least:
            raise OptionError(f"a cluster can't have {number} {what}")
    if ray.is_initialized():
        raise OptionError(
            "this process is connected to a cluster already",
            hint="ray.shutdown() leaves it, and ends it where it was started for this kernel",
        )
    found = head.up(args.num_cpus, args.num_gpus)
    return (
        f"a cluster is up at {found.address}: kernels on this machine find it, and runs on it "
        "outlive them; `raynb cluster down` ends it"
    )


def cluster_down(args: argparse.Namespace) -> object:
    """End the cluster; asks for ``--force`` while runs go on there."""
    import ray

    from raynb._ray import head

    found = _head()
    if not args.force:
        names = _runs_on(found)
        if names:
            raise OptionError(
                f"runs go on there: {', '.join(names)}",
                hint="`raynb stop NAME` ends one; `raynb cluster down --force` ends all with it",
            )
    # Asking has connected this process, too: Ray ends one whose cluster goes with status 1.
    if ray.is_initialized() and ray.get_runtime_context().gcs_address == found.address:
        ray.shutdown()
    head.down(found)
    return f"the cluster at {found.address} is down"


def cluster_status(args: argparse.Namespace) -> object:
    """What the cluster has, and what runs there."""
    import ray

    from raynb._ray import head

    found = head.find()
    if found is None:
        return "no cluster of raynb is up; `raynb cluster up` starts one"
    names = _runs_on(found)
    hours = (time.time() - found.created) / 3600
    lines = [f"up at {found.address} for {hours:.1f} h (process {found.pid}, log {found.log})"]
    total, free = ray.cluster_resources(), ray.available_resources()
    lines += [
        f"{kind}: {free.get(kind, 0):g} of {total[kind]:g} free"
        for kind in ("CPU", "GPU")
        if kind in total
    ]
    lines.append(f"runs that go on: {', '.join(names) if names else 'none'}")
    return "\n".join(lines)


def _head() -> Head:
    from raynb._ray import head

    found = head.find()
    if found is None:
        raise OptionError(
            "no cluster of raynb is up",
            hint="one that was started otherwise ends as it was started, by `ray stop` for one",
            topic="no-cluster-that-stays",
        )
    return found


def _runs_on(found: Head) -> list[str]:
    """The runs on raynb's own cluster; connects to it."""
    import ray

    from raynb._ray import cluster
    from raynb.engine.run import live_runs

    if ray.is_initialized() and ray.get_runtime_context().gcs_address != found.address:
        raise OptionError(
            f"this process is connected to another cluster than raynb's at {found.address}",
            hint="ask in a terminal, with `raynb cluster`",
        )
    cluster.connect_to(found.address, found=True)
    return live_runs()
