"""What would run code when it is unpickled: it leaves a directory behind."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any


class Canary:
    """Makes the directory ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def with_canary(data: bytes, canary: Canary) -> bytes:
    """A pickle that unpickles the canary, and then is ``data``."""
    bird = io.BytesIO()
    pickle.Pickler(bird, protocol=2).dump(canary)
    # Without its end mark, and dropped from the stack: POP, then the other pickle's body.
    return bird.getvalue()[:-1] + b"0" + data[2:]
