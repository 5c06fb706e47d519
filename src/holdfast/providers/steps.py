"""Runs and times the steps of a ping or a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.provider import Provider
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


async def diagnose_box(provider: Provider, id: str) -> list[Step]:
    try:
        box = await provider.attach(id)
        return await box.ping()
    except BoxError as error:
        return [Step("box record", False, 0.0, error.message, error.hint or "holdfast box list --all")]
