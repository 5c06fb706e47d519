"""Pull-wake: an event on the wake stream, one claim, a lease, and fencing when it is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.api.errors import DiskFull
from holdfast.threads.protocol.offsets import format_offset_text
from holdfast.threads.subscriptions.records import Phase

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench

pytestmark = pytest.mark.anyio


async def claim(bench: Bench, id: str = "s", worker: str = "one") -> dict[str, Any]:
    status, claimed = await bench.call("POST", f"subscriptions/{id}/claim", {"worker": worker})
    assert status == 200, claimed
    return dict(claimed)


def report(claimed: dict[str, Any], *, done: bool = False, **offsets: int) -> dict[str, Any]:
    return {
        "wake_id": claimed["wake_id"],
        "generation": claimed["generation"],
        "acks": [
            {"stream": path.replace("__", "/"), "offset": format_offset_text(offset)}
            for path, offset in offsets.items()
        ],
        "done": done,
    }


async def test_a_new_stream_wakes_and_a_worker_claims_acknowledges_and_is_done(bench: Bench) -> None:
    await bench.pull("s")
    tail = await bench.put("events/a", {"n": 1})
    (event,) = await bench.events(1)
    assert event == {
        "type": "wake",
        "subscription_id": "s",
        "stream": "events/a",
        "generation": 1,
        "ts": bench.clock.now(),
    }
    claimed = await claim(bench)
    assert claimed["generation"] == 1
    assert claimed["lease_ttl_ms"] == 5_000
    assert claimed["streams"] == [
        {
            "path": "events/a",
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": format_offset_text(tail),
            "has_pending": True,
        }
    ]
    status, busy = await bench.call("POST", "subscriptions/s/claim", {"worker": "two"})
    assert (status, busy["error"]["code"]) == (409, "ALREADY_CLAIMED")
    assert (busy["error"]["current_holder"], busy["error"]["generation"]) == ("one", 1)
    answer = await bench.call(
        "POST", "subscriptions/s/ack", report(claimed, done=True, events__a=tail), claimed["token"]
    )
    assert answer == (200, {"ok": True, "next_wake": False})
    status, over = await bench.call("POST", "subscriptions/s/ack", report(claimed), claimed["token"])
    assert (status, over["error"]["code"]) == (409, "FENCED")
    status, none = await bench.call("POST", "subscriptions/s/claim", {"worker": "two"})
    assert (status, none["error"]["code"]) == (409, "NO_PENDING_WORK")
    assert len(await bench.events(1)) == 1


async def test_what_came_during_the_work_wakes_again_at_once(bench: Bench) -> None:
    await bench.pull("s")
    tail = await bench.put("events/a", 1)
    claimed = await claim(bench)
    await bench.append("events/a", 2)
    answer = await bench.call(
        "POST", "subscriptions/s/ack", report(claimed, done=True, events__a=tail), claimed["token"]
    )
    assert answer == (200, {"ok": True, "next_wake": True})
    await bench.announced(2)


async def test_existing_streams_begin_at_their_tail(bench: Bench) -> None:
    tail = await bench.put("events/old", 1)
    created = await bench.pull("s")
    assert created["streams"] == [{"path": "events/old", "link_type": "glob", "acked_offset": format_offset_text(tail)}]
    assert (await bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))[0] == 409


async def test_an_empty_stream_that_comes_into_being_wakes(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a")
    claimed = await claim(bench)
    answer = await bench.call("POST", "subscriptions/s/ack", report(claimed, done=True, events__a=0), claimed["token"])
    assert answer == (200, {"ok": True, "next_wake": False})


async def test_a_lease_that_runs_out_fences_its_worker_and_wakes_the_next(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    first = await claim(bench)
    bench.clock.advance(4_999)
    assert (await bench.call("POST", "subscriptions/s/ack", report(first), first["token"]))[0] == 200
    bench.clock.advance(4_999)
    assert (await bench.call("POST", "subscriptions/s/claim", {"worker": "two"}))[0] == 409
    bench.clock.advance(1)
    assert [event["generation"] for event in await bench.events(2)] == [1, 2]
    second = await claim(bench, worker="two")
    assert second["generation"] == 2
    for action in ("ack", "release"):
        status, fenced = await bench.call("POST", f"subscriptions/s/{action}", report(first), first["token"])
        assert (status, fenced["error"]["code"]) == (409, "FENCED")
    assert (await bench.call("POST", "subscriptions/s/ack", report(second), second["token"]))[0] == 200


async def test_a_lease_is_over_when_its_time_is_even_if_no_timer_has_fired(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    first = await claim(bench)
    bench.clock._now += 5_000  # no callbacks
    status, fenced = await bench.call("POST", "subscriptions/s/ack", report(first), first["token"])
    assert (status, fenced["error"]["code"]) == (409, "FENCED")
    assert (await claim(bench, worker="two"))["generation"] == 2


async def test_a_released_wake_goes_to_the_next_worker(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    claimed = await claim(bench)
    assert await bench.call("POST", "subscriptions/s/release", report(claimed), claimed["token"]) == (204, None)
    await bench.announced(2)
    assert (await claim(bench, worker="two"))["generation"] == 2


async def test_a_wake_for_a_stream_that_was_deleted_does_not_block_the_next(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.store.delete("events/a")
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.IDLE and saved.generation == 1)
    assert (await bench.call("GET", "subscriptions/s"))[1]["streams"] == []
    await bench.put("events/b", 1)
    assert [event["stream"] for event in await bench.events(2)] == ["events/a", "events/b"]


async def test_a_stream_made_anew_is_read_from_its_beginning(bench: Bench) -> None:
    await bench.pull("s")
    tail = await bench.put("events/a", "a long message")
    claimed = await claim(bench)
    await bench.call("POST", "subscriptions/s/ack", report(claimed, done=True, events__a=tail), claimed["token"])
    await bench.store.delete("events/a")
    await bench.put("events/a", 1)
    (stream,) = (await claim(bench))["streams"]
    assert stream["acked_offset"] == "-1"


async def test_a_wake_stream_that_is_missing_is_waited_for(bench: Bench) -> None:
    await bench.subscribe("s", type="pull-wake", pattern="events/*", wake_stream="later")
    await bench.put("events/a", 1)
    failed = await bench.subscriptions.until(lambda saved: saved.attempts == 1)
    assert failed.next_attempt_at == bench.clock.now() + 1_000
    status, seen = await bench.call("GET", "subscriptions/s")
    assert (status, seen["status"]) == (200, "failed")
    assert "later" in seen["last_error"]
    bench.clock.advance(1_000)
    await bench.subscriptions.until(lambda saved: saved.attempts == 2)
    await bench.put("later")  # no need to turn the clock: its coming is noticed
    assert [event["generation"] for event in await bench.events(1, "later")] == [1]
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    assert (await bench.call("GET", "subscriptions/s"))[1]["status"] == "active"


async def test_a_subscription_to_everything_does_not_wake_itself(bench: Bench) -> None:
    await bench.pull("s", pattern="**")
    await bench.put("events/a", 1)
    await bench.events(1)
    claimed = await claim(bench)
    assert [stream["path"] for stream in claimed["streams"]] == ["events/a"]


async def test_a_long_worker_is_given_a_new_token_before_its_old_one_expires(bench: Bench) -> None:
    await bench.pull("s", lease_ttl_ms=600_000)
    await bench.put("events/a", 1)
    claimed = await claim(bench)
    token = claimed["token"]
    renewed = 0
    for _ in range(20):
        bench.clock.advance(590_000)
        status, answer = await bench.call("POST", "subscriptions/s/ack", report(claimed), token)
        assert status == 200
        renewed += "token" in answer
        token = answer.get("token", token)
    assert renewed > 1
    status, expired = await bench.call("POST", "subscriptions/s/ack", report(claimed), claimed["token"])
    assert (status, expired["error"]["code"]) == (401, "TOKEN_EXPIRED")


async def test_nothing_is_answered_before_it_is_saved(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    bench.subscriptions.open.clear()
    claiming = asyncio.create_task(bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))
    await bench.subscriptions.held.wait()
    await bench.append("events/a", 2)  # a whole commit of the store goes by
    assert not claiming.done()
    bench.subscriptions.open.set()
    assert (await claiming)[0] == 200


async def test_a_claim_that_cannot_be_saved_is_no_claim(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    bench.subscriptions.failure = DiskFull("the disk is full")
    assert (await bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))[0] == 507
    bench.subscriptions.failure = None
    assert (await claim(bench, worker="two"))["generation"] == 1


async def test_a_wake_that_cannot_be_saved_is_tried_again_and_not_before(bench: Bench) -> None:
    await bench.pull("s")
    bench.subscriptions.failure = DiskFull("the disk is full")
    await bench.put("events/a", 1)
    await until_driver_rests(bench)
    assert bench.stored("s").phase is Phase.IDLE
    bench.subscriptions.failure = None
    bench.clock.advance(1_000)
    assert (await bench.events(1))[0]["generation"] == 1


async def until_driver_rests(bench: Bench) -> None:
    async with asyncio.timeout(240):
        while (driver := bench.service._live["s"].driver) is not None:
            await asyncio.wait([driver])


async def test_a_client_that_goes_away_leaves_no_half_of_a_claim(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    await bench.events(1)
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.WAITING)
    bench.subscriptions.open.clear()
    claiming = asyncio.create_task(bench.call("POST", "subscriptions/s/claim", {"worker": "one"}))
    await bench.subscriptions.held.wait()
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    bench.subscriptions.open.set()
    await bench.subscriptions.until(lambda saved: saved.phase is Phase.LEASED)
    assert bench.stored("s").phase is Phase.LEASED


async def test_of_many_workers_one_has_the_wake(bench: Bench) -> None:
    await bench.pull("s")
    await bench.put("events/a", 1)
    answers = await asyncio.gather(
        *(bench.call("POST", "subscriptions/s/claim", {"worker": f"w{each}"}) for each in range(20))
    )
    assert sorted(status for status, _ in answers) == [200] + [409] * 19


async def test_a_wake_lists_a_bounded_number_of_streams_and_the_next_one_the_rest(bench: Bench) -> None:
    await bench.pull("s")
    bench.service.limits = type(bench.limits)(wake_streams=2)
    tails = {f"events/{name}": await bench.put(f"events/{name}", 1) for name in "abc"}
    claimed = await claim(bench)
    listed = [stream["path"] for stream in claimed["streams"]]
    assert len(listed) == 2
    body = report(claimed, done=True, **{path.replace("/", "__"): tails[path] for path in listed})
    assert (await bench.call("POST", "subscriptions/s/ack", body, claimed["token"]))[1]["next_wake"] is True
    assert (await claim(bench))["streams"][0]["path"] not in listed
