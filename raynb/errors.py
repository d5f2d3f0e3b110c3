"""What users see go wrong: every error raynb raises on purpose, rendered short in a notebook."""

from __future__ import annotations


class RaynbError(Exception):
    """Base of raynb's own errors.

    Parameters
    ----------
    message : str
        What went wrong, in one sentence that names the cause.
    hint : str, optional
        The way out: an option, a line of code or a command that would work.
    detail : str, optional
        Further lines (source excerpt, table), shown below the message as they are.
    """

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(self.detail)
        if self.hint:
            parts.append(f"Way out: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.detail, self.__dict__))

    def _render_traceback_(self) -> list[str]:
        """Short rendering; IPython calls this instead of printing raynb's own frames."""
        return f"{type(self).__name__}: {self}".splitlines()


def _rebuild(
    cls: type[RaynbError], message: str, hint: str, detail: str, state: dict[str, object]
) -> RaynbError:
    error = cls.__new__(cls)
    RaynbError.__init__(error, message, hint=hint, detail=detail)
    error.__dict__.update(state)
    return error


class OptionError(RaynbError):
    """An option or argument has a value that can't be used."""


class CaptureError(RaynbError):
    """The cell can't be shipped to the workers as it is."""


class ResourceError(RaynbError):
    """The cluster can't give what was asked for."""


class StorageError(RaynbError):
    """The run's storage can't be read or written."""


class CheckpointError(RaynbError):
    """A checkpoint can't be found, written, read, or fitted into what it shall go into."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds pickled code, and nothing said that it may run."""


class CompatibilityError(RaynbError):
    """The installed versions don't work together."""


class SupervisorDiedError(RaynbError):
    """The actor that hosts the run is gone; what was written before stays on storage."""


class TrainingError(RaynbError):
    """Training failed on a worker.

    Attributes
    ----------
    rank : int or None
        The world rank that failed first; None when the failure was not a worker's.
    result : object
        The ``RunResult`` with the history so far, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        detail: str = "",
        rank: int | None = None,
        result: object = None,
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.rank = rank
        self.result = result
