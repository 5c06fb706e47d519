"""Webhooks about events: filtered, signed, retried over restarts, and not sent twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from tests.threads.subscriptions.webhooks import Answer, Received, WebhookReceiver

from holdfast.api.errors import NotFound, Refused
from holdfast.api.webhooks import DeliveryState, NewWebhook, WebhookEvent
from holdfast.threads.protocol.framing import as_array
from holdfast.threads.store import ForkPoint, StreamConfig
from holdfast.threads.subscriptions.events import MOST_ATTEMPTS, ROTATION_MS, sign
from holdfast.threads.subscriptions.records import Phase
from holdfast.threads.subscriptions.webhooks import Webhooks

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio
FINISHED = "signal.run.finished"


def entry(number: int, type: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"e-{number}", "ts": 1000 + number, "payload": {"type": type, **fields}}


def is_signed(received: Received, secret: str) -> bool:
    headers = received.headers
    wanted = sign(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), received.body)
    return wanted in headers["webhook-signature"].split()


async def idle(bench: Bench, delivered: int) -> None:
    await bench.subscriptions.until(
        lambda saved: saved.phase is Phase.IDLE and len(saved.deliveries) >= delivered and not saved.attempts
    )


async def test_an_event_is_sent_once_to_who_asked_for_it_and_signed(bench: Bench, receiver: WebhookReceiver) -> None:
    await bench.record("threads/t-1", entry(0, FINISHED))
    webhooks = Webhooks(bench.service)
    made = await webhooks.add(NewWebhook(url=receiver.url, events=(WebhookEvent.RUN_FINISHED,)))
    await bench.record("threads/t-1", entry(1, "chat", text="hello"))
    await bench.record("threads/t-2", entry(2, "signal.run.started"))
    await bench.record("threads/t-2", entry(3, FINISHED, run="r-1", status="completed"))
    received = await receiver.next()
    assert received.json() == {
        "type": "run.finished",
        "timestamp": 1003,
        "data": {"thread": "t-2", "payload": {"type": FINISHED, "run": "r-1", "status": "completed"}},
    }
    assert received.headers["webhook-id"] == "e-3.run.finished"
    assert is_signed(received, made.secret)
    assert not is_signed(received, "whsec_" + "A" * 44)
    await idle(bench, 1)
    await bench.restart()  # reads the threads again from what is saved, and finds nothing new
    await bench.record("threads/t-1", entry(4, FINISHED))
    assert (await receiver.next()).headers["webhook-id"] == "e-4.run.finished"
    assert receiver.waiting == 0
    await idle(bench, 2)
    (shown,) = Webhooks(bench.service).list()
    assert [each.event for each in shown.deliveries] == ["e-4.run.finished", "e-3.run.finished"]


async def test_a_forged_entry_is_no_event(bench: Bench, receiver: WebhookReceiver) -> None:
    await Webhooks(bench.service).add(NewWebhook(url=receiver.url))
    await bench.record("threads/t-1", entry(1, "signal.run.started"))
    assert (await receiver.next()).headers["webhook-id"] == "e-1.run.started"
    (sealed,) = orjson.loads(as_array((await bench.store.read("threads/t-1", 0, 10_000)).data))
    changed = {**sealed, "id": "e-2"}
    forged = [
        entry(3, FINISHED, run="r-1", status="completed"),
        entry(4, "opencode.question", text="may I?"),
        entry(5, "signal.model.budget", state="reached", seal=sealed["payload"]["seal"]),
        changed,
    ]
    await bench.append("threads/t-1", forged)
    await bench.put("threads/t-2", [sealed])  # sealed for another thread
    await bench.record("threads/t-1", entry(6, FINISHED))
    assert (await receiver.next()).headers["webhook-id"] == "e-6.run.finished"
    await idle(bench, 2)
    assert receiver.waiting == 0


async def test_a_failed_event_is_retried_over_a_restart_and_the_deliveries_are_listed(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    receiver.answers.append(Answer(status=500))
    made = await Webhooks(bench.service).add(NewWebhook(url=receiver.url))
    id = made.webhook.id
    await bench.record("threads/t-1", entry(1, "signal.model.budget", state="warning"))
    await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert Webhooks(bench.service).get(id).last_error == "the webhook returned status 500"
    await bench.close()
    bench.clock.advance(60_000)
    await bench.open()
    assert (await receiver.next()).json()["type"] == "budget"
    await idle(bench, 2)
    states = [each.state for each in Webhooks(bench.service).get(id).deliveries]
    assert states == [DeliveryState.DELIVERED, DeliveryState.FAILED]


async def test_what_was_delivered_is_not_sent_again_with_what_failed(bench: Bench, receiver: WebhookReceiver) -> None:
    await Webhooks(bench.service).add(NewWebhook(url=receiver.url, events=(WebhookEvent.SESSION_STATE,)))
    receiver.answers += [Answer(), Answer(status=503)]
    await bench.put("threads/t-1", None)
    await bench.record("threads/t-1", entry(1, "signal.session.running"), entry(2, "signal.session.hibernated"))
    ids = [(await receiver.next()).headers["webhook-id"] for _ in range(2)]
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    bench.clock.advance(60_000)
    ids.append((await receiver.next()).headers["webhook-id"])
    assert ids == ["e-1.session.state", "e-2.session.state", "e-2.session.state"]
    await idle(bench, 3)
    assert receiver.waiting == 0


async def test_a_run_that_waits_for_a_decision_needs_you(bench: Bench, receiver: WebhookReceiver) -> None:
    await Webhooks(bench.service).add(NewWebhook(url=receiver.url, events=(WebhookEvent.NEEDS_YOU,)))
    await bench.record("threads/t-1", entry(1, FINISHED, error={"code": "crashed"}))
    await bench.record("threads/t-1", entry(2, FINISHED, error={"code": "over_budget"}))
    await bench.record("threads/t-1", entry(3, "opencode.question", text="may I?"))
    assert [(await receiver.next()).headers["webhook-id"] for _ in range(2)] == ["e-2.needs-you", "e-3.needs-you"]


async def test_a_fork_does_not_repeat_what_happened_on_its_source(bench: Bench, receiver: WebhookReceiver) -> None:
    tail = await bench.record("threads/t-1", entry(1, FINISHED))
    await Webhooks(bench.service).add(NewWebhook(url=receiver.url, events=(WebhookEvent.RUN_FINISHED,)))
    fork = ForkPoint("threads/t-1", tail, 0)
    await bench.store.create("threads/t-2", StreamConfig("application/json", fork=fork))
    await bench.record("threads/t-2", entry(2, FINISHED))
    assert (await receiver.next()).headers["webhook-id"] == "e-2.run.finished"
    await idle(bench, 1)
    assert receiver.waiting == 0


async def test_a_webhook_of_some_threads_hears_nothing_of_others(bench: Bench, receiver: WebhookReceiver) -> None:
    await bench.put("threads/t-1", None)
    await Webhooks(bench.service).add(NewWebhook(url=receiver.url, threads=("t-1",)))
    await bench.record("threads/t-2", entry(1, FINISHED))
    await bench.record("threads/t-1", entry(2, FINISHED))
    assert (await receiver.next()).json()["data"]["thread"] == "t-1"


async def test_a_secret_is_rotated_with_a_day_of_both(bench: Bench, receiver: WebhookReceiver) -> None:
    webhooks = Webhooks(bench.service)
    first = await webhooks.add(NewWebhook(url=receiver.url))
    second = await webhooks.rotate(first.webhook.id)
    assert first.secret != second.secret
    for both in (True, False):
        delivery, received = await asyncio.gather(webhooks.test(first.webhook.id), receiver.next())
        assert delivery.state is DeliveryState.DELIVERED
        assert is_signed(received, second.secret)
        assert is_signed(received, first.secret) is both
        bench.clock.advance(ROTATION_MS)


async def test_an_event_that_always_fails_is_given_up(bench: Bench, receiver: WebhookReceiver) -> None:
    receiver.default = Answer(status=500)
    made = await Webhooks(bench.service).add(NewWebhook(url=receiver.url))
    await bench.record("threads/t-1", entry(1, "signal.run.started"))
    await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    for attempt in range(2, MOST_ATTEMPTS + 1):
        bench.clock.advance(60_000)
        await receiver.next()
        if attempt < MOST_ATTEMPTS:
            await bench.subscriptions.until(lambda saved, attempt=attempt: saved.attempts == attempt)  # type: ignore[misc]
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.IDLE and bool(saved.deliveries))
    assert Webhooks(bench.service).get(made.webhook.id).deliveries[0].state is DeliveryState.GIVEN_UP


async def test_addresses_of_this_network_are_refused(bench: Bench) -> None:
    bench.allow_local = False
    await bench.restart()
    webhooks = Webhooks(bench.service)
    bench.addresses["inside.example"] = ["10.0.0.8"]
    for url in ("http://127.0.0.1:1/", "https://inside.example/", "ftp://example.com", "https://169.254.169.254/"):
        with pytest.raises(Refused):
            await webhooks.add(NewWebhook(url=url))
    assert webhooks.list() == []
    with pytest.raises(NotFound):
        webhooks.get("h-00000000")


async def test_the_protocol_of_subscriptions_creates_no_webhook_of_events(bench: Bench) -> None:
    status, _ = await bench.call("PUT", "subscriptions/s", {"type": "events", "pattern": "threads/*"})
    assert status == 400
