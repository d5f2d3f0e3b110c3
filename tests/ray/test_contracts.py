"""Contract tests: the Ray internals that raynb stands on are there and behave as it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
import ray

from raynb._ray import cluster as ray_cluster
from raynb._ray import compat


def test_everything_needed_is_there() -> None:
    assert compat.problems() == []


@pytest.mark.usefixtures("cluster")
def test_a_local_cluster_listens_on_loopback_alone() -> None:
    me = psutil.Process()
    listening = set()
    for process in [me, *me.children(recursive=True)]:
        try:
            for c in process.net_connections("inet"):
                if c.status == psutil.CONN_LISTEN:
                    listening.add(c.laddr.ip)
        except psutil.Error:
            continue
    assert listening, "Ray listens somewhere"
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    # The switch is put back: another cluster started by hand is the user's own business.
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


@pytest.mark.usefixtures("cluster")
def test_a_fixed_cluster_has_no_autoscaling_limits() -> None:
    assert ray_cluster.autoscaling_limits() is None


@pytest.mark.usefixtures("cluster")
def test_connect_finds_this_session() -> None:
    assert ray_cluster.connect() is True
    assert ray.is_initialized()


def test_workers_import_neither_ipython_nor_widgets() -> None:
    code = (
        "import sys, raynb, raynb.worker.runtime, raynb.engine.trainer, raynb._ray.controller;"
        "print([m for m in ('IPython', 'ipywidgets', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.usefixtures("cluster")
def test_a_cluster_of_another_ray_is_refused_in_words() -> None:
    address = ray.get_runtime_context().gcs_address
    code = (
        "import ray; ray.__version__ = '9.9.9'\n"  # what Ray compares with the cluster's
        "from raynb._ray import cluster\n"
        "from raynb.errors import CompatibilityError\n"
        "try: cluster.connect()\n"
        "except CompatibilityError as error: print(error.whole(), ray.is_initialized())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.startswith(f"this kernel can't use the Ray cluster at {address}\n")
    assert "Ray: 9.9.9" in found.stdout and f"Ray: {ray.__version__}" in found.stdout
    assert found.stdout.rstrip().endswith("docs/troubleshooting.md#version-mismatch) False")


#: A kernel that outlives its interrupt, says what the state API tells then, and waits.
INTERRUPTED = """
import os, signal, sys, time
import ray
from ray.util.state import list_nodes
from raynb._ray import cluster
cluster.start_local(num_cpus=1)
nodes = lambda: len(list_nodes(address=ray.get_runtime_context().gcs_address))
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
print(nodes(), flush=True)
sys.stdin.readline()
time.sleep(2)
print(nodes(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray needs the kernel's group")
def test_a_kernels_interrupt_leaves_ray_alone_and_its_end_takes_ray_along() -> None:
    """Jupyter interrupts, and kills, all processes of the kernel's group."""
    without = ("RAY_ADDRESS", "RAY_AUTH_MODE")  # of the cluster of other tests
    kernel = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
        env={k: v for k, v in os.environ.items() if k not in without} | {"RAYNB_SMALL": "0"},
    )  # fmt: skip
    assert kernel.stdin is not None and kernel.stdout is not None
    mine: list[psutil.Process] = []
    try:
        assert kernel.stdout.readline() == "1\n"
        os.killpg(kernel.pid, signal.SIGINT)
        assert kernel.stdout.readline() == "interrupted\n"
        kernel.stdin.write("\n")
        kernel.stdin.flush()
        assert kernel.stdout.readline() == "1\n", "the state API, which is the dashboard's, answers"
        mine = psutil.Process(kernel.pid).children(recursive=True)
        os.killpg(kernel.pid, signal.SIGKILL)
        assert not psutil.wait_procs(mine, timeout=30)[1]
    finally:
        for process in (kernel, *mine):
            try:
                process.kill()
            except psutil.Error:
                continue
        kernel.wait()
        kernel.stdin.close()
        kernel.stdout.close()
