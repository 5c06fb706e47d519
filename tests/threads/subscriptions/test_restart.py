"""Subscriptions outlive the server: records, leases, tokens, keys, and wakes that were on their way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.threads.subscriptions.webhooks import Answer, WebhookReceiver

from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.subscriptions import verify_signature
from holdfast.threads.subscriptions.records import Phase

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio


async def test_a_lease_and_its_token_hold_across_a_restart(bench: Bench) -> None:
    before = await bench.pull("s")
    tail = await bench.put("events/a", 1)
    _, claimed = await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    await bench.restart()
    _, after = await bench.call("GET", "subscriptions/s")
    assert {**before, "streams": after["streams"]} == after
    status, busy = await bench.call("POST", "subscriptions/s/claim", {"worker": "two"})
    assert (status, busy["error"]["current_holder"]) == (409, "one")
    body = {
        "wake_id": claimed["wake_id"],
        "generation": 1,
        "acks": [{"stream": "events/a", "offset": format_offset_text(tail)}],
    }
    assert (await bench.call("POST", "subscriptions/s/ack", body, claimed["token"]))[0] == 200
    await bench.restart()
    _, after = await bench.call("GET", "subscriptions/s")
    assert after["streams"][0]["acked_offset"] == format_offset_text(tail)


async def test_a_lease_that_ran_out_while_the_server_was_down_wakes_the_next(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    assert (await bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))[0] == 200
    await bench.close()
    bench.clock.advance(60_000)
    await bench.open()
    assert [event["generation"] for event in await bench.events(2)] == [1, 2]


async def test_a_lease_that_was_running_goes_on_running(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    bench.clock.advance(3_000)
    await bench.restart()
    bench.clock.advance(1_999)
    assert bench.stored("s").phase is Phase.LEASED
    bench.clock.advance(1)
    assert [event["generation"] for event in await bench.events(2)] == [1, 2]


async def test_a_wake_event_is_written_once_though_it_is_announced_again(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    # As if the server had died after the event was written and before that was noted.
    unnoted = next(saved for saved in bench.subscriptions.saved if saved.phase is Phase.ANNOUNCING)
    await bench.subscriptions.save(unnoted, {})
    await bench.restart()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    assert len(await bench.events(1)) == 1


async def test_a_webhook_that_failed_is_tried_again_after_a_restart_by_the_same_key(
    bench: Bench, receiver: WebhookReceiver
) -> None:
    receiver.answers.append(Answer(status=500))
    await bench.webhook("s", receiver.url)
    _, keys = await bench.call("GET", "jwks.json")
    await bench.put("events/a", 1)
    first = await receiver.next()
    await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    await bench.restart()
    assert receiver.waiting == 0
    bench.clock.advance(1_000)
    second = await receiver.next()
    assert second.json()["wake_id"] == first.json()["wake_id"]
    assert verify_signature(second.body, second.headers["webhook-signature"], keys, bench.clock.now())
    wake = second.json()
    body = {"wake_id": wake["wake_id"], "generation": 1, "done": True}
    assert (await bench.call("POST", "subscriptions/s/callback", body, first.json()["callback_token"]))[0] == 200


async def test_a_webhook_cut_off_by_a_shutdown_is_sent_again(bench: Bench, receiver: WebhookReceiver) -> None:
    receiver.answers.append(Answer(after=asyncio.Event()))
    await bench.webhook("s", receiver.url)
    await bench.put("events/a", 1)
    first = await receiver.next()
    await bench.restart()
    assert (await receiver.next()).json()["wake_id"] == first.json()["wake_id"]


async def test_streams_that_came_grew_or_went_unseen_are_found_at_the_start(bench: Bench) -> None:
    grown = await bench.put("events/grown", 1)
    await bench.put("events/gone", 1)
    await bench.pull("s")
    assert (await bench.call("POST", "subscriptions/s/streams", {"streams": ["not/yet"]}))[0] == 204
    await bench.service.close()
    await bench.append("events/grown", 2)
    await bench.store.delete("events/gone")
    await bench.put("events/new", 1)
    await bench.store.close()
    await bench.open()
    (event,) = await bench.events(1)
    assert event["generation"] == 1
    status, claimed = await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    assert status == 200
    assert {stream["path"]: (stream["acked_offset"], stream["has_pending"]) for stream in claimed["streams"]} == {
        "events/grown": (format_offset_text(grown), True),
        "events/new": ("-1", True),
        "not/yet": (format_offset_text(0), False),
    }
    await bench.restart()
    assert len((await bench.call("GET", "subscriptions/s"))[1]["streams"]) == 3


async def test_a_stream_that_was_made_anew_unseen_is_read_from_its_beginning(bench: Bench) -> None:
    await bench.put("events/a", "a long message")
    await bench.pull("s")
    await bench.service.close()
    await bench.store.delete("events/a")
    await bench.put("events/a", 1)
    await bench.store.close()
    await bench.open()
    await bench.announced(1)
    assert (await bench.call("GET", "subscriptions/s"))[1]["streams"][0]["acked_offset"] == "-1"


async def test_a_deleted_subscription_stays_deleted(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.call("DELETE", "subscriptions/s")
    await bench.restart()
    assert (await bench.call("GET", "subscriptions/s"))[0] == 404
    assert bench.store.look_up("SELECT count(*) FROM subscription_links") == [(0,)]


async def test_nothing_is_left_running_after_a_close(bench: Bench, receiver: WebhookReceiver) -> None:
    before = asyncio.all_tasks()
    receiver.default = Answer(after=asyncio.Event())
    await bench.webhook("s", receiver.url)
    await bench.pull("p")
    await bench.put("events/a", 1)
    await receiver.next()
    await bench.call("POST", "subscriptions/p/claim", {"worker": "one"})
    await bench.service.close()
    assert bench.clock.timers == 0
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in left if name.startswith(("subscription-", "wake-"))}
    assert (await bench.call("PUT", "subscriptions/x", {"type": "pull-wake", "pattern": "a", "wake_stream": "w"}))[
        0
    ] == 503
