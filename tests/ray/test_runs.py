"""Whole runs on a real worker group: what a user writes, and what comes back."""

from __future__ import annotations

import json
import math
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.train
from ray.train.torch import TorchTrainer

import raynb
from raynb.errors import CaptureError, OptionError, ResourceError, StorageError, TrainingError

pytestmark = pytest.mark.usefixtures("cluster")

#: The loop of Ray's getting-started guide in small: real digits, DDP, a checkpoint an epoch.
DIGITS = textwrap.dedent(
    """
    def train_func(config):
        import os, tempfile, torch, ray.train, ray.train.torch
        from torch.utils.data import DataLoader
        from raynb.demo import Digits

        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        model = ray.train.torch.prepare_model(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        loader = DataLoader(Digits(train=True), batch_size=config["batch_size"], shuffle=True)
        loader = ray.train.torch.prepare_data_loader(loader)
        for epoch in range(config["epochs"]):
            loader.sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with tempfile.TemporaryDirectory() as directory:
                torch.save(model.module.state_dict(), os.path.join(directory, "model.pt"))
                ray.train.report(
                    {"loss": loss.item(), "epoch": epoch},
                    checkpoint=ray.train.Checkpoint.from_directory(directory),
                )
            print("epoch", epoch, "of rank", ray.train.get_context().get_world_rank())
        return "done"
    """
)
CONFIG = {"lr": 1e-2, "batch_size": 50, "epochs": 2}


def test_the_same_text_under_torch_trainer_and_the_magic(
    notebook: Any, nothing_left: Callable[..., None]
) -> None:
    namespace: dict[str, Any] = {}
    exec(DIGITS, namespace)
    handler = signal.getsignal(signal.SIGINT)
    bare = TorchTrainer(
        namespace["train_func"],
        train_loop_config=CONFIG,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(notebook.directory / "bare")),
    ).fit()
    # Bare fit() leaves a handler of its own, which keeps its controller alive and eats SIGINT.
    signal.signal(signal.SIGINT, handler)

    notebook.run(f"config = {CONFIG}")
    notebook.run(
        "%%distributed_train -n 2 --config config --name twin --num-to-keep 1 --best loss:min\n"
        + DIGITS
    )
    result = notebook["result"]

    assert isinstance(result, ray.train.Result)
    assert isinstance(result, raynb.RunResult)
    assert result.state == "finished"
    assert result.error is None
    assert result.metrics == bare.metrics
    assert result.return_value == bare.return_value == "done"
    assert result.path == str(notebook.directory / "storage" / "twin")
    assert result.checkpoint is not None and Path(result.checkpoint.path, "model.pt").is_file()
    assert len(result.best_checkpoints) == 1  # --num-to-keep
    assert len(result.metrics_dataframe) == 1

    history = result.history
    assert list(history.columns[:4]) == ["rank", "attempt", "step", "time"]
    assert history.groupby("rank").size().to_dict() == {0: 2, 1: 2}
    assert history["attempt"].unique().tolist() == [0]
    last = history[history["rank"] == 0].iloc[-1]
    assert last["loss"] == bare.metrics["loss"]
    assert abs(history["time"].max() - time.time()) < 300

    shards = [w["shards"][0] for w in result.record["workers"]]
    assert [s["rows_total"] for s in shards] == [750, 750]
    assert [s["rows_seen"] for s in shards] == [750, 750]
    assert [s["batches_seen"] for s in shards] == [15, 15]
    assert [s["epoch"] for s in shards] == [2, 2]
    assert result.record["shard_totals"] == {"TensorDataset": 1500}
    for rank in (0, 1):
        log = Path(result.path, "raynb", "logs", f"rank-{rank:05d}.log").read_text()
        # Ray's own lines are there too.
        printed = [line for line in log.splitlines() if line.startswith("epoch")]
        assert printed == [f"epoch {e} of rank {rank}" for e in (0, 1)]
    nothing_left([w["pid"] for w in result.record["workers"]])

    # The name is a finished run's now.
    error = notebook.error("%%distributed_train -n 2 --config config --name twin\nimport torch")
    assert isinstance(error, StorageError)
    assert "twin" in str(error) and "--name" in str(error) and "twin-2" in str(error)


def test_body_form_sees_the_notebook(notebook: Any) -> None:
    """Captures by value and through the object store, files and modules beside the notebook."""
    (notebook.directory / "labels.txt").write_text("cat dog")
    (notebook.directory / "mynet.py").write_text("WIDTH = 3\n")
    notebook.run(
        "import numpy as np\nimport raynb\ntable = np.ones((60, 1024, 1024), dtype=np.uint8)"
    )
    notebook.run("def scale(x):\n    return x * 2")
    cell = (
        "%%distributed_train -n 2 --storage-path runs\n"
        "from mynet import WIDTH\n"
        "import ray.train\n"
        "raynb.log({'n': int(table.nbytes), 'scaled': scale(21), 'width': WIDTH,\n"
        "           'labels': len(open('labels.txt').read().split())})\n"
        "return ray.train.get_context().get_world_size()"
    )
    notebook.run(cell)
    result = notebook["result"]
    row = result.history.iloc[0]
    assert (row["n"], row["scaled"], row["width"], row["labels"]) == (60 * 2**20, 42, 3, 2)
    assert result.return_value == 2
    assert result.path.startswith(str(notebook.directory / "runs"))  # relative, made absolute
    table = {c["name"]: c for c in result.record["capture"]}
    assert table["table"]["via"] == "object store"
    assert table["table"]["size"] == 60 * 2**20
    assert result.metrics is None
    assert "metrics" in repr(result)

    # The second run of the same cell sees the new helper and the edited module.
    notebook.run("def scale(x):\n    return x * 3")
    (notebook.directory / "mynet.py").write_text("WIDTH = 4\n")
    notebook.run(cell)
    row = notebook["result"].history.iloc[0]
    assert (row["scaled"], row["width"]) == (63, 4)


def test_odd_metrics(notebook: Any) -> None:
    notebook.run(
        textwrap.dedent(
            """
            %%distributed_train -n 2 --name odd
            import numpy as np, raynb, torch, ray.train
            odd = {"tensor": torch.tensor(1.5), "numpy": np.float32(2.5), "bool": True,
                   "huge": 2**70, "nan": float("nan"), "inf": float("inf"), "none": None,
                   "text": "words", "nested": {"a": 1}, 7: 8.0, "vector": torch.ones(3),
                   "good": 1.0}
            raynb.log(odd, step=5)
            ray.train.report({"tensor": torch.tensor(3.5), "numpy": np.int64(4)})
            """
        ).strip()
    )
    history = notebook["result"].history
    assert len(history) == 4
    logged, reported = history.iloc[0], history.iloc[1]
    assert logged["step"] == 5 and reported["step"] == 5
    assert (logged["tensor"], logged["numpy"], logged["bool"]) == (1.5, 2.5, 1.0)
    assert logged["huge"] == float(2**70)
    assert math.isnan(logged["nan"]) and math.isinf(logged["inf"])
    assert (logged["text"], logged["7"], logged["good"]) == ("words", 8.0, 1.0)
    assert logged["none"] == "None" and "1" in logged["nested"] and "(3,)" in logged["vector"]
    assert (reported["tensor"], reported["numpy"]) == (3.5, 4.0)


def test_a_failing_rank_is_one_error(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run("import raynb")
    error = notebook.error(
        textwrap.dedent(
            """
            %%distributed_train -n 2 --name broken
            import time, torch, torch.distributed as dist, ray.train
            rank = ray.train.get_context().get_world_rank()
            raynb.log({"loss": 1.0})
            dist.barrier()
            if rank == 1:
                time.sleep(1)
                raise ValueError("bad <b>batch</b>")
            dist.all_reduce(torch.ones(1))
            """
        ).strip()
    )
    assert isinstance(error, TrainingError)
    assert error.rank == 1
    text = str(error)
    assert "rank 1: ValueError: bad <b>batch</b>" in text
    label = f"Cell In[{notebook.shell.execution_count - 1}]"
    assert f"{label}, line 8" in text
    assert 'raise ValueError("bad <b>batch</b>")' in text
    assert "/ray/" not in text, "frames of Ray are no help to the user"
    result = notebook["result"]
    assert result is error.result
    assert result.state == "failed"
    assert result.error is not None
    assert len(result.history) == 2
    html = result._repr_mimebundle_()["text/html"]
    assert "bad &lt;b&gt;batch" in html and "<b>batch" not in html
    nothing_left([w["pid"] for w in result.record["workers"]])


@pytest.mark.parametrize("where", ["sleep", "collective"])
def test_stop(notebook: Any, nothing_left: Callable[..., None], where: str) -> None:
    stuck = {
        "sleep": "time.sleep(1e6)",
        "collective": "dist.all_reduce(torch.ones(1)) if rank == 0 else time.sleep(1e6)",
    }[where]
    notebook.run("import raynb")
    notebook.run(
        "%%distributed_train -n 2 --background -o run\n"
        "import time, torch, torch.distributed as dist, ray.train\n"
        "rank = ray.train.get_context().get_world_rank()\n"
        "for step in range(5):\n"
        "    raynb.log({'loss': 1 / (step + 1)})\n" + stuck
    )
    run = notebook["run"]
    assert run.result is None
    end = time.monotonic() + 90
    while (len(run.history) < 10 or run.state != "training") and time.monotonic() < end:
        time.sleep(0.2)
    assert run.state == "training"
    pids = [w["pid"] for w in run.mirror.workers.values()]
    began = time.monotonic()
    run.stop()
    result = run.wait(timeout=10)
    assert time.monotonic() - began < 10
    nothing_left(pids, 10 - (time.monotonic() - began))
    assert run.state == result.state == "stopped"
    assert result.error is None
    assert len(result.history) == 10
    assert ray.is_initialized()


def test_the_kernels_interrupt_stops_and_keeps(
    notebook: Any, nothing_left: Callable[..., None]
) -> None:
    from raynb.engine.run import find_backend

    def interrupt_in_training() -> None:
        backend = None
        while backend is None:
            time.sleep(0.2)
            backend = find_backend("interrupted")
        while len(backend.history()) < 6:
            time.sleep(0.2)
        # A real signal, as the kernel gets one: it also wakes a main thread that waits.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt_in_training, daemon=True).start()
    notebook.run("import raynb")
    error = notebook.error(
        "%%distributed_train -n 2 --name interrupted\n"
        "import time\n"
        "for step in range(10**6):\n"
        "    raynb.log({'loss': 1.0})\n"
        "    time.sleep(0.1)"
    )
    assert isinstance(error, KeyboardInterrupt)
    result = notebook["result"]
    assert result.state == "stopped" and len(result.history) >= 6
    nothing_left([w["pid"] for w in result.record["workers"]])
    notebook.run("%%distributed_train -n 2 --name next\nimport torch")
    assert notebook["result"].state == "finished"


def test_v1_habits_name_what_replaces_them(notebook: Any) -> None:
    """In local mode, which asks Ray Train the same questions without a worker group."""
    cases = {
        "ray.train.ScalingConfig(num_workers=2, trainer_resources={'CPU': 1})": "no resources",
        "ray.train.RunConfig(verbose=1)": "leave it out of RunConfig",
        "ray.train.torch.backward(None)": "torch.autocast",
        "ray.train.session.report({})": "use ray.train.report",
        "ray.train.torch.TorchTrainer(print, resume_from_checkpoint=1)": "in the config",
        "from ray.air import session; session.report({'loss': 1})": "use ray.train.report",
    }
    from raynb.engine.v1 import replacement

    for code, instead in cases.items():
        error = notebook.error(f"%%distributed_train --local\nimport ray.train.torch\n{code}")
        assert instead in replacement(str(error), code), error
    # In V2 it would do nothing, without a word.
    assert "is meant to only be called inside" in str(error)


def test_a_run_that_waits_for_resources_says_so_and_stops(
    notebook: Any, nothing_left: Callable[..., None]
) -> None:
    @ray.remote(num_cpus=3)
    class Busy:
        def ready(self) -> bool:
            return True

    busy = Busy.remote()
    ray.get(busy.ready.remote())
    try:
        notebook.run("%%distributed_train -n 2 --background -o run\nimport torch")
        run = notebook["run"]
        end = time.monotonic() + 60
        while run.mirror.run["state"] != "waiting" or not run.mirror.workers:
            assert time.monotonic() < end, run.mirror.run
            time.sleep(0.1)
        assert "needs 2 CPU; free: 1 CPU" in run.mirror.run["message"]
        began = time.monotonic()
        run.stop()
        assert run.wait(timeout=10).state == "stopped"
        assert time.monotonic() - began < 10
    finally:
        ray.kill(busy)
    nothing_left([])


def test_restart_keeps_attempts_apart(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run("import raynb")
    notebook.run(
        textwrap.dedent(
            """
            %%distributed_train -n 2 --max-failures 1 --name restarted
            import os, tempfile, time, ray.train, torch
            start = 0
            checkpoint = ray.train.get_checkpoint()
            if checkpoint:
                with checkpoint.as_directory() as directory:
                    start = torch.load(os.path.join(directory, "epoch.pt"))["epoch"] + 1
            for epoch in range(start, 3):
                raynb.log({"loss": 1.0 / (epoch + 1)}, step=epoch)
                with tempfile.TemporaryDirectory() as directory:
                    torch.save({"epoch": epoch}, os.path.join(directory, "epoch.pt"))
                    ray.train.report(
                        {"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(directory)
                    )
                if epoch == 1 and start == 0 and ray.train.get_context().get_world_rank() == 1:
                    time.sleep(3)  # or the controller has taken in no checkpoint yet
                    os.kill(os.getpid(), 9)
            """
        ).strip()
    )
    result = notebook["result"]
    assert result.state == "finished"
    logged = result.history.dropna(subset=["loss"])
    steps = {k: v.tolist() for k, v in logged.groupby(["attempt", "rank"])["step"]}
    # How far the first attempt's last checkpoint was taken in when the rank died is Ray's matter.
    assert steps[0, 0][:2] == [0, 1]
    assert steps[0, 1][0] == 0  # a killed process may take its last tenth of a second along
    assert steps[1, 0] == steps[1, 1] and steps[1, 0] in ([1, 2], [2])
    nothing_left([w["pid"] for w in result.record["workers"]])


def test_fit_watches_a_users_trainer(tmp_path: Path) -> None:
    def loop() -> None:
        import raynb

        shard = ray.train.get_dataset_shard("train")
        seen = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=16))
        raynb.log({"seen": seen})

    trainer = TorchTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="mine", storage_path=str(tmp_path)),
        datasets={"train": ray.data.range(128)},
    )
    result = raynb.fit(trainer, show=False)
    assert result.history["seen"].sum() == 128
    assert sum(w["shards"][0]["rows_seen"] for w in result.record["workers"]) == 128
    assert {w["shards"][0]["name"] for w in result.record["workers"]} == {"train"}
    assert trainer.run_config.callbacks == [] and trainer.train_loop_per_worker is loop
    with pytest.raises(OptionError, match="takes a Ray Train trainer"):
        raynb.fit(loop)


@pytest.fixture
def dead_record() -> Iterator[None]:
    """Ray's record of its latest cluster names one that is gone, as a crash leaves it."""
    from ray._common.utils import get_ray_address_file

    record = Path(get_ray_address_file(None))
    if record.exists():  # somebody else's, which does as well
        yield
        return
    record.write_text("127.0.0.1:9")
    yield
    record.unlink()


@pytest.mark.usefixtures("dead_record")
def test_dead_supervisor(notebook: Any, nothing_left: Callable[..., None]) -> None:
    notebook.run("import raynb")
    notebook.run(
        "%%distributed_train -n 2 --background -o run\n"
        "import time\n"
        "raynb.log({'loss': 1.0})\n"
        "time.sleep(1e6)"
    )
    run = notebook["run"]
    end = time.monotonic() + 90
    while len(run.history) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(3)  # past one flush of the history
    pids = [w["pid"] for w in run.mirror.workers.values()]
    ray.kill(run._backend.actor)
    with pytest.raises(raynb.RaynbError, match="supervisor"):
        run.wait(timeout=30)
    assert run.result.state == "failed"
    assert len(run.result.history) == 2
    nothing_left(pids, 15)


def test_local_mode(notebook: Any) -> None:
    notebook.run("import raynb\nhistory = []")
    notebook.run(
        "%%distributed_train --local --name here\n"
        "import os, tempfile, ray.train\n"
        "history.append(os.getpid())\n"
        "raynb.log({'loss': 0.5})\n"
        "with tempfile.TemporaryDirectory() as d:\n"
        "    open(os.path.join(d, 'x.txt'), 'w').close()\n"
        "    ray.train.report({'loss': 0.25}, checkpoint=ray.train.Checkpoint.from_directory(d))\n"
    )
    import os

    assert notebook["history"] == [os.getpid()]
    result = notebook["result"]
    assert result.history["loss"].tolist() == [0.5, 0.25]
    assert result.metrics == {"loss": 0.25}
    assert Path(result.checkpoint.path, "x.txt").is_file()

    notebook.run(
        "%%distributed_train --local --num-to-keep 2 --best loss:min\n"
        "import os, tempfile, ray.train\n"
        "for loss in (0.3, 0.1, 0.4, 0.2, 0.5):\n"
        "    with tempfile.TemporaryDirectory() as d:\n"
        "        open(os.path.join(d, 'x.txt'), 'w').write(str(loss))\n"
        "        kept = ray.train.Checkpoint.from_directory(d)\n"
        "        ray.train.report({'loss': loss}, checkpoint=kept)\n"
    )
    result = notebook["result"]
    # The two best, and the latest.
    assert [m["loss"] for _, m in result.best_checkpoints] == [0.1, 0.2, 0.5]
    assert [Path(c.path, "x.txt").read_text() for c, _ in result.best_checkpoints] == [
        "0.1", "0.2", "0.5",
    ]  # fmt: skip
    assert len(list(Path(result.path).glob("checkpoint_*"))) == 3

    error = notebook.error("%%distributed_train --local\nnumber = 1\nnumber / 0")
    assert isinstance(error, ZeroDivisionError)  # the user's own, for %debug
    assert notebook["result"].state == "failed"
    # Ray Train leaves its context in the process: here the kernel is no worker any more.
    with pytest.raises(RuntimeError):
        ray.train.get_context()


BAD = [
    ("-n 0", "import torch", OptionError, "--local"),
    ("-n abc", "import torch", OptionError, "abc"),
    ("-n 64", "import torch", ResourceError, "64"),
    ("-n 8 --gpu", "import torch", ResourceError, "--no-gpu"),
    ("--resources CPU=100", "import torch", ResourceError, "100"),
    ("--num-worker 2", "import torch", OptionError, "--num-workers"),
    ("-c [1]", "import torch", OptionError, "dict"),
    ("-c confg", "import torch", OptionError, "config"),
    ("-c unpicklable", "import torch", OptionError, "lock"),
    ("", "guard.acquire()", CaptureError, "guard"),
    ("", "x = 1\nprint(undefined_thing)", CaptureError, "line 3"),
    ("", "", CaptureError, "no code"),
    ("", "# only a comment", CaptureError, "empty"),
    ("", "def train_func(a, b):\n    pass", CaptureError, "train_func"),
    ("--storage-path /proc/nowhere", "import torch", StorageError, "/proc/nowhere"),
]


@pytest.mark.parametrize(("options", "body", "kind", "named"), BAD, ids=lambda v: str(v)[:20])
def test_bad_input_is_one_clear_error(
    notebook: Any, options: str, body: str, kind: type, named: str
) -> None:
    notebook.run(
        "import threading\nguard = threading.Lock()\nconfig = {}\nunpicklable = {'lock': guard}"
    )
    before = ray.available_resources().get("CPU")
    began = time.monotonic()
    error = notebook.error(f"%%distributed_train {options}\n{body}")
    assert time.monotonic() - began < 5
    assert isinstance(error, kind), repr(error)
    assert named in str(error)
    assert ray.available_resources().get("CPU") == before
    assert "result" not in notebook.shell.user_ns
    assert notebook.run("1 + 1") == 2


def test_syntax_error_shows_the_cells_line(
    notebook: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.error("%%distributed_train\nx = 1\nfor y in x\n    pass")
    shown = "".join(capsys.readouterr())
    assert "line 3" in shown and "for y in x" in shown and "raynb/" not in shown


def test_dry_run_starts_nothing(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    notebook.run("width = 12\nconfig = {'lr': 0.5}")
    notebook.run("%%distributed_train -n 2 -c config --dry-run --env TOKEN=secret\nprint(width)")
    shown = capsys.readouterr().out
    assert "width" in shown and "int" in shown and "num_workers" in shown
    assert "secret" not in shown, "environment values may be secrets"
    assert "result" not in notebook.shell.user_ns


def test_record_on_storage_is_json_and_masks_env(notebook: Any) -> None:
    notebook.run(
        "%%distributed_train -n 1 --name masked --env TOKEN=s3cr3t\n"
        "import os\n"
        "assert os.environ['TOKEN'].startswith('s3c')"
    )
    text = Path(notebook["result"].path, "raynb", "record.json").read_text()
    assert json.loads(text)["state"] == "finished"
    assert "s3cr3t" not in text
