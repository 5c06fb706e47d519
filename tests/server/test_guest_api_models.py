"""Models at the guest API: a token is good for the model of its own run, in its own box, while that run lives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_guest_api import Runs, World, world
from tests.stores import open_models
from tests.testing.test_model import PATHS, body_of, events_of, every_api, streamed

from holdfast.api.model.models import Api
from holdfast.egress.models import LoopbackUpstream, ModelGateway
from holdfast.testing.model import FOR_EVER, Gate, ScriptedModel, Step, held, text
from holdfast.threads.access.credentials import RunScope

pytestmark = pytest.mark.anyio

KEY = "sk-real-0123456789abcdefghij"
OTHER_KEY = "sk-other-0123456789abcdefghi"

_ = world  # the fixture


@dataclass
class GuestModels:
    world: World
    provider: ScriptedModel
    """Behind `mine`; `theirs` has the same, and another key."""

    def token(self, model: str = "mine/scripted", **more: Any) -> str:
        fields: dict[str, Any] = {"thread": "t-1", "run": "r-1", "epoch": 2, "box": "b-1", "scope": RunScope.MODEL}
        return self.world.access.issue_run(**{**fields, **more}, model=model).token

    async def ask(self, token: str, api: Api = Api.ANTHROPIC, *, box: str = "b-1") -> httpx.Response:
        async with self.world.client(token, box=box) as agent:
            return await agent.post(f"/model{PATHS[api]}", json=body_of(api))


@pytest.fixture
async def guest(world: World, tmp_path: Path) -> AsyncIterator[GuestModels]:
    async with open_models(tmp_path / "models.db", b"s" * 32) as models, ScriptedModel() as provider:
        provider.script([text("an answer", times=FOR_EVER)])
        for name, key in (("mine", KEY), ("theirs", OTHER_KEY)):
            await models.put(name, apis=list(Api), base_url=provider.url, key=key, model="scripted")
        gateway = ModelGateway(models, LoopbackUpstream)
        world.models_part.opened = gateway
        yield GuestModels(world, provider)
        await gateway.close()


@every_api
async def test_an_agent_in_a_box_without_a_network_asks_its_model(guest: GuestModels, api: Api) -> None:
    answer = await guest.ask(guest.token(), api)
    assert streamed(api, events_of(answer))[1] == "an answer"
    assert guest.provider.requests[0].credential == KEY


async def test_words_come_through_the_whole_way_as_the_model_says_them(guest: GuestModels) -> None:
    gate = Gate(1)
    guest.provider.script([held(Step(text="first words and the rest"), gate)])
    async with (
        guest.world.client(guest.token()) as agent,
        agent.stream("POST", "/model/v1/messages", json=body_of(Api.ANTHROPIC)) as answer,
    ):
        seen, pieces = "", answer.aiter_text()
        while "first words" not in seen:
            seen += await anext(pieces)
        await gate.reached()
        assert "the rest" not in seen
        gate.release()
        seen += "".join([piece async for piece in pieces])
        assert "the rest" in seen


async def test_a_token_leads_to_the_model_of_its_own_run_alone(guest: GuestModels) -> None:
    await guest.ask(guest.token("theirs/scripted"))
    await guest.ask(guest.token("mine/scripted"))
    assert [request.credential for request in guest.provider.requests] == [OTHER_KEY, KEY]


@pytest.mark.parametrize(
    ("more", "box", "status"),
    [
        ({"run": "r-2"}, "b-1", 403),
        ({"epoch": 1}, "b-1", 403),
        ({}, "b-2", 403),
        ({"box": "b-2"}, "b-1", 403),
        ({"scope": RunScope.RUNNER}, "b-1", 403),
        ({"model": "removed/scripted"}, "b-1", 403),
    ],
)
async def test_the_token_of_another_run_epoch_box_or_purpose_is_refused(
    guest: GuestModels, more: dict[str, Any], box: str, status: int
) -> None:
    answer = await guest.ask(guest.token(**more), box=box)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith("Holdfast: ")
    assert answer.headers["x-holdfast-reason"] in ("refused", "model")
    assert guest.provider.requests == []


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", KEY])
async def test_what_is_no_token_is_refused_as_a_wrong_key_would_be(guest: GuestModels, token: str) -> None:
    answer = await guest.ask(token)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert guest.provider.requests == []


async def test_a_token_ends_with_its_run(guest: GuestModels) -> None:
    token = guest.token()
    assert (await guest.ask(token)).status_code == 200
    guest.world.runs.run = "r-2"
    assert (await guest.ask(token)).status_code == 403
    assert isinstance(guest.world.runs, Runs)


async def test_a_box_that_goes_while_its_model_answers_ends_the_answer(guest: GuestModels) -> None:
    gate = Gate(1)
    guest.provider.script([held(text("a long answer"), gate)])
    asking = asyncio.create_task(guest.ask(guest.token()))
    await gate.reached()
    guest.world.proxy.dismiss("b-1")
    assert await guest.provider.requests[0].ended() == "gone"
    with pytest.raises(httpx.TransportError):
        await asking


async def test_why_a_model_cannot_be_reached_is_told_before_the_agent_hears_it(world: World, tmp_path: Path) -> None:
    """Not every agent passes on what it was answered."""
    async with open_models(tmp_path / "models.db", b"s" * 32) as models:
        nobody = socket.socket()  # bound, and never listened on
        nobody.bind(("127.0.0.1", 0))
        here = f"127.0.0.1:{nobody.getsockname()[1]}"
        await models.put("mine", apis=list(Api), base_url=f"http://{here}/v1", key=KEY, model="scripted")
        gateway = ModelGateway(models, LoopbackUpstream)
        world.models_part.opened = gateway
        guest = GuestModels(world, ScriptedModel())
        answer = await guest.ask(guest.token())
        await gateway.close()
        nobody.close()
    assert answer.status_code == 502
    [(thread, run, message)] = world.runs.model_errors
    assert (thread, run) == ("t-1", "r-1")
    assert message.startswith(f"{here} cannot be reached: ")
    assert answer.json()["error"]["message"] == f"Holdfast: {message}"
