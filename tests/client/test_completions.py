"""`client.models.complete`: over one socket where there is one, by HTTP where not, and alike by both."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.proxy import Proxy
from tests.serving import with_model
from websockets.asyncio.client import ClientConnection

from holdfast.api.errors import Conflict, Forbidden, HoldfastError, Unauthorized
from holdfast.api.model.models import Api
from holdfast.client import Client, InvalidRequest, NotFound, ServerFailed, SyncClient, Unreachable
from holdfast.client.local_server import read_running
from holdfast.client.model.completions import AT_ONCE, Completions
from holdfast.client.transport.websockets import open_once
from holdfast.testing.model import Gate, Request, ScriptedModel, Step, error, held, text
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

TIMEOUT = 240.0
"""Less than a completion may take: nothing of what is waited for here ends by that."""
USER = [{"role": "user", "content": "What is it?"}]


@pytest.fixture
def model(server: ServerProcess) -> Iterator[ScriptedModel]:
    with with_model(server) as model:
        yield model


def completions_of(client: Client) -> Completions:
    return client.models._completions


async def settled(client: Client) -> bool:
    """Ask once, beside which the socket is opened, and wait until it is. Whether there is one.

    One that is being opened already may be with the key of a server that is gone: then this one is another.
    """
    completions = completions_of(client)
    if completions._opening is not None:
        await completions._opening
    with contextlib.suppress(HoldfastError):
        await client.models.complete(USER)
    if completions._opening is not None:
        await completions._opening
    return completions._line is not None


@pytest.fixture(params=["socket", "http"])
async def asking(server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client that goes one of the ways."""
    async with Client(server.url, api_key=server.api_key) as client:
        if request.param == "http":
            completions_of(client)._none_until = float("inf")
        assert await settled(client) is (request.param == "socket")
        yield client


def message(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def echo(request: Request) -> Step:
    return text(request.user_texts[-1].upper())


def slow_or_echo(gate: Gate) -> object:
    return lambda request: held(echo(request), gate) if "slow" in request.user_texts[-1] else echo(request)


# --- alike by both ways ---


async def test_a_model_answers(model: ScriptedModel, asking: Client) -> None:
    model.answer_sides(text("Forty-two: ü, 😀."))
    said = await asking.models.complete(USER, model="mine/other", timeout=20)
    assert (said.text, said.model, said.is_cut) == ("Forty-two: ü, 😀.", "mine/other", False)
    assert said.input_tokens > 0
    assert said.output_tokens > 0


async def test_many_at_once_are_each_given_their_answer(model: ScriptedModel, asking: Client) -> None:
    model.answer_sides(echo)
    said = await asyncio.gather(*(asking.models.complete(message(f"number {n}")) for n in range(AT_ONCE * 2)))
    assert [each.text for each in said] == [f"NUMBER {n}" for n in range(AT_ONCE * 2)]


async def test_errors_are_typed(model: ScriptedModel, asking: Client) -> None:
    with pytest.raises(NotFound, match="nobody") as unknown:
        await asking.models.complete(USER, model="nobody")
    assert (unknown.value.code, unknown.value.status, unknown.value.hint) == ("model_not_found", 404, "use one of mine")
    assert unknown.value.request_id
    with pytest.raises(Conflict, match="openai needs a key"):
        await asking.models.complete(USER, model="openai")
    with pytest.raises(InvalidRequest, match="messages"):
        await asking.models.complete([])
    model.answer_sides(error(400, "I would rather not"))
    with pytest.raises(ServerFailed, match="I would rather not") as refused:
        await asking.models.complete(USER)
    assert (refused.value.code, refused.value.status) == ("model_failed", 502)
    model.answer_sides(held(text("late"), Gate()))
    with pytest.raises(ServerFailed, match=r"no answer within 0\.2 s"):
        await asking.models.complete(USER, timeout=0.2)
    model.answer_sides("fine")
    assert (await asking.models.complete(USER)).text == "fine"


async def test_what_is_cancelled_is_given_up_by_the_provider_and_the_rest_goes_on(
    model: ScriptedModel, asking: Client
) -> None:
    gate, other = Gate(), Gate()
    model.answer_sides(lambda request: held(echo(request), gate if "slow" in request.user_texts[0] else other))
    model.forget()
    goes_on = asyncio.create_task(asking.models.complete(message("goes on")))
    await other.reached()
    cancelled = asyncio.create_task(asking.models.complete(message("slow")))
    await gate.reached()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await model.requests[1].ended(TIMEOUT) == "gone"
    other.release()
    assert (await goes_on).text == "GOES ON"
    assert (await asking.models.complete(message("another"))).text == "ANOTHER"


async def test_large_questions_and_answers_go_through(model: ScriptedModel, asking: Client) -> None:
    model.answer_sides(echo)
    for size in (1024 * 1024 - 200, 1024 * 1024, 3 * 1024 * 1024):
        said = await asking.models.complete(message("x" * size))
        assert said.text == "X" * size
    assert (await asking.models.complete(message("small"))).text == "SMALL"


async def test_what_json_cannot_say_is_refused_before_it_is_asked(asking: Client) -> None:
    for content in ("\ud800", float("nan")):
        with pytest.raises(ValueError, match=r"surrogates|not JSON compliant"):
            await asking.models.complete([{"role": "user", "content": content}])  # type: ignore[dict-item]


# --- the socket ---


async def test_no_more_than_the_bound_are_under_way_and_others_wait(
    server: ServerProcess, model: ScriptedModel
) -> None:
    async with Client(server.url, api_key=server.api_key) as client:
        assert await settled(client)
        gate = Gate()
        model.answer_sides(held(text("yes"), gate))
        model.forget()
        tasks = [asyncio.create_task(client.models.complete(USER)) for _ in range(AT_ONCE + 10)]
        assert len(await model.until(lambda seen: len(seen) >= AT_ONCE)) == AT_ONCE
        for task in tasks[:5]:
            task.cancel()
        await model.until(lambda seen: len(seen) >= AT_ONCE + 5)
        gate.release()
        said = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in said] == [True] * 5 + [False] * (AT_ONCE + 5)
    assert {each.text for each in said if not isinstance(each, BaseException)} == {"yes"}


async def test_the_first_completion_waits_for_no_socket_and_the_next_ones_share_one(
    server: ServerProcess, model: ScriptedModel
) -> None:
    async with Proxy(server.address) as proxy, Client(proxy.url, api_key=server.api_key) as client:
        await settled(client)
        line = completions_of(client)._line
        await asyncio.gather(*(client.models.complete(USER) for _ in range(20)))
        assert completions_of(client)._line is line
        assert len(proxy._connections) <= 2  # the request by HTTP, and the socket


async def test_a_socket_that_breaks_fails_what_was_under_way_and_asks_nothing_twice(
    server: ServerProcess, model: ScriptedModel
) -> None:
    gate = Gate()
    async with Proxy(server.address) as proxy, Client(proxy.url, api_key=server.api_key) as client:
        assert await settled(client)
        model.answer_sides(slow_or_echo(gate))  # type: ignore[arg-type]
        model.forget()
        tasks = [asyncio.create_task(client.models.complete(message(f"slow {n}"))) for n in range(5)]
        seen = await model.until(lambda seen: len(seen) >= 5)
        await proxy.cut()
        for task in tasks:
            with pytest.raises(Unreachable, match=r"cannot be reached.*completions/socket"):
                await task
        assert [await each.ended(TIMEOUT) for each in seen] == ["gone"] * 5
        assert len(model.requests) == 5
        assert (await client.models.complete(message("again"))).text == "AGAIN"
        assert await settled(client)


async def test_a_server_that_falls_silent_is_given_up_and_others_may_still_be_answered(
    server: ServerProcess, model: ScriptedModel
) -> None:
    async with Client(server.url, api_key=server.api_key) as client:
        assert await settled(client)
        gate = Gate()
        model.answer_sides(held(text("late"), gate))
        other = asyncio.create_task(client.models.complete(USER))
        await gate.reached()
        with pytest.raises(Unreachable, match="no answer in time"):
            await completions_of(client).ask({"messages": USER, "timeoutSeconds": 60}, timeout=0.3)
        assert completions_of(client)._find_line() is None
        gate.release()
        assert (await other).text == "late"
        assert await settled(client)
    assert not completions_of(client)._reading


@pytest.mark.parametrize("key", ["of the server's run", "kept"])
async def test_a_server_that_was_killed_and_started_again_is_asked_again(tmp_path: Path, key: str) -> None:
    """The key of a run is another then, which is found; one that was made for good is the same."""
    home = tmp_path / "home"

    async def find_again() -> tuple[str, str | None] | None:
        running = read_running(home)
        return None if running is None or key == "kept" else (running.url, running.api_key)

    with ScriptedModel() as model, ServerProcess(home) as server:
        async with Client(server.url, api_key=server.api_key) as client:
            await client.models.add("mine", apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted")
            kept = (await client.keys.create("kept")).secret
        used = kept if key == "kept" else server.api_key
        async with Client(server.url, api_key=used, find_again=find_again) as client:
            assert await settled(client)
            gate = Gate()
            model.answer_sides(slow_or_echo(gate))  # type: ignore[arg-type]
            under_way = asyncio.create_task(client.models.complete(message("slow")))
            await gate.reached()
            server.kill()
            with pytest.raises(Unreachable):
                await under_way
            said, _ = await asyncio.gather(client.models.complete(message("after")), asyncio.to_thread(server.start))
            assert said.text == "AFTER"
            assert await settled(client)
            # And while nothing is under way, with no turn of the loop in between.
            server.kill()
            server.start()
            assert (await client.models.complete(message("idle"))).text == "IDLE"
            assert await settled(client)


async def test_a_key_that_was_revoked_is_refused_and_another_one_used_where_it_is_found(
    server: ServerProcess, model: ScriptedModel
) -> None:
    async with Client(server.url, api_key=server.api_key) as owner:
        for finds in (False, True):
            key = await owner.keys.create("short")

            async def find_again(finds: bool = finds) -> tuple[str, str | None] | None:
                return (server.url, server.api_key) if finds else None

            async with Client(server.url, api_key=key.secret, find_again=find_again) as client:
                assert await settled(client)
                await owner.keys.revoke(key.id)
                if finds:
                    assert (await client.models.complete(USER)).text
                    assert await settled(client)
                else:
                    with pytest.raises(Unauthorized, match="revoked"):
                        await client.models.complete(USER)


async def test_who_may_not_is_told_so(server: ServerProcess, model: ScriptedModel) -> None:
    async with Client(server.url, api_key=server.api_key) as owner:
        token = await (await owner.threads.create()).token("write")
    for key, refusal in ((None, Unauthorized), ("hf_wrong", Unauthorized), (token.token, Forbidden)):
        async with Client(server.url, api_key=key) as client:
            for _ in range(2):
                with pytest.raises(refusal):
                    await client.models.complete(USER)
                assert not await settled(client)


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "400 Bad Request", "200 OK"])
async def test_a_server_without_such_a_socket_is_asked_by_http(
    server: ServerProcess, model: ScriptedModel, status: str
) -> None:
    async with _older(server.address, status) as url, Client(url, api_key=server.api_key) as client:
        model.answer_sides(echo)
        assert not await settled(client)
        said = await asyncio.gather(*(client.models.complete(message(f"n {n}")) for n in range(8)))
        assert [each.text for each in said] == [f"N {n}" for n in range(8)]


@contextlib.asynccontextmanager
async def _older(address: tuple[str, int], status: str) -> AsyncIterator[str]:
    """The server as it was before it had the socket."""
    connections: set[asyncio.Task[None]] = set()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """No coroutine: what is cancelled before it began has to be closed, too."""
        task = asyncio.create_task(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(*address)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/v1/completions/socket" in head:
                writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            behind_writer.write(head)
            await asyncio.gather(_pipe(reader, behind_writer), _pipe(behind_reader, writer))
        finally:
            behind_writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def test_a_client_that_is_closed_lets_go_of_its_socket(server: ServerProcess, model: ScriptedModel) -> None:
    gate = Gate()
    client = Client(server.url, api_key=server.api_key)
    assert await settled(client)
    model.answer_sides(held(text("yes"), gate))
    model.forget()
    under_way = asyncio.create_task(client.models.complete(USER))
    await gate.reached()
    await client.aclose()
    with pytest.raises(Unreachable):
        await under_way
    assert await model.requests[0].ended(TIMEOUT) == "gone"
    assert not completions_of(client)._reading
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await client.models.complete(USER)


async def test_a_client_that_is_closed_when_its_socket_has_just_opened_lets_go_of_it(
    server: ServerProcess, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the task that reads from the socket takes its first step."""
    client = Client(server.url, api_key=server.api_key)
    opened: list[ClientConnection] = []
    is_open = asyncio.Event()

    async def open_and_tell(*arguments: Any, **options: Any) -> ClientConnection:
        opened.append(await open_once(*arguments, **options))
        is_open.set()
        return opened[0]

    async def close() -> None:
        await is_open.wait()
        line = completions_of(client)._line
        assert line is not None
        under_way.append(asyncio.create_task(line.ask("1", b"{}")))
        await client.aclose()

    under_way: list[asyncio.Task[Any]] = []
    monkeypatch.setattr("holdfast.client.model.completions.open_once", open_and_tell)
    closing = asyncio.create_task(close())
    assert completions_of(client)._find_line() is None, "it is opened beside"
    async with asyncio.timeout(TIMEOUT):
        await closing
    assert opened[0].transport.is_closing()
    with pytest.raises(Unreachable):
        await under_way[0]


def test_the_twin_without_await_answers_and_closes(server: ServerProcess, model: ScriptedModel) -> None:
    before = set(threading.enumerate())
    with SyncClient(server.url, api_key=server.api_key) as client:
        for _ in range(5):
            assert client.models.complete(USER).text
        with pytest.raises(NotFound):
            client.models.complete(USER, model="nobody")
    assert "holdfast-sync" not in {each.name for each in set(threading.enumerate()) - before}


def test_a_client_is_imported_without_what_sockets_need() -> None:
    program = "import sys, holdfast.client; sys.exit('websockets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=240).returncode == 0
