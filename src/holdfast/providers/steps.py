"""Runs and times one step of a ping or a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError
from holdfast.providers.guest_answers import GuestRefused

Check = Callable[[], Awaitable[str]]
"""Returns what it found, or raises `BoxError` or `GuestRefused`."""


async def take_step(name: str, check: Check, otherwise: str) -> Step:
    """`otherwise` is the hint if the check fails with an error that has none."""
    begin = time.perf_counter()
    try:
        detail = await check()
    except (BoxError, GuestRefused) as error:
        hint = getattr(error, "hint", None) or otherwise
        return Step(name, False, (time.perf_counter() - begin) * 1000, str(error), hint)
    return Step(name, True, (time.perf_counter() - begin) * 1000, detail)
