"""Loader of torch.distributed.checkpoint's directories, into one process."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raynb.results.loaders.base import How


class ShardedLoader:
    """Puts the shards of all ranks together; no process group is needed."""

    reads = "directories of torch.distributed.checkpoint (.metadata, *.distcp)"

    def find(self, files: Sequence[str]) -> list[str]:
        # By either, so that a copy that lacks one of them is told as such.
        shards = {posixpath.dirname(f) for f in files if f.endswith(".distcp")}
        found = {posixpath.dirname(f) for f in files if posixpath.basename(f) == ".metadata"}
        return sorted(d or "." for d in shards | found)

    def load(self, path: Path, how: How) -> Any:
        from raynb.weights.sharded import read_sharded

        return read_sharded(
            path, shown=how.shown, map_location=how.map_location, trusted=how.trusted
        )
