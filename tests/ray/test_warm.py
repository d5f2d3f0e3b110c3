"""Warm workers: what a run of theirs has in common with one of its own, and what it survives."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray.train

import raynb
from raynb.errors import OptionError, TrainingError
from raynb.panel.workers import as_text

pytestmark = pytest.mark.usefixtures("cluster")

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
        loader = DataLoader(Digits(train=True), batch_size=50, shuffle=True, num_workers=1)
        loader = ray.train.torch.prepare_data_loader(loader)
        for epoch in range(3):
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
        context = ray.train.get_context()
        return context.get_experiment_name(), context.get_storage().experiment_fs_path
    """
)


@pytest.fixture(scope="module")
def warm(cluster: None) -> Iterator[None]:
    raynb.workers.up(2)
    yield
    pids = [row["pid"] for row in raynb.workers.status()["ranks"]]  # type: ignore[index]
    raynb.workers.down()
    end = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(psutil.pid_exists, pids))


def pids() -> list[int]:
    found = raynb.workers.status()
    assert found is not None
    return [row["pid"] for row in found["ranks"]]


def ready() -> dict[str, Any]:
    """Wait for the ranks to have cleaned up."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = raynb.workers.status()
        assert found is not None
        if found["phase"] == "idle" and all(r["ready"] for r in found["ranks"]):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def cell(text: str) -> str:
    return textwrap.dedent(text).strip()


@pytest.mark.usefixtures("warm")
def test_a_warm_run_is_what_a_fresh_one_is(notebook: Any) -> None:
    """Metrics, checkpoints, retention and Result; storage names aside."""
    notebook.run("config = {'lr': 1e-2}")
    before = pids()
    results = {}
    for kind in ("warm", "fresh"):
        line = f"%%distributed_train -n 2 --{kind} -c config --name {kind}"
        notebook.run(f"{line} --num-to-keep 1 --best loss:min\n{DIGITS}")
        results[kind] = notebook["result"]
        if kind == "warm":
            assert pids() == before
            assert sorted(w["pid"] for w in results["warm"].record["workers"]) == sorted(before)
    one, other = results["warm"], results["fresh"]
    assert one.state == other.state == "finished"
    assert one.metrics == other.metrics
    assert one.return_value == ("warm", str(notebook.directory / "storage" / "warm"))
    assert other.return_value == ("fresh", str(notebook.directory / "storage" / "fresh"))
    assert one.path == str(notebook.directory / "storage" / "warm")
    assert len(one.best_checkpoints) == len(other.best_checkpoints) == 1
    assert one.metrics_dataframe.equals(other.metrics_dataframe)
    assert sorted(os.listdir(one.checkpoint.path)) == sorted(os.listdir(other.checkpoint.path))
    for row in ("loss", "epoch", "step", "rank", "attempt"):
        assert one.history[row].tolist() == other.history[row].tolist()
    files = [
        {p.name for p in Path(r.path).iterdir() if not p.name.startswith("checkpoint_2")}
        for r in (one, other)
    ]
    assert files[0] == files[1]
    assert type(one) is type(other) is raynb.RunResult
    events = [e["text"] for e in one.record["events"]]
    assert any("on the warm workers" in text for text in events)
    shards = [w["shards"][0]["rows_seen"] for w in one.record["workers"]]
    assert shards == [750, 750]


@pytest.mark.usefixtures("warm")
def test_each_run_sees_the_notebook_as_it_is(notebook: Any) -> None:
    """Edited helpers and modules, no seed, name, environment or directory of the run before."""
    (notebook.directory / "mynet.py").write_text("WIDTH = 3\n")
    notebook.run("import raynb\ndef scale(x):\n    return x * 2")
    body = cell(
        """
        %%distributed_train --warm
        import os, sys, torch
        from mynet import WIDTH
        import torch.distributed as dist
        first = float(torch.rand(1))
        total = torch.ones(1)
        dist.all_reduce(total)
        raynb.log({"scaled": scale(21), "width": WIDTH, "total": float(total), "first": first,
                   "left": float(os.environ.get("LEFT", 0)), "seen": float("seen" in globals()),
                   "default": float(torch.get_default_dtype() is torch.float32)})
        os.environ["LEFT"] = "1"
        os.chdir("/")
        seen = True
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        """
    )
    before = pids()
    rows = []
    for factor, width in ((2, 3), (3, 4)):
        notebook.run(f"def scale(x):\n    return x * {factor}")
        (notebook.directory / "mynet.py").write_text(f"WIDTH = {width}\n")
        notebook.run(body)
        rows.append(notebook["result"].history.iloc[0])
    assert [(r["scaled"], r["width"], r["total"]) for r in rows] == [(42, 3, 2), (63, 4, 2)]
    assert [(r["left"], r["seen"], r["default"]) for r in rows] == [(0, 0, 1)] * 2
    assert rows[0]["first"] != rows[1]["first"]
    assert pids() == before


@pytest.mark.usefixtures("warm")
def test_what_does_not_fit_runs_fresh_and_says_why(notebook: Any) -> None:
    error = notebook.error("%%distributed_train -n 3 --warm\npass")
    assert isinstance(error, OptionError)
    assert "-n is 3, and the warm workers have 2" in str(error)
    error = notebook.error("%%distributed_train --env A=1 --warm\npass")
    assert "--env A" in str(error)
    error = notebook.error("%%distributed_train --warm --fresh\npass")
    assert "contradict" in str(error)
    notebook.run("%%distributed_train -n 1 --name alone\nreturn 5")
    result = notebook["result"]
    assert result.return_value == 5
    events = [e["text"] for e in result.record["events"]]
    assert any("fresh workers: -n is 1" in text for text in events)
    with pytest.raises(OptionError, match="up already"):
        raynb.workers.up(3)
    assert raynb.workers.up(2)["ranks"]  # the same shape: nothing to do
    error = notebook.error("%raynb workers upp")
    assert "did you mean up?" in str(error)


@pytest.mark.usefixtures("warm")
def test_a_failing_rank_does_not_cost_the_workers(notebook: Any) -> None:
    notebook.run("import raynb")
    before = pids()
    began = time.monotonic()
    error = notebook.error(
        cell(
            """
            %%distributed_train --warm --name broken
            import time, torch, torch.distributed as dist, ray.train
            rank = ray.train.get_context().get_world_rank()
            raynb.log({"loss": 1.0})
            dist.barrier()
            if rank == 1:
                raise ValueError("bad <b>batch</b>")
            dist.all_reduce(torch.ones(1))
            """
        )
    )
    assert time.monotonic() - began < 7
    assert isinstance(error, TrainingError) and error.rank == 1
    assert "rank 1: ValueError: bad <b>batch</b>" in str(error) and "line 7" in str(error)
    result = notebook["result"]
    assert result.state == "failed" and len(result.history) == 2
    assert isinstance(result.error, ray.train.WorkerGroupError)
    ready()
    assert pids() == before
    notebook.run("%%distributed_train --warm\nreturn 7")
    assert notebook["result"].return_value == 7
    assert pids() == before


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("where", ["sleep", "collective", "deadlock", "report"])
def test_stop_reaches_user_code(notebook: Any, where: str) -> None:
    stuck = {
        "sleep": "time.sleep(1e6)",
        "collective": "dist.all_reduce(torch.ones(1)) if rank == 0 else time.sleep(1e6)",
        "deadlock": "dist.all_reduce(torch.ones(1)); dist.barrier() if rank else None",
        "report": "ray.train.report({'a': 1}) if rank == 0 else time.sleep(1e6)",
    }[where]
    if where == "deadlock":
        stuck = "dist.recv(torch.ones(1), src=1 - rank)"
    ready()
    before = pids()
    notebook.run("import raynb")
    notebook.run(
        "%%distributed_train --warm --background -o run\n"
        "import time, torch, torch.distributed as dist, ray.train\n"
        "rank = ray.train.get_context().get_world_rank()\n"
        "try:\n"
        "    raynb.log({'loss': 1.0})\n"
        f"    {stuck}\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', rank)\n"
        "    raise\n"
    )
    run = notebook["run"]
    end = time.monotonic() + 30
    while (len(run.history) < 2 or run.state != "training") and time.monotonic() < end:
        time.sleep(0.1)
    began = time.monotonic()
    run.stop()
    result = run.wait(timeout=20)
    assert time.monotonic() - began < 10
    assert result.state == "stopped" and result.history["loss"].count() == 2
    for rank in (0, 1):
        log = Path(result.path, "raynb", "logs", f"rank-{rank:05d}.log").read_text()
        assert f"interrupted {rank}" in log
    ready()
    assert pids() == before
    notebook.run("%%distributed_train --warm\nreturn 7")
    assert notebook["result"].return_value == 7


@pytest.mark.usefixtures("warm")
def test_a_killed_worker_is_replaced_and_the_run_goes_on(notebook: Any) -> None:
    """From its latest checkpoint, as --max-failures allows; without, the run fails alone."""
    ready()
    before = pids()
    notebook.run(
        cell(
            """
            %%distributed_train --warm --max-failures 1 --name killed
            import os, signal, tempfile, ray.train
            rank = ray.train.get_context().get_world_rank()
            found = ray.train.get_checkpoint()
            start = 0
            if found:
                with found.as_directory() as directory:
                    start = int(open(os.path.join(directory, "step")).read()) + 1
            for step in range(start, 3):
                with tempfile.TemporaryDirectory() as directory:
                    open(os.path.join(directory, "step"), "w").write(str(step))
                    saved = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
                    ray.train.report({"step": step}, checkpoint=saved)
                if step == 1 and not found and rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == 1 and not found:
                    import time; time.sleep(1e6)
            return start
            """
        )
    )
    result = notebook["result"]
    assert result.state == "finished"
    assert result.return_value == 2
    assert len(result.best_checkpoints) == 3
    assert result.history["attempt"].max() == 1
    found = ready()
    assert set(before).isdisjoint(pids())
    assert found["restarts"] >= 1


@pytest.mark.usefixtures("warm")
def test_down_and_restart_with_a_run_going_on(notebook: Any) -> None:
    ready()
    notebook.run("%%distributed_train --warm --background -o run\nimport time; time.sleep(1e6)")
    run = notebook["run"]
    end = time.monotonic() + 30
    while run.state != "training" and time.monotonic() < end:
        time.sleep(0.05)
    for action in ("down", "restart"):
        error = notebook.error(f"%raynb workers {action}")
        assert isinstance(error, OptionError)
        assert run.name in str(error) and "--force" in str(error)
    error = notebook.error("%%distributed_train --warm\npass")
    assert "busy" in str(error)
    run.stop(20)
    assert run.result.state == "stopped"
    assert "idle" in as_text(ready())


@pytest.mark.usefixtures("warm")
def test_a_dataset_is_split(notebook: Any) -> None:
    notebook.run("import ray.data, raynb\nds = ray.data.range(100)")
    notebook.run(
        cell(
            """
            %%distributed_train --warm --dataset train=ds
            import ray.train
            shard = ray.train.get_dataset_shard("train")
            rows = [int(r) for b in shard.iter_batches(batch_size=10) for r in b["id"]]
            raynb.log({"rows": len(rows), "sum": sum(rows)})
            """
        )
    )
    history = notebook["result"].history
    assert history["rows"].tolist() == [50, 50]
    assert history["sum"].sum() == sum(range(100))


@pytest.mark.usefixtures("warm")
def test_cells_on_every_rank(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ready()
    before = pids()
    notebook.run("%%distributed\nx = torch.ones(2) * (rank + 1)\nprint('hello', rank)")
    printed = capsys.readouterr().out
    assert "[rank 0] hello 0" in printed and "[rank 1] hello 1" in printed
    notebook.run("%%distributed\ndist.all_reduce(x)\nx.tolist()")
    assert "[ranks 0-1] [3.0, 3.0]" in capsys.readouterr().out
    notebook.run("%%distributed --rank 1\nrank, world_size, str(device)")
    assert "[rank 1] (1, 2, 'cpu')" in capsys.readouterr().out

    notebook.run("factor = 10\ny = 'mine'\nhandle = open('/dev/null')")
    notebook.run("%%distributed --push factor --pull z\nz = factor * rank")
    assert notebook["z"] == [0, 10]
    error = notebook.error("%%distributed --pull y\ny = 1")
    assert isinstance(error, OptionError) and "overwrite" in str(error) and notebook["y"] == "mine"
    notebook.run("%%distributed -o values\nrank + factor")
    assert notebook["values"] == [10, 11]
    assert "no variable `nothing`" in str(notebook.error("%%distributed --push nothing\n1"))
    assert "handle" in str(notebook.error("%%distributed --push handle\n1"))
    assert "no rank 2" in str(notebook.error("%%distributed --rank 2\n1"))
    assert isinstance(notebook.error("%%distributed\nx ="), Exception)
    assert pids() == before


@pytest.mark.usefixtures("warm")
def test_errors_of_cells(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One error, grouped by rank; peers in a collective are released, and all goes on."""
    ready()
    before = pids()
    error = notebook.error("%%distributed\na = 1\n\na / 0")
    label = f"Cell In[{notebook.shell.execution_count - 1}]"
    assert str(error).startswith("ranks 0-1 of 2: ZeroDivisionError")
    assert f"{label}, line 4: a / 0" in str(error)
    began = time.monotonic()
    error = notebook.error(
        "%%distributed\nif rank == 1:\n    raise ValueError('bad')\ndist.all_reduce(torch.ones(1))"
    )
    assert time.monotonic() - began < 5
    assert str(error).startswith("rank 1 of 2: ValueError: bad")
    assert "rank 0" in str(error)
    assert "process group" in capsys.readouterr().out
    notebook.run("%%distributed\nt = torch.ones(1)\ndist.all_reduce(t)\nfloat(t)")
    assert "[ranks 0-1] 2.0" in capsys.readouterr().out
    assert pids() == before
    # A run in between is a run of its own, and the names stay.
    notebook.run("%%distributed\nimport os\nos.environ['LEFT'] = '1'\nkept = 5")
    notebook.run("%%distributed_train --warm\nimport os\nreturn os.environ.get('LEFT')")
    assert notebook["result"].return_value is None
    capsys.readouterr()
    notebook.run("%%distributed\nkept")
    assert "[ranks 0-1] 5" in capsys.readouterr().out


@pytest.mark.usefixtures("warm")
def test_a_cell_is_interrupted(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    ready()
    before = pids()
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    error = notebook.error(
        "%%distributed\nimport time\nprint('begins')\ntry:\n    time.sleep(1e6)\n"
        "except KeyboardInterrupt:\n    print('seen', rank)\n    raise"
    )
    assert isinstance(error, KeyboardInterrupt)
    printed = capsys.readouterr().out
    assert "[rank 0] seen 0" in printed and "[rank 1] seen 1" in printed
    assert pids() == before


@pytest.mark.usefixtures("warm")
def test_auto_mode_and_completion(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.completer import provisionalcompleter

    ready()
    notebook.run("%raynb auto on")
    try:
        notebook.run("remote_only = rank\nremote_only")
        printed = capsys.readouterr().out
        assert "▸ on all 2 ranks" in printed and "[rank 1] 1" in printed
        assert "remote_only" not in notebook.shell.user_ns
        notebook.run("remote_only?")
        assert "Type:      int" in capsys.readouterr().out
        error = notebook.error("remote_only / 0")
        assert "line 1: remote_only / 0" in str(error)
        with provisionalcompleter():
            text = "x = remote_"
            found = [c.text for c in notebook.shell.Completer.completions(text, len(text))]
        assert "remote_only" in found
    finally:
        notebook.run("%raynb auto off")
    assert "remote_only" in str(notebook.error("remote_only"))


@pytest.mark.usefixtures("warm")
def test_restart_by_force_ends_the_run_and_frees_the_workers(notebook: Any) -> None:
    ready()
    before = pids()
    notebook.run("%%distributed_train --warm --background -o run\nimport time; time.sleep(1e6)")
    run = notebook["run"]
    end = time.monotonic() + 30
    while run.state != "training" and time.monotonic() < end:
        time.sleep(0.05)
    notebook.run("%raynb workers restart --force")
    with pytest.raises(TrainingError):
        run.wait(20)
    assert run.result.state == "failed"
    ready()
    assert set(before).isdisjoint(pids())
    notebook.run("%%distributed_train --warm\nreturn 7")
    assert notebook["result"].return_value == 7


def test_signals_stay_the_notebooks() -> None:
    """Nothing here has taken the kernel's own."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
