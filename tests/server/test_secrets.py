"""`/v1/secrets` and the client for it: values go in and never come out."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from holdfast.api.errors.secrets import InvalidSecret, SecretNotFound
from holdfast.api.secrets import Binding, Exposure, SecretAction
from holdfast.client import Forbidden, InvalidRequest, SyncClient
from holdfast.testing.server import ServerProcess

VALUE = "sk-live-0123456789abcdefghij"
NEWER = "sk-live-zyxwvutsrqponmlkjihg"
HOST = [Binding(host="api.example.com", format="Bearer {}")]


@pytest.fixture
def client(dummy_server: ServerProcess) -> Iterator[SyncClient]:
    with SyncClient(dummy_server.url, api_key=dummy_server.api_key) as client:
        yield client
        for each in client.secrets.list():
            client.secrets.remove(each.name)


def test_a_secret_is_set_listed_rotated_and_removed(client: SyncClient) -> None:
    made = client.secrets.set("TOKEN", VALUE, HOST)
    assert (made.version, made.expose) == (1, None)
    assert made.bindings[0].name == "Authorization"
    assert client.secrets.list() == [made] == [client.secrets.get("TOKEN")]
    assert client.secrets.rotate("TOKEN", NEWER).version == 2
    exposed = client.secrets.set("PEM", "two\nlines\n", expose=Exposure.FILE)
    assert exposed.expose is Exposure.FILE
    client.secrets.remove("TOKEN")
    with pytest.raises(SecretNotFound, match="TOKEN"):
        client.secrets.get("TOKEN")
    with pytest.raises(SecretNotFound):
        client.secrets.rotate("TOKEN", VALUE)
    actions = [each.action for each in client.secrets.events("TOKEN", limit=3)]
    assert actions == [SecretAction.REMOVED, SecretAction.ROTATED, SecretAction.SET]


def test_no_answer_has_a_value(client: SyncClient, dummy_server: ServerProcess) -> None:
    client.secrets.set("TOKEN", VALUE, HOST)
    headers = {"Authorization": f"Bearer {dummy_server.api_key}"}
    with httpx.Client(base_url=dummy_server.url, headers=headers) as http:
        answers = [
            http.get("/v1/secrets"),
            http.get("/v1/secrets/TOKEN"),
            http.get("/v1/secrets/TOKEN/events"),
            http.put("/v1/secrets/TOKEN", json={"value": NEWER, "bindings": [{"host": "api.example.com"}]}),
            http.post("/v1/secrets/TOKEN/rotate", json={"value": VALUE}),
            http.put("/v1/secrets/TOKEN", json={"value": VALUE, "bindings": [{"host": "*"}]}),
            http.put("/v1/secrets/TOKEN", json={"value": {"nested": VALUE}}),
            http.put("/v1/secrets/TOKEN", json={"value": VALUE, "more": 1}),
            http.put("/v1/secrets/not-a-name", json={"value": VALUE}),
        ]
    for answer in answers:
        assert VALUE not in answer.text
        assert NEWER not in answer.text
    assert [each.status_code for each in answers] == [200] * 5 + [422] * 4


def test_what_is_wrong_is_said(client: SyncClient) -> None:
    with pytest.raises(InvalidSecret, match=r"\*\.example\.com"):
        client.secrets.set("TOKEN", VALUE, [Binding(host="*.example.com")])
    with pytest.raises(InvalidSecret, match="would go nowhere"):
        client.secrets.set("TOKEN", VALUE)
    with pytest.raises(InvalidRequest):
        client.secrets.set("not a name", VALUE, HOST)


def test_the_token_of_a_thread_cannot_use_secrets(client: SyncClient, dummy_server: ServerProcess) -> None:
    token = client.threads.create().token()
    with SyncClient(dummy_server.url, api_key=token.token) as thread_client:
        with pytest.raises(Forbidden):
            thread_client.secrets.list()
        with pytest.raises(Forbidden):
            thread_client.secrets.set("TOKEN", VALUE, HOST)
