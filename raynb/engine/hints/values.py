"""Hints on the numbers of training: a loss that is none, and a learning rate left behind."""

from __future__ import annotations

import math
import re

from raynb.engine.hints.view import Finding, View, number, ranks_words, text

_LOSS = re.compile(r"loss|nll|perplexity|(?:^|[_/. -])(?:ppl|cost|cross_?entropy)", re.IGNORECASE)
#: The batch grew by this factor, with a learning rate that is this close to the one before.
GREW, SAME = 1.5, 0.01


def non_finite(view: View) -> list[Finding]:
    """A loss became NaN or infinite."""
    metrics: dict[str, list[tuple[float, int, float]]] = {}
    for (metric, rank), (step, value) in view.nonfinite.items():
        if _LOSS.search(metric):
            metrics.setdefault(metric, []).append((step, rank, value))
    found = []
    for metric, firsts in list(metrics.items())[:5]:
        step, rank, value = min(firsts)
        ranks = sorted({r for _, r, _ in firsts})
        word = "NaN" if math.isnan(value) else "infinite"
        found.append(
            Finding(
                "non_finite",
                "error",
                f"{text(metric, 60)} is {word} on {ranks_words(ranks)} since step {step:,.0f}",
                tuple(ranks),
                f"the first on rank {rank} at step {step:,.0f}: {value}",
                "any NaN or infinity in a loss",
                "Lower the learning rate, clip the gradients\n"
                "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "and look at the batch of this step: a division by zero, the log of zero, an empty "
                "batch or a broken row. With float16, use torch.amp.GradScaler, or bfloat16. "
                "torch.autograd.set_detect_anomaly(True) names the operation.",
                key=metric,
            )
        )
    return found


def lr_scaling(view: View) -> list[Finding]:
    """The global batch grew since the last run of this function, the learning rate did not."""
    now = view.scale
    lr, batch = number(view.previous.get("lr")), number(view.previous.get("global_batch"))
    if not now or not lr or not batch:
        return []
    factor = now["global_batch"] / batch
    if factor < GREW or abs(now["lr"] / lr - 1) > SAME:
        return []
    return [
        Finding(
            "lr_scaling",
            "info",
            f"the batch over all ranks grew {factor:.3g}-fold, the learning rate stayed",
            tuple(int(w["rank"]) for w in view.workers),
            f"{batch:,.0f} rows a step at learning rate {lr:g} before; "
            f"{now['global_batch']:,.0f} rows at {now['lr']:g} now",
            f"a batch {GREW} times that of the last run of this function in this notebook, with "
            "the same learning rate",
            "Larger batches make fewer steps an epoch, and often want a larger learning rate: "
            f"lr={lr * factor:.3g} scales it linearly, the usual start for SGD; "
            f"lr={lr * factor**0.5:.3g} with the square root, the usual start for Adam. Warm up "
            "over the first steps. To keep the batch as it was, divide batch_size by the number "
            "of workers.",
        )
    ]
