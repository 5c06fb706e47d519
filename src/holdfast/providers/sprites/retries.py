"""Repeats requests to the Sprites API that failed for now, with a limit, a pause and a reason."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from holdfast.providers.retries import PASSING, TRIES, pause_before, read_retry_after
from holdfast.providers.sprites.errors import ApiProblem, message_in

_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_REPEATABLE_POSTS: Final = ("/v1/sprites", "/policy/network", "/start", "/stop", "/restore")
"""Ends of paths. A sprite that a lost answer created is recognised by its labels; the others do the same twice."""


def may_repeat(method: str, path: str, status: int | None) -> bool:
    """Returns whether a request may be sent again after this status, or after a lost connection (None)."""
    if status == 429:
        return True  # it was not carried out
    if status is not None and status not in PASSING:
        return False
    return method in _REPEATABLE or (method == "POST" and path.endswith(_REPEATABLE_POSTS))


class RetryingTransport(httpx.AsyncBaseTransport):
    """Sends requests through another transport. Raises `ApiProblem` for every status of 400 or more.

    It closes the transport that it is given.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._transport = transport
        self._sleep = sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                response = await self._transport.handle_async_request(request)
            except httpx.TransportError:
                if last or not may_repeat(request.method, request.url.path, None):
                    raise
                await self._sleep(pause_before(attempt, None, random.random()) or 0.0)
                continue
            if response.status_code < 400:
                return response
            problem = await _read_problem(response)
            pause = pause_before(attempt, problem.retry_after, random.random())
            if last or pause is None or not may_repeat(request.method, request.url.path, problem.status):
                raise problem
            await self._sleep(pause)
        raise AssertionError("the loop returns or raises")

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _read_problem(response: httpx.Response) -> ApiProblem:
    try:
        body = await response.aread()
    finally:
        await response.aclose()
    after = read_retry_after(response.headers.get("retry-after"), time.time())
    return ApiProblem(response.status_code, message_in(body), retry_after=after)
