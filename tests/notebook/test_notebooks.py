"""The notebooks by subject: each is executed in a real kernel and does what it is about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.notebook
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@dataclass
class About:
    """What is asked of a notebook after its last cell.

    Attributes
    ----------
    facts : str
        A Python expression, evaluated in its kernel; what it gives comes as JSON.
    check : callable
        Takes that, and asserts.
    parameters : dict
        Replace those of its cell that is tagged so: fewer epochs.
    """

    facts: str
    check: Callable[[Any], None]
    parameters: dict[str, Any] = field(default_factory=dict)


def from_pytorch(found: dict[str, Any]) -> None:
    plain, distributed = found["accuracy"]
    assert plain > 0.7 and distributed > 0.7 and abs(plain - distributed) < 0.08
    # 12,000 rows: 94 batches of 128, or of 64 on two ranks.
    assert found["steps"] == [94 * found["epochs"]] * 2 and found["rows"] == [6000, 6000]
    removed, added = found["diff"]
    assert "prepare_model" in added and "prepare_model" not in removed
    assert "torch.save" in removed and "raynb.checkpoint" in added
    assert found["loaded"] == distributed


def reading_the_panel(found: dict[str, Any]) -> None:
    assert found["waiting"] == ["data_bound"] and found["ready"] == []
    assert found["straggling"] == ["straggler"] and found["shared"] == []
    assert "imbalance" in found["skewed"] and found["even"] == []
    (few, many), even = found["rows"]
    assert few + many == 12_000 and many > 1.2 * few and even == [6000, 6000]


def checkpoints_and_results(found: dict[str, Any]) -> None:
    assert found["reported"] == pytest.approx(found["here"], abs=1e-6) and found["here"] > 0.6
    assert found["same"] is True
    assert (
        found["epochs"] == [found["each"]] * 3
    )  # the third went on where the better one had ended
    assert found["third_first_loss"] < found["first_loss"] / 2
    assert found["runs"] == 3 and found["kept"] <= 4


def warm_workers(found: dict[str, Any]) -> None:
    waits = found["waits"]
    assert max(waits["warm"], waits["warm, edited"]) < waits["own workers"] / 4
    assert found["accuracy"] > 0.7
    assert found["mean"] < 1e-6 < found["own"]


def ray_data(found: dict[str, Any]) -> None:
    for ranks in found["rows"].values():
        for epoch in zip(*ranks, strict=True):
            assert sum(epoch) == found["total"] and min(epoch) > 0
    streamed, stored = found["seconds"]
    assert stored < streamed
    assert all(last < first for first, last in found["losses"])


def performance(found: dict[str, Any]) -> None:
    # One exchange in four, and all four batches in each of its steps.
    assert found["sync"]["accumulated"] < found["sync"]["plain"]
    assert all(0.2 < accuracy <= 1 for accuracy in found["accuracy"].values())
    assert found["accuracy"]["scaled"] > found["accuracy"]["large"]
    assert found["differs"] is True
    same, apart = found["correlations"]
    assert same == 1.0 and abs(apart) < 0.3


def attach_and_recovery(found: dict[str, Any]) -> None:
    assert found["attempts"] == [0, 1] and found["state"] == "finished"
    assert len(set(found["processes"])) == 4  # two attempts of two ranks
    (first, second) = found["epochs"]
    assert first[0] == 0 and second[0] > 0 and second[1] == found["last"]
    assert second[0] <= first[1] + 1  # it goes on from the last checkpoint
    assert "attached" in found["other"] and f"with {found['records']} records" in found["other"]


ABOUT = {
    "03_from_pytorch": About(
        parameters={"epochs": 1},
        facts="""{
            "accuracy": [accuracy(model, device), result.metrics["accuracy"]],
            "loaded": accuracy(trained, "cpu"),
            "epochs": epochs,
            "steps": [len(losses), len(both)],
            "rows": [w["shards"][0]["rows_seen"] for w in result.record["workers"]],
            "diff": [
                "\\n".join(set(plain.splitlines()) - set(result.record["source"].splitlines())),
                "\\n".join(set(result.record["source"].splitlines()) - set(plain.splitlines())),
            ],
        }""",
        check=from_pytorch,
    ),
    "04_reading_the_panel": About(
        facts="""{
            name: [hint["kind"] for hint in run.record["hints"]]
            for name, run in dict(
                waiting=waiting, ready=ready, straggling=straggling, shared=shared,
                skewed=skewed, even=even,
            ).items()
        } | {
            "rows": [
                [w["shards"][0]["rows_total"] for w in run.record["workers"]]
                for run in (skewed, even)
            ]
        }""",
        check=reading_the_panel,
    ),
    "05_checkpoints_and_results": About(
        parameters={"epochs": 2},
        facts="""{
            "reported": reported,
            "here": ((scores.argmax(1) == test_labels).float().mean().item()),
            "same": all(weights[n].equal(v) for n, v in model.state_dict().items()),
            "epochs": [
                int(r.history.query("rank == 0")["accuracy"].count())
                for r in (first, second, third)
            ],
            "each": epochs,
            "first_loss": first.history["loss"].iloc[0],
            "third_first_loss": third.history["loss"].iloc[0],
            "runs": len(raynb.runs("runs")),
            "kept": len(first.checkpoints),
        }""",
        check=checkpoints_and_results,
    ),
    "06_warm_workers_and_spmd": About(
        facts="""{
            "waits": waits,
            "accuracy": min(r.history["accuracy"].max() for r in results.values()),
            "mean": max((g - whole).abs().max().item() for g in gradients["mean"]),
            "own": min((g - whole).abs().max().item() for g in gradients["own"]),
        }""",
        check=warm_workers,
    ),
    "07_ray_data": About(
        facts="""{
            "rows": {name: frame["rows"].tolist() for name, frame in told.items()},
            "total": rows,
            "seconds": [sum(s) for s in seconds.values()],
            "losses": [
                [r.history["loss"].dropna()[:10].mean(), r.history["loss"].dropna()[-10:].mean()]
                for r in (stream, store)
            ],
        }""",
        check=ray_data,
    ),
    "08_performance": About(
        facts="""{
            "sync": {
                name: sum(w["sync_s"] or 0 for w in r.record["workers"]) / k
                for name, r, k in (("plain", plain, 1), ("accumulated", accumulated, 4))
            },
            "accuracy": {
                name: measured(r)["accuracy"]
                for name, r in dict(plain=plain, mixed=mixed, large=large, scaled=scaled).items()
            },
            "differs": bool((plain.history["loss"] != mixed.history["loss"]).any()),
            "correlations": list(correlations.values()),
        }""",
        check=performance,
    ),
    "09_attach_and_recovery": About(
        facts="""{
            "attempts": sorted(int(a) for a in result.history["attempt"].unique()),
            "state": result.state,
            "processes": [int(p) for p in result.history["pid"].dropna().unique()],
            "epochs": [
                [int(part["epoch"].min()), int(part["epoch"].max())]
                for _, part in result.history.groupby("attempt")
            ],
            "last": epochs - 1,
            "records": len(result.history),
        }""",
        check=attach_and_recovery,
    ),
}


def test_all_are_here() -> None:
    stems = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert ABOUT.keys() == {stem for stem in stems if stem >= "03"}


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """An environment without a cluster; ends the one that a notebook leaves when it fails."""
    # A cluster that this process has started leaves its mode of authentication behind.
    env = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as own:
        env["TMPDIR"] = own  # where the file of raynb's cluster lies; short, for Ray's sockets
        yield env
        subprocess.run(
            [sys.executable, "-m", "raynb", "cluster", "down", "--force"],
            env=env,
            capture_output=True,
        )


@pytest.mark.parametrize("stem", ABOUT)
def test_a_notebook_does_what_it_is_about(
    stem: str, environment: dict[str, str], tmp_path: Path
) -> None:
    about = ABOUT[stem]
    notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    cells = notebook.cells
    if about.parameters:
        at = next(k for k, c in enumerate(cells) if "parameters" in c.metadata.get("tags", ()))
        lines = [f"{name} = {value!r}" for name, value in about.parameters.items()]
        cells.insert(at + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    code = f"import json\nprint(json.dumps({about.facts}))"
    cells.append(nbformat.v4.new_code_cell(code))
    client = nbclient.NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    with (tmp_path / "kernel.log").open("w") as log:
        client.execute(env=environment, stdout=log, stderr=log)
    found = json.loads(printed(cells[-1]))
    if stem == "09_attach_and_recovery":
        found["other"] = "".join(printed(c) for c in cells if c.source.startswith("%%script"))
    about.check(found)


def printed(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
