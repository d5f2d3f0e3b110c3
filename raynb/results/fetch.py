"""Fetching a remote checkpoint to this machine, with someone who may watch how far it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import pyarrow.fs as pafs

#: Seconds between two looks at what has arrived.
_LOOK_S = 0.2

_watcher: ContextVar[Callable[[int], object] | None] = ContextVar("raynb_fetch", default=None)


@contextlib.contextmanager
def watching(watcher: Callable[[int], object]) -> Iterator[None]:
    """Have ``watcher`` called with the bytes that have arrived, while this thread fetches."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def fetch(filesystem: pafs.FileSystem, path: str, here: Path) -> None:
    """Copy a file, or a directory with all in it, from ``filesystem`` to ``here``."""
    watcher = _watcher.get()
    ended = threading.Event()
    thread = None
    if watcher is not None:
        # pyarrow copies many files at a time and tells nothing: what is on disk tells.
        thread = threading.Thread(target=_look, args=(here, watcher, ended), daemon=True)
        thread.start()
    try:
        pafs.copy_files(
            path,
            str(here),
            source_filesystem=filesystem,
            destination_filesystem=pafs.LocalFileSystem(),
        )
    finally:
        ended.set()
        if thread is not None:
            thread.join()


def _look(here: Path, watcher: Callable[[int], object], ended: threading.Event) -> None:
    last = False
    while not last:
        last = ended.wait(_LOOK_S)
        with contextlib.suppress(OSError):
            paths = here.rglob("*") if here.is_dir() else [here]
            watcher(sum(p.stat().st_size for p in paths if p.is_file()))
