"""Streams of the server itself, which only owners read: subscriptions do not have them."""

from __future__ import annotations

import pytest

from holdfast.threads.access.credentials import AUDIT
from holdfast.threads.subscriptions.errors import InvalidSubscription
from holdfast.threads.subscriptions.glob import Glob
from holdfast.threads.subscriptions.schemas import Limits, parse_streams


def test_the_audit_log_is_in_no_subscription() -> None:
    for pattern in ("**", "*/*", "holdfast/*", "holdfast/**", AUDIT):
        assert not Glob.parse(pattern).matches(AUDIT), pattern
    assert Glob.parse("holdfast/*").matches("holdfast/other")
    for path in (AUDIT, f"/{AUDIT}", f"{AUDIT}/"):
        with pytest.raises(InvalidSubscription):
            parse_streams([path], Limits())
