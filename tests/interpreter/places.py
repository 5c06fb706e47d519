"""Where the tests of interpreters have their boxes: this machine, a Docker daemon, and each cloud we can stand in for.

A place is a provider and how to reach it. What a test says of boxes must hold at every place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.providers.docker.engine import PYTHON_IMAGE, CannotStart, DockerEngine
from tests.providers.stream.over_pipes import PipesProvider
from tests.serving import serving
from tests.stores import open_records

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.registry import descriptors
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.outside import Nowhere
from holdfast.testing.server import ServerProcess
from holdfast.testing.sprites import SpritesCounterpart

_SAMPLED: Final = pytest.mark.sampled(share=0.1)
MARKS: Final[Mapping[str, tuple[pytest.MarkDecorator, ...]]] = {
    "local": (pytest.mark.box,),
    "stream": (pytest.mark.box,),
    "docker": (pytest.mark.docker, _SAMPLED),
    "daytona": (pytest.mark.box, _SAMPLED),
    "sprites": (pytest.mark.box, _SAMPLED),
    "modal": (pytest.mark.box, _SAMPLED),
}
USUAL: Final = ("local", "docker", "daytona")
"""Where a test runs that says nothing of it."""
ALL: Final = (*USUAL, "sprites", "modal")


@dataclass(frozen=True, slots=True)
class Place:
    """A provider, and how a server reaches it."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cloud: Any = None
    """What stands in for the cloud."""

    @property
    def is_local(self) -> bool:
        return self.name == "local"

    @property
    def spec(self) -> BoxSpec:
        if self.name == "stream":
            return BoxSpec(network=NetworkPolicy(Network.OPEN))
        return BoxSpec(provider=self.name)

    @property
    def python(self) -> tuple[str, ...] | None:
        """The Python that interpreters use there. None: the one that comes with the box."""
        return None if self.name in ("local", "stream") else ("python3",)

    def serving(self, home: Path, **options: Any) -> Any:
        """A server that has this provider. In the end its boxes are deleted."""
        return serving(home, provider_settings=dict(self.settings), **options)

    @asynccontextmanager
    async def provider(self, folder: Path) -> AsyncIterator[Provider]:
        """The provider alone, without a server."""
        async with AsyncExitStack() as stack:
            if self.name == "stream":
                yield await stack.enter_async_context(PipesProvider(folder))
                return
            descriptor = next(each for each in descriptors() if each.name == self.name)
            records = await stack.enter_async_context(open_records(folder / "egress.db"))
            egress = await stack.enter_async_context(EgressProxy(Nowhere(), Nowhere(), records))
            made = descriptor.make(folder / "home", egress, descriptor.values(self.settings))
            provider = await stack.enter_async_context(made)
            yield provider
            for info in await provider.find():
                await provider.remove(info.id)


class Places:
    """Opens each place when a test wants it first, and closes all of them in the end."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._open: dict[str, Place] = {}
        self._servers: dict[str, ServerProcess] = {}
        self._stack = ExitStack()

    def get(self, name: str) -> Place:
        if name not in self._open:
            self._open[name] = self._stack.enter_context(_OPENERS[name](self._folder(name)))
        return self._open[name]

    def server(self, name: str) -> ServerProcess:
        """One server for all tests that only add to it."""
        if name not in self._servers:
            server = self.get(name).serving(self._folder(f"server-{name}") / "home")
            self._servers[name] = self._stack.enter_context(server)
        return self._servers[name]

    def close(self) -> None:
        self._stack.close()


@contextmanager
def _local(folder: Path) -> Iterator[Place]:
    yield Place("local")


@contextmanager
def _stream(folder: Path) -> Iterator[Place]:
    """Boxes at the end of one byte stream, without a cloud."""
    yield Place("stream")


@contextmanager
def _docker(folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(DockerEngine())
        except CannotStart as error:
            pytest.skip(str(error))
        yield Place("docker", {"docker_host": engine.url, "docker_image": PYTHON_IMAGE}, engine)


@contextmanager
def _daytona(folder: Path) -> Iterator[Place]:
    """Our own Daytona API, over local boxes of another server."""
    with serving(folder / "home", daytona=True) as cloud:
        yield Place("daytona", daytona_settings(cloud), cloud)


def daytona_settings(cloud: ServerProcess, url: str | None = None) -> dict[str, Any]:
    """To a server, another one is the cloud."""
    return {
        "daytona_api_key": cloud.api_key,
        "daytona_api_url": f"{url or cloud.url}/compat/daytona",
        "daytona_target": "local",
    }


@contextmanager
def _sprites(folder: Path) -> Iterator[Place]:
    with SpritesCounterpart(folder) as cloud:
        yield Place("sprites", {"sprites_token": cloud.token, "sprites_url": cloud.url}, cloud)


@contextmanager
def _modal(folder: Path) -> Iterator[Place]:
    with ModalCloudThread(folder) as thread:
        settings = {
            "modal_server_url": thread.cloud.url,
            "modal_token_id": thread.cloud.token_id,
            "modal_token_secret": thread.cloud.token_secret,
        }
        yield Place("modal", settings, thread)


_OPENERS: Final = {
    "local": _local,
    "stream": _stream,
    "docker": _docker,
    "daytona": _daytona,
    "sprites": _sprites,
    "modal": _modal,
}
