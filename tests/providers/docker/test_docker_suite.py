"""The docker provider keeps the contract whole, against a real daemon."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator

import pytest
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine
from tests.stores import open_records

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.docker import DockerHost, DockerProvider
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen, appears, eventually


@pytest.mark.sampled
class TestDocker(ProviderSuite):
    claimed = frozenset(Capability) - {
        Capability.DISK_LIMIT,  # the storage of the tests' daemon keeps none
        Capability.PREVIEW,
    }

    @pytest.fixture(scope="class")
    @classmethod
    def namespace(cls) -> str:
        return secrets.token_hex(4)

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(
        cls, engine: DockerEngine, namespace: str, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Provider]:
        async with (
            open_records(tmp_path_factory.mktemp("egress") / "data.db") as records,
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            DockerProvider(DockerHost(engine.url), namespace=namespace, egress=egress) as provider,
        ):
            yield provider

    @pytest.fixture
    def reopen(self, engine: DockerEngine, namespace: str) -> Reopen:
        async def again() -> Provider:
            other = DockerProvider(DockerHost(engine.url), namespace=namespace)
            await other.open()
            return other

        return again

    @pytest.fixture
    def spec(self) -> BoxSpec:
        return BoxSpec(provider="docker", image=PYTHON_IMAGE)


_ASKS_ON = """
import socket, time
while True:
    with socket.create_connection(("127.0.0.1", 3128)) as connection:
        connection.sendall(b"GET http://nowhere.invalid/ HTTP/1.1\\r\\nHost: nowhere.invalid\\r\\n\\r\\n")
        with open("answers", "ab") as file:
            file.write(connection.recv(12) + b".")
    time.sleep(0.05)
"""


@pytest.mark.anyio
async def test_a_way_out_is_taken_up_again_before_anybody_asks_after_its_box(
    engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    namespace = secrets.token_hex(4)
    network = NetworkPolicy(Network.ALLOW, ("somewhere.invalid",))
    async with open_records(tmp_path_factory.mktemp("egress") / "data.db") as records:
        async with (
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            DockerProvider(DockerHost(engine.url), namespace=namespace, egress=egress) as first,
        ):
            box = await first.create(BoxSpec(provider="docker", image=PYTHON_IMAGE, network=network), id="b-lasting")
            await box.spawn(["python3", "-c", _ASKS_ON])
            await appears(box, "answers")
        async with (
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            DockerProvider(DockerHost(engine.url), namespace=namespace, egress=egress) as second,
        ):
            await eventually(lambda: _known(egress), "the egress was not taken up again")
            await second.remove("b-lasting")


async def _known(egress: EgressProxy) -> bool:
    return egress.traffic("b-lasting").sent > 0


async def _says_who_came(box: str, connection: socket.socket, ahead: bytes) -> None:
    with connection:
        await asyncio.get_running_loop().sock_sendall(connection, f"{box} {ahead.split()[1].decode()}".encode())


@pytest.mark.anyio
async def test_what_is_in_a_box_without_a_network_reaches_its_door(
    engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asks = (
        "import socket; c = socket.create_connection(('127.0.0.1', 3128));"
        " c.sendall(b'GET /hello HTTP/1.1\\r\\n\\r\\n'); print(c.recv(100).decode())"
    )
    async with (
        open_records(tmp_path_factory.mktemp("egress") / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records, guest_api=_says_who_came) as egress,
        DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4), egress=egress) as provider,
    ):
        box = await provider.create(BoxSpec(provider="docker", image=PYTHON_IMAGE), id="b-docker")
        assert await box.open_guest_api() == "http://127.0.0.1:3128"
        assert (await box.exec(["python3", "-c", asks], timeout=30)).text == "b-docker /hello\n"
        await provider.remove("b-docker")
