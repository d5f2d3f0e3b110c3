"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal

import pytest


def pytest_configure() -> None:
    # A shell starts what it runs in the background without SIGINT, which tests of interrupts send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("RAYNB_ALL_FAULTS"):
        return
    skip = pytest.mark.skip(reason="takes about a minute: RAYNB_ALL_FAULTS=1 runs it")
    for item in items:
        if "expensive" in item.keywords:
            item.add_marker(skip)


def pytest_unconfigure() -> None:
    # Every IPython shell collects garbage at exit, among all that two thousand tests have left.
    gc.freeze()
