"""What can go wrong for a client. One class per cause, so that callers catch a cause and never parse a message.

The server's refusals arrive as themselves: its error code picks the class, its message and hint are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.threads.entries import Entry


class HoldfastError(Exception):
    """Base of everything a client raises on its own account."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "error",
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status, where the server answered."""
        self.code = code
        """The cause as one word, the same on both sides of the wire."""
        self.hint = hint
        """What to do next, where somebody knows."""
        self.request_id = request_id
        """Finds this request in the server's log."""
        self.repeated = False
        """An earlier attempt of the same request may have been carried out, its answer lost."""


class Unreachable(HoldfastError):
    """No answer came, in spite of retries. What was sent may or may not have been written."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "unreachable",
        hint: str | None = None,
        request_id: str | None = None,
        unacknowledged: tuple[Entry, ...] = (),
    ) -> None:
        super().__init__(message, status=status, code=code, hint=hint, request_id=request_id)
        self.unacknowledged = unacknowledged
        """The entries that no answer came for. Appending them again is safe: their ids keep them single."""


class Refused(HoldfastError):
    """The server answered, and said no."""


class InvalidRequest(Refused):
    """The request makes no sense to the server: a bad offset, entry, id or field."""


class Unauthorized(Refused):
    """No credential, or one that is unknown, revoked or expired."""


class Forbidden(Refused):
    """A good credential, for another thread or another scope."""


class StaleEpoch(Forbidden):
    """Somebody else appends under this producer's id, and is newer."""


class NotFound(Refused):
    """Nothing has this id."""


class Gone(NotFound):
    """It was deleted; what is left of it serves its forks only."""


class Conflict(Refused):
    """It exists already, or is not what the request takes it for."""


class Closed(Conflict):
    """Nothing more can be appended."""


class ProducerGap(Conflict):
    """The server misses an earlier request of this producer."""


class TooLarge(Refused):
    """More bytes than the server takes in one request."""


class TooManyRequests(Refused):
    """The server asks for a slower pace."""


class DiskFull(Refused):
    """The server's disk is full. Nothing was written; reading goes on."""


class ServerFailed(Refused):
    """The server could not do it, for a reason of its own."""


class NotUnderstood(HoldfastError):
    """The answer makes no sense: most likely this is not a Holdfast server."""


_BY_CODE: Final[Mapping[str, type[Refused]]] = {
    "stale_epoch": StaleEpoch,
    "producer_gap": ProducerGap,
    "closed": Closed,
}
_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: InvalidRequest,
    429: TooManyRequests,
    507: DiskFull,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes, asked: str) -> HoldfastError:
    """The error that an unsuccessful answer stands for; `asked` is the request in words (`GET /v1/threads`)."""
    request_id = headers.get("x-request-id")
    told = _told(body)
    if not told:
        # Headers name the cause where no body does: an answer to HEAD, or one of another server of the protocol.
        told = {"message": f"{asked} was answered {status} {body[:200].decode(errors='replace').strip()}".rstrip()}
        if status == 409 and headers.get("stream-closed", "").lower() == "true":
            told["code"] = "closed"
        elif status == 409 and "producer-expected-seq" in headers:
            told["code"] = "producer_gap"
        elif status == 403 and "producer-epoch" in headers:
            told["code"] = "stale_epoch"
    code = str(told.get("code", f"http_{status}"))
    message = str(told.get("message", f"{asked} was answered {status}"))
    hint = str(told["hint"]) if told.get("hint") else None
    if 300 <= status < 400:
        return NotUnderstood(message, status=status, code=code, hint="is this the URL of a Holdfast server?")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (ServerFailed if status >= 500 else Refused)
    return kind(message, status=status, code=code, hint=hint, request_id=request_id)


def _told(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)["error"]
    except (ValueError, TypeError, LookupError):
        return {}
    return told if isinstance(told, dict) else {}
