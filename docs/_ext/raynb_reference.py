"""Directives that write the reference from the code: magics, defaults, the command, the API."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

from docutils import nodes
from IPython.core.magic import Magics
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import raynb
import raynb.magics
from raynb.cli import make_parser
from raynb.errors import RaynbError
from raynb.magics.config import RayNB
from raynb.magics.options import Option

Lines = Iterator[str]


def magics() -> dict[str, tuple[str, Any]]:
    """Every magic of raynb by its name: its mark (``%`` or ``%%``), and what has its parser."""
    found: dict[str, tuple[str, Any]] = {}
    for info in pkgutil.iter_modules(raynb.magics.__path__):
        module = importlib.import_module(f"raynb.magics.{info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Magics) and cls is not Magics:
                for kind, mark in (("line", "%"), ("cell", "%%")):  # a cell magic's mark wins
                    for name, method in cls.magics[kind].items():
                        magic = getattr(cls, method)
                        # One with commands has them in its instance.
                        found[name] = (mark, magic if hasattr(magic, "parser") else cls(None, None))
    return found


def option_lines(option: Option) -> Lines:
    """One option of a magic."""
    value = f" {option.metavar}" if option.metavar else ""
    yield f".. option:: {', '.join(flag + value for flag in option.spellings)}"
    yield ""
    yield f"   {_plain(option.help)}."
    if option.example:
        yield ""
        yield f"   For example ``{option.example}``."
    yield ""


def magic_lines() -> Lines:
    """All magics with all of their options."""
    for name, (mark, magic) in sorted(magics().items()):
        if not hasattr(magic, "options"):
            yield from parser_lines(magic.parser, mark)
            continue
        # Sphinx formats with the program's name, where a % would be one of its own.
        yield from (*_titled(mark + name), f".. program:: magic {name}", "")
        yield from (inspect.cleandoc(magic.parser.description or ""), "")
        for heading, options in _groups(magic):
            yield from (heading.capitalize(), "-" * len(heading), "")
            for option in options:
                yield from option_lines(option)


def config_lines() -> Lines:
    """The defaults that ``%config RayNB`` shows."""
    for name, trait in sorted(RayNB.class_traits(config=True).items()):
        yield from (f"``RayNB.{name}`` = ``{trait.default()!r}``", f"   {trait.help}", "")


def command_lines() -> Lines:
    """The command ``raynb`` with its subcommands."""
    return parser_lines(make_parser())


def parser_lines(root: argparse.ArgumentParser, mark: str = "") -> Lines:
    """A parser with its subcommands."""
    for parser in _commands(root):
        program = f"magic {parser.prog}" if mark else parser.prog
        yield from (*_titled(mark + parser.prog), f".. program:: {program}", "")
        yield from (parser.description or "", "")
        yield from (".. code-block:: text", "", *_indented(parser.format_usage()), "")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
                continue
            value = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
            names = [n + value for n in action.option_strings] or [str(action.metavar)]
            yield from (f".. option:: {', '.join(names)}", "")
            yield from (f"   {_plain(action.help or '')}", "")


def api_lines() -> Lines:
    """Every public name of the package, functions first."""
    named = {name: getattr(raynb, name) for name in raynb.__all__ if name != "__version__"}
    classes = {n: v for n, v in named.items() if isinstance(v, type)}
    errors = {n: v for n, v in classes.items() if issubclass(v, BaseException)}
    yield from _titled("Functions")
    for name in sorted(named.keys() - classes.keys()):
        if inspect.ismodule(named[name]):
            for member, value in vars(named[name]).items():
                if inspect.isfunction(value) and member in vars(named[name]).get("__all__", ()):
                    yield from (f".. autofunction:: raynb.{name}.{member}", "")
            continue
        yield from (f".. autofunction:: raynb.{name}", "")
    yield from (".. data:: raynb.__version__", "", "   The version, a text.", "")
    yield from _titled("Classes")
    for name in sorted(classes.keys() - errors.keys()):
        # Without their constructors, which are not for users.
        yield from (f".. autoclass:: raynb.{name}()", "   :members:", "")
    yield from _titled("Errors")
    for name in sorted(errors):
        yield from (f".. autoexception:: raynb.{name}", "")


def error_lines() -> Lines:
    """Every kind of error, and where the troubleshooting page speaks of it."""
    for cls in _kinds(RaynbError):
        text = (inspect.getdoc(cls) or "").splitlines()[0]
        more = f"`{cls.topic} <../troubleshooting.html#{cls.topic}>`__"
        yield from (f"``{cls.__name__}``", f"   {text} More: {more}.", "")


def _titled(title: str) -> Lines:
    yield from (title, "=" * len(title), "")


def _groups(magic: Any) -> Iterator[tuple[str, list[Option]]]:
    by_flag = {option.flags[-1]: option for option in magic.options}
    for group in magic.parser._action_groups:
        known = [
            o for a in group._group_actions for f, o in by_flag.items() if f in a.option_strings
        ]
        if known:
            yield group.title or "options", known


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, command in action.choices.items():
                command.description = command.description or _sentence(helps[name] or "")
                yield command


def _kinds(cls: type[RaynbError]) -> Iterator[type[RaynbError]]:
    yield cls
    for kind in cls.__subclasses__():
        if kind.__module__ == "raynb.errors":
            yield from _kinds(kind)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _indented(text: str) -> list[str]:
    return ["   " + line for line in text.splitlines()]


def _plain(text: str) -> str:
    """Text of a help as reStructuredText, with options as code and nothing else as markup."""
    escaped = re.sub(r"([\\*|`])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--?[a-z][\w-]*)", r"``\1``", escaped)


def _directive(write: Callable[[], Lines]) -> type[SphinxDirective]:
    class Generated(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes("\n".join(write()), allow_section_headings=True)

    return Generated


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    for name, write in {
        "raynb-magics": magic_lines,
        "raynb-defaults": config_lines,
        "raynb-command": command_lines,
        "raynb-api": api_lines,
        "raynb-errors": error_lines,
    }.items():
        app.add_directive(name, _directive(write))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
