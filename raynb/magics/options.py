"""Options of the magics: declared once, for parsing, help and completion."""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import keyword
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, argument_group, kwds, magic_arguments

from raynb.engine.spec import BACKENDS, PLACEMENT_STRATEGIES, RunSpec
from raynb.errors import OptionError
from raynb.magics.config import RayNB

Magic = TypeVar("Magic", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """One option of a magic.

    Attributes
    ----------
    flags : tuple of str
        How it is written; the last one is the long form.
    help : str
        What it does.
    metavar : str
        What its value is called in the help; empty for a switch.
    example : str
        A use that works, for error messages.
    choices : tuple of str
        The values it takes, where they are few.
    variable : bool
        Whether its value is looked up in the notebook.
    repeat : bool
        Whether it may be given more than once.
    negatable : bool
        Whether a switch has a ``--no-`` form too.
    """

    flags: tuple[str, ...]
    help: str
    metavar: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()
    variable: bool = False
    repeat: bool = False
    negatable: bool = False

    @property
    def title(self) -> str:
        """The option as messages name it, ``-n/--num-workers``."""
        return "/".join(self.flags)

    @property
    def dest(self) -> str:
        """The attribute that holds its value after parsing."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to write it."""
        negative = ("--no-" + self.flags[-1].removeprefix("--"),) if self.negatable else ()
        return self.flags + negative

    def declare(self) -> argument:
        """The option as IPython's ``magic_arguments`` declare it."""
        settings: dict[str, Any] = {"dest": self.dest, "help": self.help}
        if self.metavar:
            settings |= {"metavar": self.metavar, "action": "append" if self.repeat else "store"}
        elif self.negatable:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["action"] = "store_true"
        return argument(*self.flags, **settings)


@dataclass(frozen=True)
class Group:
    """Options that belong together, under one title in the help."""

    title: str
    options: tuple[Option, ...]


NUM_WORKERS = Option(
    ("-n", "--num-workers"),
    "workers, or the least and most of an elastic group",
    metavar="N|MIN:MAX",
    example="-n 2, or -n 1:4 for an elastic group",
)
GPU = Option(
    ("--gpu",),
    "one GPU a worker or none; without the option, GPUs if the cluster has enough",
    negatable=True,
)
RESOURCES = Option(
    ("--resources",),
    "a Ray resource of each worker; repeatable",
    metavar="NAME=AMOUNT",
    example="--resources CPU=4",
    repeat=True,
)
PLACEMENT = Option(
    ("--placement-strategy",),
    "how workers are spread over nodes: " + ", ".join(PLACEMENT_STRATEGIES),
    metavar="STRATEGY",
    example="--placement-strategy SPREAD",
    choices=PLACEMENT_STRATEGIES,
)
ACCELERATOR = Option(
    ("--accelerator-type",),
    "the GPU model the workers need, as Ray names it",
    metavar="TYPE",
    example="--accelerator-type A100",
)
BACKEND = Option(
    ("--backend",),
    "torch.distributed's backend: " + " or ".join(BACKENDS) + "; Ray chooses without it",
    metavar="BACKEND",
    example="--backend gloo",
    choices=BACKENDS,
)
TIMEOUT = Option(
    ("--timeout-s",),
    "seconds that a collective may take before it fails",
    metavar="SECONDS",
    example="--timeout-s 300",
)
ENV = Option(
    ("--env",),
    "an environment variable of the workers; repeatable",
    metavar="NAME=VALUE",
    example="--env NCCL_DEBUG=INFO",
    repeat=True,
)
LOCAL = Option(("--local",), "run in the kernel, without workers; for debugging")
FRESH = Option(("--fresh",), "on workers of its own, although warm ones are up")
WARM = Option(("--warm",), "on the warm workers of %raynb workers up, or not at all")
CONFIG = Option(
    ("-c", "--config"),
    "what the train function gets: a variable of the notebook, or a quoted literal",
    metavar="VAR",
    example="-c config",
    variable=True,
)
DATASET = Option(
    ("--dataset",),
    "a ray.data.Dataset of the notebook that the workers share; repeatable",
    metavar="NAME=VAR",
    example="--dataset train=train_ds",
    variable=True,
    repeat=True,
)
NAME = Option(
    ("--name",),
    "the run's name and directory; made from the time without it",
    metavar="NAME",
    example="--name first-try",
)
STORAGE = Option(
    ("--storage-path",),
    "a directory or URI for runs",
    metavar="PATH",
    example="--storage-path runs",
)
MAX_FAILURES = Option(
    ("--max-failures",),
    "restarts from the latest checkpoint; -1 for no limit",
    metavar="N",
    example="--max-failures 2",
)
NUM_TO_KEEP = Option(
    ("--num-to-keep",),
    "checkpoints to keep; all without it",
    metavar="N",
    example="--num-to-keep 3",
)
BEST = Option(
    ("--best",),
    "the metric that orders the checkpoints, and whether less or more is better",
    metavar="METRIC:min|max",
    example="--best accuracy:max",
    choices=("min", "max"),
)
RESUME = Option(
    ("--resume",),
    "where raynb.resume goes on from: a variable with a RunResult or a checkpoint, or a path",
    metavar="RESULT|PATH",
    example="--resume result",
    variable=True,
)
OUT = Option(
    ("-o", "--out"),
    "the variable that gets the result (the run, with --background); default: result",
    metavar="VAR",
    example="-o result",
)
FUNC = Option(
    ("--func",),
    "the train function's name; default: train_func",
    metavar="NAME",
    example="--func train",
)
BACKGROUND = Option(("--background",), "return at once; the variable of -o gets the run")
ECHO = Option(("--echo",), "print the workers' output below the panel as well", negatable=True)
DRY_RUN = Option(("--dry-run",), "show what would be captured and run, and start nothing")
HELP = Option(("-h", "--help"), "show this text")

WORKERS = Group(
    "workers",
    (
        *(NUM_WORKERS, GPU, RESOURCES, PLACEMENT, ACCELERATOR, BACKEND, TIMEOUT, ENV),
        *(LOCAL, FRESH, WARM),
    ),
)
DATA = Group("data", (CONFIG, DATASET))
STORING = Group("storage and failures", (NAME, STORAGE, MAX_FAILURES, NUM_TO_KEEP, BEST, RESUME))
CELL = Group("cell", (OUT, FUNC, BACKGROUND, ECHO, DRY_RUN, HELP))
TRAIN_GROUPS = (WORKERS, DATA, STORING, CELL)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Plain text that fits a notebook's output; IPython's own writes reStructuredText."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=96)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return inspect.cleandoc(text)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Write the value once, not behind each of the option's forms."""
        if action.option_strings and action.metavar:
            return f"{', '.join(action.option_strings)} {action.metavar}"
        return super()._format_action_invocation(action)


def options(usage: str, groups: Iterable[Group]) -> Callable[[Magic], Magic]:
    """Give a magic its options.

    Parameters
    ----------
    usage : str
        The line that the help starts with.
    groups : iterable of Group
        The options.

    Returns
    -------
    callable
        A decorator; the magic gets the attributes ``parser`` and ``options``.
    """

    def decorate(magic: Magic) -> Magic:
        known: list[Option] = []
        # magic_arguments adds what was declared in the order of the source: the last comes first.
        for group in reversed(tuple(groups)):
            for option in reversed(group.options):
                magic = option.declare()(magic)
            magic = argument_group(group.title)(magic)
            known[:0] = group.options
        settings = kwds(usage=usage.replace("%", "%%"), formatter_class=_HelpFormatter)
        decorated: Any = magic_arguments()(settings(magic))
        decorated.parser.allow_abbrev = False
        # argparse then raises errors that tell which option they are about.
        decorated.parser.exit_on_error = False
        decorated.options = tuple(known)
        return decorated  # type: ignore[no-any-return]

    return decorate


def split(line: str) -> list[str]:
    """Split a magic line into words, with quotes as a shell has them.

    Parameters
    ----------
    line : str
        The line after the magic's name.

    Returns
    -------
    list of str
        The words without their quotes. Backslashes and ``#`` are ordinary characters.

    Raises
    ------
    OptionError
        For a quote that is not closed.
    """
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    # A backslash is a part of Windows paths far more often than an escape.
    lexer.escape = ""
    try:
        return list(lexer)
    except ValueError:
        raise OptionError(
            f"a quote in the magic line is not closed: {line.strip()}",
            hint="close it, or put a value that holds a quote into quotes of the other kind",
        ) from None


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Read a magic line.

    Parameters
    ----------
    magic : callable
        A magic that was decorated with `options`.
    line : str
        The line after the magic's name.

    Returns
    -------
    argparse.Namespace
        The values as they were written; only ``help`` is sure to be right when it is True.

    Raises
    ------
    OptionError
        For an option that does not exist, a value that is missing or one too many.
    """
    words = split(line)
    if not {"-h", "--help"}.isdisjoint(words):
        return argparse.Namespace(help=True)
    known: dict[str, Option] = {s: o for o in magic.options for s in o.spellings}
    for word in words:
        _check_spelling(word, known)
    args = argparse.Namespace()
    try:
        _, rest = magic.parser.parse_known_args(words, args)
    except argparse.ArgumentError as error:
        option = next((o for o in magic.options if o.title in (error.argument_name or "")), None)
        if option is None:
            raise OptionError(f"{error}") from None
        if option.metavar:
            raise OptionError(
                f"{option.title} needs a value ({option.metavar})",
                hint=f"for example {option.example}",
            ) from None
        raise OptionError(f"{option.title} is a switch and takes no value") from None
    except UsageError as error:
        raise OptionError(f"{error}") from None
    if rest:
        raise OptionError(
            f"unexpected {rest[0]!r} in the magic line",
            hint="every value follows an option; put a value with spaces into quotes",
        )
    for option in magic.options:
        values = getattr(args, option.dest)
        if option.metavar and "" in (values if isinstance(values, list) else [values]):
            raise OptionError(
                f"{option.title} got an empty value",
                hint=f"leave it out, or for example {option.example}",
            )
    return args


def _check_spelling(word: str, known: Mapping[str, Option]) -> None:
    match = re.match(r"(--?[A-Za-z][\w-]*)(?:=|$)", word)
    if match is None or match[1] in known:
        return
    name = match[1]
    if not name.startswith("--"):
        if "-" + name not in known:
            if name[:2] in known:
                return  # a short option with its value attached, -n4
            raise OptionError(f"there is no option {name}", hint=_near(name, known))
        raise OptionError(f"there is no option {name}", hint=f"did you mean -{name}?")
    raise OptionError(f"there is no option {name}", hint=_near(name, known))


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "--help lists the options"


def build_spec(args: argparse.Namespace, namespace: Mapping[str, Any], defaults: RayNB) -> RunSpec:
    """Make the spec of a run from a magic line and the configured defaults.

    Parameters
    ----------
    args : argparse.Namespace
        From `parse`.
    namespace : Mapping
        The notebook's names.
    defaults : RayNB
        What holds where the line gives nothing.

    Returns
    -------
    RunSpec
        Not yet checked.

    Raises
    ------
    OptionError
        For a value that can't be used; it names the option, the value and what would work.
    """
    return RunSpec(
        name=args.name or "",
        num_workers=_num_workers(args, defaults),
        use_gpu=defaults.gpu if args.gpu is None else args.gpu,
        resources_per_worker={
            name: _amount(name, text) for name, text in pairs(RESOURCES, args.resources)
        },
        placement_strategy=_choice(PLACEMENT, args.placement_strategy)
        or defaults.placement_strategy,
        accelerator_type=args.accelerator_type,
        config=None if args.config is None else look_up(CONFIG, args.config, namespace),
        storage_path=args.storage_path or defaults.storage_path,
        max_failures=whole(MAX_FAILURES, args.max_failures, -1, defaults.max_failures),
        num_to_keep=whole(NUM_TO_KEEP, args.num_to_keep, 1, defaults.num_to_keep),
        best=_best(args.best),
        resume=None if args.resume is None else look_up_path(RESUME, args.resume, namespace),
        datasets={
            name: look_up(DATASET, text, namespace) for name, text in pairs(DATASET, args.dataset)
        },
        backend=_choice(BACKEND, args.backend) or defaults.backend,
        timeout_s=whole(TIMEOUT, args.timeout_s, 1, defaults.timeout_s),
        env=dict(pairs(ENV, args.env)),
        warm=_warm(args),
    )


def identifier(option: Option, value: str) -> str:
    """Check that a value can be a variable's name.

    Parameters
    ----------
    option : Option
        The option it was given to.
    value : str
        The value.

    Returns
    -------
    str
        The value.

    Raises
    ------
    OptionError
        When Python does not take it as a name.
    """
    if not value.isidentifier() or keyword.iskeyword(value):
        raise OptionError(
            f"{option.title} {value!r} can't be a variable's name",
            hint=f"for example {option.example}",
        )
    return value


def _warm(args: argparse.Namespace) -> bool | None:
    fresh, warm = getattr(args, "fresh", False), getattr(args, "warm", False)
    if fresh and warm:
        raise OptionError("--fresh and --warm contradict each other", hint="leave out one of them")
    return True if warm else False if fresh else None


def _num_workers(args: argparse.Namespace, defaults: RayNB) -> int | tuple[int, int]:
    text: str | None = args.num_workers
    if args.local:
        if text not in (None, "0"):
            raise OptionError(
                f"--local runs in the kernel, without workers, and -n {text} asks for workers",
                hint="leave out one of them",
            )
        return 0
    if text is None:
        configured: int | tuple[int, int] = defaults.num_workers
        return configured
    match = re.fullmatch(r"(-?[0-9]+)(?::(-?[0-9]+))?", text)
    if match is None:
        raise OptionError(
            f"{NUM_WORKERS.title} {text!r} is neither a number nor MIN:MAX",
            hint=f"for example {NUM_WORKERS.example}",
        )
    least = int(match[1])
    if match[2] is not None:
        if not 1 <= least <= int(match[2]):
            raise OptionError(
                f"{NUM_WORKERS.title} {text!r}: MIN must be at least 1 and MAX at least MIN",
                hint="for example -n 1:4",
            )
        return least, int(match[2])
    if least < 1:
        raise OptionError(
            f"{NUM_WORKERS.title} {text!r}: a run needs a worker",
            hint="-n 1 for one worker, or --local to run in the kernel",
        )
    return least


def whole(option: Option, text: str | None, least: int, default: Any) -> Any:
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]+", text) or int(text) < least:
        raise OptionError(
            f"{option.title} {text!r} is not a whole number of at least {least}",
            hint=f"for example {option.example}",
        )
    return int(text)


def _amount(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not (0 <= amount < math.inf):
        raise OptionError(
            f"{RESOURCES.title} {name}={text}: {text!r} is not a number of at least 0",
            hint=f"for example {RESOURCES.example}, or --resources memory=2e9",
        )
    return amount


def _choice(option: Option, value: str | None) -> str | None:
    if value is None or value in option.choices:
        return value
    folded = {c.casefold(): c for c in option.choices}
    near = difflib.get_close_matches(value.casefold(), folded, 1)
    raise OptionError(
        f"{option.title} {value!r} is none of {', '.join(option.choices)}",
        hint=f"did you mean {folded[near[0]]}?" if near else f"for example {option.example}",
    )


def _best(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    metric, _, mode = text.rpartition(":")
    if not metric or mode not in ("min", "max"):
        raise OptionError(
            f"{BEST.title} {text!r} is not a metric with :min or :max",
            hint=f"for example {BEST.example}",
        )
    return metric, mode


def look_up_path(option: Option, text: str, namespace: Mapping[str, Any]) -> Any:
    """A variable of the notebook where there is one of this name, else the path as it is."""
    # A path of a name's form that does not exist is a name with a mistake in it.
    if text.partition(".")[0] in namespace or (text.isidentifier() and not os.path.exists(text)):
        return look_up(option, text, namespace)
    return text


def pairs(option: Option, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key or (not value and option is not ENV):
            # Of an environment variable nothing is shown: it may be a secret.
            shown = "•••" if option is ENV else repr(text)
            raise OptionError(
                f"{option.title} {shown} is not of the form {option.metavar}",
                hint=f"for example {option.example}",
            )
        if key in pairs:
            values = "" if option is ENV else f": {pairs[key]!r} and {value!r}"
            raise OptionError(
                f"{option.title} gives {key!r} twice{values}",
                hint="leave out one of them",
            )
        pairs[key] = value
    return list(pairs.items())


def look_up(option: Option, text: str, namespace: Mapping[str, Any]) -> Any:
    """Get a variable, an attribute of one or a literal; nothing is ever evaluated."""
    parts = text.split(".")
    if not all(p.isidentifier() and not keyword.iskeyword(p) for p in parts):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise OptionError(
                f"{option.title} {text!r} is neither a variable nor a Python literal",
                hint="assign it to a variable in a cell before, and give the variable's name",
            ) from None
    if parts[0] not in namespace:
        near = difflib.get_close_matches(parts[0], _public(namespace), 1)
        hint = f"did you mean `{near[0]}`?" if near else "assign it in a cell before this one"
        raise OptionError(f"{option.title}: no variable `{parts[0]}` in the notebook", hint=hint)
    value, path = namespace[parts[0]], parts[0]
    for part in parts[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            near = difflib.get_close_matches(part, _public(dir(value)), 1)
            raise OptionError(
                f"{option.title}: `{path}` ({type(value).__name__}) has no attribute `{part}`",
                hint=f"did you mean `{path}.{near[0]}`?" if near else "",
            ) from None
        path = f"{path}.{part}"
    return value


def _public(names: Iterable[Any]) -> list[str]:
    return [n for n in names if isinstance(n, str) and not n.startswith("_")]
