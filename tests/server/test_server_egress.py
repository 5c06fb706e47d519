"""Which registries this machine uses is asked when somebody needs it, and remembered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.api.box.network import Network, NetworkPolicy, Rule
from holdfast.egress import DefaultList, Source, git_hosts
from holdfast.server.egress import Outside, ServerEgress, this_machine
from holdfast.storage import Storage, open_storage
from holdfast.testing.outside import Nowhere

pytestmark = pytest.mark.anyio

FOUND = DefaultList(
    (Source(Rule.parse("registry.test:8443"), "pip"),), {"PIP_INDEX_URL": "https://registry.test:8443/"}
)


class Asked:
    """How often this machine's clients were asked, and what they say."""

    def __init__(self, answer: DefaultList | Exception = FOUND) -> None:
        self.times = 0
        self._answer = answer

    async def __call__(self) -> DefaultList:
        self.times += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def egress(self, storage: Storage, folder: Path) -> ServerEgress:
        return ServerEgress(storage, folder, Outside(Nowhere(), Nowhere(), self))


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    storage = await open_storage(tmp_path)
    yield storage
    await storage.close()


async def test_nobody_is_asked_before_a_box_has_a_network(tmp_path: Path, storage: Storage) -> None:
    asked = Asked()
    egress = asked.egress(storage, tmp_path)
    await egress.open()
    egress.proxy.admit("b-1", NetworkPolicy(), {})
    await asyncio.sleep(0)
    assert asked.times == 0
    egress.proxy.admit("b-2", NetworkPolicy(Network.ALLOW), {})
    await egress.ready()
    assert asked.times == 1
    assert await egress.defaults() == FOUND
    assert egress.proxy.environment(NetworkPolicy(Network.ALLOW))["PIP_INDEX_URL"] == "https://registry.test:8443/"
    assert asked.times == 1
    await egress.close()
    await egress.close()


async def test_what_was_found_is_there_at_the_next_start_and_found_anew(tmp_path: Path, storage: Storage) -> None:
    first = Asked().egress(storage, tmp_path)
    await first.open()
    await first.defaults()
    await first.close()
    asked = Asked(DefaultList())
    second = asked.egress(storage, tmp_path)
    await second.open()
    assert second.proxy.defaults == FOUND
    assert asked.times == 0
    await second.ready()
    assert await second.defaults() == DefaultList()
    await second.close()


@pytest.mark.parametrize(
    "damaged", ["", "[]", '{"sources": [["no host!", "pip"]], "environment": {}}', '{"sources": 1}']
)
async def test_a_list_that_cannot_be_read_is_found_anew(tmp_path: Path, storage: Storage, damaged: str) -> None:
    (tmp_path / "egress-default.json").write_text(damaged)
    egress = Asked().egress(storage, tmp_path)
    await egress.open()
    assert egress.proxy.defaults == git_hosts()
    assert await egress.defaults() == FOUND
    await egress.close()


async def test_where_nobody_can_say_boxes_reach_git_hosts(tmp_path: Path, storage: Storage) -> None:
    egress = Asked(OSError("no such program")).egress(storage, tmp_path)
    await egress.open()
    await egress.ready()
    assert await egress.defaults() == git_hosts()
    await egress.close()


async def test_a_machine_without_clients_has_git_hosts_alone(tmp_path: Path) -> None:
    found = await this_machine({"PATH": str(tmp_path), "HOME": str(tmp_path)}).find_defaults()
    assert found.rules == git_hosts().rules


async def test_what_the_operator_names_reaches_the_proxy(tmp_path: Path) -> None:
    outside = this_machine({"CORP": "http://proxy.test:3128"}, allow_private=["10.2.0.0/16"], proxy="env:CORP")
    assert outside.private is not None
    assert outside.private.admits("mirror.test", "10.2.3.4")
    assert repr(outside.proxy) == "<UpstreamProxy env:CORP>"
    with pytest.raises(ValueError, match="is no"):
        this_machine({}, allow_private=["127.0.0.1"])
    closed = this_machine({})
    assert closed.proxy is None
    assert closed.private is not None
    assert not closed.private.admits("10.2.3.4", "10.2.3.4")
