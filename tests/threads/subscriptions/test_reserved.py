"""Streams of the server itself, which only owners read: subscriptions do not have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.threads.access.credentials import AUDIT
from holdfast.threads.subscriptions.errors import InvalidSubscription
from holdfast.threads.subscriptions.glob import Glob
from holdfast.threads.subscriptions.records import Link
from holdfast.threads.subscriptions.schemas import Limits, parse_streams

if TYPE_CHECKING:
    from tests.threads.subscriptions.conftest import Bench


def test_the_audit_log_is_in_no_subscription() -> None:
    for pattern in ("**", "*/*", "holdfast/*", "holdfast/**", AUDIT):
        assert not Glob.parse(pattern).matches(AUDIT), pattern
    assert Glob.parse("holdfast/*").matches("holdfast/other")
    for path in (AUDIT, f"/{AUDIT}", f"{AUDIT}/"):
        with pytest.raises(InvalidSubscription):
            parse_streams([path], Limits())


@pytest.mark.anyio
async def test_a_stored_subscription_of_earlier_loses_the_audit_log(bench: Bench) -> None:
    """Whoever could store one may have lost their rights since, and would still hear of every change."""
    await bench.pull("s")
    await bench.put(AUDIT, 1)
    await bench.put("events/a")
    link = Link(0, True, False)
    await bench.subscriptions.save(bench.stored("s"), {AUDIT: link})
    await bench.restart()
    await bench.append(AUDIT, 2)
    await bench.append("events/a", 3)
    await bench.announced(1)
    _, claimed = await bench.call("POST", "subscriptions/s/claim", {"worker": "one"})
    assert [each["path"] for each in claimed["streams"]] == ["events/a"]
    _, described = await bench.call("GET", "subscriptions/s")
    assert AUDIT not in str(described)
