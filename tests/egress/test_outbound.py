"""The real resolver and connector, as far as they go without leaving the machine."""

from __future__ import annotations

import socket

import pytest

from holdfast.egress import CannotResolve, NeverReached, SystemConnector, SystemResolver
from holdfast.egress.addresses import refusal

pytestmark = pytest.mark.anyio


async def test_names_of_this_machine_resolve_to_what_no_box_reaches() -> None:
    found = await SystemResolver().resolve("localhost", 80)
    assert found
    assert all(refusal(address) for address in found)


async def test_a_name_that_is_none_cannot_be_resolved() -> None:
    with pytest.raises(CannotResolve):
        await SystemResolver().resolve("a" * 64 + ".example", 80)


async def test_an_address_of_this_machine_is_not_connected_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises(NeverReached):
            await SystemConnector().connect("127.0.0.1", server.getsockname()[1])
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_an_address_of_this_machine_on_the_network_is_not_connected_to_either() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # asks the kernel for a route, and sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        own = probe.getsockname()[0]
    with pytest.raises(NeverReached):
        await SystemConnector().connect(own, 9)
