"""Loaders: real files of each format, and nothing in any of them runs unless it is trusted."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import raynb
from raynb.errors import CheckpointError, OptionError, UnsafeCheckpointError
from raynb.results.loaders import base

from .canary import Canary, with_canary


def net(seed: int = 0, width: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in a.state_dict().items())


def save_file(state: dict[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
    pytest.importorskip("safetensors.torch").save_file(state, path, metadata)


def save_sharded(state: dict[str, Any], directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        dcp.save(state, checkpoint_id=directory)


def save_hugging_face_bin(content: Any, directory: Path) -> None:
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "bert"}')
    torch.save(content, directory / "pytorch_model.bin")


# -- formats -------------------------------------------------------------------------------------


def write_torch(model: nn.Module, at: Path) -> None:
    torch.save(model.state_dict(), at / "model.pt")


def write_nested(model: nn.Module, at: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    content = {"epoch": 3, "optimizer": optimizer.state_dict(), "model": model.state_dict()}
    torch.save(content, at / "model.pth.tar")


def write_legacy(model: nn.Module, at: Path) -> None:
    torch.save(model.state_dict(), at / "m.pth", _use_new_zipfile_serialization=False)


def write_safetensors(model: nn.Module, at: Path) -> None:
    save_file(model.state_dict(), at / "weights.safetensors")


def write_lightning(model: nn.Module, at: Path) -> None:
    content = {
        "epoch": 1,
        "pytorch-lightning_version": "2.6.6",
        # As a LightningModule has it whose network is its attribute `net`.
        "state_dict": {f"net.{k}": v for k, v in model.state_dict().items()},
        "hyper_parameters": {"args": argparse.Namespace(lr=0.1), "root": Path("data")},
    }
    torch.save(content, at / "epoch=1.ckpt")


def write_dcp(model: nn.Module, at: Path) -> None:
    save_sharded({"model": model.state_dict(), "epoch": 5, "rates": [0.1, 0.2]}, at)


def write_hugging_face(model: nn.Module, at: Path) -> None:
    state = model.state_dict()
    names = sorted(state)
    (at / "config.json").write_text('{"model_type": "bert"}')
    parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, inside in parts.items():
        save_file({n: state[n] for n in inside}, at / file)
    index = {"weight_map": {n: file for file, inside in parts.items() for n in inside}}
    (at / "model.safetensors.index.json").write_text(json.dumps(index))


def write_hugging_face_trainer(model: nn.Module, at: Path) -> None:
    """As transformers' Trainer leaves it with Ray's callback: all of it in a subdirectory."""
    save_hugging_face_bin(model.state_dict(), at / "checkpoint")
    torch.save({"lr": 0.1}, at / "checkpoint" / "optimizer.pt")
    torch.save(argparse.Namespace(), at / "checkpoint" / "training_args.bin")


FORMATS = [
    write_torch,
    write_nested,
    write_legacy,
    write_safetensors,
    write_lightning,
    write_dcp,
    write_hugging_face,
    write_hugging_face_trainer,
]


@pytest.mark.parametrize("write", FORMATS, ids=lambda f: f.__name__.removeprefix("write_"))
def test_every_format_loads_into_a_model(
    write: Callable[[nn.Module, Path], None], tmp_path: Path
) -> None:
    saved, model = net(1), net(2)
    write(saved, tmp_path)
    assert not same(saved, model)
    assert raynb.load_checkpoint(tmp_path, into=model) is model
    assert same(saved, model)
    # By Ray's checkpoint, and by the file alone.
    import ray.train

    checkpoint = ray.train.Checkpoint.from_directory(tmp_path)
    assert same(raynb.load_checkpoint(checkpoint, net(3)), saved)
    files = [f for f in tmp_path.iterdir() if f.is_file()]
    if len(files) == 1:
        assert same(raynb.load_checkpoint(str(files[0]), net(3)), saved)


def test_without_a_model_it_is_what_was_saved(tmp_path: Path) -> None:
    model = net()
    write_dcp(model, tmp_path)
    content = raynb.load_checkpoint(tmp_path)
    assert content["epoch"] == 5 and content["rates"] == [0.1, 0.2]
    assert torch.equal(content["model"]["0.weight"], model.state_dict()["0.weight"])
    assert raynb.load_checkpoint(tmp_path, key="epoch") == 5


def test_lightning_hyper_parameters_are_plain_data(tmp_path: Path) -> None:
    write_lightning(net(), tmp_path)
    found = raynb.load_checkpoint(tmp_path, key="hyper_parameters")
    assert found["args"].lr == 0.1 and str(found["root"]) == "data"


def test_hugging_face_without_transformers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    write_hugging_face(net(), tmp_path)
    with pytest.raises(CheckpointError, match=r"transformers, which is not installed"):
        raynb.load_checkpoint(tmp_path)


@pytest.mark.parametrize("safe", [True, False])
def test_hugging_face_builds_the_model(safe: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=3
    )
    saved = transformers.BertForSequenceClassification(config)
    saved.save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(saved.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = raynb.load_checkpoint(tmp_path)
    assert type(loaded) is type(saved) and same(loaded, saved)
    fresh = transformers.BertForSequenceClassification(config)
    assert not same(fresh, saved)
    assert same(raynb.load_checkpoint(tmp_path, fresh), saved)


def test_hugging_face_models_with_code_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    directory, sign = tmp_path / "model", tmp_path / "canary"
    directory.mkdir()
    (directory / "own.py").write_text(
        f"import os, torch\nos.mkdir({str(sign)!r})\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class OwnConfig(PretrainedConfig):\n    model_type = 'own'\n"
        "class OwnModel(PreTrainedModel):\n    config_class = OwnConfig\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.fc = torch.nn.Linear(2, 1)\n        self.post_init()\n"
    )
    own = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    config = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": own}
    (directory / "config.json").write_text(json.dumps(config))
    saved = nn.ModuleDict({"fc": nn.Linear(2, 1)})
    save_file(saved.state_dict(), directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsafeCheckpointError, match="brings the code of its model OwnModel"):
        raynb.load_checkpoint(directory)
    assert same(raynb.load_checkpoint(directory, nn.ModuleDict({"fc": nn.Linear(2, 1)})), saved)
    assert not sign.exists()
    loaded = raynb.load_checkpoint(directory, trusted=True)
    assert sign.exists() and same(loaded, saved)


def test_hugging_face_with_tied_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    saved = transformers.GPT2LMHeadModel(config)
    saved.save_pretrained(tmp_path)
    loaded = raynb.load_checkpoint(tmp_path, transformers.GPT2LMHeadModel(config))
    assert same(loaded, saved)


def test_safetensors_without_its_package_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    write_safetensors(net(), tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CheckpointError, match="pip install safetensors"):
        raynb.load_checkpoint(tmp_path)


def test_an_index_names_only_files_beside_it(tmp_path: Path) -> None:
    inside = tmp_path / "hf"
    inside.mkdir()
    save_file(net().state_dict(), tmp_path / "other.safetensors")
    (inside / "config.json").write_text("{}")
    index = {"weight_map": {"0.weight": "../other.safetensors"}}
    (inside / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not beside it"):
        raynb.load_checkpoint(inside, net())


def test_shards_lie_inside_their_checkpoint(tmp_path: Path) -> None:
    inside = tmp_path / "sharded"
    write_dcp(net(), inside)
    metadata = inside / ".metadata"
    content = pickle.loads(metadata.read_bytes())
    for info in content.storage_data.values():
        info.relative_path = "../" + info.relative_path
    metadata.write_bytes(pickle.dumps(content))
    (inside / "__0_0.distcp").rename(tmp_path / "__0_0.distcp")
    with pytest.raises(CheckpointError, match="outside of itself"):
        raynb.load_checkpoint(inside)


# -- nothing runs --------------------------------------------------------------------------------


def bad_torch(canary: Canary, at: Path) -> None:
    torch.save({"model": net().state_dict(), "extra": canary}, at / "model.pt")


def bad_protocol(canary: Canary, at: Path) -> None:
    torch.save({"model": canary}, at / "model.pt", pickle_protocol=5)


def bad_legacy(canary: Canary, at: Path) -> None:
    torch.save([canary], at / "model.pt", _use_new_zipfile_serialization=False)


def bad_plain_pickle(canary: Canary, at: Path) -> None:
    (at / "model.bin").write_bytes(pickle.dumps(canary))


def bad_nested_zip(canary: Canary, at: Path) -> None:
    torch.save(canary, at.parent / "inner.pt")
    with zipfile.ZipFile(at / "model.pt", "w") as archive:
        archive.write(at.parent / "inner.pt", "model/data.pkl")
        archive.writestr("model/version", "3\n")


def bad_lightning(canary: Canary, at: Path) -> None:
    content = {"state_dict": net().state_dict(), "hyper_parameters": {"net": canary}}
    torch.save(content, at / "last.ckpt")


def bad_hugging_face(canary: Canary, at: Path) -> None:
    save_hugging_face_bin({"0.weight": canary}, at / "hf")


def bad_metadata(canary: Canary, at: Path) -> None:
    save_sharded({"model": net().state_dict()}, at)
    metadata = at / ".metadata"
    content = pickle.loads(metadata.read_bytes())
    metadata.write_bytes(with_canary(pickle.dumps(content, protocol=2), canary))


def bad_shard(canary: Canary, at: Path) -> None:
    # What is no tensor is a pickle inside the shard.
    save_sharded({"model": net().state_dict(), "extra": canary}, at)


CANARIES = [
    bad_torch,
    bad_protocol,
    bad_legacy,
    bad_plain_pickle,
    bad_lightning,
    bad_hugging_face,
    bad_metadata,
    bad_shard,
]


@pytest.mark.parametrize("write", CANARIES, ids=lambda f: f.__name__.removeprefix("bad_"))
@pytest.mark.parametrize("into", [False, True])
def test_code_in_a_checkpoint_is_refused_and_runs_only_when_trusted(
    write: Callable[[Canary, Path], None], into: bool, tmp_path: Path
) -> None:
    directory, sign = tmp_path / "checkpoint", tmp_path / "canary"
    directory.mkdir()
    write(Canary(sign), directory)
    assert not sign.exists()
    with pytest.raises(UnsafeCheckpointError) as caught:
        # Without a model too, where Hugging Face's loader would build one.
        key = "model" if write is bad_hugging_face else None
        raynb.load_checkpoint(directory, net() if into else None, key=None if into else key)
    told = str(caught.value)
    assert str(directory) in told and f"{os.mkdir.__module__}.mkdir" in told
    assert "trusted=True" in told and "state_dict" in told
    assert not sign.exists()
    try:
        raynb.load_checkpoint(directory, key="model", trusted=True)
    except CheckpointError as error:
        # Some hold nothing of this name besides the canary; torch.load takes no bare pickle.
        assert "no part 'model'" in str(error) or write is bad_plain_pickle
    assert sign.exists()


def test_a_nested_zip_runs_nothing(tmp_path: Path) -> None:
    directory, sign = tmp_path / "checkpoint", tmp_path / "canary"
    directory.mkdir()
    bad_nested_zip(Canary(sign), directory)
    with pytest.raises(CheckpointError):
        raynb.load_checkpoint(directory)
    assert not sign.exists()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1)


def test_a_whole_pickled_model_names_its_class_and_both_ways_out(tmp_path: Path) -> None:
    saved = Net()
    torch.save(saved, tmp_path / "model.pt")
    with pytest.raises(UnsafeCheckpointError) as caught:
        raynb.load_checkpoint(tmp_path, Net())
    told = str(caught.value)
    assert "Net" in told and str(tmp_path / "model.pt") in told
    assert "torch.save(model.state_dict(), …)" in told
    assert "trusted=True where Net is defined" in told
    assert isinstance(raynb.load_checkpoint(tmp_path, trusted=True), Net)
    assert same(raynb.load_checkpoint(tmp_path, Net(), trusted=True), saved)


def test_trusted_without_the_class_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(Net(), tmp_path / "model.pt")
    monkeypatch.delitem(globals(), "Net")
    with pytest.raises(CheckpointError, match="not defined here"):
        raynb.load_checkpoint(tmp_path, trusted=True)


# -- bad input -----------------------------------------------------------------------------------


def test_what_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        raynb.load_checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="is empty"):
        raynb.load_checkpoint(tmp_path)
    write_torch(net(), tmp_path)
    with pytest.raises(CheckpointError, match=r"no file 'other.pt'\nWay out: it has model.pt"):
        raynb.load_checkpoint(tmp_path, file="other.pt")


@pytest.mark.parametrize("write", FORMATS, ids=lambda f: f.__name__.removeprefix("write_"))
def test_a_truncated_file(write: Callable[[nn.Module, Path], None], tmp_path: Path) -> None:
    write(net(), tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.suffix not in (".json", ".metadata"):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="cut off or damaged") as caught:
        raynb.load_checkpoint(tmp_path, net())
    assert str(tmp_path) in str(caught.value)


def test_truncated_metadata_and_a_missing_shard(tmp_path: Path) -> None:
    write_dcp(net(), tmp_path)
    (tmp_path / "__0_0.distcp").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"lacks the shard .*__0_0.distcp"):
        raynb.load_checkpoint(tmp_path)
    metadata = tmp_path / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:50])
    with pytest.raises(CheckpointError, match=r"\.metadata can't be read: it is cut off"):
        raynb.load_checkpoint(tmp_path)
    metadata.unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"\.metadata does not exist"):
        raynb.load_checkpoint(tmp_path)


def test_an_unknown_format_lists_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "weights.h5").write_bytes(b"x")
    for source, file in (
        (tmp_path, None),
        (tmp_path, "weights.h5"),
        (tmp_path / "weights.h5", None),
    ):
        with pytest.raises(CheckpointError, match="no loader knows the format") as caught:
            raynb.load_checkpoint(source, file=file)
        told = str(caught.value)
        assert "weights.h5" in told
        for name in ("torch", "safetensors", "huggingface", "lightning", "sharded"):
            assert f"\n  {name}" in told


def test_a_loader_by_name(tmp_path: Path) -> None:
    model = net()
    torch.save(model.state_dict(), tmp_path / "weights")
    assert same(raynb.load_checkpoint(tmp_path, net(1), loader="torch"), model)
    assert same(raynb.load_checkpoint(tmp_path / "weights", net(1), loader="torch"), model)
    with pytest.raises(OptionError, match="did you mean 'torch'"):
        raynb.load_checkpoint(tmp_path, loader="trch")


def test_several_files(tmp_path: Path) -> None:
    first, second = net(1), net(2)
    torch.save(first.state_dict(), tmp_path / "a.pt")
    torch.save(second.state_dict(), tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match=r"a.pt, b.pt\nWay out: choose one, such as file='a"):
        raynb.load_checkpoint(tmp_path)
    assert same(raynb.load_checkpoint(tmp_path, net(3), file="b.pt"), second)
    # One that says it is the model, beside others.
    torch.save(first.state_dict(), tmp_path / "model.pt")
    assert same(raynb.load_checkpoint(tmp_path, net(3)), first)


def test_a_runs_directory_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("checkpoint_1", "checkpoint_2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"a run's directory(.|\n)*/checkpoint_2"):
        raynb.load_checkpoint(tmp_path)
    (tmp_path / "checkpoint_manager_snapshot.json").write_text("{}")
    for name in ("checkpoint_1", "checkpoint_2"):
        write_torch(net(), tmp_path / name)
    with pytest.raises(CheckpointError, match=r"a run's directory(.|\n)*raynb.open\("):
        raynb.load_checkpoint(tmp_path)
    raynb.load_checkpoint(tmp_path / "checkpoint_1", into=net())


def test_bad_arguments(tmp_path: Path) -> None:
    write_torch(net(), tmp_path)
    with pytest.raises(OptionError, match=r"not the class Net(.|\n)*into=Net\(\)"):
        raynb.load_checkpoint(tmp_path, into=Net)
    with pytest.raises(OptionError, match="into must be a model, not str"):
        raynb.load_checkpoint(tmp_path, into="model")
    with pytest.raises(OptionError, match="not from int"):
        raynb.load_checkpoint(7)
    with pytest.raises(OptionError, match="not from an empty text"):
        raynb.load_checkpoint("")
    for wrong in ({"file": 3}, {"key": 3}, {"loader": 3}, {"strict": "no"}, {"trusted": "no"}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be"):
            raynb.load_checkpoint(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="map_location 'qpu' can't be used"):
        raynb.load_checkpoint(tmp_path, map_location="qpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match='use map_location="cpu"'):
            raynb.load_checkpoint(tmp_path, map_location="cuda")


@pytest.mark.parametrize("write", [write_torch, write_safetensors, write_dcp])
def test_map_location(write: Callable[[nn.Module, Path], None], tmp_path: Path) -> None:
    write(net(), tmp_path)
    content = raynb.load_checkpoint(tmp_path, map_location="meta")
    state = content.get("model", content)
    assert {v.device.type for v in state.values()} == {"meta"}


def test_a_checkpoint_of_a_gpu_loads_on_the_cpu(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    # The same file as a GPU would have written it: the storage's place is text in the pickle.
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        parts = {n: archive.read(n) for n in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "gpu.pt", "w") as archive:
        for name, data in parts.items():
            if name.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
                assert b"cuda:0" in data
            archive.writestr(name, data)
    loaded = raynb.load_checkpoint(tmp_path, file="gpu.pt")
    assert loaded["w"].device.type == "cpu" and loaded["w"].tolist() == [1, 1]


# -- other packages' -----------------------------------------------------------------------------


class NpzLoader:
    """As docs/loaders.md has it."""

    reads = "NumPy archives (.npz)"

    def find(self, files: Any) -> list[str]:
        return [f for f in files if f.endswith(".npz")]

    def load(self, path: Path, how: base.How) -> Any:
        with np.load(path, allow_pickle=how.trusted) as arrays:
            return {name: torch.as_tensor(a) for name, a in arrays.items()}


def register(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    from importlib.metadata import EntryPoint

    real = base.entry_points
    mine = EntryPoint("npz", value, base.GROUP)
    monkeypatch.setattr(base, "entry_points", lambda group: [*real(group=group), mine])


def test_a_loader_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(NpzLoader(), base.Loader)
    register(monkeypatch, f"{__name__}:NpzLoader")
    np.savez(tmp_path / "weights.npz", weight=np.ones((1, 2), np.float32), bias=np.zeros(1))
    model = raynb.load_checkpoint(tmp_path, nn.Linear(2, 1))
    assert model.weight.tolist() == [[1, 1]]
    # What such a loader does not expect is one error too, and what it must not run does not run.
    np.savez(tmp_path / "weights.npz", weight=np.array([Canary(tmp_path / "canary")], object))
    with pytest.raises(CheckpointError, match=r"can't be read as NumPy archives.*allow_pickle"):
        raynb.load_checkpoint(tmp_path)
    assert not (tmp_path / "canary").exists()


def test_a_broken_loader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "no_such_module:Loader")
    write_torch(net(), tmp_path)
    with pytest.raises(CheckpointError, match=r"loader 'npz' \(no_such_module:Loader\)"):
        raynb.load_checkpoint(tmp_path)
