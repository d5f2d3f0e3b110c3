"""A search that goes on, in words: for a terminal, and for a page that is not live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raynb.results.text import clean_line, format_value, mapping, number, plural

MAX_PARAMS = 4


def is_search(run: Mapping[str, Any]) -> bool:
    """Whether a picture is a search's."""
    return run.get("kind") == "tune"


def search_words(run: Mapping[str, Any]) -> list[str]:
    """``12 of 20 trials``, ``4 running``, ``8 pruned``, ``best val_accuracy 0.98 in trial 7``."""
    counts = {k: int(number(v) or 0) for k, v in mapping(run.get("counts")).items()}
    known = sum(counts.values())
    planned = number(run.get("planned"))
    trials = plural(known, "trial") if planned is None else f"{known} of {planned:,.0f} trials"
    words = [trials]
    words += [f"{n} {state}" for state, n in counts.items() if n and state != "pending"]
    best = mapping(run.get("best_trial"))
    if best:
        words.append(
            f"best {clean_line(run.get('metric'), 40)} {format_value(best.get('value'))} in trial "
            f"{best.get('trial')}{config_words(best.get('config'))}"
        )
    return words


def config_words(config: object) -> str:
    """`` (lr 0.01, width 64)``."""
    items = list(mapping(config).items())[:MAX_PARAMS]
    told = ", ".join(f"{clean_line(k, 24)} {format_value(v)}" for k, v in items)
    return f" ({told})" if told else ""


def lane_words(run: Mapping[str, Any], lane: int) -> str:
    """``trial 3`` or ``trial 3, rank 1``; of a run ``rank 1``."""
    if not is_search(run):
        return f"rank {lane}"
    lanes = int(number(run.get("workers")) or 1)
    trial, rank = divmod(lane, lanes)
    return f"trial {trial}" if lanes == 1 else f"trial {trial}, rank {rank}"
