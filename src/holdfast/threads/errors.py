"""The errors of streams and threads, and constructors for those that carry protocol headers."""

from __future__ import annotations

from holdfast.api.errors import MethodNotAllowed
from holdfast.api.errors.threads import Closed, ProducerGap, StaleEpoch


def method_not_allowed(method: str, allowed: str) -> MethodNotAllowed:
    message = f"a stream does not support {method}; it supports {allowed}"
    return MethodNotAllowed(message, headers=((b"allow", allowed.encode()),))


def stream_closed(path: str, tail: bytes) -> Closed:
    """`tail` is the offset of the stream's end."""
    message = f"stream {path} is closed: nothing more can be appended to it"
    return Closed(message, headers=((b"stream-closed", b"true"), (b"stream-next-offset", tail)))


def producer_gap(expected: int, received: int) -> ProducerGap:
    headers = ((b"producer-expected-seq", b"%d" % expected), (b"producer-received-seq", b"%d" % received))
    return ProducerGap(f"producer sequence gap: expected {expected}, received {received}", headers=headers)


def stale_epoch(current: int) -> StaleEpoch:
    message = f"stale producer epoch: the current one is {current}"
    return StaleEpoch(message, headers=((b"producer-epoch", b"%d" % current),), current=current)
