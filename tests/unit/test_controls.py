"""Live controls without a browser: what a click does to the notebook's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
import torch

from raynb.results.checkpoints import CheckpointRow, Files
from raynb.results.controls import LoadControls, curve_chooser, table_sorter
from raynb.results.fetch import fetch, watching
from raynb.results.mount import mount
from raynb.results.static import place


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointRow:
    directory = tmp_path / "run" / "checkpoint_0"
    directory.mkdir(parents=True)
    torch.save(torch.nn.Linear(2, 1).state_dict(), directory / "model.pt")
    return CheckpointRow(
        0, "checkpoint_0", str(directory), 3, {"acc": 1.0}, True, Files((("model.pt", 99),), 1.0)
    )


def click(controls: LoadControls, into: str | None = None) -> str:
    if into is not None:
        controls.into.value = into
    controls.buttons[0].click()
    if controls._loading is not None:
        controls._loading.join(60)
    assert not controls.buttons[0].disabled
    return controls.said.value


def test_a_click_binds_a_new_variable_and_shows_the_line(saved: CheckpointRow) -> None:
    names: dict[str, Any] = {}
    controls = LoadControls([saved], str(Path(saved.address).parent), names)
    said = click(controls)
    assert names["weights"]["weight"].shape == (1, 2)
    assert "weights = raynb.load_checkpoint(&quot;" in said and "2 entries" in said
    # The second click leaves the first one's variable alone, and so does the third.
    names["weights"] = "mine"
    assert "weights exists and was left as it is" in click(controls)
    click(controls)
    assert names["weights"] == "mine" and {"weights_2", "weights_3"} <= set(names)
    controls.replace.value = True
    click(controls)
    assert names["weights"] != "mine" and "weights_4" not in names


def test_a_model_gets_the_weights(saved: CheckpointRow) -> None:
    names: dict[str, Any] = {"net": torch.nn.Linear(2, 1), "Net": torch.nn.Linear, "n": 1}
    controls = LoadControls([saved], str(Path(saved.address).parent), names)
    assert controls.into.options == ("weights", "net")
    net = names["net"]
    torch.nn.init.zeros_(net.weight)
    said = click(controls, "net")
    assert names["net"] is net and net.weight.abs().sum() > 0
    assert "into=net)" in said and "the weights are in net" in said
    names["other"] = torch.nn.Linear(3, 3)
    controls.refresh()
    assert controls.into.options == ("weights", "net", "other")
    said = click(controls, "other")
    assert "CheckpointError" in said, "it does not fit"


@pytest.mark.parametrize("name", ["", "a b", "1a", "class", "x.y", "<b>", "import os;os"])
def test_what_is_no_name_is_refused(saved: CheckpointRow, name: str) -> None:
    names: dict[str, Any] = {}
    said = click(LoadControls([saved], "", names), name)
    assert "can&#x27;t be the name of a variable" in said and not names and "<b>" not in said


def test_an_error_is_shown_and_nothing_is_bound(saved: CheckpointRow) -> None:
    Path(saved.address, "model.pt").write_bytes(b"<script>")
    names: dict[str, Any] = {}
    said = click(LoadControls([saved], "", names))
    assert "CheckpointError" in said and "<script>" not in said and not names


def test_who_fetches_is_told_how_far_it_is(tmp_path: Path) -> None:
    inner = tmp_path / "remote"
    (inner / "sub").mkdir(parents=True)
    (inner / "a.bin").write_bytes(b"x" * 300_000)
    (inner / "sub" / "b.bin").write_bytes(b"x" * 200_000)
    remote = pafs.SubTreeFileSystem(str(inner), pafs.LocalFileSystem())
    seen: list[int] = []
    (tmp_path / "here").mkdir()
    with watching(seen.append):
        fetch(remote, "", tmp_path / "here")
    assert seen[-1] == 500_000
    fetch(remote, "sub/b.bin", tmp_path / "alone.bin")
    assert (tmp_path / "alone.bin").stat().st_size == 200_000 and seen[-1] == 500_000


def test_the_chooser_draws_what_is_chosen_and_tells_what_fails() -> None:
    asked = []

    def draw(metric: str, x: str) -> bytes:
        asked.append((metric, x))
        if metric == "bad":
            raise ValueError("no <picture>")
        return metric.encode()

    box = curve_chooser(["loss", "acc", "bad"], "loss", draw)
    (which, over), picture, said = box.children[0].children, *box.children[1:]
    which.value = "acc"
    over.value = "time"
    assert asked == [("loss", "step"), ("acc", "step"), ("acc", "time")]
    assert picture.value == b"acc" and said.value == ""
    which.value = "bad"
    assert "no &lt;picture&gt;" in said.value


def test_the_sorter_asks_for_the_order() -> None:
    box = table_sorter(["name", "best"], "name", lambda column, high: f"{column} {high}")
    (by, order), table = box.children[0].children, box.children[1]
    by.value, order.value = "best", False
    assert table.value == "best False"


def test_without_a_kernel_nothing_is_mounted() -> None:
    assert mount("", dict) == ""
    assert place("", "load") == "" and place("", "curves", "<b>x</b>") == "<b>x</b>"
    assert place("ab12", "curves", "<b>x</b>") == '<div class="raynb-ab12-curves"><b>x</b></div>'
