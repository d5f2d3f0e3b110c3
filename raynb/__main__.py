"""``python -m raynb``."""

from __future__ import annotations

import sys

from raynb.cli import main

if __name__ == "__main__":
    sys.exit(main())
