"""What raynb can do, in one screen: magics, functions and commands with their first lines."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import raynb

#: Called by IPython, not by users.
_NOT_FOR_USERS = {"load_ipython_extension", "unload_ipython_extension"}


def overview(shell: Any, parser: argparse.ArgumentParser | None = None) -> str:
    """Write what a notebook can ask of raynb.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell that raynb is loaded into.
    parser : argparse.ArgumentParser, optional
        Of a line magic with subcommands.

    Returns
    -------
    str
        Plain text, made from the names that are there and their docstrings.
    """
    parts = [
        ("In a cell, each with --help; Tab completes options and values", _magics(shell)),
        ("Commands", _commands(parser)),
        ("In Python, each with ?", _functions()),
    ]
    text = [
        f"raynb {raynb.__version__}",
        "",
        "%%distributed_train -n 2 on the first line of a cell trains with its code on two workers.",
    ]
    for title, rows in parts:
        if lines := list(_aligned(rows)):
            text += ["", title, *lines]
    return "\n".join(text)


def _magics(shell: Any) -> Iterator[tuple[str, str]]:
    known = shell.magics_manager.magics
    for kind, mark in (("cell", "%%"), ("line", "%")):
        for name, magic in sorted(known[kind].items()):
            # A cell magic is registered as a line magic too, for its --help.
            ours = type(getattr(magic, "__self__", None)).__module__.startswith("raynb.")
            if ours and (kind == "cell" or name not in known["cell"]):
                yield mark + name, _first_line(magic)
    yield "%config RayNB", "Show the defaults of options; %config RayNB.NAME = VALUE sets one."


def _commands(parser: argparse.ArgumentParser | None) -> Iterator[tuple[str, str]]:
    if parser is None:
        return
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"%{parser.prog} {choice.dest}", choice.help or ""


def _functions() -> Iterator[tuple[str, str]]:
    for name in raynb.__all__:
        value = getattr(raynb, name)
        if (inspect.isfunction(value) or inspect.ismodule(value)) and name not in _NOT_FOR_USERS:
            yield f"raynb.{name}", _first_line(value)


def _first_line(value: Any) -> str:
    # magic_arguments puts the help of all options where the docstring was.
    parser = getattr(value, "parser", None)
    text = parser.description if parser is not None else value.__doc__
    return inspect.cleandoc(text or "").partition("\n")[0].replace("``", "")


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"
