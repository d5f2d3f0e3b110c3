"""What all tests share."""

from __future__ import annotations

import gc


def pytest_unconfigure() -> None:
    # Every IPython shell collects garbage at exit, among all that two thousand tests have left.
    gc.freeze()
