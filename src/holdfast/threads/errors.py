"""What can go wrong with a stream or a thread. Each error knows its HTTP status and its protocol headers.

One class per cause, so that callers catch a cause and never parse a message.
"""

from __future__ import annotations

from typing import ClassVar


class StreamError(Exception):
    """Base of everything a stream store or its surface refuses to do."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, headers: tuple[tuple[bytes, bytes], ...] = (), *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers = headers
        self.hint = hint
        """What to do next, where that is not plain from the message."""


class InvalidRequest(StreamError):
    """The request itself makes no sense: a bad header, offset, body or path."""


class MethodNotAllowed(StreamError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not something a stream does: it does {allowed}", ((b"allow", allowed.encode()),))


class InvalidEntry(StreamError):
    """A message on a thread is not an entry."""

    code = "invalid_entry"


class Unauthorized(StreamError):
    """Nobody we know: no credential, or one that does not hold (any more)."""

    status = 401
    code = "unauthorized"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, ((b"www-authenticate", b'Bearer realm="holdfast"'),), hint=hint)


class Forbidden(StreamError):
    """Somebody we know, who may not do this."""

    status = 403
    code = "forbidden"


class StreamNotFound(StreamError):
    """No stream has this path (or it has expired)."""

    status = 404
    code = "not_found"


class StreamGone(StreamError):
    """The stream was deleted, and its data is kept only for the forks that read it."""

    status = 410
    code = "gone"


class StreamConflict(StreamError):
    """The stream exists, and is not what the request takes it for."""

    status = 409
    code = "conflict"


class StreamClosed(StreamConflict):
    """Nothing more can be appended."""

    code = "closed"

    def __init__(self, path: str, tail: int) -> None:
        from holdfast.threads.offsets import format_offset

        super().__init__(
            f"stream {path} is closed: nothing more can be appended to it",
            ((b"stream-closed", b"true"), (b"stream-next-offset", format_offset(tail))),
        )


class ContentTypeMismatch(StreamConflict):
    """The content type differs from the one that the stream was created with."""

    code = "content_type_mismatch"


class SequenceConflict(StreamConflict):
    """`Stream-Seq` did not increase."""

    code = "sequence_conflict"


class ProducerGap(StreamConflict):
    """An idempotent producer skipped a sequence number: an earlier request of its has not arrived."""

    code = "producer_gap"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(
            f"producer sequence gap: expected {expected}, received {received}",
            (
                (b"producer-expected-seq", b"%d" % expected),
                (b"producer-received-seq", b"%d" % received),
            ),
        )


class StaleEpoch(StreamError):
    """A producer that was replaced by a newer one of the same id."""

    status = 403
    code = "stale_epoch"

    def __init__(self, current: int) -> None:
        super().__init__(
            f"stale producer epoch: the current one is {current}",
            ((b"producer-epoch", b"%d" % current),),
        )
        self.current = current


class BodyTooLarge(StreamError):
    """More bytes than the server takes in one request."""

    status = 413
    code = "too_large"


class StreamDamaged(StreamError):
    """Some of the stream is not on the disk as it was written. Other streams are not touched by that."""

    status = 500
    code = "damaged"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="holdfast check says what is damaged; holdfast backup keeps what is not")


class StoreFull(StreamError):
    """The disk is full. Nothing was written; reads go on."""

    status = 507
    code = "disk_full"


class StoreUnavailable(StreamError):
    """The store could not write for another reason than a full disk, or is shutting down."""

    status = 503
    code = "unavailable"
