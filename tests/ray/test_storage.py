"""Runs on storage: a real S3 server on loopback, retention, and a kernel that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.fs as pafs
import pytest
import torch

import raynb
from raynb.errors import ResourceError, StorageError

#: Accuracies whose two best are neither the first nor the last two.
ACCURACIES = (0.5, 0.9, 0.7, 0.6, 0.8)
#: The same with a last one that Ray keeps beside the two best, for being the latest.
LAST_IS_WORSE = (0.5, 0.9, 0.7, 0.8, 0.6)
CELL = textwrap.dedent(
    """
    import os, tempfile, torch, ray.train
    rank = ray.train.get_context().get_world_rank()
    for epoch, accuracy in enumerate(config["accuracies"]):
        for _ in range(3):
            raynb.log({"loss": 1 / (1 + epoch) + rank})
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, accuracy)
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
            ray.train.report(
                {"accuracy": accuracy, "epoch": epoch},
                checkpoint=ray.train.Checkpoint.from_directory(directory) if rank == 0 else None,
            )
    """
).strip()
OPTIONS = "--config config --num-to-keep 2 --best accuracy:max"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server of this test's own with a bucket; its address as host and port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    at = f"endpoint_override={host}:{port}&scheme=http"
    files, _ = pafs.FileSystem.from_uri(f"s3://key:secret@bucket?{at}&allow_bucket_creation=true")
    files.create_dir("bucket")
    yield f"{host}:{port}"
    # What moto keeps is the process's, not the server's: the next one would find these buckets.
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    server.stop()


@pytest.mark.usefixtures("cluster")
def test_train_list_load_and_compare_on_s3(notebook: Any, s3: str) -> None:
    address = f"s3://key:secret@bucket/runs?endpoint_override={s3}&scheme=http"
    notebook.run(f"import raynb\nconfig = {{'accuracies': {ACCURACIES}}}")
    notebook.run(
        f'%%distributed_train -n 2 --name one --storage-path "{address}" {OPTIONS}\n{CELL}'
    )
    notebook.run(
        f'%%distributed_train --local --name "zwei Läufe" --storage-path "{address}" {OPTIONS}\n'
        + CELL
    )
    result = notebook["result"]

    # The kernel is another one: nothing but the address and the environment's keys.
    code = """
        import json, sys, torch, raynb
        runs = raynb.runs("s3://bucket/runs")
        print(json.dumps(sorted(runs)))
        one, two = runs["one"], runs["zwei Läufe"]
        exec(two.checkpoints["code"][0])
        print(one.history.to_json())
        print(one.checkpoints.drop(columns="code").to_json())
        model = torch.nn.Linear(3, 2)
        assert one.load(into=model) is model
        print(model.weight[0, 0].item())
        exec(one.checkpoints["code"][0])
        print(weights["weight"][0, 0].item())
        both = raynb.compare(one, "s3://bucket/runs/zwei Läufe")
        print(json.dumps(both.options.to_dict()), sorted(both._repr_mimebundle_()))
        print(repr(one), one._repr_mimebundle_()["text/html"])
    """
    temporary = notebook.directory / "tmp"
    temporary.mkdir()
    env = {**os.environ, "AWS_ENDPOINT_URL": f"http://{s3}", "AWS_ACCESS_KEY_ID": "key",
           "AWS_SECRET_ACCESS_KEY": "secret", "TMPDIR": str(temporary)}  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True,
        timeout=120, cwd=notebook.directory,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr[-4000:]
    names, history, checkpoints, best, first, compared, *shown = said.stdout.splitlines()
    assert json.loads(names) == ["one", "zwei Läufe"]
    here = raynb.runs(address)["one"]
    assert history == here.history.to_json() and len(here.history) == 2 * 5 * 4
    assert checkpoints == here.checkpoints.drop(columns="code").to_json()
    assert sorted(here.checkpoints["accuracy"]) == [0.8, 0.9]
    assert here.checkpoints.set_index("accuracy")["step"].to_dict() == {0.8: 14, 0.9: 5}
    assert (float(best), float(first)) == pytest.approx(
        (0.9, 0.9 if here.checkpoints["best"][0] else 0.8)
    )
    assert '"num_workers"' in compared and "image/png" in compared
    assert "secret" not in said.stdout and "s3://bucket/runs/one" in "".join(shown)

    # The result of the cell that trained is the same, and so are the files that Ray kept.
    assert result.uri == address.replace("runs?", "runs/zwei Läufe?")
    files, path = pafs.FileSystem.from_uri(address)
    kept = files.get_file_info(pafs.FileSelector(f"{path}/one"))
    kept_names = sorted(i.base_name for i in kept if i.base_name.startswith("checkpoint_2"))
    assert kept_names == sorted(here.checkpoints["name"])
    left = [p for p in temporary.rglob("*") if p.suffix == ".pt"]
    assert not left, "temporary copies are left"

    record = files.open_input_stream(f"{path}/one/raynb/record.json").read()
    assert b"secret" not in record
    logs = files.get_file_info(pafs.FileSelector(f"{path}/one/raynb/logs"))
    assert {i.base_name for i in logs} == {"rank-00000.log", "rank-00001.log"}


def test_a_scheme_that_only_fsspec_knows(notebook: Any) -> None:
    """``memory://`` lives in one process, so the run is a local one."""
    notebook.run("import raynb\nconfig = {'accuracies': [0.5, 0.9]}")
    cell = f"%%distributed_train --local --name one --storage-path memory://fs {OPTIONS}\n{CELL}"
    notebook.run(cell)
    result = notebook["result"]
    again = raynb.runs("memory://fs")["one"]
    pd.testing.assert_frame_equal(again.history, result.history)
    assert len(again.history) == 2 * 4
    assert result.load()["weight"][0, 0].item() == pytest.approx(0.9)


def test_s3_that_cant_be_reached_is_one_clear_error(s3: str) -> None:
    closed = "s3://key:secret@bucket/runs/x?endpoint_override=127.0.0.1:9&scheme=http"
    missing = f"s3://key:secret@nobucket/runs/x?endpoint_override={s3}&scheme=http"
    for ask, address, said in (
        (raynb.open, closed, "can't be read"),
        (raynb.runs, closed, "can't be read"),
        (raynb.open, missing, "nothing at s3://nobucket/runs/x"),
        (raynb.runs, missing, "bucket does not exist"),
    ):
        began = time.monotonic()
        with pytest.raises(StorageError, match=said) as found:
            ask(address)
        assert "key:secret" not in str(found.value)
        assert time.monotonic() - began < 30


class Kernel:
    """A real kernel of its own."""

    def __init__(self, directory: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=str(directory), startup_timeout=60)

    def run(self, code: str) -> str:
        """Run a cell and give what it printed."""
        said: list[str] = []

        def hook(message: Any) -> None:
            content = message["content"]
            said.append(content.get("text", ""))
            if message["msg_type"] == "error":
                said.append("\n".join(content["traceback"]))

        reply = self.client.execute_interactive(code, timeout=200, output_hook=hook)
        assert reply["content"]["status"] == "ok", "".join(said)
        return "".join(said)

    def kill(self) -> None:
        os.kill(self.manager.provisioner.process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def test_after_the_kernel_was_killed_a_new_one_shows_the_same(tmp_path: Path) -> None:
    tell = (
        "from pathlib import Path\n"
        "result.history.to_parquet(Path({0!r}) / 'history.parquet')\n"
        "result.checkpoints.to_json(Path({0!r}) / 'checkpoints.json')\n"
        "result.metrics_dataframe.to_json(Path({0!r}) / 'metrics.json')\n"
        "print(result.name, result.state, result.duration, result.num_workers, result.path)\n"
        "print(result.checkpoint.path, result.metrics)"
    )
    said = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        kernel = Kernel(tmp_path)
        try:
            if k == 0:
                kernel.run(
                    f"%load_ext raynb\nimport raynb\nconfig = {{'accuracies': {LAST_IS_WORSE}}}"
                )
                kernel.run(
                    f"%%distributed_train -n 2 --name demo --storage-path runs {OPTIONS}\n{CELL}"
                )
            else:
                kernel.run("import raynb\nresult = raynb.open('runs/demo')")
            said.append(kernel.run(tell.format(str(tmp_path / str(k)))))
            if k == 0:
                kernel.kill()
        finally:
            kernel.close()
    assert said[0] == said[1] and "demo finished" in said[0]
    first, second = (pd.read_parquet(tmp_path / k / "history.parquet") for k in "01")
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert len(first) == 2 * 5 * 4, "retention takes nothing from the history"
    for name in ("checkpoints.json", "metrics.json"):
        assert (tmp_path / "0" / name).read_text() == (tmp_path / "1" / name).read_text()
    kept = sorted(p.name for p in (tmp_path / "runs" / "demo").glob("checkpoint_2*"))
    table = json.loads((tmp_path / "0" / "checkpoints.json").read_text())
    assert sorted(table["accuracy"].values()) == [0.8, 0.9]
    assert sorted(table["name"].values()) == [kept[0], kept[1]]
    assert len(kept) == 3 and kept[2] in said[0], "the two best, and the latest"


@pytest.fixture
def blind_node(cluster: None, notebook: Any) -> Iterator[Path]:
    """A second node of the cluster that has another disk at the path which this gives."""
    import ray

    storage = notebook.directory / "local"
    storage.mkdir()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    # The tests' cluster listens on loopback, where `ray start` looks for none.
    ray_start = (
        "import ray._private.services as s; s.get_node_ip_address = lambda *_: '127.0.0.1'; "
        "from ray.scripts.scripts import main; main()"
    )
    start = (
        f'mount -t tmpfs tmpfs {storage} && exec {sys.executable} -c "{ray_start}" start '
        f"--address={ray.get_runtime_context().gcs_address} --num-cpus=1 --block "
        "--node-ip-address=127.0.0.1"
    )

    def alive() -> int:
        return sum(node["Alive"] for node in ray.nodes())

    def until(count: int) -> None:
        end = time.monotonic() + 60
        while alive() != count:
            assert time.monotonic() < end and (count == 1 or process.poll() is None), (
                log.read_text()[-4000:]
            )
            time.sleep(0.2)

    log = notebook.directory / "node.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", start],
            start_new_session=True,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(2)
        yield storage
    finally:
        process.terminate()
        process.wait(30)
        until(1)


def test_a_path_that_another_node_cant_see_is_refused_before_training(
    notebook: Any, blind_node: Path
) -> None:
    for path in (str(blind_node), f"file://{blind_node}"):
        for workers in (1, 2):
            began = time.monotonic()
            error = notebook.error(
                f"%%distributed_train -n {workers} --storage-path {path}\nimport torch"
            )
            assert isinstance(error, ResourceError), error
            assert f"the storage path {path} is local to this node" in str(error)
            assert "s3://bucket/path" in str(error)
            assert time.monotonic() - began < 60
    assert list(blind_node.iterdir()) == []


@pytest.mark.usefixtures("cluster")
def test_a_plain_ray_runs_directory_opens(tmp_path: Path) -> None:
    import ray.train
    from ray.train.torch import TorchTrainer

    def loop() -> None:
        for epoch in range(2):
            with tempfile.TemporaryDirectory() as directory:
                torch.save({"w": torch.ones(1)}, os.path.join(directory, "model.pt"))
                ray.train.report(
                    {"loss": 1.0 / (1 + epoch)},
                    checkpoint=ray.train.Checkpoint.from_directory(directory),
                )

    handler = signal.getsignal(signal.SIGINT)
    bare = TorchTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(name="bare", storage_path=str(tmp_path)),
    ).fit()
    signal.signal(signal.SIGINT, handler)
    result = raynb.open(bare.path)
    assert result.metrics == bare.metrics and result.state == "unknown"
    assert [m for _, m in result.best_checkpoints] == [m for _, m in bare.best_checkpoints]
    assert result.metrics_dataframe.equals(bare.metrics_dataframe)
    assert result.checkpoints["loss"].tolist() == [1.0, 0.5]
    text = result._repr_mimebundle_()["text/plain"]
    assert "A run of plain Ray Train" in text and "raynb.load_checkpoint" in text
    assert raynb.runs(tmp_path).frame["state"].tolist() == ["plain"]
