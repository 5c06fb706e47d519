"""Webhooks, received on a real socket: signed, retried, never doubled while one is on its way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
import pytest
from tests.threads.subscriptions.webhooks import Answer, WebhookReceiver

from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.subscriptions import verify_signature
from holdfast.threads.subscriptions.records import Phase

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio
DONE = Answer(body=b'{"done": true}')


async def test_a_webhook_is_signed_by_the_published_key(bench: Bench, receiver: WebhookReceiver) -> None:
    created = await bench.webhook("s", receiver.url)
    signing = created["webhook"]["signing"]
    assert signing["alg"] == "ed25519"
    assert signing["jwks_url"] == "http://holdfast.test/v1/stream/__ds/jwks.json"
    _, key_set = await bench.call("GET", "jwks.json")
    assert [(key["kid"], key["kty"], key["crv"], key["alg"]) for key in key_set["keys"]] == [
        (signing["kid"], "OKP", "Ed25519", "EdDSA")
    ]
    tail = await bench.put("events/a", {"n": 1})
    received = await receiver.next()
    header = received.headers["webhook-signature"]
    now = bench.clock.now()
    assert verify_signature(received.body, header, key_set, now)
    assert not verify_signature(received.body + b" ", header, key_set, now)
    assert not verify_signature(received.body, header, key_set, now + 301_000)
    assert not verify_signature(received.body, header, {"keys": []}, now)
    assert not verify_signature(received.body, "t=1,kid=x", key_set, now)
    body = received.json()
    assert body["streams"] == [
        {
            "path": "events/a",
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": format_offset_text(tail),
            "has_pending": True,
        }
    ]
    assert (body["subscription_id"], body["generation"]) == ("s", 1)
    assert body["callback_url"] == "http://holdfast.test/v1/stream/__ds/subscriptions/s/callback"
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"


async def test_a_plain_done_acknowledges_what_was_announced(bench: Bench, receiver: WebhookReceiver) -> None:
    receiver.default = DONE
    await bench.webhook("s", receiver.url)
    tail = await bench.put("events/a", 1)
    await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.IDLE and saved.generation == 1)
    _, seen = await bench.call("GET", "subscriptions/s")
    assert [stream["acked_offset"] for stream in seen["streams"]] == [format_offset_text(tail)]
    assert receiver.waiting == 0


async def test_what_came_while_a_webhook_was_answered_is_announced_next(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    go = asyncio.Event()
    receiver.answers.append(Answer(body=b'{"done": true}', after=go))
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    first = (await receiver.next()).json()
    tail = await bench.append("events/a", 2)
    go.set()
    second = (await receiver.next()).json()
    assert (first["generation"], second["generation"]) == (1, 2)
    assert second["streams"][0]["acked_offset"] == first["streams"][0]["tail_offset"]
    assert second["streams"][0]["tail_offset"] == format_offset_text(tail)


async def test_a_webhook_that_was_answered_is_not_sent_again_before_that_is_known(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    answer = asyncio.Event()
    receiver.answers.append(Answer(after=answer))
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    await receiver.next()
    live = bench.service._live["s"]
    bench.subscriptions.open.clear()
    await bench.put("events/b", 1)
    await bench.subscriptions.held.wait()  # the driver saves the new link
    answer.set()
    while not live.lock._waiters:  # noqa: ASYNC110 (the outcome of the delivery queues up; locks have no event for it)
        await asyncio.sleep(0)
    bench.subscriptions.open.set()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.LEASED)
    assert receiver.connections == 1


async def test_a_callback_acknowledges_and_an_old_one_is_fenced(bench: Bench, receiver: WebhookReceiver) -> None:
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    wake = (await receiver.next()).json()
    body = {
        "wake_id": wake["wake_id"],
        "generation": wake["generation"],
        "acks": [{"path": "events/a", "offset": wake["streams"][0]["tail_offset"]}],
        "done": True,
    }
    token = wake["callback_token"]
    assert await bench.call("POST", "subscriptions/s/callback", body, token) == (200, {"ok": True, "next_wake": False})
    status, stale = await bench.call("POST", "subscriptions/s/callback", body, token)
    assert (status, stale["error"]["code"]) == (409, "FENCED")


async def test_a_callback_may_come_before_the_answer(bench: Bench, receiver: WebhookReceiver) -> None:
    go = asyncio.Event()
    receiver.answers.append(Answer(status=500, after=go))
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    wake = (await receiver.next()).json()
    body = {"wake_id": wake["wake_id"], "generation": 1, "acks": [], "done": False}
    assert (await bench.call("POST", "subscriptions/s/callback", body, wake["callback_token"]))[0] == 200
    assert bench.stored("s").phase is Phase.LEASED
    delivery = bench.service._live["s"].delivery
    assert delivery is not None
    go.set()
    await delivery
    # It failed to answer, but it has the wake: no second announcement, only the lease counts now.
    assert bench.stored("s").attempts == 0
    bench.clock.advance(5_000)
    assert (await receiver.next()).json()["generation"] == 2


async def test_a_subscriber_that_never_reports_is_woken_again_after_its_lease(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    first = (await receiver.next()).json()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.LEASED)
    await bench.append("events/a", 2)  # does not wake while the lease runs
    bench.clock.advance(4_999)
    assert receiver.waiting == 0
    bench.clock.advance(1)
    second = (await receiver.next()).json()
    assert second["generation"] == first["generation"] + 1
    body = {"wake_id": first["wake_id"], "generation": 1, "acks": [], "done": True}
    status, fenced = await bench.call("POST", "subscriptions/s/callback", body, first["callback_token"])
    assert (status, fenced["error"]["code"]) == (409, "FENCED")


async def test_failures_are_retried_with_the_same_wake_and_ever_longer_pauses(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    receiver.default = Answer(status=503)
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    wakes = set()
    for attempt, pause in enumerate((1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000), 1):
        received = await receiver.next()
        wakes.add((received.json()["wake_id"], received.json()["generation"]))
        failed = await bench.subscriptions.until(lambda saved, attempt=attempt: saved.attempts == attempt)  # type: ignore[misc]
        assert failed.next_attempt_at == bench.clock.now() + pause
        bench.clock.advance(pause - 1)
        assert receiver.waiting == 0
        bench.clock.advance(1)
    assert len(wakes) == 1
    assert (await bench.call("GET", "subscriptions/s"))[1]["status"] == "failed"
    receiver.default = DONE
    await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.IDLE)
    _, seen = await bench.call("GET", "subscriptions/s")
    assert seen["status"] == "active"
    assert "last_error" not in seen


async def test_a_redirect_is_a_failure_and_is_not_followed(bench: Bench, receiver: WebhookReceiver) -> None:
    async with WebhookReceiver() as other:
        receiver.default = Answer(status=307, headers=(("location", other.url),))
        await bench.webhook("s", receiver.url)
        await bench.put("events/a", 1)
        await receiver.next()
        failed = await bench.subscriptions.until(lambda saved: saved.attempts == 1)
        assert failed.last_error == "the webhook returned status 307"
        assert other.connections == 0


async def test_a_webhook_that_does_not_answer_is_given_up(bench: Bench, receiver: WebhookReceiver) -> None:
    bench.delivery_timeout = 0.2
    await bench.restart()
    receiver.default = Answer(after=asyncio.Event())
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    failed = await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert failed.last_error == "no complete answer within 0.2 s"


async def test_an_answer_is_read_only_so_far(bench: Bench, receiver: WebhookReceiver) -> None:
    endless = orjson.dumps({"done": True, "padding": "x" * 5_000_000})
    receiver.default = Answer(body=endless)
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    await receiver.next()
    saved = await bench.subscriptions.until(lambda saved: saved.phase is Phase.LEASED)
    assert saved.generation == 1


async def test_a_webhook_that_is_not_there_is_retried(bench: Bench) -> None:
    async with WebhookReceiver() as gone:
        url = gone.url
    await bench.webhook("s", url)
    await bench.put("events/a", 1)
    failed = await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert failed.last_error is not None
    assert failed.last_error.startswith("ConnectError")


async def test_a_deleted_subscription_stops_at_once(bench: Bench, receiver: WebhookReceiver) -> None:
    receiver.default = Answer(status=500)
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert await bench.call("DELETE", "subscriptions/s") == (204, None)
    assert bench.clock.timers == 0
    bench.clock.advance(3_600_000)
    await bench.append("events/a", 2)
    assert receiver.waiting == 0
    assert await bench.call("DELETE", "subscriptions/s") == (204, None)
    assert (await bench.call("GET", "subscriptions/s"))[0] == 404


async def test_one_event_wakes_all_whom_it_concerns_once(bench: Bench, receiver: WebhookReceiver) -> None:
    receiver.default = DONE
    for id, pattern in (("one", "events/*"), ("two", "**"), ("none", "other/*")):
        await bench.webhook(id, receiver.url, pattern)
    await bench.put("events/a", 1)
    woken = {(await receiver.next()).json()["subscription_id"] for _ in range(2)}
    assert woken == {"one", "two"}
    assert receiver.waiting == 0
