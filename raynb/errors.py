"""What users see go wrong: every error raynb raises on purpose, rendered short in a notebook."""

from __future__ import annotations

#: The page that says more, in the sources; `raynb help TOPIC` shows its sections anywhere.
TROUBLESHOOTING = "docs/troubleshooting.md"


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
    topic : str, optional
        The heading's anchor on the troubleshooting page; by default the class's.
    """

    topic = "raynb-error"

    def __init__(self, message: str, *, hint: str = "", detail: str = "", topic: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail
        if topic:
            self.topic = topic
        self.add_note(f"More: %raynb help {self.topic} ({TROUBLESHOOTING}#{self.topic})")

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(self.detail)
        if self.hint:
            parts.append(f"Way out: {self.hint}")
        return "\n".join(parts)

    def whole(self) -> str:
        """The text with what Python's own tracebacks put below it: where to read more."""
        return "\n".join([str(self), *self.__notes__])

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.detail, self.__dict__))

    def _render_traceback_(self) -> list[str]:
        """Short rendering; IPython calls this instead of printing raynb's own frames."""
        return f"{type(self).__name__}: {self.whole()}".splitlines()


def _rebuild(
    cls: type[RaynbError], message: str, hint: str, detail: str, state: dict[str, object]
) -> RaynbError:
    error = cls.__new__(cls)
    RaynbError.__init__(error, message, hint=hint, detail=detail)
    error.__dict__.update(state)
    return error


class OptionError(RaynbError):
    """An option or argument has a value that can't be used."""

    topic = "options"


class CaptureError(RaynbError):
    """The cell can't be shipped to the workers as it is."""

    topic = "capture"


class ResourceError(RaynbError):
    """The cluster can't give what was asked for."""

    topic = "resources"


class StorageError(RaynbError):
    """The run's storage can't be read or written."""

    topic = "storage"


class CheckpointError(RaynbError):
    """A checkpoint can't be found, written, read, or fitted into what it shall go into."""

    topic = "checkpoints"


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds pickled code, and nothing said that it may run."""

    topic = "unsafe-checkpoint"


class CompatibilityError(RaynbError):
    """The installed versions don't work together."""

    topic = "version-mismatch"


class SupervisorDiedError(RaynbError):
    """The actor that hosts the run is gone; what was written before stays on storage."""

    topic = "supervisor-gone"


class TrainingError(RaynbError):
    """Training failed on a worker.

    Attributes
    ----------
    rank : int or None
        The world rank that failed first; None when the failure was not a worker's.
    result : object
        The ``RunResult`` with the history so far, or None.
    """

    topic = "training-failed"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        detail: str = "",
        topic: str = "",
        rank: int | None = None,
        result: object = None,
    ) -> None:
        super().__init__(message, hint=hint, detail=detail, topic=topic)
        self.rank = rank
        self.result = result
