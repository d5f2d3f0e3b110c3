"""Ray Train's local mode, taken back when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ray.train.v2._internal.execution import train_fn_utils


@contextlib.contextmanager
def train_context_of_this_run() -> Iterator[None]:
    """Let Ray Train's context in this process end with the block.

    Local mode sets the context of the whole process and leaves it there: later, outside of any
    run, ``ray.train.report`` and all that asks whether it is inside one would take the kernel for
    a worker.
    """
    try:
        before = train_fn_utils.get_train_fn_utils()
    except RuntimeError:  # there is none
        before = None
    try:
        yield
    finally:
        train_fn_utils.set_train_fn_utils(before)
