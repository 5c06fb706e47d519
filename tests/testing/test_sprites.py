"""The counterpart of the Sprites API, used through the vendor's own SDK, unmodified."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import httpx
import pytest
from sprites import AsyncSpritesClient, SpritesClient
from sprites.exceptions import AuthenticationError, FileNotFoundError_, NetworkError, NotFoundError, SpriteError
from sprites.types import NetworkPolicy, PolicyRule
from websockets.asyncio.client import connect

from holdfast.testing.sprites import SpritesCounterpart

pytestmark = [pytest.mark.box, pytest.mark.anyio]


@pytest.fixture(scope="module")
def sprites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpritesCounterpart]:
    with SpritesCounterpart(tmp_path_factory.mktemp("sprites")) as sprites:
        yield sprites


@pytest.fixture
def client(sprites: SpritesCounterpart) -> Iterator[SpritesClient]:
    sprites.faults.clear()
    with SpritesClient(sprites.token, base_url=sprites.url) as client:
        yield client


def test_sprites_are_created_listed_labelled_and_deleted(client: SpritesClient) -> None:
    made = client.create_sprite("one", labels=["a"])
    assert (made.name, made.labels, made.status) == ("one", ["a"], "running")
    with pytest.raises(SpriteError, match="409"):
        client.create_sprite("one")
    client.create_sprite("other")
    assert [each.name for each in client.list_all_sprites(prefix="o")] == ["one", "other"]
    assert client.update_sprite("one", labels=["b", "c"]).labels == ["b", "c"]
    for name in ("one", "other"):
        client.delete_sprite(name)
    with pytest.raises(NotFoundError):
        client.get_sprite("one")


def test_a_wrong_token_is_refused(sprites: SpritesCounterpart) -> None:
    with SpritesClient("wrong", base_url=sprites.url) as client, pytest.raises(AuthenticationError):
        client.list_sprites()


def test_commands_run_in_real_boxes(client: SpritesClient) -> None:
    sprite = client.create_sprite("commands")
    done = sprite.run("sh", "-c", "echo out; echo err >&2; pwd; exit 3", capture_output=True, cwd="/tmp")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n/tmp\n", b"err\n")
    command = sprite.command("cat", stdin=io.BytesIO(b"typed" * 10_000))
    assert command.output() == b"typed" * 10_000
    assert sprite.run("sh", "-c", "echo $WORD-$HOME", capture_output=True, env={"WORD": "x"}).stdout == b"x-\n"
    terminal = sprite.run("sh", "-c", "stty size", capture_output=True, tty=True, tty_rows=33, tty_cols=77)
    assert terminal.stdout == b"33 77\r\n"
    assert sprite.run("no-such-program", capture_output=True).returncode == 127
    client.delete_sprite("commands")


def test_a_short_command_is_one_request_with_framed_output(client: SpritesClient, sprites: SpritesCounterpart) -> None:
    client.create_sprite("short")
    url = f"{sprites.url}/v1/sprites/short/exec"
    response = client.http_client.post(url, params=[("cmd", "cat"), ("cmd", "-")], content=b"given")
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.content == b"\x01given\x03\x00"
    client.delete_sprite("short")


def test_files_are_read_written_moved_and_deleted(client: SpritesClient) -> None:
    files = client.create_sprite("files").filesystem("/workspace")
    path = files / "a" / "b.txt"
    path.write_text("hello", mode=0o640)
    assert (path.read_text(), path.stat().mode, path.stat().size) == ("hello", "0640", 5)
    path.copy_to("/workspace/c.txt")
    (files / "c.txt").rename("/workspace/d.txt")
    (files / "d.txt").chmod(0o600)
    assert sorted(files.cwd.listdir()) == ["a", "d.txt"]
    (files / "a").rmtree()
    with pytest.raises(FileNotFoundError_):
        path.read_bytes()
    client.delete_sprite("files")


def test_a_checkpoint_can_be_read_restored_and_deleted(client: SpritesClient, sprites: SpritesCounterpart) -> None:
    sprite = client.create_sprite("checked")
    files = sprite.filesystem("/workspace")
    (files / "file").write_text("old")
    assert [each.type for each in sprite.create_checkpoint("first")] == ["info", "info", "complete"]
    (files / "file").write_text("new")
    (checkpoint,) = sprite.list_checkpoints()
    assert (checkpoint.id, checkpoint.comment) == ("v1", "first")
    assert (files / "/.sprite/checkpoints/v1/workspace/file").read_text() == "old"
    assert (files / "file").read_text() == "new"
    assert [each.type for each in sprite.restore_checkpoint("v1")][-1] == "complete"
    assert (files / "file").read_text() == "old"
    client.http_client.delete(f"{sprites.url}/v1/sprites/checked/checkpoints/v1").raise_for_status()
    assert sprite.list_checkpoints() == []
    client.delete_sprite("checked")


def test_a_service_starts_again_when_it_crashes_and_when_its_sprite_wakes(
    client: SpritesClient, sprites: SpritesCounterpart
) -> None:
    sprite = client.create_sprite("served")
    script = "echo started >> /workspace/log; exec sleep 1000"
    assert [each.type for each in sprite.create_service("sleeper", "sh", ["-c", script])] == ["started", "complete"]
    wait = "until [ $(wc -l < /workspace/log) -ge $0 ]; do sleep 0.02; done"
    assert sprite.run("sh", "-c", wait, "1", timeout=20).returncode == 0
    sprite.signal_service("sleeper", "SIGKILL")
    assert sprite.run("sh", "-c", wait, "2", timeout=20).returncode == 0
    sprites.sleep("served")
    assert client.get_sprite("served").status == "cold"
    assert sprite.run("sh", "-c", wait, "3", timeout=20).returncode == 0
    sprite.stop_service("sleeper")
    assert sprite.get_service("sleeper").state.status == "stopped"  # type: ignore[union-attr]
    sprite.delete_service("sleeper")
    assert sprite.list_services() == []
    client.delete_sprite("served")


_ASK = """
import os, urllib.request, urllib.error
try:
    urllib.request.urlopen("http://allowed.invalid/" if os.sys.argv[1] == "allowed" else "http://other.invalid/")
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_the_network_policy_is_applied(client: SpritesClient) -> None:
    sprite = client.create_sprite("networked")

    def ask(what: str) -> bytes:
        return bytes(sprite.run("python3", "-c", _ASK, what, capture_output=True, timeout=240).stdout)

    assert ask("other") == b"502\n"  # nothing denies it, and nothing is there
    rules = [PolicyRule("allowed.invalid", "allow"), PolicyRule("*", "deny")]
    sprite.update_network_policy(NetworkPolicy(rules))
    assert sprite.get_network_policy().rules == rules
    assert (ask("allowed"), ask("other")) == (b"502\n", b"403\n")
    client.delete_sprite("networked")


async def test_a_port_is_reached_through_the_proxy(sprites: SpritesCounterpart) -> None:
    async with AsyncSpritesClient(sprites.token, base_url=sprites.url) as client:
        sprite = await client.create_sprite("proxied")
        server = "import socket; s = socket.create_server(('127.0.0.1', 8123)); c, _ = s.accept(); c.sendall(c.recv(9))"
        await sprite.create_service("echo", "python3", ["-c", server])
        wait = 'until python3 -c \'import sys; sys.exit(":1FBB" not in open("/proc/net/tcp").read())\'; do :; done'
        await sprite.run("sh", "-c", wait, timeout=20)
        headers = {"Authorization": f"Bearer {sprites.token}"}
        url = f"ws{sprites.url.removeprefix('http')}/v1/sprites/proxied/proxy"
        async with connect(url, additional_headers=headers) as socket:
            await socket.send(json.dumps({"host": "localhost", "port": 8123}))
            assert json.loads(await socket.recv())["status"] == "connected"
            await socket.send(b"hello")
            assert await socket.recv() == b"hello"
        async with connect(url, additional_headers=headers) as socket:
            await socket.send(json.dumps({"host": "localhost", "port": 8124}))
            assert json.loads(await socket.recv())["status"] == "error"
        await client.delete_sprite("proxied")


async def test_a_command_is_attached_to_again_after_a_cut(sprites: SpritesCounterpart) -> None:
    async with AsyncSpritesClient(sprites.token, base_url=sprites.url) as client:
        sprite = await client.create_sprite("cut")
        sprites.faults.cut(after=200)
        with pytest.raises(NetworkError):
            await sprite.run("sh", "-c", "echo begun; sleep 1; echo end; exit 4", timeout=20)
        (session,) = await sprite.list_sessions()
        command = sprite.attach_session(session.id, timeout=20)
        assert await command._execute() == 4
        await client.delete_sprite("cut")


def test_it_misbehaves_when_told_to(client: SpritesClient, sprites: SpritesCounterpart) -> None:
    client.create_sprite("faulty")
    url = f"{sprites.url}/v1/sprites/faulty"
    sprites.faults.refuse(429, retry_after="7", method="GET")
    sprites.faults.refuse(500, method="GET")
    assert (first := client.http_client.get(url)).status_code == 429
    assert first.headers["retry-after"] == "7"
    assert client.http_client.get(url).status_code == 500
    assert client.http_client.get(url).status_code == 200
    sprites.faults.delay(0.5, path="/faulty")
    with pytest.raises(httpx.ReadTimeout):
        client.http_client.get(url, timeout=0.2)
    client.list_sprites()
    sprites.faults.stale_list = True
    sprites.delete("faulty")
    assert "faulty" in [each.name for each in client.list_sprites().sprites]
    assert client.http_client.get(url).status_code == 404
