"""A gateway as a server mounts it, a provider behind it that is scripted, and an agent in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.stores import open_models

from holdfast.api.model.models import Api
from holdfast.egress.models import Answered, GatewayLimits, LoopbackUpstream, ModelGateway, Models
from holdfast.server.wire.uvicorn_adapter import HttpToolsProtocol, ServerState, make_config
from holdfast.testing.model import ScriptedModel
from holdfast.threads.access.credentials import RunGrant, RunScope

SECRET = b"s" * 32
KEY = "sk-real-0123456789abcdefghij"
WAIT = 20.0


@dataclass
class World:
    models: Models
    gateway: ModelGateway
    provider: ScriptedModel
    agent: httpx.AsyncClient
    """With a token of its run as its key, and the gateway as its base URL."""
    port: int
    answers: asyncio.Queue[Answered]
    database: Path

    async def answered(self) -> Answered:
        """The next request that has ended."""
        async with asyncio.timeout(WAIT):
            return await self.answers.get()

    async def add(self, name: str = "mine", **more: Any) -> None:
        given: dict[str, Any] = {"apis": list(Api), "base_url": self.provider.url, "key": KEY, "model": "scripted"}
        await self.models.put(name, **{**given, **more})


def grant_of(run: str = "r-1", model: str = "mine/scripted") -> RunGrant:
    return RunGrant("default", "t-1", run, 1, "b-1", RunScope.MODEL, model)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """An ASGI app on a free port of loopback."""
    config = make_config(app, HttpToolsProtocol)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpToolsProtocol(config, state, {}, _loop=loop), "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=WAIT)
        assert not state.tasks


@asynccontextmanager
async def make_world(folder: Path, *, limits: GatewayLimits | None = None) -> AsyncIterator[World]:
    answers: asyncio.Queue[Answered] = asyncio.Queue()
    async with open_models(folder / "data.db", SECRET) as models, ScriptedModel(key=KEY) as provider:
        gateway = ModelGateway(models, LoopbackUpstream, limits=limits, on_answer=answers.put_nowait)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await gateway.handle(scope, receive, send, grant_of())

        async with serving(app) as port:
            headers = {"authorization": "Bearer token-of-the-run", "x-api-key": "token-of-the-run"}
            base = f"http://127.0.0.1:{port}/model"
            async with httpx.AsyncClient(base_url=base, headers=headers, timeout=WAIT, trust_env=False) as agent:
                world = World(models, gateway, provider, agent, port, answers, folder / "data.db")
                await world.add()
                yield world
        await gateway.close()
