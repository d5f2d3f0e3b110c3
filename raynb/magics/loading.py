"""What ``%load_ext raynb`` does: magics, defaults and completion of one shell."""

from __future__ import annotations

from typing import Any

from raynb.magics import completion, train, workers
from raynb.magics.config import RayNB


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
    ip.register_magics(train.TrainMagics(ip, defaults))
    ip.register_magics(workers.WorkersMagics(ip, defaults))
    ip.input_transformers_cleanup.append(lone_magic_line)
    options = {train.NAME: train.TrainMagics.distributed_train.options}
    ip.Completer.custom_matchers.append(completion.make_matcher(ip, options))


def unload_ipython_extension(ip: Any) -> None:
    """Take back what loading did.

    Parameters
    ----------
    ip : IPython.core.interactiveshell.InteractiveShell
        The shell.
    """
    ip.configurables[:] = [c for c in ip.configurables if not isinstance(c, RayNB)]
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop(train.NAME, None)
    ip.magics_manager.registry.pop(train.TrainMagics.__name__, None)
    ip.magics_manager.magics["line"].pop(workers.NAME, None)
    ip.magics_manager.registry.pop(workers.WorkersMagics.__name__, None)
    ip.input_transformers_cleanup[:] = [
        t for t in ip.input_transformers_cleanup if t is not lone_magic_line
    ]
    ip.Completer.custom_matchers[:] = [
        m
        for m in ip.Completer.custom_matchers
        if getattr(m, "matcher_identifier", "") != completion.IDENTIFIER
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
    start = f"%%{train.NAME}"
    if len(lines) == 1 and lines[0].split()[:1] == [start] and lines[0].startswith(start):
        return [lines[0][1:]]
    return lines
