"""A local cluster that outlives kernels: the head that ``ray start`` runs, kept by its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import ray._private.ray_constants as ray_constants
import ray._private.utils as ray_utils
from ray._common.utils import reset_ray_address

from raynb._ray.cluster import answers, faster_imports
from raynb.errors import ResourceError
from raynb.processes import left, runs

#: Seconds in which a cluster has to be there, and to be gone.
UP_S, DOWN_S = 120.0, 30.0
#: Seconds that a process gets between being asked to end and being killed.
_GRACE_S = 10.0


@dataclass(frozen=True)
class Head:
    """A cluster that raynb started to stay.

    Attributes
    ----------
    pid : int
        Of ``ray start``, which ends all of the cluster when it ends.
    created : float
        When that process began, UNIX seconds: a later process may have got its number.
    address : str
        ``host:port``, as ``ray.init(address=…)`` takes it.
    log : str
        The file with what it says.
    """

    pid: int
    created: float
    address: str
    log: str


def find() -> Head | None:
    """The cluster that :func:`up` has started and that is still there."""
    try:
        head = Head(**json.loads(_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, ResourceError):
        return None
    return head if _process(head) is not None else None


def up(num_cpus: int | None = None, num_gpus: int | None = None) -> Head:
    """Start a local cluster that stays until :func:`down`.

    Parameters
    ----------
    num_cpus, num_gpus : int, optional
        What it has; by default what the machine has.

    Raises
    ------
    ResourceError
        When there is one already, or it does not start.
    """
    there = find()
    if there is not None:
        raise ResourceError(
            f"a cluster of raynb is up already, at {there.address}",
            hint="use it as it is, or end it first with `raynb cluster down`",
            topic="no-cluster-that-stays",
        )
    address = f"127.0.0.1:{_free_port()}"
    log = _directory() / "cluster.log"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
               "--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}",
               "--include-dashboard=true", "--dashboard-host=127.0.0.1",
               f"--dashboard-port={_free_port()}", "--disable-usage-stats"]  # fmt: skip
    command += [f"--num-cpus={num_cpus}"] if num_cpus is not None else []
    command += [f"--num-gpus={num_gpus}"] if num_gpus is not None else []
    # Reason for the internals: as in `cluster`, else Ray's servers listen on every interface.
    env = {
        **os.environ,
        **faster_imports(),
        ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    env.pop("RAY_ADDRESS", None)  # Ray would warn, and start another one all the same
    _use_token(env)
    with log.open("wb") as file:
        # A session of its own: neither Ctrl-C nor the kernel's end reach it.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    try:
        created = psutil.Process(process.pid).create_time()
        _wait_for(process, address, log)
    except BaseException:
        with contextlib.suppress(psutil.Error):
            _end(psutil.Process(process.pid))
        raise
    head = Head(process.pid, created, address, str(log))
    aside = _file().with_suffix(".tmp")
    aside.write_text(json.dumps(asdict(head)), encoding="utf-8")
    aside.replace(_file())
    return head


def down(head: Head) -> None:
    """End a cluster with all that runs on it; raises ResourceError when something stays."""
    process = _process(head)
    alive = [] if process is None else _end(process)
    if alive:
        raise ResourceError(
            f"processes of the cluster are left: {', '.join(str(p.pid) for p in alive)}",
            hint="end them by these numbers",
        )
    _file().unlink(missing_ok=True)
    # What Ray notes of its latest `ray start` would lead everybody to a cluster that is gone.
    if ray_utils.read_ray_address() == head.address:
        reset_ray_address()


def _use_token(env: dict[str, str]) -> None:
    """Switch Ray's token authentication on, as ``ray.init`` does for a cluster that it starts.

    ``ray start`` does so only where there is a token already. A mode that the user set stays.
    """
    if env.setdefault("RAY_AUTH_MODE", "token") != "token":
        return
    # Prints the token there is, or makes one.
    command = [sys.executable, "-m", "ray.scripts.scripts", "get-auth-token", "--generate"]
    made = subprocess.run(command, env=env, capture_output=True, text=True)
    if made.returncode:
        raise ResourceError(
            "Ray has no authentication token, and can't make one",
            detail=made.stderr.strip()[-2_000:],
            topic="no-cluster-that-stays",
        )


def _wait_for(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + UP_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        # `ray start` says so last, when all of its processes are there.
        if "block forever" in log.read_text(errors="replace") and answers(address):
            return
        time.sleep(0.2)
    text = log.read_text(errors="replace").strip()
    raise ResourceError(
        "the cluster did not start"
        + (f": ray start ended with status {process.returncode}" if process.returncode else ""),
        detail="\n".join(text.splitlines()[-8:]),
        hint=f"the whole output is in {log}; `raynb doctor` looks for causes",
        topic="no-cluster-that-stays",
    )


def _end(process: psutil.Process) -> list[psutil.Process]:
    """End ``ray start`` and all that it has started; gives what stays."""
    mine = [process, *process.children(recursive=True)]
    process.terminate()
    for still in left(mine, _GRACE_S):
        with contextlib.suppress(psutil.Error):
            still.kill()
    return left(mine, DOWN_S)


def _process(head: Head) -> psutil.Process | None:
    try:
        process = psutil.Process(head.pid)
        same = abs(process.create_time() - head.created) < 1.0
        return process if same and runs(process) else None
    except psutil.Error:
        return None


def _directory() -> Path:
    """A directory of this user's alone."""
    path = Path(tempfile.gettempdir()) / f"raynb-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ResourceError(
            f"{path} belongs to another user", hint="set TMPDIR to a directory of your own"
        )
    return path


def _file() -> Path:
    return _directory() / "cluster.json"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
