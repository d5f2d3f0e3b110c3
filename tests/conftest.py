"""What all tests share."""

from __future__ import annotations

import gc
import signal


def pytest_configure() -> None:
    # A shell starts what it runs in the background without SIGINT, which tests of interrupts send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    # Every IPython shell collects garbage at exit, among all that two thousand tests have left.
    gc.freeze()
