"""A client without a URL finds the server that the command line would use, and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Client, SyncClient
from holdfast.client import Unreachable
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_API_KEY", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


async def test_it_is_the_server_of_this_machine(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    async with Client() as client:
        assert client.url == server.url
        thread = await client.threads.create()
        await thread.chat("hello")
    with SyncClient() as sync:
        assert [each.payload["text"] for each in sync.thread(thread.id).entries(types=["chat"])] == ["hello"]


async def test_the_environment_names_another_one(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    monkeypatch.setenv("HOLDFAST_API_KEY", server.api_key or "")
    async with Client() as client:
        await client.threads.create()


async def test_none_is_started(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=f"no server runs on {tmp_path}.*start one: holdfast up") as raised:
        Client()
    assert "HOLDFAST_URL" in str(raised.value.hint)
    assert not (tmp_path / "home").exists()


async def test_a_server_that_was_started_again_is_found_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(home) as first:
        async with Client() as client:
            thread = await client.threads.create()
            first.stop()
            with ServerProcess(home) as second:
                await thread.chat("still there")  # another key, perhaps another port
                assert client.url == second.url
