"""``%%distributed_tune`` in a real IPython shell; starting a search is faked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import raynb.api_tune
from raynb.errors import CaptureError, OptionError
from raynb.magics import loading
from raynb.magics.train import RunInterrupted
from raynb.tuning.spec import TuneSpec

LINE = "%%distributed_tune --space space --metric acc --mode max"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    found: list[SimpleNamespace] = []

    def tune_cell(spec: Any, capture: Any, *, background: bool, echo: bool) -> Any:
        def wait() -> None:
            run.result = "the result"
            if run.error is not None:
                raise run.error

        run = SimpleNamespace(spec=spec, capture=capture, background=background, result=None,
                              error=errors.get("next"), wait=wait)  # fmt: skip
        found.append(run)
        return run

    monkeypatch.setattr(raynb.api_tune, "tune_cell", tune_cell)
    return found


errors: dict[str, BaseException | None] = {}


@pytest.fixture
def ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    errors.clear()
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    loading.load_ipython_extension(shell)
    shell.run_cell(
        "from ray import tune\nimport raynb\n"
        "space = {'lr': tune.loguniform(1e-4, 1e-1), 'n': tune.choice([1, 2])}\nrate = 2"
    ).raise_error()
    shell.run_cell("%config RayNB.storage_path = 'runs'").raise_error()
    yield shell
    loading.unload_ipython_extension(shell)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def failure(ip: InteractiveShell, text: str) -> BaseException:
    error = ip.run_cell(text, store_history=True).error_in_exec
    assert error is not None
    return error


def test_every_option_arrives(ip: InteractiveShell, started: list[Any]) -> None:
    ip.user_ns["fixed"] = {"epochs": 3}
    ip.run_cell(
        f"{LINE} --num-samples 50 --scheduler asha --scheduler-arg grace_period=2 \\\n"
        "  --scheduler-arg reduction_factor=rate --search random --max-concurrent 4 \\\n"
        "  --time-budget-s 60 --stop acc>=0.95 --stop training_iteration>=20 --seed 3 \\\n"
        "  -n 2 --no-gpu --resources CPU=2 -c fixed --name mine --max-failures 1 --num-to-keep 2\n"
        "print(config, rate)"
    ).raise_error()
    (run,) = started
    spec = run.spec
    assert isinstance(spec, TuneSpec)
    assert (spec.num_samples, spec.scheduler, spec.search, spec.seed) == (50, "asha", "random", 3)
    assert spec.scheduler_args == {"grace_period": 2, "reduction_factor": 2}
    assert (spec.max_concurrent, spec.time_budget_s) == (4, 60.0)
    assert [str(c) for c in spec.stop] == ["acc >= 0.95", "training_iteration >= 20"]
    assert spec.distributed and spec.bundle == {"CPU": 2.0} and spec.use_gpu is False
    assert spec.param_space.keys() == {"epochs", "lr", "n"}
    assert (spec.name, spec.max_failures, spec.num_to_keep) == ("mine", 1, 2)
    assert spec.space["lr"] is ip.user_ns["space"]["lr"]
    assert [c.name for c in run.capture.table] == ["rate"]
    assert ip.user_ns["result"] == "the result"


def test_both_cell_forms(ip: InteractiveShell, started: list[Any]) -> None:
    ip.run_cell(f"{LINE}\ndef train_func(config):\n    print(config)").raise_error()
    ip.run_cell(f"{LINE} --background -o search\nprint(config)").raise_error()
    assert [run.capture.program.form for run in started] == ["function", "body"]
    assert started[1].background and ip.user_ns["search"] is started[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--metric acc --mode max", ["--space is missing"]),
        ("--space spac --metric acc --mode max", ["did you mean `space`?"]),
        ("--space {} --metric acc --mode max", ["the space is empty"]),
        ("--space space --metric acc", ["--mode is missing"]),
        ("--space space --mode max", ["metric"]),
        ("--space space --metric acc --mode max --stop acc", ["METRIC>=NUMBER"]),
        ("--space space --metric acc --mode max --num-samples many", ["--num-samples 'many'"]),
        ("--space space --metric acc --mode max --time-budget-s soon", ["--time-budget-s 'soon'"]),
        ("--space space --metric acc --mode max --scheduler-arg grace", ["NAME=VALUE"]),
        ("--space space --metric acc --mode max --scheduler-arg a=b", ["no variable `b`"]),
        ("--space space --metric acc --mode max --best acc:max", ["no option --best"]),
        ("--space space --metric acc --mode max --local", ["no option --local"]),
    ],
)
def test_bad_lines(
    ip: InteractiveShell, started: list[Any], line: str, words: list[str], tmp_path: Path
) -> None:
    error = failure(ip, f"%%distributed_tune {line}\n1")
    assert isinstance(error, OptionError) and all(w in str(error) for w in words), str(error)
    assert started == [] and not (tmp_path / "runs").exists()


def test_help_dry_run_and_no_cell(
    ip: InteractiveShell, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ip.run_cell("%%distributed_tune --help").raise_error()
    shown = capsys.readouterr().out
    assert "--scheduler-arg" in shown and "--num-workers" in shown and "--best" not in shown
    ip.run_cell(f"{LINE} --dry-run\nprint(rate)").raise_error()
    shown = capsys.readouterr().out
    assert "rate" in shown and "scheduler" in shown and "acc:max" in shown
    assert isinstance(failure(ip, "%distributed_tune --space space"), CaptureError)
    assert started == []


def test_a_stop_says_how_to_go_on(ip: InteractiveShell, started: list[Any]) -> None:
    errors["next"] = KeyboardInterrupt()
    error = failure(ip, f"{LINE} --name halted -o r\n1")
    assert isinstance(error, RunInterrupted)
    assert "search halted stopped" in str(error) and "--resume r goes on" in str(error)


def test_completion_knows_the_options(ip: InteractiveShell) -> None:
    def offers(text: str) -> set[str]:
        with provisionalcompleter():
            return {c.text for c in ip.Completer.completions(text, len(text))}

    assert "--scheduler-arg" in offers("%%distributed_tune --sch")
    assert "asha" in offers("%%distributed_tune --scheduler a")
    assert "space" in offers("%%distributed_tune --space sp")
    loading.unload_ipython_extension(ip)
    assert "distributed_tune" not in ip.magics_manager.magics["cell"]
    loading.load_ipython_extension(ip)
