"""Decisions about checkpoints: which turn needs one, and which snapshots may go. Functions of their arguments."""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors import InvalidRequest
from holdfast.api.ids import new_id
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.boxes.provider import Provider
from holdfast.threads.run_events import Run, ThreadRuns

_DAY: Final = 24 * 3600 * 1000
_OFF: Final = CheckpointPolicy(every=False)
_FORKED: Final = re.compile(r" \(fork at turn \d+\)$")
_LONGEST_TITLE: Final = 400


def fork_title(source: str, title: str | None, turn: int) -> str:
    """Returns the title of a fork that was given none, from the id and the title of its source."""
    name = _FORKED.sub("", title) if title else source
    return f"{name[:_LONGEST_TITLE]} (fork at turn {turn})"


def rewound_id(thread: str, key: str | None) -> str:
    """Returns the id of the entry of a rewind. With a key it is always the same one, and differs on each thread: a fork
    has the rewinds of its source.
    """
    if key is None:
        return f"rewound-{new_id('w')}"
    digest = hashlib.sha256(f"{thread}\n{key}".encode()).digest()
    return f"rewound-k-{b32encode(digest).decode().lower()[:26]}"


def policy_in(options: Mapping[str, Any], provider: Provider | None) -> CheckpointPolicy:
    """Returns the policy in the options of a run. What it does not say, the provider decides."""
    text, usual = options.get("checkpoints"), None
    if provider is not None and provider.takes_checkpoints:
        usual = CheckpointPolicy.parse(provider.checkpoint_policy)
    if isinstance(text, str):
        try:
            return CheckpointPolicy.parse(text, usual)
        except InvalidRequest:
            pass
    return usual or _OFF


def turn_to_save(runs: ThreadRuns) -> Run | None:
    """Returns the run whose end has no checkpoint yet, and no reason why there is none."""
    run = runs.latest
    if run is None or run.live or not run.is_ours or run.box is None or run.checkpoint is not None:
        return None
    return run


def removable(
    snapshots: Sequence[Snapshot], needed: Collection[str], policy: CheckpointPolicy, now: int
) -> list[Snapshot]:
    """Returns the checkpoints of one thread that its policy does not keep, oldest first.

    The newest one always stays, and so do those that something refers to: `needed`.
    """
    going, total = [], 0
    newest_first = sorted(snapshots, key=lambda each: (each.created_at, each.id), reverse=True)
    for number, each in enumerate(newest_first):
        total += each.size
        kept = number < policy.keep and now - each.created_at <= policy.days * _DAY and total <= policy.total
        if number and not kept and each.id not in needed:
            going.append(each)
    return going[::-1]
