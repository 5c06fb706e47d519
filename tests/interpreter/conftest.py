"""A test that uses `place`, directly or by way of `server`, `provider` or `box`, runs at each of the usual places.

`@pytest.mark.places("local")` names others. Those beyond `local` are a sample in a whole run of `bin/test`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.interpreter.places import MARKS, USUAL, Place, Places
from tests.scratch import scratch_folder

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.ids import new_id
from holdfast.boxes.provider import Provider
from holdfast.interpreter.client_host import ClientHost
from holdfast.interpreter.kernel.kernel import Kernel
from holdfast.testing.server import ServerProcess


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("places")
        names = USUAL if marker is None else marker.args
        params = [pytest.param(name, marks=MARKS[name]) for name in names]
        metafunc.parametrize("place", params, indirect=True, scope="module")


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    places = Places(tmp_path_factory.mktemp)
    yield places
    places.close()


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, places: Places) -> Place:
    return places.get(request.param)


@pytest.fixture
def spec(place: Place) -> BoxSpec:
    """Of a box there."""
    return place.spec


@pytest.fixture(scope="module")
def server(place: Place, places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if not place.is_local:
        yield places.server(place.name)  # a server takes seconds to load the SDK of a cloud
        return
    with scratch_folder(tmp_path_factory, "interpreters") as folder, place.serving(folder / "home") as server:
        yield server


@pytest.fixture
async def host(server: ServerProcess) -> AsyncIterator[ClientHost]:
    host = await ClientHost.of_home(server.home)
    yield host
    await host.close()


@pytest.fixture(scope="module")
async def provider(place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Provider]:
    with scratch_folder(tmp_path_factory, "provider") as folder:
        async with place.provider(folder) as provider:
            yield provider


@pytest.fixture(scope="module")
async def box(place: Place, provider: Provider) -> Box:
    """Removed with all others of the provider."""
    return await provider.create(place.spec, id=new_id("b"))


@pytest.fixture(scope="module")
async def kernels(box: Box, place: Place) -> AsyncIterator[Kernel]:
    kernels = await Kernel.start(box, python=place.python)
    yield kernels
    await kernels.end()
