"""Clouds in which the runs of the fault matrix are struck: what holds their boxes, and what it can do to us.

Each stands on real local boxes of this machine, so processes in a box can be found and killed from outside. Servers
talk to it with the vendor's SDK.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
from grpclib import Status
from tests.agents import InstalledAgents
from tests.providers.daytona import faulty_proxy
from tests.providers.daytona.conftest import serving
from tests.providers.daytona.faulty_proxy import FaultyProxy

from holdfast.api.box.box import Box
from holdfast.client import Client
from holdfast.providers.local.bubblewrap import TOOLS
from holdfast.testing import modal
from holdfast.testing.modal import ModalCloud
from holdfast.testing.provider_suite.base import eventually
from holdfast.testing.server import ServerProcess
from holdfast.testing.sprites import SpritesCounterpart

CONTROL_PLANE: Final = r"/daytona/(sandbox|snapshots|volumes)"
"""Of Daytona: all but the toolbox."""
AGENTS: Final = "snapshot:agents"
"""The image of boxes at Daytona that have the agents, once it was taken."""


class Cloud(ABC):
    """The account of one provider at its cloud."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """By which a server uses it."""

    @abstractmethod
    async def delete(self, box: str) -> None:
        """As somebody else with the same account does."""

    @abstractmethod
    async def cut(self) -> None:
        """Cut every connection that is open."""

    @abstractmethod
    def control_plane_away(self) -> AbstractContextManager[None]:
        """It answers nothing about boxes. Streams that are open go on."""

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """It answers nothing at all. Combined with `cut`, it cannot be reached."""


class DaytonaCloud(Cloud):
    """Our own Daytona API, behind a proxy that misbehaves."""

    name = "daytona"

    def __init__(self, server: ServerProcess, proxy: FaultyProxy) -> None:
        self._server = server
        self._proxy = proxy

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "daytona_api_key": self._server.api_key,
            "daytona_api_url": f"{self._proxy.url}/compat/daytona",
            "daytona_target": "local",
            "daytona_image": AGENTS,
        }

    async def delete(self, box: str) -> None:
        async with _client(self._server) as client:
            sandboxes = (await client.get("/sandbox")).raise_for_status().json()["items"]
            [name] = [each["name"] for each in sandboxes if each["name"].endswith(f"-{box}")]
            (await client.delete(f"/sandbox/{name}")).raise_for_status()

    async def cut(self) -> None:
        self._proxy.cut()

    @contextmanager
    def control_plane_away(self) -> Iterator[None]:
        self._proxy.add(faulty_proxy.Fault(path=CONTROL_PLANE, times=faulty_proxy.FOREVER, status=503))
        try:
            yield
        finally:
            self._proxy.clear()

    @contextmanager
    def away(self) -> Iterator[None]:
        self._proxy.add(faulty_proxy.Fault(times=faulty_proxy.FOREVER, status=503))
        try:
            yield
        finally:
            self._proxy.clear()


class SpritesCloud(Cloud):
    """The counterpart of the Sprites API."""

    name = "sprites"

    def __init__(self, counterpart: SpritesCounterpart) -> None:
        self._sprites = counterpart

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"sprites_token": self._sprites.token, "sprites_url": self._sprites.url}

    async def delete(self, box: str) -> None:
        [name] = [each for each in self._sprites.names if each.endswith(f"-{box}")]
        await asyncio.to_thread(self._sprites.delete, name)

    async def cut(self) -> None:
        await asyncio.to_thread(self._sprites.cut)

    @contextmanager
    def control_plane_away(self) -> Iterator[None]:
        for method in ("GET", "POST", "PUT", "DELETE"):
            self._sprites.faults.refuse(503, method=method, times=modal.FOREVER)
        try:
            yield
        finally:
            self._sprites.faults.clear()

    @contextmanager
    def away(self) -> Iterator[None]:
        self._sprites.faults.refuse(503, times=modal.FOREVER)
        try:
            yield
        finally:
            self._sprites.faults.clear()


class ModalCounterpart(Cloud):
    """The counterpart of Modal's API."""

    name = "modal"

    def __init__(self, cloud: ModalCloud) -> None:
        self._cloud = cloud

    @property
    def settings(self) -> Mapping[str, Any]:
        cloud = self._cloud
        return {
            "modal_server_url": cloud.url,
            "modal_token_id": cloud.token_id,
            "modal_token_secret": cloud.token_secret,
        }

    async def delete(self, box: str) -> None:
        [sandbox] = [each for each in self._cloud.running if each.name.endswith(box)]
        await self._cloud.finish(sandbox)

    async def cut(self) -> None:
        self._cloud.cut()

    @contextmanager
    def control_plane_away(self) -> Iterator[None]:
        self._cloud.faults.add(modal.Fault("Sandbox*", modal.FOREVER, Status.UNAVAILABLE))
        try:
            yield
        finally:
            self._cloud.faults.clear()

    @contextmanager
    def away(self) -> Iterator[None]:
        self._cloud.faults.add(modal.Fault("*", modal.FOREVER, Status.UNAVAILABLE))
        try:
            yield
        finally:
            self._cloud.faults.clear()


async def add_agents(box: Box) -> None:
    """Let a machine have the agents, as an image made for them does: copying them there is not what is tested."""
    script = 'mkdir -p "$HOME/.holdfast" && ln -s "$1" "$HOME/.holdfast/tools"'
    done = await box.exec(["sh", "-c", script, "sh", TOOLS])
    assert done.ok, done.stderr


def _client(server: ServerProcess) -> httpx.AsyncClient:
    """Somebody else with the same account at Daytona, who goes through no proxy."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    url = f"{server.url}/compat/daytona"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=240, trust_env=False)


async def take_agents_snapshot(server: ServerProcess) -> None:
    """Take the snapshot `AGENTS` at a server with the Daytona API, whose home has the agents."""
    name = AGENTS.partition(":")[2]
    async with _client(server) as daytona, Client(server.url, api_key=server.api_key) as client:
        made = (await daytona.post("/sandbox", json={})).raise_for_status().json()["id"]
        async with await client.boxes.open(made) as box:
            await add_agents(box)
        (await daytona.post(f"/sandbox/{made}/snapshot", json={"name": name})).raise_for_status()

        async def active() -> bool:
            found = await daytona.get(f"/snapshots/{name}")
            return bool(found.raise_for_status().json()["state"] == "active")

        await eventually(active, "the snapshot is not active")
        (await daytona.delete(f"/sandbox/{made}")).raise_for_status()


@asynccontextmanager
async def open_cloud(name: str, folder: Path, agents: InstalledAgents) -> AsyncIterator[Cloud]:
    """Open the cloud of one provider, with its data in a folder."""
    home = folder / name
    match name:
        case "daytona":
            agents.share_with(home)
            with serving(home) as server:
                async with FaultyProxy(server.url) as proxy:
                    await take_agents_snapshot(server)
                    yield DaytonaCloud(server, proxy)
        case "sprites":
            agents.share_with(home / "sprites")
            async with SpritesCounterpart(home, prepare=add_agents) as counterpart:
                yield SpritesCloud(counterpart)
        case _:
            agents.share_with(home)
            async with ModalCloud(home, prepare=add_agents) as modal_cloud:
                yield ModalCounterpart(modal_cloud)
