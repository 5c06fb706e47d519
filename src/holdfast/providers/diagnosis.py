"""Runs and times the steps of a ping or a diagnosis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.box.records import Step
from holdfast.api.errors.boxes import BoxError, BoxUnreachable, ProviderRefused
from holdfast.boxes.provider import Provider
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.time_limit import time_limit

_REACH_SECONDS: Final = 20.0

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


async def check_account(name: str, reach: Check, authorize: Check) -> list[Step]:
    """The steps of `Provider.check_access`, for a provider with a credential. `name` is that of its account."""

    async def authorized() -> str:
        try:
            return await authorize()
        except ProviderRefused as error:
            hint = f"give another credential: holdfast provider add {name}"
            raise ProviderRefused(error.message, hint=hint) from error

    steps = [await take_step("reach", reach, "check the address and the network")]
    if steps[-1].ok:
        steps.append(await take_step("authorize", authorized, "try again in a moment"))
    return steps


async def reach_address(url: str) -> str:
    """Connect to the host of a URL, and close the connection again. Raises `BoxUnreachable`."""
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        async with time_limit(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, ValueError) as error:
        why = "nothing answers in time" if isinstance(error, TimeoutError) else str(error)
        raise BoxUnreachable(
            f"{parts.hostname} port {port} cannot be reached: {why}", hint="check the address and the network"
        ) from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return f"{parts.hostname} port {port}"


async def diagnose_box(provider: Provider, id: str) -> list[Step]:
    try:
        box = await provider.attach(id)
        return await box.ping()
    except BoxError as error:
        return [Step("box record", False, 0.0, error.message, error.hint or "holdfast box list --all")]
