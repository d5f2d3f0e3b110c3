"""Code blocks of README and docs, and the comments above them that say how they are tested."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "notebooks"} & set(p.parts)),
    ]
)
#: Diagrams, addresses and Sphinx's directives are no code.
NO_CODE = re.compile(r"(text|\{.*\})?")
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<language>[\w{}-]*)\s*")
_MARK = re.compile(
    r"<!-- (?:run: (?P<run>unit|ray)|not run: (?P<reason>[^\n]+?))(?:\n(?P<setup>.*))?\s*-->$",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes
    ----------
    page : str
        Relative to the repository's root.
    line : int
        Of its fence.
    language, code : str
    run : str
        ``unit``, ``ray``, or empty for one that is not run.
    reason : str
        Why it is not run; empty as well where no comment says anything.
    setup : str
        Python to run before it.
    """

    page: str
    line: int
    language: str
    code: str
    run: str
    reason: str
    setup: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """The code blocks of a page."""
    found = []
    lines = path.read_text(encoding="utf-8").split("\n")
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        first = number
        closing = opening["indent"] + opening["ticks"]
        while lines[number].rstrip() != closing:
            number += 1
        code = textwrap.dedent("\n".join(lines[first:number]))
        number += 1
        if NO_CODE.fullmatch(opening["language"]):
            continue
        mark = _MARK.match(_comment_above(lines[: first - 1]))
        parts = mark.groupdict() if mark else {}
        found.append(
            Block(
                page=path.relative_to(ROOT).as_posix(),
                line=first,
                language=opening["language"],
                code=code,
                run=parts.get("run") or "",
                reason=parts.get("reason") or "",
                setup=textwrap.dedent(parts.get("setup") or ""),
            )
        )
    return found


def _comment_above(lines: list[str]) -> str:
    """The comment that ends on the last line; empty where there is none."""
    if not lines or not lines[-1].rstrip().endswith("-->"):
        return ""
    start = len(lines) - 1
    while "<!--" not in lines[start]:
        start -= 1
    return textwrap.dedent("\n".join(lines[start:])).strip()


def run_blocks(shell: Any, blocks: list[Block]) -> None:
    """Run Python blocks one after the other in an IPython shell; raises what one raises."""
    for block in blocks:
        for code in filter(None, (block.setup, block.code)):
            try:
                shell.run_cell(code, store_history=True).raise_error()
            except BaseException as error:
                error.add_note(f"in the block at {block.where}")
                raise
