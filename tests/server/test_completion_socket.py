"""Completions over one WebSocket: on a real server, with a scripted model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import with_model
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast.api.model.models import Api
from holdfast.client import Client
from holdfast.server.routes.model.completion_socket import AT_ONCE, MAX_WAITING
from holdfast.testing.model import Gate, Request, ScriptedModel, Step, Usage, error, held, text
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

TIMEOUT = 240.0
"""Less than a completion may take: nothing of what is waited for here ends by that."""
USER = [{"role": "user", "content": "What is it?"}]


@pytest.fixture
def model(dummy_server: ServerProcess) -> Iterator[ScriptedModel]:
    with with_model(dummy_server) as model:
        yield model


@pytest.fixture
async def api(dummy_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {dummy_server.api_key}"}
    async with httpx.AsyncClient(base_url=dummy_server.url, headers=headers, timeout=TIMEOUT, trust_env=False) as api:
        yield api


@pytest.fixture
async def opened(dummy_server: ServerProcess) -> AsyncIterator[ClientConnection]:
    async with socket(dummy_server) as opened:
        yield opened


def socket(server: ServerProcess, **headers: str) -> connect:
    if server.api_key is not None:
        headers.setdefault("authorization", f"Bearer {server.api_key}")
    url = f"ws{server.url.removeprefix('http')}/v1/completions/socket"
    return connect(url, additional_headers=headers, proxy=None, compression=None, open_timeout=TIMEOUT, max_size=None)


def question(id: str, content: str = "What is it?", **more: object) -> str:
    return json.dumps({"id": id, "messages": [{"role": "user", "content": content}], **more})


async def answer(opened: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT):
        told: dict[str, Any] = json.loads(await opened.recv())
    return told


async def asked(model: ScriptedModel, number: int = 1) -> list[Request]:
    return await model.until(lambda seen: len(seen) >= number, TIMEOUT)


def echo(request: Request) -> Step:
    return text(request.user_texts[-1].upper())


# --- answers ---


async def test_a_completion_has_the_fields_of_the_http_answer(
    opened: ClientConnection, model: ScriptedModel, api: httpx.AsyncClient
) -> None:
    model.answer_sides(text("Forty-two: ü, 😀.", usage=Usage(input=7, output=3)))
    await opened.send(question("a", model="mine/scripted", timeoutSeconds=20))
    told = await answer(opened)
    assert told["completion"]["text"] == "Forty-two: ü, 😀."
    assert told == {"id": "a", "completion": (await api.post("/v1/completions", json={"messages": USER})).json()}


async def test_many_are_under_way_at_once_and_answered_in_any_order(
    opened: ClientConnection, model: ScriptedModel
) -> None:
    gate = Gate()
    model.answer_sides(lambda request: held(echo(request), gate) if "slow" in request.user_texts[0] else echo(request))
    await opened.send(question("slow", "slow"))
    await gate.reached()
    for number in range(40):
        await opened.send(question(f"n{number}", f"number {number}"))
    told = [await answer(opened) for _ in range(40)]
    assert {each["id"]: each["completion"]["text"] for each in told} == {f"n{n}": f"NUMBER {n}" for n in range(40)}
    gate.release()
    assert (await answer(opened))["completion"]["text"] == "SLOW"


async def test_no_more_than_the_bound_are_asked_at_once_and_too_many_are_refused(
    opened: ClientConnection, model: ScriptedModel
) -> None:
    gate = Gate()
    model.answer_sides(held(text("yes"), gate))
    most = AT_ONCE + MAX_WAITING
    for number in range(most + 2):
        await opened.send(question(str(number)))
    for number in (most, most + 1):
        refused = await answer(opened)
        assert (refused["id"], refused["status"], refused["error"]["code"]) == (str(number), 429, "too_many_requests")
    assert len(await asked(model, AT_ONCE)) == AT_ONCE
    gate.release()
    told = [await answer(opened) for _ in range(most)]
    assert {each["id"] for each in told if each["completion"]["text"] == "yes"} == {str(n) for n in range(most)}


# --- what goes wrong ---


async def test_what_fails_is_told_as_by_http_and_the_socket_goes_on(
    opened: ClientConnection, model: ScriptedModel, api: httpx.AsyncClient
) -> None:
    model.answer_sides(error(400, "I would rather not"))
    wrong: list[dict[str, Any]] = [
        {"messages": USER, "model": "nobody"},
        {"messages": USER, "model": "openai"},
        {"messages": USER},
        {"messages": [{"role": "system", "content": "Be kind."}]},
        {"messages": [{"role": "robot", "content": "?"}]},
        {"messages": []},
        {"messages": USER, "timeoutSeconds": 0},
        {"messages": USER, "more": 1},
        {},
    ]
    for fields in wrong:
        await opened.send(json.dumps({"id": "it", **fields}))
        told, by_http = await answer(opened), await api.post("/v1/completions", json=fields)
        expected = by_http.json()["error"]
        assert told["error"].pop("requestId") not in ("", expected.pop("requestId"))
        assert told == {"id": "it", "status": by_http.status_code, "error": expected}
    model.answer_sides("fine")
    await opened.send(question("last"))
    assert (await answer(opened))["completion"]["text"] == "fine"


async def test_a_model_that_is_too_slow_is_given_up(opened: ClientConnection, model: ScriptedModel) -> None:
    gate = Gate()
    model.answer_sides(held(text("late"), gate))
    await opened.send(question("a", timeoutSeconds=0.2))
    told = await answer(opened)
    assert (told["status"], told["error"]["code"]) == (502, "model_failed")
    assert "no answer within 0.2 s" in told["error"]["message"]
    assert await (await asked(model))[0].ended(TIMEOUT) == "gone"


async def test_a_cancel_reaches_the_provider_and_is_not_answered(
    opened: ClientConnection, model: ScriptedModel
) -> None:
    gate = Gate()
    model.answer_sides(lambda request: held(echo(request), gate) if "slow" in request.user_texts[0] else echo(request))
    await opened.send(question("a", "slow"))
    await gate.reached()
    await opened.send('{"id": "a", "cancel": true}')
    assert await (await asked(model))[0].ended(TIMEOUT) == "gone"
    await opened.send('{"id": "a", "cancel": true}')  # of what is not under way: nothing
    await opened.send('{"id": "never", "cancel": true}')
    await opened.send(question("b", "quick"))
    assert (await answer(opened))["id"] == "b"


async def test_one_that_waits_for_its_turn_can_be_cancelled(opened: ClientConnection, model: ScriptedModel) -> None:
    gate = Gate()
    model.answer_sides(held(text("yes"), gate))
    for number in range(AT_ONCE + 1):
        await opened.send(question(str(number)))
    await asked(model, AT_ONCE)
    await opened.send(json.dumps({"id": str(AT_ONCE), "cancel": True}))
    await opened.send(question(str(AT_ONCE + 1)))
    gate.release()
    told = {(await answer(opened))["id"] for _ in range(AT_ONCE + 1)}
    assert told == {str(number) for number in range(AT_ONCE + 2)} - {str(AT_ONCE)}
    assert len(model.requests) == AT_ONCE + 1


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_who_leaves_keeps_no_provider_at_work(
    dummy_server: ServerProcess, model: ScriptedModel, how: str
) -> None:
    gate = Gate()
    model.answer_sides(held(text("yes"), gate))
    async with socket(dummy_server) as opened:
        for number in range(3):
            await opened.send(question(str(number)))
        seen = await asked(model, 3)
        if how == "abort":
            opened.transport.abort()
    assert [await each.ended(TIMEOUT) for each in seen] == ["gone"] * 3


async def test_a_server_that_stops_gives_everything_up(tmp_path: Path) -> None:
    gate = Gate()
    with ScriptedModel() as model, ServerProcess(tmp_path / "home") as server:
        async with Client(server.url, api_key=server.api_key) as client:
            await client.models.add("mine", apis=[Api.OPENAI_CHAT], base_url=model.url, model="scripted")
        model.answer_sides(held(text("yes"), gate))
        async with socket(server) as opened:
            await opened.send(question("a"))
            await gate.reached()
            async with asyncio.timeout(8):  # less than a server waits for answers that are under way
                await asyncio.to_thread(server.stop)
            assert await model.requests[0].ended(TIMEOUT) == "gone"
            with pytest.raises(ConnectionClosed):
                await opened.recv()
            assert opened.close_code == 1012


# --- strangers ---


async def test_a_stranger_is_refused_before_the_socket_opens(
    dummy_server: ServerProcess, api: httpx.AsyncClient
) -> None:
    thread = (await api.post("/v1/threads", json={})).json()["id"]
    token = (await api.post(f"/v1/threads/{thread}/tokens", json={"scope": "write"})).json()["token"]
    for authorization, status in (("", 401), ("Bearer hf_wrong", 401), (f"Bearer {token}", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await socket(dummy_server, authorization=authorization)
        assert refused.value.response.status_code == status
        told = json.loads(refused.value.response.body or b"")["error"]
        assert told["requestId"] == refused.value.response.headers["x-request-id"]
    assert (await api.get("/v1/completions/socket")).status_code == 404


async def test_an_open_server_refuses_pages_of_others(open_server: ServerProcess) -> None:
    for origin in ("https://evil.example", "null"):
        with pytest.raises(InvalidStatus) as refused:
            await socket(open_server, origin=origin)
        assert refused.value.response.status_code == 403
    async with socket(open_server, origin=open_server.url) as opened:
        await opened.send(question("a", model="nobody"))
        assert (await answer(opened))["status"] == 404


async def test_a_key_that_was_revoked_asks_for_nothing_more(
    dummy_server: ServerProcess, model: ScriptedModel, api: httpx.AsyncClient
) -> None:
    key = (await api.post("/v1/keys", json={"name": "short"})).json()
    async with socket(dummy_server, authorization=f"Bearer {key['key']}") as opened:
        await opened.send(question("a"))
        assert "completion" in await answer(opened)
        assert (await api.delete(f"/v1/keys/{key['id']}")).status_code == 204
        told = []
        with contextlib.suppress(ConnectionClosed):  # the server ends it, perhaps before it reads the question
            await opened.send(question("b"))
        with contextlib.suppress(ConnectionClosed):
            while True:
                told.append(await answer(opened))
    assert [each["error"]["code"] for each in told] in (["unauthorized"], ["unauthorized"] * 2)
    assert opened.close_code == 1008
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00binary",
        "",
        "not JSON",
        "[]",
        '"text"',
        "null",
        "{}",
        '{"id": 1}',
        '{"id": ""}',
        json.dumps({"id": "x" * 65}),
        '{"id": "\\ud800"}',
        '{"id": "a", "cancel": false}',
        '{"id": "a", "cancel": true, "messages": []}',
        '{"id": "held", "messages": []}',
        '{"id":' * 100_000,
    ],
    ids=lambda frame: repr(frame[:30]),
)
async def test_a_frame_that_makes_no_sense_ends_the_socket(
    dummy_server: ServerProcess, model: ScriptedModel, frame: str | bytes
) -> None:
    gate = Gate()
    model.answer_sides(held(text("yes"), gate))
    logged = len(dummy_server.read_log())
    async with socket(dummy_server) as opened:
        await opened.send(question("held"))
        await gate.reached()
        await opened.send(frame)
        told = await answer(opened)
        assert "id" not in told
        assert told["error"]["code"] == "invalid_request"
        with pytest.raises(ConnectionClosed):
            await opened.recv()
        assert opened.close_code == 1008
    assert await model.requests[0].ended(TIMEOUT) == "gone"
    assert "Traceback" not in dummy_server.read_log()[logged:]


async def test_a_frame_that_is_too_large_ends_the_socket(dummy_server: ServerProcess, model: ScriptedModel) -> None:
    async with socket(dummy_server) as opened:
        await opened.send(question("a", "x" * 1024 * 1024))
        with pytest.raises(ConnectionClosed):
            await opened.recv()
        assert opened.close_code == 1009
    assert model.requests == []
