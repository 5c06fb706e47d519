"""Network policies: a box has an egress if its policy needs one, and changes of the policy take effect."""

from __future__ import annotations

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxUnreachable, ConnectRefused
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import PROXY_PORT
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Suite, claims

_NOWHERE = "nowhere.invalid"
_SOMEWHERE = NetworkPolicy(Network.ALLOW, ("somewhere.invalid",))


class Networks(Suite):
    @claims(Capability.NETWORK_ALLOW, Capability.CONNECT)
    async def test_a_box_with_rules_is_told_what_none_of_them_allows(self, factory: BoxFactory) -> None:
        box = await factory.box(network=_SOMEWHERE)
        assert b"403" in await ask(box)
        told = await box.exec(["sh", "-c", "echo $http_proxy"])
        assert told.text.strip() == f"http://127.0.0.1:{PROXY_PORT}"

    @claims(Capability.NETWORK_ALLOW, Capability.NETWORK_NONE, Capability.CONNECT)
    async def test_a_box_without_a_network_has_no_way_out(self, factory: BoxFactory) -> None:
        box = await factory.box(network=NetworkPolicy())
        assert await ask(box) == b""
        assert "proxy" not in (await box.exec(["env"])).text.lower()

    @claims(Capability.NETWORK_LIVE, Capability.NETWORK_ALLOW, Capability.NETWORK_NONE, Capability.CONNECT)
    async def test_a_policy_follows_its_changes(self, provider: Provider, factory: BoxFactory) -> None:
        box = await factory.box(network=NetworkPolicy())
        await box.set_network(_SOMEWHERE)
        assert b"403" in await ask(box)
        assert (await provider.attach(box.id)).spec.network == _SOMEWHERE
        await box.set_network(NetworkPolicy())
        assert await ask(box) == b""
        assert (await provider.attach(box.id)).spec.network == NetworkPolicy()

    @claims(Capability.NETWORK_LIVE, Capability.NETWORK_ALLOW, Capability.STOP, Capability.CONNECT)
    async def test_a_box_that_is_started_again_has_its_way_out(self, factory: BoxFactory) -> None:
        box = await factory.box(network=NetworkPolicy())
        await box.stop()
        await box.set_network(_SOMEWHERE)
        await box.start()
        assert b"403" in await ask(box)
        await box.stop()
        await box.start()
        assert b"403" in await ask(box)


async def ask(box: Box) -> bytes:
    """Returns the answer of the egress to a request that no rule allows, or nothing if there is no egress."""
    try:
        async with await box.connect(PROXY_PORT) as connection:
            await connection.write(f"GET http://{_NOWHERE}/ HTTP/1.1\r\nHost: {_NOWHERE}\r\n\r\n".encode())
            return (await connection.read()).partition(b"\r\n")[0]
    except (ConnectRefused, BoxUnreachable):
        return b""
