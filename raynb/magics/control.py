"""The magic ``%raynb``: runs and clusters from a notebook."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from raynb import control
from raynb.errors import OptionError
from raynb.magics.config import RayNB
from raynb.magics.help import overview
from raynb.magics.options import OUT, Option, identifier, split
from raynb.magics.workers import WORDS, WorkersCommands
from raynb.troubleshooting import topics

NAME = "raynb"


class _Parser(argparse.ArgumentParser):
    """One that raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"%{self.prog}: {message}", hint=f"%{NAME} --help shows what there is")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpShown


class _HelpShown(Exception):
    """``--help`` was asked for and printed."""


@magics_class
class ControlMagics(Magics):
    """Line magic for all that is no training.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell to run in.
    defaults : RayNB
        The configured defaults.
    """

    def __init__(self, shell: Any, defaults: RayNB) -> None:
        super().__init__(shell)
        self._workers = WorkersCommands(shell, defaults)
        self.parser = _Parser(
            prog=NAME, description="Runs that go on, and the cluster they run on."
        )
        commands = self.parser.add_subparsers(dest="command", metavar="command")
        for word, what in WORDS.items():  # for the overview; they have a parser of their own
            commands.add_parser(word, help=what)
        control.add_commands(commands)

    def offers(self, words: list[str]) -> Iterable[str | Option]:
        """What can follow these words, for completion."""
        if words[:1] and words[0] in WORDS:
            return self._workers.offers(words)
        if words == ["help"]:
            return topics()
        if words in (["attach"], ["stop"]):
            return _live_names()
        parser: argparse.ArgumentParser = self.parser
        for word in words:
            choices = _commands(parser)
            if word not in choices:
                break
            parser = choices[word]
        flags = [flag for action in parser._actions for flag in action.option_strings]
        return _commands(parser) or [f for f in flags if f.startswith("--")]

    @line_magic
    def raynb(self, line: str) -> None:
        """Watch, stop and list runs; keep workers warm, and a cluster that outlives the kernel."""
        __tracebackhide__ = True
        if line.split(None, 1)[:1] and line.split(None, 1)[0] in WORDS:
            self._workers.run(line)
            return
        try:
            args = self.parser.parse_args(split(line))
        except _HelpShown:
            return
        if args.command is None:
            print(overview(self.shell, self.parser))
            return
        out = identifier(OUT, args.out) if args.command == "attach" else None
        shown = args.run(args)
        if out is not None:
            self.shell.user_ns[out] = shown
            print(f"`{out}` is the run: {out}.stop() stops it, {out}.history is what it has logged")
        elif isinstance(shown, str):
            print(shown)
        elif shown is not None:
            display(shown)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _live_names() -> list[str]:
    """Of the runs that go on, where this kernel is connected to a cluster already."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    from raynb.engine.run import live_runs

    return live_runs()
