"""Work ends when the client that asked for it disconnects, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from holdfast.disconnect import work_until_disconnect

pytestmark = pytest.mark.anyio


class ClientGone(Exception):
    pass


class Client:
    def __init__(self) -> None:
        self._messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def receive(self) -> MutableMapping[str, Any]:
        return await self._messages.get()

    def send(self, kind: str) -> None:
        self._messages.put_nowait({"type": kind})


async def test_the_result_of_the_work_is_returned_while_the_client_is_there() -> None:
    client = Client()

    async def work() -> int:
        client.send("http.request")  # the rest of a body is no disconnect
        await asyncio.sleep(0)
        return 7

    assert await work_until_disconnect(client.receive, work(), ClientGone) == 7


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    client, ended = Client(), asyncio.Event()

    async def work() -> None:
        client.send("http.disconnect")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientGone):
        await work_until_disconnect(client.receive, work(), ClientGone)
    assert ended.is_set(), "it was waited for"


async def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await work_until_disconnect(Client().receive, work(), ClientGone)


async def test_who_is_cancelled_takes_the_work_along() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(work_until_disconnect(Client().receive, work(), ClientGone))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
