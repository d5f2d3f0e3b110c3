"""The magic line: what is accepted, what it means, and how errors read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raynb.engine.spec import RunSpec
from raynb.errors import OptionError
from raynb.magics.config import RayNB
from raynb.magics.options import TRAIN_GROUPS, build_spec, options, parse, split


@options("%%train [options]", TRAIN_GROUPS)
def train(line: str) -> None:
    """Train.

    More words.
    """


NOTEBOOK: dict[str, Any] = {
    "config": {"lr": 0.1},
    "train_ds": object(),
    "args": SimpleNamespace(train={"lr": 0.2}, epochs=3),
    "_hidden": 1,
}


def spec(line: str, **configured: Any) -> RunSpec:
    return build_spec(parse(train, line), NOTEBOOK, RayNB(**configured))


def error(line: str) -> str:
    with pytest.raises(OptionError) as caught:
        spec(line)
    return str(caught.value)


def test_an_empty_line_gives_the_defaults() -> None:
    assert spec("") == RunSpec()


def test_every_option_reaches_the_spec() -> None:
    made = spec(
        "-n 4 --gpu --resources CPU=4 --resources memory=2e9 --placement-strategy SPREAD "
        "--accelerator-type A100 -c config --name first --storage-path runs --max-failures -1 "
        "--num-to-keep 3 --best val/acc:max --dataset train=train_ds --dataset eval=args.train "
        "--backend gloo --timeout-s 60 --env A=1 --env B=x=y"
    )
    assert made == RunSpec(
        name="first",
        num_workers=4,
        use_gpu=True,
        resources_per_worker={"CPU": 4.0, "memory": 2e9},
        placement_strategy="SPREAD",
        accelerator_type="A100",
        config={"lr": 0.1},
        storage_path="runs",
        max_failures=-1,
        num_to_keep=3,
        best=("val/acc", "max"),
        datasets={"train": NOTEBOOK["train_ds"], "eval": {"lr": 0.2}},
        backend="gloo",
        timeout_s=60,
        env={"A": "1", "B": "x=y"},
    )


@pytest.mark.parametrize(
    ("line", "workers"),
    [
        ("-n 1:4", (1, 4)),
        ("-n2", 2),
        ("--num-workers=3", 3),
        ("--local", 0),
        ("--local -n 0", 0),
        ("-n 2 -n 5", 5),
    ],
)
def test_workers(line: str, workers: object) -> None:
    assert spec(line).num_workers == workers


def test_gpu_has_three_states() -> None:
    assert [spec(x).use_gpu for x in ("", "--gpu", "--no-gpu")] == [None, True, False]


def test_flags_override_the_configuration() -> None:
    configured: dict[str, Any] = {
        "num_workers": (1, 2),
        "gpu": True,
        "storage_path": "a",
        "max_failures": 2,
        "num_to_keep": 5,
        "backend": "gloo",
        "timeout_s": 9,
        "placement_strategy": "SPREAD",
    }
    plain = spec("", **configured)
    assert (plain.num_workers, plain.use_gpu, plain.storage_path) == ((1, 2), True, "a")
    assert (plain.max_failures, plain.num_to_keep, plain.backend) == (2, 5, "gloo")
    assert (plain.timeout_s, plain.placement_strategy) == (9, "SPREAD")
    line = "-n 3 --no-gpu --storage-path b --max-failures 0 --num-to-keep 1 --backend nccl"
    flags = spec(line + " --timeout-s 7 --placement-strategy PACK", **configured)
    assert (flags.num_workers, flags.use_gpu, flags.storage_path) == (3, False, "b")
    assert (flags.max_failures, flags.num_to_keep, flags.backend) == (0, 1, "nccl")
    assert (flags.timeout_s, flags.placement_strategy) == (7, "PACK")
    assert spec("--local", **configured).num_workers == 0


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("config", {"lr": 0.1}),
        ("args.train", {"lr": 0.2}),
        ("'{\"lr\": 1}'", {"lr": 1}),
        ("\"{'lr': [1, 2]}\"", {"lr": [1, 2]}),
        ("None", None),
    ],
)
def test_a_config_is_a_variable_or_a_literal(written: str, value: object) -> None:
    assert spec(f"-c {written}").config == value


def test_values_are_never_evaluated() -> None:
    NOTEBOOK["boom"] = lambda: pytest.fail("called")
    try:
        assert "neither a variable nor a Python literal" in error("-c boom()")
    finally:
        del NOTEBOOK["boom"]


def test_quotes_hashes_backslashes_and_line_ends() -> None:
    assert split("--name \"my # run\" --env 'A=b \"c\"' # x\r\n") == [
        "--name", "my # run", "--env", 'A=b "c"', "#", "x",
    ]  # fmt: skip
    assert split(r"--storage-path C:\runs\new") == ["--storage-path", r"C:\runs\new"]
    assert spec("-n 2\r").num_workers == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n abc", ["-n/--num-workers", "'abc'", "-n 2", "-n 1:4"]),
        ("-n 1.5", ["-n/--num-workers", "'1.5'"]),
        ("-n 0", ["-n/--num-workers", "'0'", "--local", "-n 1"]),
        ("-n -2", ["-n/--num-workers", "'-2'"]),
        ("-n 4:2", ["-n/--num-workers", "'4:2'", "-n 1:4"]),
        ("-n 0:2", ["-n/--num-workers", "'0:2'"]),
        ("-n 1:", ["-n/--num-workers", "'1:'"]),
        ("-n", ["-n/--num-workers needs a value", "-n 2"]),
        ("-n --gpu", ["-n/--num-workers needs a value"]),
        ("--local -n 2", ["--local", "-n 2", "leave out one"]),
        ("--num-worker 2", ["--num-worker", "did you mean --num-workers?"]),
        ("--num 2", ["there is no option --num\n"]),
        ("-name x", ["-name", "did you mean --name?"]),
        ("--zzz", ["--zzz", "--help lists"]),
        ("--local=3", ["--local is a switch"]),
        ("--no-gpu=1", ["--gpu is a switch"]),
        ("2", ["unexpected '2'"]),
        ("-c {'lr': 1}", ["unexpected '1}'", "quotes"]),
        ("-c confg", ["-c/--config", "no variable `confg`", "did you mean `config`?"]),
        ("-c hidden", ["no variable `hidden`", "assign it"]),
        ("-c args.trian", ["`args`", "`trian`", "did you mean `args.train`?"]),
        ("--dataset train", ["--dataset", "'train'", "NAME=VAR", "train=train_ds"]),
        ("--dataset train=", ["--dataset", "'train='"]),
        ("--dataset =x", ["--dataset", "'=x'"]),
        ("--dataset train=tran_ds", ["--dataset", "did you mean `train_ds`?"]),
        ("--dataset a=config --dataset a=args", ["--dataset", "'a' twice", "config", "args"]),
        ("--env A=1 --env A=2", ["--env", "'A' twice\n"]),
        ("--env hunter2", ["--env", "•••", "NAME=VALUE"]),
        ("--resources CPU=1 --resources CPU=2", ["--resources", "'CPU' twice"]),
        ("--resources CPU", ["--resources", "'CPU'", "CPU=4"]),
        ("--resources CPU=four", ["--resources", "'four'", "CPU=4"]),
        ("--resources CPU=-1", ["--resources", "'-1'"]),
        ("--resources CPU=nan", ["--resources", "'nan'"]),
        ("--resources CPU=inf", ["--resources", "'inf'"]),
        ("--placement-strategy pakc", ["--placement-strategy", "'pakc'", "did you mean PACK?"]),
        ("--backend NCCL", ["--backend", "'NCCL'", "did you mean nccl?"]),
        ("--backend mpi2", ["--backend", "nccl, gloo", "--backend gloo"]),
        ("--best accuracy", ["--best", "'accuracy'", "accuracy:max"]),
        ("--best :max", ["--best", "':max'"]),
        ("--best acc:most", ["--best", "'acc:most'"]),
        ("--max-failures -2", ["--max-failures", "'-2'", "at least -1"]),
        ("--num-to-keep 0", ["--num-to-keep", "'0'", "at least 1"]),
        ("--timeout-s 1e3", ["--timeout-s", "'1e3'"]),
        ("--timeout-s 0", ["--timeout-s", "'0'"]),
        ("--name ''", ["--name", "empty value", "--name first-try"]),
        ("--name 'a", ["quote", "not closed", "'a"]),
    ],
)
def test_errors_name_option_value_and_way_out(line: str, said: list[str]) -> None:
    text = error(line)
    assert [s for s in said if s not in text] == [], text


@pytest.mark.parametrize("line", ["--env hunter2", "--env A=hunter2 --env A=hunter22"])
def test_values_of_the_environment_are_in_no_error(line: str) -> None:
    assert "hunter2" not in error(line)


def test_env_values_may_be_empty() -> None:
    assert spec("--env A=").env == {"A": ""}


def test_help_wins_over_errors_beside_it() -> None:
    assert parse(train, "--zzz -h").help
    assert parse(train, "-n abc --help").help
    assert not parse(train, "-n 2").help


def test_help_is_plain_text_with_every_option() -> None:
    text = train.parser.format_help()  # type: ignore[attr-defined]
    assert text.startswith("usage: %%train [options]\n\nTrain.\n\nMore words.\n")
    for option in train.options:  # type: ignore[attr-defined]
        for spelling in option.spellings:
            assert spelling in text
    assert "-n, --num-workers N|MIN:MAX" in text
    assert max(map(len, text.splitlines())) <= 96
