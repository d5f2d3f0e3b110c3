"""A run's sign of life on its storage, which keeps two runs of one name out of one directory.

On one cluster the supervisor's name does. Two kernels whose clusters know nothing of each other, as
those that raynb starts for a kernel, may still share the storage.
"""

from __future__ import annotations

import contextlib
import time
import uuid

import pyarrow.fs as pafs

from raynb.engine.spec import RAYNB_DIR, filesystem_of, read_record
from raynb.errors import OptionError

#: Seconds between two signs.
BEAT_S = 5.0


class Pulse:
    """Renews a run's sign of life.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    run_dir : str
        The run's directory on it.
    """

    def __init__(self, filesystem: pafs.FileSystem, run_dir: str) -> None:
        self._fs, self._path = filesystem, _path(run_dir)
        self._id = uuid.uuid4().hex
        self._beats = 0
        self._at = 0.0

    def beat(self) -> bool:
        """Renew the sign where it is due; storage that fails is no matter.

        Returns
        -------
        bool
            Whether another run has put its own sign there since the last time.
        """
        if self._beats and time.monotonic() - self._at < BEAT_S:
            return False
        with contextlib.suppress(Exception):
            there = _read(self._fs, self._path) if self._beats else None
            self._beats, self._at = self._beats + 1, time.monotonic()
            with self._fs.open_output_stream(self._path) as stream:
                stream.write(f"{self._id} {self._beats}".encode())
            return there is not None and there.split()[:1] not in ([], [self._id.encode()])
        return False

    def end(self) -> None:
        """Take the sign away."""
        with contextlib.suppress(Exception):
            if (_read(self._fs, self._path) or b"").startswith(self._id.encode()):
                self._fs.delete_file(self._path)


def refuse_running(run_path: str, name: str) -> None:
    """Check that nobody writes into a run's directory; waits where a run may just have died.

    Raises
    ------
    OptionError
        When a run goes on there.
    """
    filesystem, run_dir = filesystem_of(run_path)
    record = read_record(filesystem, run_dir) or {}
    if record.get("state") == "running" and _goes_on(filesystem, _path(run_dir)):
        raise OptionError(
            f"a run called {name!r} is going on already, on another cluster with the same storage",
            hint="choose another --name or --storage-path, or stop that one first",
            topic="name-taken",
        )


def _goes_on(filesystem: pafs.FileSystem, path: str) -> bool:
    first = _read(filesystem, path)
    if first is None or _is_old(filesystem, path):
        return False
    end = time.monotonic() + 1.5 * BEAT_S
    while time.monotonic() < end:
        time.sleep(0.2)
        if _read(filesystem, path) not in (None, b"", first):
            return True
    return False


def _is_old(filesystem: pafs.FileSystem, path: str) -> bool:
    """Whether a sign was left long ago by the storage's own clock; False where that is unknown."""
    probe = f"{path}-{uuid.uuid4().hex[:8]}"
    try:
        with filesystem.open_output_stream(probe):
            pass
        then, now = (one.mtime_ns for one in filesystem.get_file_info([path, probe]))
        filesystem.delete_file(probe)
        return bool(now - then > 4e9 * BEAT_S)
    except Exception:  # storage that tells no times
        return False


def _read(filesystem: pafs.FileSystem, path: str) -> bytes | None:
    try:
        with filesystem.open_input_stream(path) as stream:
            content: bytes = stream.read()
    except OSError:
        return None
    return content


def _path(run_dir: str) -> str:
    return f"{run_dir}/{RAYNB_DIR}/alive"
