"""Tab completion inside the lines of raynb's magics: options, their values, commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from raynb.magics.options import Option

IDENTIFIER = "raynb.option_matcher"
#: What can come next in a line magic with commands, by the words before: words or options.
Commands = Callable[[list[str]], Iterable[str | Option]]


def make_matcher(
    shell: Any, magics: dict[str, tuple[Option, ...]], lines: dict[str, Commands]
) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Make the matcher that completes options, values and commands.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell whose variables it offers.
    magics : dict
        Names of cell magics with their options.
    lines : dict
        Names of line magics with their commands.

    Returns
    -------
    callable
        For ``shell.Completer.custom_matchers``.
    """

    @context_matcher(identifier=IDENTIFIER)  # type: ignore[untyped-decorator,unused-ignore]
    def option_matcher(context: CompletionContext) -> SimpleMatcherResult:
        found, line = _magic_line(context), _LINE.match(context.text_until_cursor)
        if found is not None and found[0] in magics:
            fragment, kind, offers = _complete(found[1], magics[found[0]], shell)
        elif line is not None and line[1] in lines:
            fragment, kind, offers = _complete_command(line[2], lines[line[1]], shell)
        else:
            return {"completions": []}
        return {
            "completions": [SimpleCompletion(o, type=kind) for o in offers],
            "matched_fragment": fragment,
            # Files and Python names are no part of a magic line.
            "suppress": True,
            "ordered": True,
        }

    return option_matcher  # type: ignore[no-any-return,unused-ignore]


_LINE = re.compile(r"\s*%(\w+)\s(.*)")


def _magic_line(context: CompletionContext) -> tuple[str, str] | None:
    """The magic's name, and its line up to the cursor; None when the cursor isn't in one."""
    above = context.full_text.split("\n")[: context.cursor_line]
    lines = [*(line.rstrip("\r") for line in above), context.text_until_cursor]
    while len(lines) > 1 and not lines[0].strip():
        lines.pop(0)
    if not all(line.endswith("\\") for line in lines[:-1]):
        return None
    text = " ".join(line.removesuffix("\\") for line in lines)
    match = re.match(r"%%(\w+)\s(.*)", text, re.DOTALL)
    return (match[1], match[2]) if match else None


def _complete_command(text: str, commands: Commands, shell: Any) -> tuple[str, str, Iterable[str]]:
    words = text.split()
    word = "" if not words or text[-1].isspace() else words.pop()
    offers = list(commands(words))
    options = tuple(o for o in offers if isinstance(o, Option))
    if options:
        return _complete(text, options, shell)
    return word, "param", _starting(word, [o for o in offers if isinstance(o, str)])


def _complete(text: str, options: tuple[Option, ...], shell: Any) -> tuple[str, str, Iterable[str]]:
    """The fragment before the cursor, what kind of word it is, and what it can become."""
    words = text.split()
    word = "" if not words or text[-1].isspace() else words.pop()
    by_spelling = {s: o for o in options for s in o.spellings}
    option = by_spelling.get(words[-1]) if words else None
    spelling, equals, value = word.partition("=")
    if equals and spelling in by_spelling:
        option, word = by_spelling[spelling], value
    if option is not None and option.metavar:
        # In NAME=VAR, METRIC:min|max and VAR,VAR what is completed is the last part.
        for mark, needed in (("=", True), (":", bool(option.choices)), (",", False)):
            if mark in option.metavar and (needed or mark in word):
                before, found, word = word.partition(mark) if needed else word.rpartition(mark)
                if needed and not found:
                    return before, "param", []
        if option.variable:
            return word, "variable", _starting(word, _variables(shell))
        return word, "param", _starting(word, option.choices)
    if word.startswith("-") or not word:
        return word, "param", _starting(word, by_spelling)
    return word, "param", []


def _starting(start: str, words: Iterable[str]) -> list[str]:
    # Choices are found in either case: `s` leads to SPREAD.
    return [w for w in words if w.startswith(start)] or [
        w for w in words if w.casefold().startswith(start.casefold())
    ]


def _variables(shell: Any) -> list[str]:
    """The notebook's data: no modules, functions or classes, nothing of IPython's own."""
    return sorted(
        name
        for name, value in shell.user_ns.items()
        if not name.startswith("_")
        and name not in shell.user_ns_hidden
        and not isinstance(value, ModuleType)
        and not callable(value)
    )
