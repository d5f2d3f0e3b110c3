"""Ray clusters: find the one there is, or start a local one that listens on loopback alone."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import ray
import ray._private.authentication.authentication_token_setup as authentication
import ray._private.ray_constants as ray_constants
import ray._private.services as ray_services
import ray._private.state as ray_state
import ray._private.utils as ray_utils

from raynb.cgroups import cgroup_memory
from raynb.errors import CompatibilityError, ResourceError

#: Stands on the path of a local cluster's processes, before what is slow to import and not used.
LAZY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lazy")

#: Bytes of memory below which a machine is small: Ray and two workers take about half of it.
_SMALL_BYTES = 4 * 10**9
#: Bytes of the smallest object store that Ray starts.
_LEAST_STORE = 75 * 2**20
#: Marks the processes of a local cluster of a small machine.
_SMALL_LOCAL = "RAYNB_SMALL_LOCAL"


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables for the time of the block."""
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Make a Ray that starts inside the block bind its servers to 127.0.0.1.

    Reason for the internals: ``ray.init`` has no option for it. On Linux it takes the address of
    the network card and its gRPC servers listen on every interface; the switch that makes macOS
    and Windows stay on loopback is read from this constant, and by Ray's own processes from the
    environment variable.
    """
    saved = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment(**{ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = saved


_leaving = threading.Lock()
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


def connect() -> bool:
    """Connect to the Ray there is: this process's session, ``RAY_ADDRESS``, or ``ray start``'s.

    A local cluster that another process started for itself is left alone: it ends with that
    process. Ray's own search for an address finds those too, and hangs on one that listens on
    loopback; hence its record of the last ``ray start`` is read here, an internal of Ray. The
    cluster of :mod:`raynb._ray.head` comes before it.

    Returns
    -------
    bool
        False when there is none.

    Raises
    ------
    ResourceError
        When ``RAY_ADDRESS`` names a cluster that does not answer.
    CompatibilityError
        When the cluster runs other versions of Ray or Python.
    """
    if ray.is_initialized() and not leave_if_gone():
        return True
    given = os.environ.get("RAY_ADDRESS", "")
    if given == "local":
        return False
    address = given if given not in ("", "auto") else _started()
    if not address:
        return False
    if not answers(address):
        if address != given:
            return False  # the record of a cluster that is gone
        raise ResourceError(
            f"RAY_ADDRESS is {address!r}, and nothing answers there",
            hint="start that cluster, or unset RAY_ADDRESS to let raynb start a local one",
            topic="cluster-unreachable",
        )
    connect_to(address, found=address != given)
    return True


def connect_to(address: str, *, found: bool) -> None:
    """Connect to the cluster at ``host:port``, if this process is connected to none yet.

    Reason for the internal: where it was ``found``, and not named by the user, Ray would switch its
    token authentication on if there is a token; for an address that it is given it does not.
    """
    if ray.is_initialized():
        return
    if found:
        logging.getLogger(authentication.__name__).setLevel(logging.ERROR)  # one that says it is on
        authentication.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    host = address.rpartition(":")[0]
    here = _loopback() if host in ("127.0.0.1", "localhost", "[::1]") else contextlib.nullcontext()
    with here:
        try:
            ray.init(address=address, **_QUIET)
        except RuntimeError as error:
            if not str(error).startswith("Version mismatch"):
                raise
            ray.shutdown()  # Ray looks at the versions when it is connected already
            raise CompatibilityError(
                f"this kernel can't use the Ray cluster at {address}",
                detail=str(error).strip(),
                hint="use the cluster's Ray and Python versions in the kernel, or unset "
                "RAY_ADDRESS and end that cluster",
            ) from None


def _started() -> str | None:
    """The address of a cluster that was started on this machine to stay."""
    from raynb._ray import head

    own = head.find()
    if own is not None:
        return own.address
    address: str | None = ray_utils.read_ray_address()
    return address


def answers(address: str) -> bool:
    """Whether something listens at ``host:port``; a ``ray://`` address is Ray's to judge."""
    if "://" in address:
        return True
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return True
    except (OSError, ValueError):
        return False


def leave_if_gone() -> str | None:
    """Disconnect from a cluster whose head is gone; gives its address then.

    Ray waits a minute for the head to come back, and may then end the process, a kernel too.
    """
    with _leaving:
        if not ray.is_initialized():
            return None
        try:
            address: str = ray.get_runtime_context().gcs_address
        except Exception:  # a connection of another kind
            return None
        # Asked twice: a head that is only busy must not lose this kernel.
        for pause in (0.0, 1.0):
            time.sleep(pause)
            if answers(address):
                return None
        ray.shutdown()
        return address


def faster_imports() -> dict[str, str]:
    """Environment in which Ray's processes import faster; see :data:`LAZY`."""
    path = os.environ.get("PYTHONPATH", "")
    if LAZY in path.split(os.pathsep):
        return {"PYTHONPATH": path}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [LAZY, path]))}


def is_one_machine() -> bool:
    """Whether the cluster is one node and will stay so."""
    return len([n for n in ray.nodes() if n["Alive"]]) == 1 and autoscaling_limits() is None


def start_local(**options: Any) -> None:
    """Start a local cluster that ends with this process.

    On a small machine it is one for two workers: without the dashboard, whose processes take 600
    MB, with the smallest object store that Ray has.

    Parameters
    ----------
    **options
        For ``ray.init``, such as ``num_cpus``.
    """
    # Ray Train cleans up after a controller that died through the state API, which is part of the
    # dashboard: without it the placement group would stay until the cluster ends.
    settings: dict[str, Any] = {"include_dashboard": True}
    env = faster_imports()
    if is_small_machine():
        settings = {"include_dashboard": False, "object_store_memory": _LEAST_STORE, "num_cpus": 2}
        env[_SMALL_LOCAL] = "1"
    with _loopback(), _environment(**env), _dashboard_apart():
        ray.init(address="local", **{**settings, **options}, **_QUIET)


@contextlib.contextmanager
def _dashboard_apart() -> Iterator[None]:
    """Start the dashboard in a process group of its own.

    Reason for the internals: Jupyter sends an interrupt to all processes of the kernel's group, as
    a terminal does. Ray holds it off from a node's main processes, not from those that its
    dashboard starts: the first interrupt would end them, and with them the state API, for which a
    controller that is stopped then waits in vain. No option of ``ray.init`` helps. Elsewhere than
    on Linux it is by their group that Ray ends the processes of a dead driver.
    """
    if sys.platform != "linux":
        yield
        return
    original = ray_services.ConsolePopen

    def popen(command: Sequence[str], **kwargs: Any) -> Any:
        if any(os.path.basename(part) == "dashboard.py" for part in command):
            kwargs["process_group"] = 0
        return original(command, **kwargs)

    ray_services.ConsolePopen = popen
    try:
        yield
    finally:
        ray_services.ConsolePopen = original


def is_small_machine() -> bool:
    """Whether this machine, or what its container leaves of it, is one like Binder's.

    ``RAYNB_SMALL=1`` and ``RAYNB_SMALL=0`` in the environment decide it otherwise.
    """
    asked = os.environ.get("RAYNB_SMALL", "")
    if asked:
        return asked != "0"
    limit = cgroup_memory()
    total = psutil.virtual_memory().total
    return min(total, limit[0] if limit else total) < _SMALL_BYTES


def is_small_local() -> bool:
    """Whether this is a process of a cluster that was started on a small machine."""
    return os.environ.get(_SMALL_LOCAL) == "1"


def autoscaling_limits() -> dict[str, float] | None:
    """What the cluster can grow to, by resource; None when it does not autoscale.

    Reason for the internals: the public ``cluster_resources`` tells what is there now, and
    pending on a cluster that can grow is right while pending on one that can't is a hang.
    """
    limits: dict[str, float] | None = ray_state.state.get_max_resources_from_cluster_config()
    return limits or None
