"""`/v1/models` and the client for it: keys go in and never come out, and a model can be tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.conftest import api_of

from holdfast.api.errors import Conflict
from holdfast.api.model.models import Api
from holdfast.client import Client, InvalidRequest, NotFound, SyncClient
from holdfast.testing.model import ScriptedModel, error
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

KEY = "sk-real-0123456789abcdefghij"


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=KEY) as model:
        yield model


@pytest.fixture
def client(dummy_server: ServerProcess) -> Iterator[SyncClient]:
    with SyncClient(dummy_server.url, api_key=dummy_server.api_key) as client:
        yield client
        for model in client.models.list():
            if model.has_key or not model.built_in:
                client.models.remove(model.name)


def test_a_model_is_added_tried_changed_and_removed(client: SyncClient, provider: ScriptedModel) -> None:
    made = client.models.add(
        "mine", apis=list(Api), base_url=provider.url, key=KEY, model="scripted", context_window=32_000
    )
    assert (made.has_key, made.is_ready, made.built_in) == (True, True, False)
    assert client.models.get("mine") == made
    assert client.models.list()[0] == made
    provider.answer_sides("ready")
    for api in Api:
        trial = client.models.test("mine", api=api)
        assert (trial.ok, trial.text, trial.model) == (True, "ready", "mine/scripted")
    assert client.models.test("mine", model="other").model == "mine/other"
    assert [request.model for request in provider.requests] == ["scripted"] * 3 + ["other"]
    assert {request.credential for request in provider.requests} == {KEY}
    assert client.models.add("mine", model="new").model == "new"
    client.models.remove("mine")
    with pytest.raises(NotFound):
        client.models.get("mine")


def test_a_trial_that_fails_says_why(client: SyncClient, provider: ScriptedModel) -> None:
    client.models.add("mine", apis=[Api.OPENAI_CHAT], base_url=provider.url, key=f"{KEY}-wrong", model="scripted")
    trial = client.models.test("mine")
    assert (trial.ok, trial.status) == (False, 401)
    assert "the key is not accepted" in (trial.hint or "")
    client.models.add("mine", key=KEY)
    provider.answer_sides(error(404, f"no such model, dear {KEY}"))
    trial = client.models.test("mine")
    assert trial.text == f"no such model, dear {'*' * len(KEY)}"
    with pytest.raises(InvalidRequest, match="does not speak anthropic"):
        client.models.test("mine", api=Api.ANTHROPIC)
    with pytest.raises(Conflict, match="openai needs a key"):
        client.models.test("openai")


def test_what_a_server_cannot_reach_is_not_reached(client: SyncClient) -> None:
    """Servers under test have no way to anything but this machine."""
    client.models.add("openai", key=KEY)
    trial = client.models.test("openai")
    assert trial.status == 502
    assert "api.openai.com is out of reach here" in trial.text
    client.models.remove("openai")
    assert not client.models.get("openai").has_key


def test_no_answer_and_no_file_of_the_server_shows_a_key(dummy_server: ServerProcess, client: SyncClient) -> None:
    with api_of(dummy_server) as api:
        given = {"apis": ["anthropic"], "baseUrl": "https://models.example.com", "key": KEY}
        answers = [
            api.put("/v1/models/mine", json=given),
            api.get("/v1/models"),
            api.get("/v1/models/mine"),
            api.put("/v1/models/mine", json={**given, "key": f"{KEY} with spaces"}),
            api.put("/v1/models/mine", json={**given, "key": [KEY]}),
            api.put("/v1/models/mine", json={**given, "key": KEY * 1000}),
            api.put("/v1/models/mine", json={**given, "unknown": KEY}),
            api.put("/v1/models/mine", json={**given, "baseUrl": f"https://user:{KEY}@models.example.com"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 422, 422, 422, 422, 422]
    for answer in answers:
        assert KEY not in answer.text
        assert KEY[-4:] not in answer.text
    for path in Path(dummy_server.home).rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_models_outlive_the_server(tmp_path: Path, provider: ScriptedModel) -> None:
    provider.answer_sides("ready")
    with ServerProcess(tmp_path / "home") as server, SyncClient(server.url, api_key=server.api_key) as client:
        client.models.add("mine", apis=[Api.ANTHROPIC], base_url=provider.url, key=KEY, model="scripted")
    with ServerProcess(tmp_path / "home") as server, SyncClient(server.url, api_key=server.api_key) as client:
        assert client.models.test("mine").ok


async def test_a_token_of_a_thread_may_not_look_at_models(dummy_server: ServerProcess) -> None:
    async with Client(dummy_server.url, api_key=dummy_server.api_key) as client:
        thread = await client.threads.create()
        token = await thread.token("write")
    with api_of(dummy_server) as api:
        for method, path in (("GET", "/v1/models"), ("PUT", "/v1/models/mine"), ("POST", "/v1/models/mine/test")):
            answer = api.request(method, path, json={}, headers={"authorization": f"Bearer {token.token}"})
            assert answer.status_code == 403
            assert api.request(method, path, json={}, headers={"authorization": ""}).status_code == 401
