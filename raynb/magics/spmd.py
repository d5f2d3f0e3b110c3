"""The magic ``%%distributed``: a cell on every rank of the warm workers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.magic import Magics, line_cell_magic, magics_class

from raynb.errors import CaptureError, OptionError
from raynb.magics import cells
from raynb.magics.config import RayNB
from raynb.magics.options import HELP, Group, Option, identifier, options, parse
from raynb.magics.train import CellSyntaxError, RunInterrupted

NAME = "distributed"
UP = "%raynb workers up -n 2"
RANKS = Option(
    ("--rank", "--ranks"),
    "the ranks that run it; all without it",
    metavar="R,R",
    example="--ranks 0,2",
)
PUSH = Option(
    ("--push",),
    "variables of the notebook that every rank gets first",
    metavar="VAR,VAR",
    example="--push model,batch",
    variable=True,
    repeat=True,
)
PULL = Option(
    ("--pull",),
    "names whose values come back, as a list by rank",
    metavar="NAME,NAME",
    example="--pull loss",
    repeat=True,
)
OUT = Option(
    ("-o", "--out"),
    "the variable that gets what is pulled, or without --pull the last expression's values by rank",
    metavar="VAR",
    example="-o losses",
)
#: What %raynb auto puts before a cell.
AUTO = "--auto"
_ABOUT = re.compile(r"\s*([A-Za-z_][\w.]*\?{1,2})\s*")


@magics_class
class SpmdMagics(Magics):
    """The cell magic that runs on every rank.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
    defaults : RayNB
    """

    def __init__(self, shell: Any, defaults: RayNB) -> None:
        super().__init__(shell)
        self.defaults = defaults

    @line_cell_magic
    @options(
        f"%%{NAME} [options]",
        (Group("ranks", (RANKS,)), Group("values", (PUSH, PULL, OUT)), Group("cell", (HELP,))),
    )
    def distributed(self, line: str, cell: str | None = None) -> None:
        """Run this cell on every rank of the warm workers, in a namespace that lasts.

        `rank`, `world_size`, `local_rank`, `device`, `torch` and `dist` are at hand. What the last
        line gives is shown for each rank, once for ranks that give the same.
        """
        __tracebackhide__ = True
        if cell is not None and line.strip() == AUTO:
            group = the_group()
            print(f"▸ on all {group.spec.min_workers} ranks (%raynb auto off ends this)")
            self.run(cells.whole(self.shell, cell))
            return
        here = None if cell is None else cells.locate(self.shell, NAME, line, cell)
        magic: Any = self.distributed
        args = parse(magic, line if here is None else here.line)
        if args.help:
            print(magic.parser.format_help())
            return
        if here is None:
            raise CaptureError(
                f"%%{NAME} is a cell magic and found no code to run",
                hint=f"write %%{NAME} on the first line of a cell, and the code below it",
            )
        self.run(here, _ranks(args.ranks), _names(args.push), _names(args.pull), args.out)

    def run(
        self,
        here: cells.MagicCell,
        ranks: tuple[int, ...] = (),
        push: tuple[str, ...] = (),
        pull: tuple[str, ...] = (),
        out: str | None = None,
    ) -> None:
        """Run a cell and show what it gives."""
        from raynb.engine.capture import check_cell, pack
        from raynb.engine.warm import cells as warm_cells
        from raynb.panel.cells import Output, show_result
        from raynb.worker.program import CellProgram
        from raynb.worker.warm.spmd import CellOrder

        __tracebackhide__ = True
        names = self._targets(pull, out)
        group = the_group()
        source = "\n" * (here.first_line - 1) + here.body
        about = _ABOUT.fullmatch(here.body)
        form = "cell"
        if about is not None:
            form, source, ranks = "inspect", about[1], (0,)
        else:
            try:
                check_cell(source, here.filename)
            except SyntaxError as error:
                raise CellSyntaxError(error) from error
        program = CellProgram(source, here.filename, here.label, form, "")
        payload = pack(push, self.shell.user_ns)[0] if push else b""
        order = CellOrder(
            0, program, ranks, payload, pull, out is not None and not pull, os.getcwd()
        )
        output = Output(group.spec.min_workers)
        import ray

        try:
            found = warm_cells.run_cell(group, order, output)
        except KeyboardInterrupt:
            raise RunInterrupted("the ranks were interrupted; their names stay") from None
        except ray.exceptions.RayActorError as error:
            found = f"the warm workers are gone: {str(error).splitlines()[0]}"
        if isinstance(found, str):
            gone = "are gone" in found
            if gone:
                forget_group()
            raise OptionError(
                found, hint=f"start them: {UP}" if gone else "%raynb workers status tells more"
            )
        if form == "inspect":
            self._show_about(found, source)
            return
        values = show_result(found, program)
        for name, value in zip(names, _by_name(values, pull, out), strict=True):
            self.shell.user_ns[name] = value

    def _targets(self, pull: tuple[str, ...], out: str | None) -> list[str]:
        """The notebook's variables that get something; checked before anything runs."""
        if out is not None:
            return [identifier(OUT, out)]
        for name in pull:
            identifier(PULL, name)
            if name in self.shell.user_ns:
                raise OptionError(
                    f"--pull {name} would overwrite the notebook's own variable `{name}`",
                    hint=f"choose another name for it: --pull {name} -o {name}_by_rank",
                )
        return list(pull)

    def _show_about(self, found: Any, name: str) -> None:
        from ray import cloudpickle

        end = next(iter(found.ends.values()))
        text = cloudpickle.loads(end.values)[0] if end.values else None
        if text is None:
            raise OptionError(f"the ranks have no {name.rstrip('?')!r}")
        print(text)


def the_group() -> Any:
    """The warm workers.

    Raises
    ------
    OptionError
        When none are up; it says how to start them.
    """
    groups = sys.modules.get("raynb.engine.warm.group")  # a kernel with warm workers has it
    group = None if groups is None else groups.current()
    if group is None:
        raise OptionError(f"%%{NAME} needs warm workers, and none are up", hint=f"start them: {UP}")
    return group


def forget_group() -> None:
    """The warm workers are gone."""
    from raynb.engine.warm import group as groups

    groups.set_current(None)


def complete(text: str) -> list[str]:
    """Names of rank 0 that a text can go on with; none when it is busy."""
    from ray import cloudpickle

    from raynb.engine.warm import cells as warm_cells
    from raynb.worker.program import CellProgram
    from raynb.worker.warm.spmd import CellOrder

    order = CellOrder(0, CellProgram(text, "", "completion", "complete", ""), (0,))
    found = warm_cells.run_cell(the_group(), order, lambda lines, last: None)
    if isinstance(found, str) or found.ends[0].values is None:
        return []
    names: list[str] = cloudpickle.loads(found.ends[0].values)[0] or []
    return names


class Auto:
    """``%raynb auto``: an input transformer that sends plain cells to the ranks."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, lines: list[str]) -> list[str]:
        text = "".join(lines).strip()
        if not self.on or not text or text[0] in "%!?":
            return lines
        return [f"%%{NAME} {AUTO}\n", *lines]


auto = Auto()


def _by_name(values: list[list[Any]], pull: tuple[str, ...], out: str | None) -> list[Any]:
    """What each target gets: of the ranks' lists of values."""
    if not pull:
        return [[v[0] for v in values]] if out is not None else []
    by_name = [[v[k] for v in values] for k in range(len(pull))]
    if out is None:
        return by_name
    return by_name if len(pull) == 1 else [dict(zip(pull, by_name, strict=True))]


def _names(texts: list[str] | None) -> tuple[str, ...]:
    return tuple(n.strip() for text in texts or () for n in text.split(",") if n.strip())


def _ranks(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [p.strip() for p in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", p) for p in parts):
        raise OptionError(
            f"{RANKS.title} {text!r} is no list of ranks", hint=f"for example {RANKS.example}"
        )
    return tuple(sorted({int(p) for p in parts}))


def switch(state: str) -> str:
    """Turn :data:`auto` on or off; gives what to tell."""
    if state not in ("on", "off"):
        raise OptionError("%raynb auto takes on or off", hint="%raynb auto on")
    if state == "on":
        the_group()
    auto.on = state == "on"
    if auto.on:
        return "Cells without a magic run on every rank from now on; each says so."
    return "Cells run in the notebook again."


IDENTIFIER = "raynb.remote_matcher"


def make_matcher() -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Make the matcher that completes names of the ranks' namespace."""

    @context_matcher(identifier=IDENTIFIER)  # type: ignore[untyped-decorator,unused-ignore]
    def remote_matcher(context: CompletionContext) -> SimpleMatcherResult:
        first = context.full_text.lstrip().partition("\n")[0]
        remote = re.match(rf"%%{NAME}\b(?!_)", first) is not None and context.cursor_line > 0
        word = re.search(r"[\w.]+$", context.text_until_cursor)
        if word is None or not (remote or (auto.on and not first.startswith("%"))):
            return {"completions": []}
        try:
            found = complete(word[0])
        except Exception:  # none are up, or they are gone
            return {"completions": []}
        return {
            "completions": [SimpleCompletion(name, type="instance") for name in found],
            "matched_fragment": word[0],
        }

    return remote_matcher  # type: ignore[no-any-return,unused-ignore]
