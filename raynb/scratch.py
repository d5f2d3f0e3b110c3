"""Directories for temporary use; what a killed process left of them, the next one takes away."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: nothing is swept there
    fcntl = None

_PREFIX, _NEW = "raynb-scratch-", ".raynb-new-"


class Scratch:
    """A directory that is this process's while it lives.

    The process holds a lock on it (``flock``), which the kernel takes back however it ends: what
    nobody holds is nobody's. Locks know of no process numbers, so that containers which share a
    directory for temporary files don't take each other's away.

    Parameters
    ----------
    kind : str
        Part of the directory's name.

    Attributes
    ----------
    path : str
    """

    def __init__(self, kind: str) -> None:
        made = tempfile.mkdtemp(prefix=_NEW)
        self._lock = os.open(made, os.O_RDONLY)
        if fcntl is not None:
            # A file system without locks has none for the one that sweeps either.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # With its lock, since under this name it may be taken away without.
        name = f"{_PREFIX}{kind}-{os.path.basename(made).removeprefix(_NEW)}"
        self.path = os.path.join(os.path.dirname(made), name)
        os.rename(made, self.path)

    def remove(self) -> None:
        """Take it away, with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: Any) -> None:
        self.remove()


def sweep() -> list[str]:
    """Take away this user's directories whose processes are gone.

    Returns
    -------
    list of str
        Their names.
    """
    if fcntl is None:
        return []
    gone = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # held, somebody else's, or just taken away
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid != os.getuid():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                gone.append(path.name)
            finally:
                os.close(lock)
    return gone
