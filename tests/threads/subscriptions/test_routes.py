"""The HTTP face: routes, statuses and codes; what is refused, and with which words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.threads.subscriptions.webhooks import WebhookReceiver

from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.store import Change
from holdfast.threads.subscriptions import Limits, is_control, needs_grant
from holdfast.threads.subscriptions.signing import CallbackTokens

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio
PULL = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wakes"}


async def test_the_same_subscription_is_confirmed_and_another_refused(bench: Bench, receiver: WebhookReceiver) -> None:
    wanted = {
        "type": "webhook",
        "pattern": "/events/*/",
        "streams": ["b", "a", "/a/"],
        "webhook": {"url": receiver.url},
        "description": "mine",
    }
    status, created = await bench.call("PUT", "subscriptions/s", wanted)
    assert status == 201
    assert created["id"] == created["subscription_id"] == "s"
    assert (created["type"], created["pattern"], created["lease_ttl_ms"]) == ("webhook", "events/*", 30_000)
    assert (created["status"], created["description"]) == ("active", "mine")
    assert created["created_at"] == "2027-01-15T08:00:00.000Z"
    assert [stream["path"] for stream in created["streams"]] == ["a", "b"]
    assert "wake_stream" not in created
    again = {**wanted, "streams": ["a", "b"], "lease_ttl_ms": 30_000}
    assert await bench.call("PUT", "subscriptions/s", again) == (200, created)
    assert await bench.call("GET", "subscriptions/s") == (200, created)
    status, refused = await bench.call("PUT", "subscriptions/s", {**wanted, "pattern": "other/*"})
    assert (status, refused["error"]["code"]) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    assert refused["error"]["requestId"] == "q-1"


async def test_two_who_create_the_same_at_once_make_one(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.call("PUT", "subscriptions/s", PULL) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 200, 200, 200, 201]


@pytest.mark.parametrize(
    "fields",
    [
        b"{",
        b"[]",
        {},
        {"type": "push", "pattern": "a"},
        {"type": ["webhook"], "pattern": "a"},
        {"type": "pull-wake", "wake_stream": "w"},
        {"type": "pull-wake", "wake_stream": "w", "streams": []},
        {"type": "pull-wake", "pattern": "a"},
        {"type": "webhook", "pattern": "a"},
        {"type": "webhook", "pattern": "a", "webhook": "https://hooks.example.com"},
        {"type": "webhook", "pattern": "a", "webhook": {"url": 7}},
        {**PULL, "pattern": 7},
        {**PULL, "pattern": "t-*"},
        {**PULL, "pattern": "a" * 1025},
        {**PULL, "streams": "a"},
        {**PULL, "streams": [7]},
        {**PULL, "streams": [""]},
        {**PULL, "streams": ["a/../b"]},
        {**PULL, "streams": ["__ds/x"]},
        {**PULL, "streams": ["wakes"]},
        {**PULL, "streams": ["a\u0000b"]},
        {**PULL, "wake_stream": "threads/t-1"},
        {**PULL, "wake_stream": "__ds/w"},
        {**PULL, "lease_ttl_ms": 999},
        {**PULL, "lease_ttl_ms": 600_001},
        {**PULL, "lease_ttl_ms": 1000.5},
        {**PULL, "lease_ttl_ms": "1000"},
        {**PULL, "lease_ttl_ms": True},
        {**PULL, "description": "x" * 2049},
    ],
)
async def test_a_subscription_that_makes_no_sense_is_refused(bench: Bench, fields: Any) -> None:
    status, refused = await bench.call("PUT", "subscriptions/s", fields)
    assert (status, refused["error"]["code"]) == (400, "INVALID_REQUEST")
    assert (await bench.call("GET", "subscriptions/s"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 404),
        ("GET", "other", 404),
        ("GET", "subscriptions", 404),
        ("GET", "subscriptions/none", 404),
        ("GET", "subscriptions/none/other", 404),
        ("GET", "subscriptions/", 400),
        ("GET", "subscriptions/a%2Fb", 404),
        ("GET", "subscriptions/" + "a" * 257, 400),
        ("POST", "subscriptions/none", 405),
        ("GET", "subscriptions/none/claim", 405),
        ("PUT", "subscriptions/none/streams", 405),
        ("GET", "subscriptions/none/streams/a", 405),
        ("DELETE", "subscriptions/none/streams/a", 404),
        ("POST", "jwks.json", 405),
    ],
)
async def test_every_path_has_its_status(bench: Bench, method: str, path: str, status: int) -> None:
    assert (await bench.call(method, path))[0] == status


async def test_paths_of_streams_are_not_ours(bench: Bench) -> None:
    assert await bench.routes.handle("GET", "__dsx/y", {}, b"") is None
    assert await bench.routes.handle("GET", "threads/t-1", {}, b"") is None


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("__ds/jwks.json", False),
        ("__ds/subscriptions/s/callback", False),
        ("__ds/subscriptions/s/ack", False),
        ("__ds/subscriptions/s/release", False),
        ("__ds/subscriptions/s/claim", True),
        ("__ds/subscriptions/s/streams/callback", True),
        ("__ds/subscriptions/s/streams", True),
        ("__ds/subscriptions/callback", True),
        ("__ds/subscriptions/s", True),
        ("__ds/other", True),
    ],
)
def test_only_what_carries_its_own_proof_needs_no_grant(path: str, needed: bool) -> None:
    assert is_control(path)
    assert needs_grant(path) is needed


async def test_named_streams_are_added_and_removed(bench: Bench) -> None:
    tail = await bench.put("manual/b", 1)
    await bench.pull("s")
    assert await bench.call("POST", "subscriptions/s/streams", {"streams": ["manual/b", "events/x"]}) == (204, None)
    await bench.put("events/x", 1)
    _, seen = await bench.call("GET", "subscriptions/s")
    assert {stream["path"]: (stream["link_type"], stream["acked_offset"]) for stream in seen["streams"]} == {
        "manual/b": ("explicit", format_offset_text(tail)),
        "events/x": ("explicit", format_offset_text(0)),
    }
    assert await bench.call("DELETE", "subscriptions/s/streams/manual%2Fb") == (204, None)
    assert await bench.call("DELETE", "subscriptions/s/streams/manual%2Fb") == (204, None)
    assert await bench.call("DELETE", "subscriptions/s/streams/events/x") == (204, None)
    assert (await bench.call("GET", "subscriptions/s"))[1]["streams"] == []
    await bench.append("manual/b", 2)
    assert (await bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))[0] == 409
    senseless: list[dict[str, Any]] = [{}, {"streams": []}, {"streams": "a"}, {"streams": ["wakes"]}]
    for body in senseless:
        assert (await bench.call("POST", "subscriptions/s/streams", body))[0] == 400
    assert (await bench.call("POST", "subscriptions/none/streams", {"streams": ["a"]}))[0] == 404


async def test_a_stream_that_grows_while_it_is_added_is_not_missed(bench: Bench) -> None:
    await bench.put("manual/a", 1)
    await bench.pull("s")
    bench.subscriptions.open.clear()
    adding = asyncio.create_task(bench.call("POST", "subscriptions/s/streams", {"streams": ["manual/a"]}))
    await bench.subscriptions.held.wait()
    await bench.append("manual/a", 2)
    bench.subscriptions.open.set()
    assert (await adding)[0] == 204
    await bench.announced(1)


async def test_a_stream_that_is_named_and_matches_stays_linked_by_the_pattern(bench: Bench) -> None:
    await bench.put("events/a", 1)
    await bench.pull("s")
    await bench.call("POST", "subscriptions/s/streams", {"streams": ["events/a"]})
    assert (await bench.call("GET", "subscriptions/s"))[1]["streams"][0]["link_type"] == "explicit"
    await bench.call("DELETE", "subscriptions/s/streams/events/a")
    assert (await bench.call("GET", "subscriptions/s"))[1]["streams"][0]["link_type"] == "glob"


async def test_a_wake_needs_its_own_token(bench: Bench) -> None:
    await bench.pull("s")
    await bench.pull("other")
    await bench.put("events/a", 1)
    _, claimed = await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    _, others = await bench.call("POST", "subscriptions/other/claim", {"worker": "one"})
    body = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    forged = CallbackTokens(b"another secret, 32 bytes long...").issue("s", 1, bench.clock.now())
    payload, _, signature = claimed["token"].partition(".")
    for action in ("ack", "release", "callback"):
        for token in (None, "", "x", "x.y", "é.é", forged, others["token"], payload, f"{payload}x.{signature}"):
            status, refused = await bench.call("POST", f"subscriptions/s/{action}", body, token)
            assert (status, refused["error"]["code"]) == (401, "TOKEN_INVALID")
        # Whether a subscription exists is told only to who has a token for it.
        assert (await bench.call("POST", f"subscriptions/none/{action}", body, claimed["token"]))[0] == 401
    assert (await bench.call("POST", "subscriptions/s/release", body, claimed["token"]))[0] == 204


async def test_ack_and_claim_are_for_pull_wake(bench: Bench, receiver: WebhookReceiver) -> None:
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    wake = (await receiver.next()).json()
    body = {"wake_id": wake["wake_id"], "generation": 1}
    for action in ("ack", "release", "claim"):
        answer = await bench.call(
            "POST", f"subscriptions/s/{action}", {**body, "worker": "one"}, wake["callback_token"]
        )
        assert (answer[0], answer[1]["error"]["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("claim", {}),
        ("claim", {"worker": ""}),
        ("claim", {"worker": 7}),
        ("claim", {"worker": "x" * 257}),
        ("ack", b"{"),
        ("ack", {"generation": "1"}),
        ("ack", {"generation": True}),
        ("ack", {"generation": 2**60}),
        ("ack", {"wake_id": 7}),
        ("ack", {"done": 1}),
        ("ack", {"acks": {}}),
        ("ack", {"acks": ["a"]}),
        ("ack", {"acks": [{"stream": "a"}]}),
        ("ack", {"acks": [{"offset": "1"}]}),
    ],
)
async def test_a_report_that_makes_no_sense_is_refused(bench: Bench, action: str, body: Any) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    token = CallbackTokens(b"a secret of the tests, 32 bytes.").issue("s", 1, bench.clock.now())
    status, refused = await bench.call("POST", f"subscriptions/s/{action}", body, token)
    assert (status, refused["error"]["code"]) == (400, "INVALID_REQUEST")


async def test_an_id_may_need_quoting(bench: Bench, receiver: WebhookReceiver) -> None:
    await bench.webhook("a%20b%3F%25", receiver.url)
    await bench.put("events/a", 1)
    body = (await receiver.next()).json()
    assert body["subscription_id"] == "a b?%"
    assert body["callback_url"].endswith("/__ds/subscriptions/a%20b%3F%25/callback")


async def test_limits_are_kept_and_said(bench: Bench) -> None:
    bench.limits = Limits(subscriptions=2, streams=2)
    await bench.restart()
    await bench.pull("s")
    for name in "abc":
        await bench.put(f"events/{name}", 1)
    _, seen = await bench.call("GET", "subscriptions/s")
    assert (len(seen["streams"]), seen["streams_truncated"]) == (2, True)
    for body, words in (
        ({**PULL, "streams": ["1", "2", "3"]}, "at most 2 streams"),
        (PULL, "matches more than 2 streams"),
    ):
        status, refused = await bench.call("PUT", "subscriptions/t", body)
        assert status == 400
        assert words in refused["error"]["message"]
    assert (await bench.call("POST", "subscriptions/s/streams", {"streams": ["x"]}))[0] == 400
    await bench.subscribe("two", **{**PULL, "pattern": "none/*"})
    status, refused = await bench.call("PUT", "subscriptions/three", {**PULL, "pattern": "none/*"})
    assert (status, refused["error"]["code"]) == (400, "INVALID_REQUEST")
    # One goes, and the one that was left out comes in, from its beginning, with its next message.
    await bench.store.delete("events/a")
    await bench.append("events/c", 2)
    _, seen = await bench.call("GET", "subscriptions/s")
    assert {stream["path"] for stream in seen["streams"]} == {"events/b", "events/c"}


async def test_what_happens_while_a_subscription_is_made_is_not_missed(bench: Bench) -> None:
    await bench.put("wakes")
    await bench.put("events/old", 1)
    bench.subscriptions.open.clear()
    making = asyncio.create_task(bench.call("PUT", "subscriptions/s", PULL))
    await bench.subscriptions.held.wait()  # the streams have been listed by now
    await bench.put("events/new", 1)
    await bench.append("events/old", 2)
    assert not making.done()
    bench.subscriptions.open.set()
    assert (await making)[0] == 201
    _, claimed = await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    assert {stream["path"] for stream in claimed["streams"] if stream["has_pending"]} == {"events/new", "events/old"}


async def test_without_subscriptions_a_change_is_not_even_remembered(bench: Bench) -> None:
    for _ in range(10):
        bench.service._on_change(Change("events/a", 0, b"x", 1))
    assert bench.service._routes == {}
