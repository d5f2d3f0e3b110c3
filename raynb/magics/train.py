"""The magic ``%%distributed_train``: parse, build a spec, capture, run."""

from __future__ import annotations

import argparse
import os
import traceback
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, line_cell_magic, magics_class

from raynb.engine.spec import RunSpec
from raynb.errors import CaptureError, OptionError
from raynb.magics import cells
from raynb.magics.config import RayNB
from raynb.magics.options import FUNC, OUT, TRAIN_GROUPS, build_spec, identifier, options, parse
from raynb.magics.workers import take_scaling

if TYPE_CHECKING:
    from raynb.engine.capture import Capture

# What imports Ray is imported where it is used: loading the extension takes no seconds then.

NAME = "distributed_train"


class CellSyntaxError(CaptureError):
    """The cell isn't Python; shown as IPython shows a syntax error.

    No subclass of SyntaxError, although it stands for one: for those IPython would print the
    frames of raynb and of the magic machinery above the cell's line.
    """

    def __init__(self, error: SyntaxError) -> None:
        super().__init__(str(error))
        self._error = error

    def _render_traceback_(self) -> list[str]:
        shell = get_ipython()
        if shell is None:
            return traceback.format_exception_only(self._error)
        lines: list[str] = shell.SyntaxTB.structured_traceback(type(self._error), self._error, [])
        return lines


class RunInterrupted(KeyboardInterrupt):
    """The user stopped a run; shown in one line, without the frames that waited for it."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


@magics_class
class TrainMagics(Magics):
    """Cell magics that train.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell to run in.
    defaults : RayNB
        The configured defaults.
    """

    def __init__(self, shell: Any, defaults: RayNB) -> None:
        super().__init__(shell)
        self.defaults = defaults

    @line_cell_magic
    @options(f"%%{NAME} [options]", TRAIN_GROUPS)
    def distributed_train(self, line: str, cell: str | None = None) -> None:
        """Train on the workers of a Ray cluster with the code of this cell.

        The cell is the train function's body, or defines `train_func(config)`. Names it reads
        and does not define come from the notebook. The outcome is bound to `result`.
        """
        __tracebackhide__ = True
        here = None if cell is None else cells.locate(self.shell, NAME, line, cell)
        self._magic(NAME, self.distributed_train, line, here)

    def _magic(self, name: str, magic: Any, line: str, here: cells.MagicCell | None) -> None:
        """What the cell magics have in common."""
        __tracebackhide__ = True
        args = parse(magic, line if here is None else here.line)
        if args.help:
            print(magic.parser.format_help())
            return
        if here is None:
            raise CaptureError(
                f"%%{name} is a cell magic and found no code to train",
                hint=f"write %%{name} on the first line of a cell, and the train code below it",
            )
        out = identifier(OUT, args.out or self.defaults.out)
        func_name = identifier(FUNC, args.func or "train_func")
        if getattr(args, "local", False) and args.background:
            raise OptionError(
                "--local runs in the kernel and --background asks for it not to wait",
                hint="leave out one of them",
            )
        spec = self._spec(args).check()
        capture = self._capture(here, spec, func_name, args.func is not None)
        if args.dry_run:
            from raynb.engine.capture import format_table

            print(format_table(capture.table), format_spec(spec), sep="\n\n")
            return
        self._run(
            spec,
            capture,
            out=out,
            background=args.background,
            echo=self.defaults.echo if args.echo is None else args.echo,
        )

    def _spec(self, args: argparse.Namespace) -> RunSpec:
        spec = build_spec(args, self.shell.user_ns, self.defaults)
        take_scaling(spec, args)
        return spec

    def _start(self, spec: Any, capture: Capture, *, background: bool, echo: bool) -> Any:
        from raynb import api

        return api.run_cell(spec, capture, background=background, echo=echo)

    def _interrupted(self, spec: Any, out: str) -> RunInterrupted:
        return RunInterrupted(f"run {spec.name} stopped; `{out}` holds what came")

    def _capture(
        self, here: cells.MagicCell, spec: RunSpec, func_name: str, explicit: bool
    ) -> Capture:
        from raynb.engine.capture import capture_cell

        try:
            return capture_cell(
                here.body,
                filename=here.filename,
                label=here.label,
                first_line=here.first_line,
                namespace=self.shell.user_ns,
                func_name=func_name,
                func_explicit=explicit,
                limit=int(self.defaults.capture_limit_mib * 2**20),
                skip_pickle=spec.local,
                notebook_dir=os.getcwd(),
                labels=cells.labels(self.shell),
            )
        except SyntaxError as error:
            raise CellSyntaxError(error) from error

    def _run(
        self, spec: RunSpec, capture: Capture, *, out: str, background: bool, echo: bool
    ) -> None:
        __tracebackhide__ = True
        run = self._start(spec, capture, background=background, echo=echo)
        if background:
            self.shell.user_ns[out] = run
            return
        try:
            run.wait()
        except KeyboardInterrupt:
            raise self._interrupted(spec, out) from None
        except Exception as error:
            # A local run raises the cell's own error, under raynb's and Ray's frames.
            error.__traceback__ = cells.from_cell_on(error.__traceback__, capture.program.filename)
            raise
        finally:
            self.shell.user_ns[out] = run.result


def format_spec(spec: RunSpec) -> str:
    """Write a spec as aligned lines of plain text.

    Parameters
    ----------
    spec : RunSpec
        A checked spec.

    Returns
    -------
    str
        One option a line.
    """
    summary = spec.summary()
    unset = {
        "use_gpu": "if the cluster has enough",
        "num_to_keep": "all",
        "backend": "Ray's choice",
        "timeout_s": "Ray's default",
    }
    width = max(map(len, summary))
    lines = []
    for name, value in summary.items():
        if isinstance(value, dict) and value:
            text = ", ".join(f"{k}={v!r}" for k, v in value.items())
        elif isinstance(value, list) and value:
            text = ", ".join(map(str, value))
        elif value in (None, {}, []):
            text = unset.get(name, "-")
        else:
            text = str(value)
        lines.append(f"{name.ljust(width)}  {text}")
    if spec.local:
        lines.append("runs in the kernel (local mode)")
    return "\n".join(lines)
