"""Errors of threads and streams."""

from __future__ import annotations

from holdfast.api.errors import Conflict, Forbidden, Headers, InvalidRequest, ServerFailed


class InvalidEntry(InvalidRequest):
    """A message on a thread is not an entry."""

    code = "invalid_entry"


class Closed(Conflict):
    """Nothing more can be appended."""

    code = "closed"


class ContentTypeMismatch(Conflict):
    """The content type differs from the one that the stream was created with."""

    code = "content_type_mismatch"


class SequenceConflict(Conflict):
    """`Stream-Seq` did not increase."""

    code = "sequence_conflict"


class ProducerGap(Conflict):
    """An idempotent producer skipped a sequence number: an earlier request of it has not arrived."""

    code = "producer_gap"


class StaleEpoch(Forbidden):
    """A newer producer with the same id has replaced this one."""

    code = "stale_epoch"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        headers: Headers = (),
        request_id: str | None = None,
        current: int = 0,
    ) -> None:
        super().__init__(message, status=status, code=code, hint=hint, headers=headers, request_id=request_id)
        self.current = current
        """The epoch of the newer one. Only the store knows it: 0 in a client."""


class StreamDamaged(ServerFailed):
    """Part of the stream is not on disk as it was written. Other streams are not affected."""

    code = "damaged"
    hint = "holdfast check lists the damage; holdfast backup copies the rest"
