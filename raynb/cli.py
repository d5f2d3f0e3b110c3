"""The command ``raynb``: demo, lab, doctor, and runs and clusters from outside."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from raynb import control
from raynb._version import __version__
from raynb.errors import OptionError, RaynbError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default the process's own.

    Returns
    -------
    int
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # What follows `--` is for another program, and argparse would sort it into our own arguments.
    cut = words.index("--") if "--" in words else len(words)
    parser = make_parser()
    args = parser.parse_args(words[:cut])
    rest = words[cut + 1 :]
    if rest and args.command != "lab":
        parser.error("only `raynb lab` passes on what follows `--`")
    try:
        match args.command:
            case "demo":
                from raynb.demo import run_demo

                return run_demo(
                    workers=args.workers,
                    epochs=args.epochs,
                    limit=args.limit,
                    dataset=args.dataset,
                    data=args.data,
                    json_output=args.json,
                    out=args.out,
                )
            case "lab":
                return _lab(args.directory, rest)
            case "doctor":
                from raynb.doctor import run_doctor

                return run_doctor(json_output=args.json)
            case None:
                parser.print_help()
                return 0
            case "attach":
                return _attach(args)
            case _:
                shown = args.run(args)
                if shown is not None:
                    print(shown)
                return 0
    except RaynbError as error:
        told = error.whole().replace("More: %raynb", "More: raynb")
        print(f"raynb: {told}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # As a shell reports a process that SIGINT ended.
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The command's arguments, for parsing and for the reference."""
    parser = argparse.ArgumentParser(
        prog="raynb", description="Distributed PyTorch training on Ray from a notebook cell."
    )
    parser.add_argument("--version", action="version", version=f"raynb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    demo = commands.add_parser("demo", help="train a small model on this machine, in a terminal")
    demo.add_argument("--workers", type=_positive, default=2, metavar="N", help="default: 2")
    demo.add_argument("--epochs", type=_positive, default=2, metavar="E", help="default: 2")
    demo.add_argument(
        "--limit", type=_rows, metavar="ROWS", help="training rows; 0 for all; default: 12000"
    )
    demo.add_argument(
        "--dataset",
        choices=("fashion-mnist", "digits"),
        help="default: fashion-mnist where its files are found, else digits",
    )
    demo.add_argument("--data", metavar="DIR", help="where to look for FashionMNIST's files")
    demo.add_argument("--json", action="store_true", help="print the outcome as JSON")
    demo.add_argument("--out", metavar="DIR", help="where to keep the run")

    lab = commands.add_parser("lab", help="open JupyterLab on raynb's notebooks")
    lab.usage = "raynb lab [-h] [DIR] [-- JUPYTER-ARGUMENT ...]"
    lab.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="default: the notebooks of a raynb checkout, else the current directory",
    )

    doctor = commands.add_parser("doctor", help="check whether this machine can train")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    control.add_commands(commands)
    return parser


def _attach(args: argparse.Namespace) -> int:
    """Watch a run until it ends; Ctrl-C leaves it alone."""
    run = control.attach_to(args)
    try:
        while not run.done:
            time.sleep(0.2)
    except KeyboardInterrupt:
        print(f"\n{run.name} goes on; `raynb stop {run.name}` stops it", file=sys.stderr)
        return 130
    return 0 if run.state == "finished" else 1


def _positive(text: str) -> int:
    return _whole(text, 1)


def _rows(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


def _lab(directory: str | None, rest: list[str]) -> int:
    """Become JupyterLab."""
    place = _notebooks() if directory is None else Path(directory)
    if not place.is_dir():
        raise OptionError(
            f"there is no directory {place}", hint="raynb lab . opens the current one"
        )
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={place.absolute()}"]
    os.execv(sys.executable, [*command, *rest])


def _notebooks() -> Path:
    beside = Path(__file__).parent.parent / "notebooks"
    return beside if any(beside.glob("*.ipynb")) else Path.cwd()
