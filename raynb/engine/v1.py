"""What replaces Ray Train V1's API in V2, for errors that come from old habits."""

from __future__ import annotations

import re

#: Name in the message or on the cell's line, and what to write instead.
_REPLACED = (
    (r"trainer_resources", "leave trainer_resources out: V2's controller takes no resources"),
    (
        r"resume_from_checkpoint",
        "pass the checkpoint in the config and load it in the train function, or give the same "
        "name and storage path, where ray.train.get_checkpoint() finds the latest one",
    ),
    (
        r"\b(verbose|sync_config|progress_reporter|log_to_file|stop)\b.*RunConfig"
        r"|RunConfig.*\b(verbose|sync_config|progress_reporter|log_to_file|stop)\b",
        "leave it out of RunConfig: it was Ray Tune's, and V2 has nothing in its place",
    ),
    (r"fail_fast", "leave fail_fast out: V2 stops at the first failure unless max_failures is set"),
    (
        r"checkpoint_frequency|checkpoint_at_end",
        "leave it out of CheckpointConfig: the train function decides when it calls "
        "ray.train.report(metrics, checkpoint=…)",
    ),
    (
        r"train\.torch\.(backward|accelerate|prepare_optimizer)"
        r"|\b(backward|accelerate|prepare_optimizer)\b.*(deprecated|AMP)|torch\.cuda\.amp",
        "use PyTorch itself: torch.autocast, torch.amp.GradScaler, loss.backward()",
    ),
    (
        r"only be called inside a function that is executed by a Tuner"
        r"|session\.report|ray\.air.*session|\bsession\b.*ray\.air",
        "use ray.train.report, ray.train.get_context and ray.train.get_dataset_shard",
    ),
    (r"get_metadata|\bmetadata\b.*deprecated", "put the metadata into the config"),
)


def replacement(message: str, line: str = "") -> str:
    """What to write in V2, for an error message and the line that raised it; "" when unknown.

    Examples
    --------
    >>> replacement("`RunConfig(verbose)` is deprecated.")[:22]
    'leave it out of RunCon'
    """
    text = f"{message}\n{line}"
    if not re.search(r"deprecat|ray|session|attribute", text, re.IGNORECASE):
        return ""
    for pattern, instead in _REPLACED:
        if re.search(pattern, text, re.DOTALL):
            return instead
    return ""
