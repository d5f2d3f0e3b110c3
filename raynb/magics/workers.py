"""Warm workers in ``%raynb``: ``%raynb workers up|status|restart|down`` and ``%raynb auto``."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from typing import Any

from raynb.engine.spec import RunSpec
from raynb.errors import OptionError
from raynb.magics.config import RayNB
from raynb.magics.options import (
    ACCELERATOR,
    BACKEND,
    ENV,
    GPU,
    HELP,
    NUM_WORKERS,
    PLACEMENT,
    RESOURCES,
    TIMEOUT,
    TRAIN_GROUPS,
    Group,
    Option,
    build_spec,
    options,
    parse,
    split,
)

#: First words of the lines that are for here, and what they are for.
WORDS = {
    "workers": "up, status, restart or down: workers that stay between cells",
    "auto": "on or off: plain cells run on every rank of them",
}
IDLE = Option(
    ("--idle-timeout",),
    "minutes without a run after which they end and free what they hold; default: 30",
    metavar="MINUTES",
    example="--idle-timeout 60",
)
FORCE = Option(("--force",), "also while a run goes on; it fails then")
#: Scaling options that a run takes over from the warm workers where it has none of its own: the
#: option's name here, and the spec's.
SCALING = {
    "num_workers": "num_workers",
    "gpu": "use_gpu",
    "resources": "resources_per_worker",
    "placement_strategy": "placement_strategy",
    "accelerator_type": "accelerator_type",
    "backend": "backend",
    "timeout_s": "timeout_s",
    "env": "env",
}
ACTIONS = ("up", "status", "restart", "down")
HELP_TEXT = """\
%raynb workers up [-n N] [--gpu] [--idle-timeout MINUTES] …   start workers that stay
%raynb workers status                                         what they do and hold
%raynb workers restart [--force]                              new processes for them
%raynb workers down [--force]                                 end them
%raynb auto on|off                                            plain cells run on every rank
"""


class WorkersCommands:
    """Lines of ``%raynb`` for warm workers.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
    defaults : RayNB
        The configured defaults.
    """

    def __init__(self, shell: Any, defaults: RayNB) -> None:
        self.shell = shell
        self.defaults = defaults

    def run(self, line: str) -> None:
        """Do what ``%raynb`` is asked for: ``workers …`` or ``auto on|off``."""
        __tracebackhide__ = True
        words = line.split(None, 2)
        if not words or words[0] in ("-h", "--help", "help"):
            print(HELP_TEXT)
            return
        if words[0] == "auto":
            from raynb.magics.spmd import switch

            print(switch(" ".join(words[1:]).strip()))
            return
        if words[0] != "workers":
            raise OptionError(f"%raynb has no {words[0]!r}", hint="%raynb workers status")
        action = words[1] if len(words) > 1 else "status"
        if action not in ACTIONS:
            near = difflib.get_close_matches(action, ACTIONS, 1)
            raise OptionError(
                f"%raynb workers has no {action!r}",
                hint=f"did you mean {near[0]}?" if near else "up, status, restart or down",
            )
        getattr(self, f"_{action}")(words[2] if len(words) > 2 else "")

    def offers(self, words: list[str]) -> Iterable[str | Option]:
        """What can follow these words, for completion."""
        match words:
            case ["workers"]:
                return ACTIONS
            case ["workers", "up", *_]:
                magic: Any = self._up
                found: tuple[Option, ...] = magic.options
                return found
            case ["workers", "restart" | "down"]:
                return FORCE.flags
            case ["auto"]:
                return ("on", "off")
        return ()

    @options(
        "%raynb workers up [options]",
        (
            Group(
                "workers",
                (NUM_WORKERS, GPU, RESOURCES, PLACEMENT, ACCELERATOR, BACKEND, TIMEOUT, ENV),
            ),
            Group("life", (IDLE, HELP)),
        ),
    )
    def _up(self, line: str) -> None:
        """Start workers that stay between cells.

        `%%distributed_train` runs on them where they have what it asks for: an edited cell trains
        at once then.
        """
        from raynb import workers
        from raynb.panel.workers import Starting, show

        magic: Any = self._up
        args = parse(magic, line)
        if args.help:
            print(magic.parser.format_help())
            return
        minutes = self.defaults.workers_idle_minutes
        if args.idle_timeout is not None:
            minutes = _minutes(args.idle_timeout)
        every = {o.dest: None for group in TRAIN_GROUPS for o in group.options}
        spec = build_spec(
            argparse.Namespace(**{**every, "local": False, **vars(args)}),
            self.shell.user_ns,
            self.defaults,
        )
        spec.storage_path, spec.max_failures, spec.num_to_keep = "", 0, None
        with Starting() as tell:
            found = workers.start(spec, minutes * 60, tell)
        show(found, _actions())

    def _status(self, line: str) -> None:
        from raynb import workers
        from raynb.panel.workers import show

        _no_more(line)
        show(workers.status(), _actions())

    def _restart(self, line: str) -> None:
        from raynb import workers
        from raynb.panel.workers import Starting, show

        force = _force(line)
        with Starting() as tell:
            found = workers.restart(force=force, tell=tell)
        show(found, _actions())

    def _down(self, line: str) -> None:
        from raynb import workers

        workers.down(force=_force(line))
        print("The warm workers have ended.")


def _actions() -> dict[str, Any]:
    """Buttons of the workers' view."""
    from raynb import workers

    def down() -> None:
        workers.down()

    return {"Refresh": workers.status, "Restart": workers.restart, "Down": down}


def take_scaling(spec: RunSpec, args: argparse.Namespace) -> None:
    """Let a run have the warm workers' scaling where its line gives none of its own."""
    groups = sys.modules.get("raynb.engine.warm.group")  # a kernel with warm workers has it
    if groups is None or spec.local or spec.warm is False or groups.current() is None:
        return
    groups.current().fill(spec, [s for o, s in SCALING.items() if getattr(args, o) is not None])


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e6:
        raise OptionError(
            f"{IDLE.title} {text!r} is not a number of minutes above 0",
            hint=f"for example {IDLE.example}",
        )
    return minutes


def _force(line: str) -> bool:
    words = split(line)
    if words and words != [FORCE.flags[0]]:
        raise OptionError(f"there is no option {words[0]}", hint="--force is the only one")
    return bool(words)


def _no_more(line: str) -> None:
    if line.strip():
        raise OptionError(f"%raynb workers status takes no {line.strip()!r}")
