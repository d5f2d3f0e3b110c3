"""Hints on the shards: ranks that get more rows than others, and epochs in the same order."""

from __future__ import annotations

import statistics

from raynb.engine.hints.view import Finding, View, first_shard, number, ranks_words, text, verb

#: The largest shard is this much larger than the smallest.
LARGER = 1.1


def imbalance(view: View) -> list[Finding]:
    """Some ranks have more rows of the training data than others."""
    if len(view.workers) < 2 or len(view.workers) != view.run.get("world_size"):
        return []
    if len({(s.get("name"), s.get("rows_total")) for s in map(first_shard, view.workers)}) < 2:
        return []
    rows: dict[int, float] = {}
    batches: dict[int, float] = {}
    names, size = set(), 1.0
    for worker in view.workers:
        shard = first_shard(worker)
        total = number(shard.get("rows_total"))
        if total is None:
            return []
        names.add(str(shard.get("name")))
        rows[int(worker["rank"])] = total
        size = max(size, number(shard.get("batch_size")) or 1.0)
        if (n := number(shard.get("batches_total"))) is not None:
            batches[int(worker["rank"])] = n
    low, high = min(rows.values()), max(rows.values())
    # One batch more or less is how a split of any number of rows looks.
    if len(names) != 1 or high - low <= size or high <= LARGER * low:
        return []
    middle = statistics.median_low(rows.values())
    if middle - low > high - middle:
        odd = [rank for rank, n in rows.items() if n * LARGER < middle]
        said = f"{verb(odd, 'has', 'have')} fewer rows than the others"
    else:
        odd = [rank for rank, n in rows.items() if n > LARGER * middle]
        said = f"{verb(odd, 'has', 'have')} more rows than the others"
    uneven = len(batches) == len(rows) and min(batches.values()) != max(batches.values())
    steps = (
        f", which makes {min(batches.values()):,.0f} to {max(batches.values()):,.0f} batches a pass"
        if uneven
        else ""
    )
    return [
        Finding(
            "imbalance",
            "warn",
            said,
            tuple(odd),
            f"{text(names.pop(), 60)}: {low:,.0f} to {high:,.0f} rows a rank, median "
            f"{middle:,.0f}{steps}",
            "the largest shard has over 10 % and one batch more than the smallest",
            "The others wait for the largest shard at each report(), and under DDP a rank with "
            "more batches hangs in its last ones. Let all ranks read one dataset through "
            "ray.train.torch.prepare_data_loader, or split it evenly\n"
            "    dataset.repartition(...)\n"
            "before training; to train on uneven shards under DDP use\n"
            "    with model.join():",
        )
    ]


def set_epoch(view: View) -> list[Finding]:
    """The sampler shuffles each epoch in the same order."""
    late = [w for w in view.workers if first_shard(w).get("set_epoch") == "missing"]
    if not late:
        return []
    ranks = [int(w["rank"]) for w in late]
    shard = first_shard(late[0])
    return [
        Finding(
            "set_epoch",
            "warn",
            "each epoch shuffles the rows in the same order",
            tuple(ranks),
            f"{ranks_words(ranks)}: epoch {number(shard.get('epoch')) or 2:.0f} of "
            f"{text(shard.get('name'), 60)} began without a call of sampler.set_epoch()",
            "a second epoch of a shuffling DistributedSampler without set_epoch()",
            "Tell the sampler at the start of each epoch:\n"
            "    for epoch in range(epochs):\n"
            "        if ray.train.get_context().get_world_size() > 1:\n"
            "            loader.sampler.set_epoch(epoch)",
        )
    ]
