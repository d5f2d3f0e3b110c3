"""RunSpec: what can't work is said before anything starts."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest

from raynb.engine.spec import (
    RunSpec,
    absolute_storage,
    address_on,
    check_storage,
    default_storage,
    filesystem_of,
    json_safe,
    read_record,
    without_secrets,
    write_record,
)
from raynb.errors import OptionError, StorageError

FS = pafs.LocalFileSystem()


def spec(tmp_path: Path, **options: Any) -> RunSpec:
    return RunSpec(**{"name": "run", "storage_path": str(tmp_path), **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_workers": -1}, "must not be negative"),
        ({"num_workers": "4"}, "must be a number"),
        ({"num_workers": 2.0}, "must be a number"),
        ({"num_workers": True}, "must be a number"),
        ({"num_workers": (2, 1)}, "1 <= min <= max"),
        ({"num_workers": (0, 1)}, "1 <= min <= max"),
        ({"num_workers": (1, 2, 3)}, "1 <= min <= max"),
        ({"num_workers": (1, "2")}, "1 <= min <= max"),
        ({"num_workers": (True, 2)}, "1 <= min <= max"),
        ({"resources_per_worker": {"CPU": -1}}, "resource 'CPU'"),
        ({"resources_per_worker": {"CPU": "2"}}, "resource 'CPU'"),
        ({"resources_per_worker": {"CPU": math.nan}}, "resource 'CPU'"),
        ({"resources_per_worker": {"CPU": math.inf}}, "resource 'CPU'"),
        ({"resources_per_worker": {"CPU": True}}, "resource 'CPU'"),
        ({"resources_per_worker": {"GPU": 1.5}}, "whole GPUs"),
        ({"resources_per_worker": {"GPU": 1}, "use_gpu": False}, "contradict"),
        ({"placement_strategy": "pack"}, "did you mean PACK?"),
        ({"backend": "NCCL"}, "did you mean nccl?"),
        ({"backend": "mpi"}, "must be one of nccl, gloo"),
        ({"best": ("loss", "lowest")}, "must be one of min, max"),
        ({"best": ("", "min")}, "needs a metric"),
        ({"best": "loss:min"}, "a metric and min or max"),
        ({"best": ("loss",)}, "a metric and min or max"),
        ({"max_failures": -2}, "max_failures"),
        ({"max_failures": "3"}, "max_failures"),
        ({"num_to_keep": 0}, "num_to_keep"),
        ({"num_to_keep": 1.5}, "num_to_keep"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": "10"}, "timeout_s"),
        ({"env": {"1A": "x"}}, "no name of an environment variable"),
        ({"env": {"A B": "x"}}, "no name of an environment variable"),
        ({"env": {"A": 1}}, "must be text, not int"),
        ({"datasets": {"train": [1, 2]}}, "is a list, not a ray.data.Dataset"),
        ({"config": [1]}, "config must be a dict, not list"),
        ({"name": "a/b"}, "can't be a directory's name"),
        ({"name": ".."}, "can't be a directory's name"),
        ({"name": "a\n"}, "can't be a directory's name"),
        ({"name": "x" * 201}, "can't be a directory's name"),
        ({"name": "..."}, "can't be a directory's name"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        spec(tmp_path, **options).check()
    assert says in str(caught.value)


def test_a_config_that_does_not_travel(tmp_path: Path) -> None:
    import threading

    with pytest.raises(OptionError) as caught:
        spec(tmp_path, config={"lr": 0.1, "lock": threading.Lock()}).check()
    assert "config['lock'] (lock)" in str(caught.value) and "'lr'" not in str(caught.value)


def test_good_options(tmp_path: Path) -> None:
    made = spec(
        tmp_path,
        num_workers=(1, 4),
        use_gpu=True,
        resources_per_worker={"CPU": 2, "GPU": 0.5, "GPU_type": 0.001},
        best=("loss", "min"),
        max_failures=-1,
        num_to_keep=1,
        timeout_s=10,
        env={"NCCL_DEBUG": "INFO"},
        config={"lr": lambda: 0.1},
    )
    assert made.check() is made
    assert made.min_workers == 1 and not made.local and made.bundle["GPU"] == 0.5


@pytest.mark.parametrize(
    ("options", "bundle"),
    [
        ({}, {"CPU": 1.0}),
        ({"use_gpu": True}, {"GPU": 1.0}),
        ({"resources_per_worker": {"CPU": 4}}, {"CPU": 4}),
        ({"resources_per_worker": {"CPU": 4}, "use_gpu": True}, {"CPU": 4, "GPU": 1.0}),
        ({"resources_per_worker": {"GPU": 0}}, {"GPU": 0, "CPU": 1.0}),
        ({"resources_per_worker": {"tpu": 1}}, {"tpu": 1, "CPU": 1.0}),
    ],
)
def test_bundle(options: dict[str, Any], bundle: dict[str, float]) -> None:
    assert RunSpec(**options).bundle == bundle


# -- storage -------------------------------------------------------------------------------------


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert absolute_storage("runs") == str(tmp_path / "runs")
    assert absolute_storage(Path("runs/")) == str(tmp_path / "runs")
    assert absolute_storage("~/runs") == "/home/someone/runs"
    for uri in ("s3://bucket/x?region=eu", "gs://bucket", "file:///tmp/x"):
        assert absolute_storage(uri) == uri
    with pytest.raises(StorageError):
        absolute_storage("~nobody-is-called-so/x")
    monkeypatch.delenv("RAY_AIR_LOCAL_CACHE_DIR", raising=False)
    assert default_storage() == "~/ray_results"
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", "/elsewhere")
    assert default_storage() == "/elsewhere"


@pytest.mark.parametrize(
    ("storage", "run_path"),
    [
        ("/data", "/data/run"),
        ("/data/", "/data/run"),
        ("/what?/x", "/what?/x/run"),
        ("s3://bucket/a/", "s3://bucket/a/run"),
        ("s3://bucket/a?region=eu", "s3://bucket/a/run?region=eu"),
    ],
)
def test_run_path(storage: str, run_path: str) -> None:
    assert RunSpec(name="run", storage_path=storage).run_path == run_path


def test_a_uri_of_files_works_as_a_path(tmp_path: Path) -> None:
    made = RunSpec(name="run", storage_path=f"file://{tmp_path}/deep").check()
    assert (tmp_path / "deep").is_dir() and not list((tmp_path / "deep").iterdir())
    filesystem, path = filesystem_of(made.run_path)
    assert isinstance(filesystem, pafs.LocalFileSystem) and path == f"{tmp_path}/deep/run"


def test_an_unknown_scheme() -> None:
    with pytest.raises(StorageError) as caught:
        RunSpec(name="run", storage_path="nosuch://x/y").check()
    assert "nosuch://" in str(caught.value)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        spec(tmp_path, storage_path=str(tmp_path / "file" / "runs")).check()
    assert "can't be written" in str(caught.value) and "--storage-path" in str(caught.value)


def test_no_trace_is_left(tmp_path: Path) -> None:
    spec(tmp_path / "new").check()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_name_made_from_the_time_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form, *a: "train-20250101-235959")
    names = []
    for _ in range(3):
        made = spec(tmp_path, name="").check()
        (tmp_path / made.name).mkdir()
        names.append(made.name)
    assert names == [f"train-20250101-{n}" for n in (235959, 235960, 235961)]


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        (["run"], "run-2"),
        (["run", "run-2", "run-3"], "run-4"),
        (["run-7", "run-8"], "run-9"),
        (["v²-²"], "v²-²-2"),
    ],
)
def test_a_finished_name_is_refused_with_a_free_one(
    tmp_path: Path, taken: list[str], free: str
) -> None:
    for name in taken:
        write_record(FS, f"{tmp_path}/{name}", {"state": "finished"})
    with pytest.raises(StorageError) as caught:
        spec(tmp_path, name=taken[0]).check()
    assert f"such as {free}," in str(caught.value)
    assert spec(tmp_path, name=free).check()


@pytest.mark.parametrize("state", ["running", "failed", "stopped"])
def test_a_run_that_did_not_finish_may_go_on(tmp_path: Path, state: str) -> None:
    write_record(FS, f"{tmp_path}/run", {"state": state})
    check_storage(str(tmp_path), "run")


# -- records -------------------------------------------------------------------------------------


def test_records_that_can_not_be_read_are_none(tmp_path: Path) -> None:
    assert read_record(FS, f"{tmp_path}/none") is None
    for text in ("", "{", "[1]", "\xff", "[" * 100_000):
        path = tmp_path / "run" / "raynb" / "record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
        assert read_record(FS, f"{tmp_path}/run") is None


def test_a_record_holds_what_json_can(tmp_path: Path) -> None:
    odd = {"n": np.float32(0.5), "k": np.int64(3), "nan": math.nan, "s": "\udce9", "o": object}
    write_record(FS, f"{tmp_path}/run", odd)
    text = (tmp_path / "run" / "raynb" / "record.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    record = read_record(FS, f"{tmp_path}/run")
    assert record is not None and (record["n"], record["k"], record["nan"]) == (0.5, 3, "nan")
    assert os.listdir(tmp_path / "run" / "raynb") == ["record.json"]


class Loud:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (math.inf, "inf"),
        (np.float64("nan"), "nan"),
        (np.int8(3), 3),
        ((1, [2]), [1, [2]]),
        ({1: {"a": (None,)}}, {"1": {"a": [None]}}),
        ({1}, "{1}"),
        ("x" * 500, "x" * 500),
        (Path("/a"), "/a"),
        (Loud(), "<Loud: its text raises RuntimeError>"),
        ({Loud(): 1}, {"<Loud: its text raises RuntimeError>": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_safe(value: Any, safe: Any) -> None:
    assert json_safe(value) == safe
    json.dumps(json_safe(value), allow_nan=False)


def test_json_safe_is_bounded() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert len(json.dumps(json_safe(loop))) < 1_000
    text = json_safe(bytearray(10_000))
    assert len(text) == 200 and text.endswith("…")


def test_uris_with_characters_that_uris_do_not_have(tmp_path: Path) -> None:
    """Runs may be called so, and their names are part of URIs."""
    for name in ("two words", "größe", "a+b", "x{1}"):
        (tmp_path / name).mkdir()
        filesystem, inner = filesystem_of(f"file://{tmp_path}/{name}")
        assert inner == str(tmp_path / name)
        assert filesystem.get_file_info(inner).type == pafs.FileType.Directory
    # What is encoded already stays as it is.
    assert filesystem_of("file:///a%20b")[1] == "/a b"


def test_a_path_to_show_has_its_scheme() -> None:
    remote = pafs.S3FileSystem(access_key="k", secret_key="s", region="us-east-1")
    assert address_on(remote, "bucket/x") == "s3://bucket/x"
    assert address_on(pafs.LocalFileSystem(), "/x") == "/x"


def test_summary_is_json_and_keeps_secrets(tmp_path: Path) -> None:
    made = spec(
        tmp_path,
        num_workers=(1, 2),
        env={"TOKEN": "hunter2"},
        best=("loss", "min"),
        config={"lr": 0.1, "f": len},
    )
    summary = made.summary()
    assert "hunter2" not in json.dumps(summary)
    assert summary["env"] == {"TOKEN": "•••"} and summary["num_workers"] == "1:2"
    assert summary["best"] == "loss:min" and summary["config"]["lr"] == 0.1
    assert RunSpec(num_workers=0).summary()["resources_per_worker"] == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:sec/ret+x=@bucket/runs", "s3://bucket/runs"),
        ("can't open 's3://key:secret@bucket' now", "can't open 's3://bucket' now"),
        ("az://runs/a?account_key=abc&tls=1", "az://runs/a?account_key=•••&tls=1"),
        ("gs://b/x?Token=abc", "gs://b/x?Token=•••"),
        ("hdfs://host:8020/runs", "hdfs://host:8020/runs"),
        ("abfs://container@account/runs", "abfs://container@account/runs"),
        ("/data/a:b@c", "/data/a:b@c"),
    ],
)
def test_keys_in_addresses_are_never_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_no_secret_in_errors_nor_in_the_text_of_a_spec(tmp_path: Path) -> None:
    assert "hunter2" not in repr(spec(tmp_path, env={"TOKEN": "hunter2"}))
    for address in ("s3://key:hunter2@bucket with space\x7f/%zz", "nosuch://key:hunter2@b/x"):
        with pytest.raises(StorageError) as raised:
            filesystem_of(address)
        assert "hunter2" not in str(raised.value)
