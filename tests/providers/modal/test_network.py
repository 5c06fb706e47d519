"""What a box at Modal may reach: through the server, or in Modal's own words, and by tunnels the other way."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from modal_proto import api_pb2
from tests.stores import open_records

from holdfast.api.box.box import Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import Unsupported
from holdfast.api.guest_url import GuestUrl
from holdfast.boxes.capabilities import Capability
from holdfast.egress import EgressProxy
from holdfast.providers.modal import Credentials, ModalProvider, network
from holdfast.testing.modal import ModalCloud
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite.base import appears

Access = api_pb2.NetworkAccess
SPEC = BoxSpec(provider="modal")


def allow(*rules: str) -> NetworkPolicy:
    return NetworkPolicy(Network.ALLOW, rules)


@pytest.mark.parametrize(
    ("policy", "domains", "addresses"),
    [
        (NetworkPolicy(), [], []),
        (allow("example.com", "*.example.org"), ["example.com", "*.example.org"], []),
        (allow("example.com", "192.0.2.1", "2001:db8::1"), ["example.com"], ["192.0.2.1/32", "2001:db8::1/128"]),
    ],
)
def test_a_policy_becomes_lists_of_domains_and_addresses(
    policy: NetworkPolicy, domains: list[str], addresses: list[str]
) -> None:
    expected = {"outbound_domain_allowlist": domains, "outbound_cidr_allowlist": addresses}
    assert network.direct(policy) == expected
    assert network.direct(NetworkPolicy(Network.OPEN)) == {}


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (allow("example.com:8443"), "example.com:8443"),
        (allow("GET example.com"), "methods"),
        (allow("default"), "default list"),
        (NetworkPolicy(Network.ALLOW), "default list"),
        (NetworkPolicy(Network.OPEN, bandwidth=1 << 20), "bandwidth"),
        (NetworkPolicy(Network.OPEN, connections=5), "connections"),
    ],
)
def test_what_modal_has_no_words_for_is_refused_by_name(policy: NetworkPolicy, word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        network.direct(policy)


@pytest.mark.anyio
async def test_modal_keeps_the_policy_where_it_is_asked_to(
    cloud: ModalCloud, credentials: Credentials, tmp_path: Path
) -> None:
    async with ModalProvider(tmp_path / "home", credentials, direct=True) as provider:
        spec = BoxSpec(provider="modal", network=allow("example.com"))
        box = await provider.create(spec, id="b-1")
        [sandbox] = cloud.running
        assert (list(sandbox.network.allowed_domains), list(sandbox.network.allowed_cidrs)) == (["example.com"], [])
        await box.set_network(NetworkPolicy())
        assert sandbox.network.network_access_type == Access.ALLOWLIST
        assert not sandbox.network.allowed_domains
        with pytest.raises(Unsupported):
            await box.set_network(allow("example.com:22"))
        assert (await provider.attach("b-1")).spec.network == NetworkPolicy()
        with pytest.raises(Unsupported):
            await provider.create(BoxSpec(provider="modal", network=allow("default")), id="b-2")
        assert await provider.probe("b-2") is Liveness.GONE


@pytest.mark.anyio
async def test_a_sandbox_has_no_network_where_its_traffic_goes_through_the_server(
    cloud: ModalCloud, credentials: Credentials, tmp_path: Path
) -> None:
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        ModalProvider(tmp_path / "home", credentials, egress=egress) as provider,
    ):
        box = await provider.create(BoxSpec(provider="modal", network=allow("example.com:8443", "default")), id="b-1")
        assert cloud.running[0].network.network_access_type == Access.BLOCKED
        assert await box.open_guest_api() == "http://127.0.0.1:3128"
        env = (await box.exec(["env"])).text
        assert "http_proxy=http://127.0.0.1:3128" in env
        assert cloud.token_secret not in env


@pytest.mark.anyio
async def test_a_sandbox_with_a_relay_reaches_that_alone(
    cloud: ModalCloud, credentials: Credentials, tmp_path: Path
) -> None:
    relay = GuestUrl.parse("https://relay.example.com")
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        ModalProvider(tmp_path / "home", credentials, egress=egress, relay=relay) as provider,
    ):
        box = await provider.create(BoxSpec(provider="modal", network=allow("example.com")), id="b-1")
        for _ in range(2):  # it is created with the policy, and gets it again when a run needs the guest API
            network = cloud.running[0].network
            assert network.network_access_type == Access.ALLOWLIST
            assert list(network.allowed_domains) == ["relay.example.com"]
            assert await box.open_guest_api() == "https://relay.example.com/guest"
        assert "relay.example.com" in (await box.exec(["sh", "-c", "echo $NO_PROXY"])).text


@pytest.mark.anyio
async def test_a_port_that_was_named_has_an_encrypted_tunnel(
    cloud: ModalCloud, credentials: Credentials, tmp_path: Path
) -> None:
    async with ModalProvider(tmp_path / "home", credentials, ports=[8000]) as provider:
        assert Capability.PREVIEW in provider.capabilities
        box = await provider.create(SPEC, id="b-1")
        assert cloud.running[0].network.network_access_type == Access.ALLOWLIST  # of nothing: no way out
        server = (
            "import socket; s = socket.create_server(('', 8000)); open('listens', 'w').write('1');"
            " c, _ = s.accept(); c.sendall(b'hello'); c.close()"
        )
        await box.spawn(["python3", "-c", server])
        await appears(box, "listens")
        preview = await box.preview(8000)
        assert preview.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", int(preview.url.rpartition(":")[2]), ssl=context)
        assert await asyncio.wait_for(reader.read(), 20) == b"hello"
        writer.close()
        with pytest.raises(Unsupported, match="9000"):
            await box.preview(9000)
