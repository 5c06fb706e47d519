"""`/v1/providers` and the client for it: accounts come and go on a running server, and credentials never come out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.api.box.records import Step
from holdfast.api.box.spec import BoxSpec
from holdfast.api.box.sync import SyncBox
from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxUnreachable, Unsupported
from holdfast.api.errors.providers import AccountInUse, AccountNotFound, InvalidAccount
from holdfast.client import SyncClient
from holdfast.testing.modal import ModalCloudThread
from holdfast.testing.server import ServerProcess

STEPS = ["reach", "authorize", "create", "exec", "delete"]


@pytest.fixture(scope="module")
def modal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalCloudThread]:
    with ModalCloudThread(tmp_path_factory.mktemp("cloud")) as thread:
        yield thread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("accounts") / "home", providers=dummies) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess, modal: ModalCloudThread) -> Iterator[SyncClient]:
    with SyncClient(server.url, api_key=server.api_key) as client:
        yield client
        clear(client)
    assert modal.cloud.running == []


def clear(client: SyncClient) -> None:
    for box in client.boxes.list():
        client.boxes.delete(box.id)
    for each in client.providers.list():
        if each.is_added:
            client.providers.remove(each.name)


def credential(modal: ModalCloudThread) -> dict[str, str]:
    return {"modal_token_id": modal.cloud.token_id, "modal_token_secret": modal.cloud.token_secret}


def add(client: SyncClient, modal: ModalCloudThread, name: str = "work", **settings: Any) -> None:
    place = {"modal_server_url": modal.cloud.url, **settings}
    client.providers.add(name, kind="modal", settings=place, credential=credential(modal))


def create(client: SyncClient, provider: str) -> SyncBox:
    return client.boxes.open(client.boxes.create(BoxSpec(provider=provider)).box.id)


def test_an_account_is_added_used_and_removed_while_the_server_runs(
    client: SyncClient, server: ServerProcess, modal: ModalCloudThread
) -> None:
    with pytest.raises(Unsupported, match="there is no provider work") as caught:
        client.boxes.create(BoxSpec(provider="work"))
    assert "holdfast provider add work" in (caught.value.hint or "")
    add(client, modal, modal_app="boxes")
    box = create(client, "work")
    assert box.exec(["echo", "hello"]).text == "hello\n"
    assert client.boxes.get(box.id).provider == "work"
    record = client.providers.get("work")
    assert (record.kind, record.is_ready, record.boxes, record.credential) == ("modal", True, 1, "sealed")
    assert record.settings == {"modal_app": "boxes", "modal_server_url": modal.cloud.url}
    assert record.isolation
    with pytest.raises(AccountInUse, match="it has 1 box") as refused:
        client.providers.remove("work")
    assert "holdfast box delete" in (refused.value.hint or "")
    assert box.exec(["echo", "still"]).text == "still\n"
    box.delete()
    client.providers.remove("work")
    with pytest.raises(AccountNotFound):
        client.providers.get("work")
    with pytest.raises(Unsupported, match="there is no provider work"):
        client.boxes.create(BoxSpec(provider="work"))


def test_two_accounts_of_one_kind_do_not_see_each_other(
    client: SyncClient, server: ServerProcess, modal: ModalCloudThread
) -> None:
    add(client, modal, "one")
    add(client, modal, "two")
    boxes = {name: create(client, name) for name in ("one", "two")}
    saved = boxes["one"].snapshot()
    assert saved.provider == "one"
    client.boxes.prune()  # a sweep removes what it does not know
    assert {box.id: box.provider for box in client.boxes.list()} == {box.id: name for name, box in boxes.items()}
    for name in boxes:
        records = server.home / "accounts" / name / "modal" / "boxes"
        assert [path.stem for path in records.glob("*.json")] == [boxes[name].id]
    assert [(each.name, each.boxes) for each in client.providers.list() if each.is_added] == [("one", 1), ("two", 1)]
    boxes["one"].delete()
    assert boxes["two"].exec(["echo", "here"]).text == "here\n"
    client.boxes.delete_snapshot(saved.id)


def test_accounts_and_their_boxes_outlive_the_server(tmp_path: Path, modal: ModalCloudThread) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with SyncClient(server.url, api_key=server.api_key) as client:
            add(client, modal)
            add(client, modal, "modal")
            box = create(client, "work").id
        server.restart()
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert client.boxes.open(box).exec(["echo", "hello"]).text == "hello\n"
            assert client.providers.test("modal").ok
            clear(client)


def test_a_credential_is_changed_under_running_boxes_and_other_settings_are_not(
    client: SyncClient, modal: ModalCloudThread
) -> None:
    add(client, modal)
    box = create(client, "work")
    client.providers.add("work", credential=credential(modal))
    assert box.exec(["echo", "hello"]).text == "hello\n"
    with pytest.raises(AccountInUse, match="the settings of work cannot change: it has 1 box"):
        add(client, modal, modal_app="other")
    assert box.exec(["echo", "hello"]).text == "hello\n"


def test_the_box_of_an_account_that_is_missing_says_so(tmp_path: Path, modal: ModalCloudThread) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with SyncClient(server.url, api_key=server.api_key) as client:
            add(client, modal)
            box = create(client, "work").id
        server.stop()
        with sqlite3.connect(server.home / "holdfast.db") as connection:
            connection.execute("DELETE FROM provider_accounts")
        connection.close()
        server.start()
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.boxes.prune()
            assert client.boxes.get(box).state == "running"
            with pytest.raises(BoxUnreachable, match=f"box {box} is at the provider work, which") as caught:
                client.boxes.open(box).exec(["true"])
            assert caught.value.hint == "add its account again: holdfast provider add work"
            add(client, modal)
            assert client.boxes.open(box).exec(["echo", "back"]).text == "back\n"
            clear(client)


# --- test -----------------------------------------------------------------------------------------------------------


def test_a_test_says_each_step_with_its_time(client: SyncClient, modal: ModalCloudThread) -> None:
    add(client, modal)
    seen: list[Step] = []
    trial = client.providers.test("work", on_step=seen.append)
    assert trial.ok
    assert [step.name for step in trial.steps] == STEPS
    assert all(step.milliseconds > 0 for step in trial.steps)
    assert tuple(seen) == trial.steps
    assert "Linux" in trial.steps[3].detail
    assert list(client.boxes.list()) == []
    assert [step.name for step in client.providers.test("local").steps] == STEPS


@pytest.mark.parametrize(
    ("settings", "token", "failed", "words"),
    [
        ({"modal_server_url": "http://127.0.0.1:1"}, None, "reach", "cannot be reached"),
        ({}, "as-wrong-0123456789abcdef", "authorize", "Token validation failed"),
        ({"modal_image": "nowhere/nothing"}, None, "create", "nothing"),
    ],
)
def test_a_test_that_fails_says_where_why_and_what_to_do(
    client: SyncClient, modal: ModalCloudThread, settings: dict[str, Any], token: str | None, failed: str, words: str
) -> None:
    place = {"modal_server_url": modal.cloud.url, **settings}
    given = credential(modal) | ({} if token is None else {"modal_token_secret": token})
    client.providers.add("work", kind="modal", settings=place, credential=given)
    trial = client.providers.test("work")
    assert not trial.ok
    assert [step.name for step in trial.steps] == STEPS[: STEPS.index(failed) + 1]
    assert words in trial.steps[-1].detail
    assert trial.steps[-1].next_step
    assert failed != "authorize" or trial.steps[-1].next_step == "give another credential: holdfast provider add work"
    assert list(client.boxes.list()) == []


def test_a_test_that_is_interrupted_deletes_what_it_created(
    client: SyncClient, server: ServerProcess, modal: ModalCloudThread
) -> None:
    add(client, modal)
    with api_of(server) as api, api.stream("POST", "/v1/providers/work/test") as answer:
        for line in answer.iter_lines():
            if '"create"' in line:
                break
    deadline = time.monotonic() + 240
    while len(modal.cloud.running) + len([*client.boxes.list()]):
        assert time.monotonic() < deadline


# --- what goes in and does not come out -----------------------------------------------------------------------------

KEY = "as-real-0123456789abcdefghij"


def test_no_answer_and_no_file_of_the_server_shows_a_credential(client: SyncClient, server: ServerProcess) -> None:
    given = {"kind": "sprites", "credential": {"sprites_token": KEY}}
    with api_of(server) as api:
        answers = [
            api.put("/v1/providers/mine", json=given),
            api.get("/v1/providers"),
            api.get("/v1/providers/mine"),
            api.put("/v1/providers/mine", json={**given, "credential": {"sprites_token": f"{KEY} with spaces"}}),
            api.put("/v1/providers/mine", json={**given, "credential": {"sprites_token": [KEY]}}),
            api.put("/v1/providers/mine", json={**given, "credential": {"sprites_token": KEY * 1000}}),
            api.put("/v1/providers/mine", json={**given, "credential": KEY}),
            api.put("/v1/providers/mine", json={**given, "unknown": KEY}),
            api.put("/v1/providers/mine", json={**given, "settings": {"sprites_token": KEY}}),
            api.put("/v1/providers/mine", json={"settings": {"sprites_url": "https://evil.example.com"}}),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, *[422] * 7]
    for answer in answers:
        assert KEY not in answer.text
        assert KEY[-4:] not in answer.text
    for path in (*Path(server.home).rglob("*"), server.log):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_an_error_of_a_vendor_is_shown_and_logged_without_the_credential(
    client: SyncClient, server: ServerProcess, modal: ModalCloudThread
) -> None:
    """The counterpart says which image it does not have; here that is named like the token."""
    add(client, modal, modal_image=modal.cloud.token_secret)
    with pytest.raises(HoldfastError) as caught:
        client.boxes.create(BoxSpec(provider="work"))
    shown = f"{caught.value.message} {caught.value.hint} {client.providers.test('work')}"
    assert "*" * len(modal.cloud.token_secret) in shown
    for text in (shown, server.read_log()):
        assert modal.cloud.token_secret not in text


def test_what_was_not_added_is_not_removed(client: SyncClient) -> None:
    with pytest.raises(AccountNotFound, match="local was not added"):
        client.providers.remove("local")
    with pytest.raises(AccountNotFound, match="no provider 'nothing'"):
        client.providers.remove("nothing")
    with pytest.raises(AccountNotFound):
        client.providers.test("nothing")


def test_a_half_of_a_credential_is_refused_and_nothing_is_stored(client: SyncClient) -> None:
    with pytest.raises(InvalidAccount, match="half of Modal's token"):
        client.providers.add("work", kind="modal", credential={"modal_token_id": "ak-1"})
    assert [each.name for each in client.providers.list() if each.is_added] == []


def test_a_token_of_a_thread_may_not_look_at_providers(client: SyncClient, server: ServerProcess) -> None:
    token = client.threads.create().token("write").token
    requests = [("GET", ""), ("GET", "/local"), ("PUT", "/mine"), ("DELETE", "/mine"), ("POST", "/local/test")]
    with api_of(server) as api:
        for method, path in requests:
            for headers, status in (({"authorization": f"Bearer {token}"}, 403), ({"authorization": ""}, 401)):
                answer: httpx.Response = api.request(method, f"/v1/providers{path}", json={}, headers=headers)
                assert answer.status_code == status, (method, path)
