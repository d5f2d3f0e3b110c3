"""Fitting weights: prefixes on either side, nested dicts, and what does not fit."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raynb.errors import CheckpointError
from raynb.weights.fit import load_into, pick, plain_names


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)


class Net(nn.Module):
    """With a part that is called as DDP's wrapper is."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.module = Block(width)
        self.head = nn.Linear(width, 2)


class Within(nn.Module):
    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


def filled(model: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.fill_(value + number)
    return model


def values(model: nn.Module) -> list[float]:
    return [float(p.detach().flatten()[0]) for p in model.parameters()]


def partly_compiled(model: nn.Module) -> nn.Module:
    """As torch.compile of a part leaves it."""
    part = next(iter(dict(model.named_children())))
    model.add_module(part, Within("_orig_mod", model.get_submodule(part)))
    return model


WRAPPERS: list[Callable[[nn.Module], nn.Module]] = [
    lambda m: m,
    lambda m: nn.DataParallel(m),
    lambda m: torch.compile(m),  # type: ignore[return-value]
    lambda m: nn.DataParallel(torch.compile(m)),  # type: ignore[arg-type]
    lambda m: Within("_fsdp_wrapped_module", Within("_checkpoint_wrapped_module", m)),
    partly_compiled,
]


@pytest.mark.parametrize("kind", [Block, Net])
@pytest.mark.parametrize("saved", range(len(WRAPPERS)))
@pytest.mark.parametrize("into", range(len(WRAPPERS)))
def test_wrappers_on_either_side_make_no_difference(
    kind: Callable[[], nn.Module], saved: int, into: int
) -> None:
    state = WRAPPERS[saved](filled(kind(), 1)).state_dict()
    model = WRAPPERS[into](filled(kind(), 100))
    load_into(model, state, shown="x")
    assert values(model) == values(filled(kind(), 1))


def test_both_of_a_clash_are_kept_apart() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.module = Within("fc", nn.Linear(2, 2))

    model = filled(Clash(), 50)
    load_into(model, filled(Clash(), 1).state_dict(), shown="x")
    assert values(model) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["model", "net", "backbone"])
def test_a_model_and_the_module_that_holds_it(name: str) -> None:
    """Lightning's way: the network is an attribute of what was saved, or the other way round."""
    inner = filled(Block(), 1)
    outer = Within(name, filled(Block(), 30))
    load_into(outer, inner.state_dict(), shown="x")
    assert values(outer) == values(inner)
    again = filled(Block(), 60)
    load_into(again, outer.state_dict(), shown="x")
    assert values(again) == values(inner)


def test_which_of_two_equal_parts_is_not_guessed() -> None:
    both = nn.ModuleDict({"student": Block(), "teacher": Block()})
    for strict in (True, False):
        with pytest.raises(CheckpointError, match="nothing in x fits the Block"):
            load_into(Block(), both.state_dict(), shown="x", strict=strict)


def test_tied_weights_are_there_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    model = filled(Tied(), 9)
    load_into(model, {"embed.weight": torch.ones(5, 3)}, shown="x")
    assert float(model.head.weight.detach().sum()) == 15  # type: ignore[union-attr,operator]


@pytest.mark.parametrize(
    "around",
    [
        lambda s: s,
        lambda s: {"model": s, "optimizer": {"state": {}, "param_groups": []}, "epoch": 3},
        lambda s: {"epoch": 3, "state_dict": s, "ema_state_dict": s},
        lambda s: {"epoch": 3, "model_state_dict": s, "loss": torch.tensor(1.0)},
        lambda s: {"weights_of_my_own": s, "epoch": 1},
        lambda s: {"model": {"state_dict": s, "config": {}}},
        lambda s: OrderedDict(s),
    ],
)
def test_nested_dicts_are_recognised(around: Callable[[Any], Any]) -> None:
    model = filled(Block(), 50)
    load_into(model, around(filled(Block(), 1).state_dict()), shown="x")
    assert values(model) == [1, 2, 3, 4]


def test_key_picks() -> None:
    one, two = filled(Block(), 1), filled(Block(), 20)
    content = {"ema": {"model": two.state_dict()}, "raw.model": one.state_dict(), "epoch": 1}
    model = Block()
    load_into(model, content, shown="x", key="ema.model")
    assert values(model) == values(two)
    load_into(model, content, shown="x", key="raw.model")
    assert values(model) == values(one)
    with pytest.raises(CheckpointError, match=r"no part 'best'\nWay out: it has ema, raw.model"):
        load_into(model, content, shown="x", key="best")
    with pytest.raises(CheckpointError, match="holds a list"):
        pick([1], "best", "x")
    both = {"a": one.state_dict(), "b": two.state_dict()}
    with pytest.raises(CheckpointError, match=r"several could be(.|\n)*key='a'"):
        load_into(model, both, shown="x")


def test_an_optimizer_takes_its_part() -> None:
    model = Block()
    saved = torch.optim.Adam(model.parameters(), lr=0.5)
    content = {"model": model.state_dict(), "optimizer": saved.state_dict()}
    optimizer = torch.optim.Adam(Block().parameters(), lr=0.1)
    load_into(optimizer, content, shown="x", key="optimizer")
    assert optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(CheckpointError, match=r"x does not fit the Adam(.|\n)*key=\"optimizer\""):
        load_into(optimizer, content, shown="x")


def test_what_does_not_fit_is_a_short_table_and_nothing_is_loaded() -> None:
    state = filled(Net(5), 1).state_dict()
    state["extra\x1b[31m.weight"] = state.pop("module.norm.bias")
    model = filled(Net(4), 50)
    before = values(model)
    with pytest.raises(CheckpointError) as caught:
        load_into(model, state, shown="model.pt")
    told = str(caught.value)
    first, *rows, way_out = told.splitlines()
    assert first.startswith("model.pt does not fit the Net: 1 missing, 1 unexpected, 6 of wrong")
    table = [row.split(maxsplit=1) for row in rows]
    assert ["missing", "module.norm.bias          (4,) in the model"] in table
    assert any(
        row[0] == "wrong" and "head.weight" in row[1]
        and row[1].endswith("(2, 5) in the checkpoint, (2, 4) in the model")
        for row in table
    )  # fmt: skip
    assert "\x1b" not in told and "extra�[31m.weight" in told
    assert "strict=False" in way_out
    assert values(model) == before


def test_many_rows_are_cut_to_a_few_of_each_kind() -> None:
    state = {f"their.{i}.weight": torch.ones(1) for i in range(500)}
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))
    with pytest.raises(CheckpointError) as caught:
        load_into(model, state, shown="x")
    lines = str(caught.value).splitlines()
    assert len(lines) <= 15 and any("and 588 more" in line for line in lines)


def test_not_strict_loads_what_fits_and_tells_the_rest() -> None:
    state = filled(Net(), 1).state_dict()
    state["head.weight"] = torch.ones(7, 4)
    del state["module.fc.bias"]
    model = filled(Net(), 50)
    with pytest.warns(UserWarning, match=r"x fits the Net in part:\n  missing +module.fc.bias"):
        load_into(model, state, shown="x", strict=False)
    assert values(model) == [1, 51, 3, 4, 54, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_into(model, filled(Net(), 1).state_dict(), shown="x", strict=False)
    # Where nothing fits, it is another model's.
    with pytest.raises(CheckpointError, match="nothing in x fits"):
        load_into(nn.Linear(7, 7), state, shown="x", strict=False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "holds nothing"),
        (None, "holds nothing"),
        ([1], "holds a list"),
        (torch.ones(2), "holds a Tensor"),
        ({"epoch": 3, "lr": 0.1}, "holds epoch, lr, and none of it is a model's weights"),
    ],
)
def test_what_holds_no_weights(content: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        load_into(Block(), content, shown="x")


def test_a_model_without_memory_and_a_lazy_one_take_what_is_loaded() -> None:
    state = filled(Block(), 1).state_dict()
    with torch.device("meta"):
        model = Block()
    load_into(model, state, shown="x")
    assert values(model) == [1, 2, 3, 4]
    lazy = nn.LazyLinear(4)
    load_into(lazy, nn.Linear(3, 4).state_dict(), shown="x")
    assert lazy.weight.shape == (4, 3)


def test_versions_of_modules_are_kept(tmp_path: Path) -> None:
    """BatchNorm before version 2 had no num_batches_tracked; torch tells by the version."""
    state = nn.DataParallel(Block()).state_dict()
    seen: list[Any] = []
    model = Block()
    model.norm.register_load_state_dict_pre_hook(
        lambda module, state, prefix, local, *rest: seen.append(local)
    )
    load_into(model, state, shown="x")
    assert seen == [{"version": 2}]


def test_plain_names_leave_layers_that_people_name() -> None:
    state = {"_orig_mod.module.fc.weight": 1, "_fsdp_wrapped_module.head.bias": 2}
    assert plain_names(state) == {"module.fc.weight": 1, "head.bias": 2}
