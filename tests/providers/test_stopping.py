"""A box that is being stopped takes no new work: it would be lost when the provider ends the box."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from tests.interpreter.places import MARKS, Places

from holdfast.api.errors.boxes import BoxStopped, BoxUnreachable
from holdfast.boxes.provider import Provider
from holdfast.providers.daytona.provider import DaytonaProvider
from holdfast.providers.docker import DockerProvider
from holdfast.providers.modal.provider import ModalProvider
from holdfast.providers.sprites import guest_setup as sprites_guest
from holdfast.providers.sprites.provider import SpritesProvider

pytestmark = pytest.mark.anyio
PATIENCE: Final = 240.0
CLOUDS: Final = [pytest.param(name, marks=MARKS[name]) for name in ("docker", "daytona", "sprites", "modal")]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    places = Places(tmp_path_factory.mktemp)
    yield places
    places.close()


class SlowStop:
    """Holds up the call by which a provider ends a box, until it is released."""

    def __init__(self, patch: pytest.MonkeyPatch, provider: Provider) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.problem: Exception | None = None
        owner: Any
        if isinstance(provider, DockerProvider):
            owner, name = provider.lifecycle, "_command"
        elif isinstance(provider, DaytonaProvider):
            owner, name = provider._api, "stop"
        elif isinstance(provider, ModalProvider):
            owner, name = provider, "_save"
        else:
            assert isinstance(provider, SpritesProvider)
            owner, name = sprites_guest, "end_guest"
        patch.setattr(owner, name, self._slow(getattr(owner, name)))

    def _slow(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def slow(*args: Any, **more: Any) -> Any:
            if not self.begun.is_set():
                self.begun.set()
                await self.released.wait()
                if self.problem is not None:
                    raise self.problem
            return await real(*args, **more)

        return slow


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_nothing_begins_in_a_box_that_is_being_stopped(
    cloud: str, places: Places, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places.get(cloud)
    async with place.provider(tmp_path_factory.mktemp(cloud)) as provider, asyncio.timeout(PATIENCE):
        box = await provider.create(place.spec, id="b-slow")
        assert (await box.exec(["true"])).ok
        stop = SlowStop(monkeypatch, provider)
        stopping = asyncio.create_task(box.stop())
        await stop.begun.wait()
        other = await provider.attach("b-slow")
        try:
            for work in (
                lambda: box.exec(["touch", "lost"]),
                lambda: other.spawn(["touch", "lost"]),
                lambda: box.files.write("lost", b"lost"),
                lambda: box.connect(1),
            ):
                with pytest.raises(BoxStopped, match="stop"):
                    await work()
        finally:
            stop.released.set()
            await stopping
        await box.start()
        assert (await box.exec(["sh", "-c", "ls; echo again"])).stdout == b"again\n"


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_box_that_could_not_be_stopped_is_used_again(
    cloud: str, places: Places, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places.get(cloud)
    async with place.provider(tmp_path_factory.mktemp(cloud)) as provider, asyncio.timeout(PATIENCE):
        box = await provider.create(place.spec, id="b-stays")
        stop = SlowStop(monkeypatch, provider)
        stop.problem = BoxUnreachable("the cloud is away")
        stop.released.set()
        with pytest.raises(BoxUnreachable, match="the cloud is away"):
            await box.stop()
        await box.start()
        assert (await box.exec(["true"])).ok
