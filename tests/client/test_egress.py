"""`client.egress`, async and sync, on a server whose world has nothing in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.box_providers import dummies

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxNotFound, InvalidSpec, PolicyNotFound, Unsupported
from holdfast.client import Client, EnvironmentPolicy, SyncClient
from holdfast.testing.server import ServerProcess

POLICY = NetworkPolicy(Network.ALLOW, ("default", "*.example.com:443"), bandwidth=1 << 20, connections=9)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("egress") / "home", providers=dummies) as server:
        yield server


@pytest.mark.anyio
async def test_policies_of_environments(server: ServerProcess) -> None:
    async with Client(server.url, api_key=server.api_key) as client:
        assert await client.egress.set("web", POLICY) == EnvironmentPolicy("web", POLICY)
        assert (await client.egress.get("web")).network == POLICY
        assert [each.environment for each in await client.egress.policies()] == ["web"]
        await client.egress.remove("web")
        with pytest.raises(PolicyNotFound):
            await client.egress.get("web")
        with pytest.raises(PolicyNotFound):
            await client.egress.remove("web")
        assert (await client.egress.default()).rules == ()


@pytest.mark.anyio
async def test_what_goes_wrong_with_a_box_is_said_as_itself(server: ServerProcess) -> None:
    async with Client(server.url, api_key=server.api_key) as client:
        made = await client.boxes.create(BoxSpec())
        assert [each async for each in client.egress.decisions(made.box.id)] == []
        with pytest.raises(Unsupported, match="network-live"):
            await client.boxes.set_network(made.box.id, POLICY)
        async with await client.boxes.open(made.box.id) as box:
            with pytest.raises(Unsupported, match="network-live"):
                await box.set_network(POLICY)
        with pytest.raises(InvalidSpec):
            await client.egress.page(made.box.id, cursor="made up")
        with pytest.raises(BoxNotFound):
            await client.egress.page("b-none")
        await client.boxes.delete(made.box.id)


def test_the_same_without_await(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key) as client:
        assert client.egress.set("web", POLICY).network == POLICY
        assert client.egress.get("web").environment == "web"
        assert len(client.egress.policies()) == 1
        client.egress.remove("web")
        assert client.egress.default().to_json() == {"rules": []}
        box = client.boxes.create(BoxSpec()).box
        assert list(client.egress.decisions(box.id, limit=3)) == []
        assert client.egress.page(box.id).next_cursor is None
        with pytest.raises(Unsupported):
            client.boxes.set_network(box.id, POLICY)
        client.boxes.delete(box.id)
