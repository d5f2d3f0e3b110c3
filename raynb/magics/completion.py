"""Tab completion inside the line of a raynb cell magic."""

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


def make_matcher(
    shell: Any, magics: dict[str, tuple[Option, ...]]
) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Make the matcher that completes options.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell whose variables it offers.
    magics : dict
        Names of cell magics with their options.

    Returns
    -------
    callable
        For ``shell.Completer.custom_matchers``.
    """

    @context_matcher(identifier=IDENTIFIER)  # type: ignore[untyped-decorator,unused-ignore]
    def option_matcher(context: CompletionContext) -> SimpleMatcherResult:
        found = _magic_line(context)
        if found is None or found[0] not in magics:
            return {"completions": []}
        fragment, kind, offers = _complete(found[1], magics[found[0]], shell)
        return {
            "completions": [SimpleCompletion(o, type=kind) for o in offers],
            "matched_fragment": fragment,
            # Files and Python names are no part of a magic line.
            "suppress": True,
            "ordered": True,
        }

    return option_matcher  # type: ignore[no-any-return,unused-ignore]


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
        if option.variable:
            if "=" in option.metavar:
                name, equals, word = word.partition("=")
                if not equals:
                    return name, "param", []
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
