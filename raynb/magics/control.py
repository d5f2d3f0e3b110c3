"""The magic ``%raynb``: runs and clusters from a notebook."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from raynb import control
from raynb.errors import OptionError
from raynb.magics.config import RayNB
from raynb.magics.help import overview
from raynb.magics.options import OUT, identifier, split
from raynb.magics.workers import WORDS, WorkersCommands

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
