"""Reads files that torch.save wrote, weights only; what would run code is refused by name."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

from raynb.errors import CheckpointError, UnsafeCheckpointError

#: Of a pickle at most this much is searched for the name of what it would run.
_MAX_SEARCHED = 64 * 2**20
#: What every file of tensors refers to.
_HARMLESS = re.compile(r"torch\._utils\..*|torch\.\w*Storage|collections\.OrderedDict")

Source = str | os.PathLike[str] | IO[bytes]


def read_torch_file(
    source: Source,
    *,
    shown: str,
    map_location: Any = "cpu",
    trusted: bool = False,
    stand_ins: Iterable[tuple[Any, str]] = (),
) -> Any:
    """Read what ``torch.save`` wrote.

    Parameters
    ----------
    source : path or binary file
    shown : str
        What messages call it.
    map_location
        As in ``torch.load``.
    trusted : bool
        Unpickle whatever is in it, which runs its code.
    stand_ins : iterable of (class, str)
        Further classes that may be made, under the dotted names that the file calls them by.

    Raises
    ------
    UnsafeCheckpointError
        When it holds more than weights and ``trusted`` is False. None of its code ran.
    CheckpointError
        When it can't be read.
    """
    import torch

    allowed: list[Any] = list(stand_ins)
    try:
        with contextlib.ExitStack() as stack:
            if allowed:
                stack.enter_context(torch.serialization.safe_globals(allowed))
            stack.enter_context(warnings.catch_warnings())
            # "Detected pickle protocol 4 …, please file an issue": the error says it better.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(source, map_location=map_location, weights_only=not trusted)
    except FileNotFoundError:
        raise CheckpointError(f"{shown} does not exist") from None
    except Exception as error:
        raise _explained(error, source, shown, trusted) from error


def _explained(error: Exception, source: Source, shown: str, trusted: bool) -> CheckpointError:
    text = str(error)
    if trusted:
        if isinstance(error, AttributeError | ImportError):
            return CheckpointError(
                f"{shown} needs a class or module that is not defined here: {first_line(error)}",
                hint="run the cell or import the module that defines it, then load again",
            )
    elif "TorchScript" in text:
        return UnsafeCheckpointError(
            f"{shown} is a TorchScript archive: a program, not weights alone",
            hint=_ways_out("the program"),
        )
    elif isinstance(error, pickle.UnpicklingError):
        if name := refused_name(text, source):
            return refusal(shown, name)
        if "Unsupported operand" in text:
            return CheckpointError(
                f"{shown} was saved with a pickle protocol that can't be read safely",
                hint="save it with torch.save's default protocol; or, if you trust where the file "
                "comes from, load it with trusted=True",
            )
    return CheckpointError(
        f"{shown} can't be read: it is cut off or damaged, or no file of torch.save "
        f"({first_line(error)})",
        hint="check its size against the original's, or copy it again",
    )


def refusal(shown: str, name: str) -> UnsafeCheckpointError:
    """The error for a file that would run ``name`` when it is unpickled."""
    name = printable(name)
    return UnsafeCheckpointError(
        f"{shown} holds a pickled {name}, and unpickling it can run any code, so it was not loaded",
        hint=_ways_out(name.rpartition(".")[2]),
    )


def printable(name: str) -> str:
    """A name from a checkpoint for a message: short, and without control characters."""
    shown = "".join(c if c.isprintable() else "�" for c in name)
    return shown if len(shown) <= 70 else f"{shown[:40]}…{shown[-29:]}"


def _ways_out(name: str) -> str:
    return (
        "save weights alone, torch.save(model.state_dict(), …), and load them into a model; or, "
        f"if you trust where the file comes from, load it with trusted=True where {name} is defined"
    )


def refused_name(text: str, source: Source) -> str:
    """The dotted name of what torch refused to unpickle; empty when it refused nothing."""
    names: list[str] = []
    with contextlib.suppress(Exception), _pickles(source) as stream:
        names = list(pickled_names(stream))
    found = re.search(r"GLOBAL ([\w.]+)", text)
    if found:
        name = found[1].rstrip(".")
        # A file that is cut off within a harmless name looks like another name.
        return name if not names or any(n.endswith(name) for n in names) else ""
    # Torch names it for pickle protocol 2 alone; others it gives up on at the first instruction.
    return next((name for name in names if not _HARMLESS.fullmatch(name)), "")


@contextlib.contextmanager
def _pickles(source: Source) -> Iterator[IO[bytes]]:
    """The pickle in a file of torch.save, or the file as it is."""
    with contextlib.ExitStack() as stack:
        if isinstance(source, str | os.PathLike):
            stream: IO[bytes] = stack.enter_context(open(source, "rb"))
        else:
            stream = source
            stream.seek(0)
        if zipfile.is_zipfile(stream):
            archive = stack.enter_context(zipfile.ZipFile(stream))
            inner = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            stream = stack.enter_context(archive.open(inner))
        else:
            stream.seek(0)
        yield io.BytesIO(stream.read(_MAX_SEARCHED))


def pickled_names(stream: IO[bytes]) -> Iterator[str]:
    """Dotted names of the classes and functions that pickles in a stream refer to.

    Nothing is unpickled. Ends quietly at the first bytes that are no pickle.
    """
    with contextlib.suppress(ValueError):
        while True:
            texts: list[str] = []
            memo: dict[Any, str] = {}
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL":
                    yield str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
                    yield ".".join(texts[-2:])
                elif "UNICODE" in opcode.name:
                    texts.append(str(argument))
                elif opcode.name == "MEMOIZE":
                    memo[len(memo)] = texts[-1] if texts else ""
                elif opcode.name in ("BINPUT", "LONG_BINPUT"):
                    memo[argument] = texts[-1] if texts else ""
                elif opcode.name in ("BINGET", "LONG_BINGET") and memo.get(argument):
                    texts.append(memo[argument])


def first_line(error: BaseException) -> str:
    """What went wrong, in one line without control characters."""
    # Torch puts a page of advice before what went wrong.
    text = str(error).rpartition("WeightsUnpickler error: ")[2]
    line = text.strip().partition("\n")[0]
    line = "".join(c if c.isprintable() else "�" for c in line[:300])
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
