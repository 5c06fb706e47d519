"""The queue of a session: which prompts come next, and when. Decisions without effects.

A steering prompt comes first. Otherwise a higher priority comes first, and of equal ones the earlier. Prompts that are
collected wait until none has come for a moment, and then make one run together. A run is for one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from holdfast.api.session.sessions import PromptMode
from holdfast.threads.session_events import QueuedPrompt

COLLECT_MS: Final = 3_000
"""Prompts that are collected wait this long for another one."""
LONGEST_COLLECT_MS: Final = 10 * COLLECT_MS
"""The first of them waits no longer than this, however many follow."""


@dataclass(frozen=True, slots=True)
class Next:
    """These prompts are due, for one run."""

    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Later:
    """The next prompt is due in this many milliseconds."""

    ms: int


def in_order(queued: Sequence[QueuedPrompt]) -> tuple[QueuedPrompt, ...]:
    """Returns waiting prompts in the order in which the agent gets them. `queued` has the order of their entries."""
    # Not by their times: those of several servers differ, and clocks jump.
    return tuple(sorted(queued, key=lambda each: (each.mode is not PromptMode.STEER, -each.priority)))


def next_prompts(queued: Sequence[QueuedPrompt], now: int) -> Next | Later | None:
    """Returns the prompts of the next run, or when there will be some, or None if none waits."""
    ordered = in_order(queued)
    if not ordered:
        return None
    if ordered[0].mode is not PromptMode.COLLECT:
        return Next((ordered[0].id,))
    channel = ordered[0].channel
    beside = tuple(takewhile(lambda each: each.mode is PromptMode.COLLECT, ordered))
    together = tuple(each for each in beside if each.channel == channel)
    times = [each.created_at for each in together]
    waits = min(max(times) + COLLECT_MS, min(times) + LONGEST_COLLECT_MS) - now
    if 0 < waits <= COLLECT_MS:  # longer only if the clock was set back
        return Later(waits)
    return Next(tuple(each.id for each in together))


def interrupts(queued: Sequence[QueuedPrompt], channel: str) -> bool:
    """Returns whether a waiting prompt ends the current work, which is for this channel. Other channels wait."""
    return any(each.mode is PromptMode.STEER and each.channel == channel for each in queued)
