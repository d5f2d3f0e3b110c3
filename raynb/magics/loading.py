"""What ``%load_ext raynb`` does: magics, defaults and completion of one shell."""

from __future__ import annotations

from typing import Any

from raynb.magics import completion, control, spmd, train, tune
from raynb.magics.config import RayNB

NAMES = (train.NAME, tune.NAME, spmd.NAME, control.NAME)
MAGICS: tuple[Any, ...] = (
    train.TrainMagics,
    tune.TuneMagics,
    spmd.SpmdMagics,
    control.ControlMagics,
)


def load_ipython_extension(ip: Any) -> None:
    """Set raynb up in a shell; a second time changes nothing.

    Parameters
    ----------
    ip : IPython.core.interactiveshell.InteractiveShell
        The shell.
    """
    if any(isinstance(c, RayNB) for c in ip.configurables):
        return
    defaults = RayNB(parent=ip)
    ip.configurables.append(defaults)
    made = {magics: magics(ip, defaults) for magics in MAGICS}
    for magics in made.values():
        ip.register_magics(magics)
    ip.input_transformers_cleanup.extend([lone_magic_line, spmd.auto])
    options = {
        train.NAME: train.TrainMagics.distributed_train.options,
        tune.NAME: tune.TuneMagics.distributed_tune.options,
        spmd.NAME: spmd.SpmdMagics.distributed.options,
    }
    lines = {control.NAME: made[control.ControlMagics].offers}
    ip.Completer.custom_matchers.append(completion.make_matcher(ip, options, lines))
    ip.Completer.custom_matchers.append(spmd.make_matcher())


def unload_ipython_extension(ip: Any) -> None:
    """Take back what loading did.

    Parameters
    ----------
    ip : IPython.core.interactiveshell.InteractiveShell
        The shell.
    """
    ip.configurables[:] = [c for c in ip.configurables if not isinstance(c, RayNB)]
    for kind in ("line", "cell"):
        for name in NAMES:
            ip.magics_manager.magics[kind].pop(name, None)
    for magics in MAGICS:
        ip.magics_manager.registry.pop(magics.__name__, None)
    spmd.auto.on = False
    ip.input_transformers_cleanup[:] = [
        t for t in ip.input_transformers_cleanup if t not in (lone_magic_line, spmd.auto)
    ]
    ip.Completer.custom_matchers[:] = [
        m
        for m in ip.Completer.custom_matchers
        if getattr(m, "matcher_identifier", "") not in (completion.IDENTIFIER, spmd.IDENTIFIER)
    ]


def lone_magic_line(lines: list[str]) -> list[str]:
    """Turn a cell magic without a body into a line magic.

    IPython refuses to call a cell magic without a body, and ``%%distributed_train --help`` has
    none.

    Parameters
    ----------
    lines : list of str
        The lines of a cell.

    Returns
    -------
    list of str
        The lines, with one ``%`` less where there is nothing but the magic line.
    """
    starts = [f"%%{name}" for name in NAMES]
    if len(lines) == 1 and lines[0].startswith("%%") and lines[0].split()[0] in starts:
        return [lines[0][1:]]
    return lines
