"""Errors, one class per cause. A caller catches a cause and never parses a message.

Each class has an HTTP status and a code. The server answers with both, and `error_of` turns the answer into the same
class again: what is raised in a server arrives at the caller of a client as itself.

This module has the base and what any part may raise. The errors of one noun are in the module of that name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.api.entries import Entry

Headers = tuple[tuple[bytes, bytes], ...]
_BY_CODE: Final[dict[str, type[HoldfastError]]] = {}


class HoldfastError(Exception):
    """The base of all errors of Holdfast. Subclasses set `status` and `code`; an instance may have others."""

    status: int | None = None
    """The HTTP status. None if no server answered."""
    code: str = "error"
    """The cause as one word, the same on both sides of the wire."""
    hint: str | None = None
    """What to do next, unless the message makes that plain."""
    headers: Headers = ()
    """HTTP headers that belong in the answer."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" in cls.__dict__:
            _BY_CODE.setdefault(cls.code, cls)

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        headers: Headers = (),
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint
        if headers:
            self.headers = headers
        self.request_id = request_id
        """Finds this request in the server's log."""
        self.repeated = False
        """An earlier attempt of the same request may have been carried out, although its answer was lost."""


class Unreachable(HoldfastError):
    """No answer came, in spite of retries. What was sent may or may not have been written."""

    code = "unreachable"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        headers: Headers = (),
        request_id: str | None = None,
        unacknowledged: tuple[Entry, ...] = (),
    ) -> None:
        super().__init__(message, status=status, code=code, hint=hint, headers=headers, request_id=request_id)
        self.unacknowledged = unacknowledged
        """The entries that no answer came for. Appending them again is safe: their ids keep them single."""


class NotUnderstood(HoldfastError):
    """The answer makes no sense. Most likely this is not a Holdfast server."""

    code = "not_understood"


class Refused(HoldfastError):
    """The server answered, and said no."""

    status: int = 400


class InvalidRequest(Refused):
    """The request makes no sense: a bad header, offset, entry, id or field."""

    code = "invalid_request"


class MethodNotAllowed(Refused):
    status = 405
    code = "method_not_allowed"


class Unauthorized(Refused):
    """There is no credential, or it is unknown, revoked or expired."""

    status = 401
    code = "unauthorized"
    headers = ((b"www-authenticate", b'Bearer realm="holdfast"'),)


class Forbidden(Refused):
    """The credential is good, but not for this."""

    status = 403
    code = "forbidden"


class NotFound(Refused):
    """Nothing has this id or path, or it has expired."""

    status = 404
    code = "not_found"


class Gone(NotFound):
    """It was deleted. What is left of a stream serves its forks only."""

    status = 410
    code = "gone"


class Conflict(Refused):
    """It exists already, or is not what the request takes it for."""

    status = 409
    code = "conflict"


class TooLarge(Refused):
    """More bytes than the server takes in one request."""

    status = 413
    code = "too_large"


class TooManyRequests(Refused):
    """The server asks for a slower pace."""

    status = 429
    code = "too_many_requests"


class DiskFull(Refused):
    """The server's disk is full. Nothing was written; reading still works."""

    status = 507
    code = "disk_full"


class ServerFailed(Refused):
    """The server could not do it, for a reason of its own."""

    status = 500
    code = "internal"


class Unavailable(ServerFailed):
    """The server is starting or shutting down, or its store cannot write for another reason than a full disk."""

    status = 503
    code = "unavailable"


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
_BY_HEADER: Final = (
    (409, "stream-closed", "closed"),
    (409, "producer-expected-seq", "producer_gap"),
    (403, "producer-epoch", "stale_epoch"),
)
"""Headers name the cause if no body does: in an answer to HEAD, or of another server of the protocol."""


def class_of(code: str) -> type[HoldfastError] | None:
    """The class of an error by its code. None if there is no such class."""
    from holdfast.api.errors import agents, boxes, images, interpreters, models, runs, threads  # noqa: F401  # they register

    return _BY_CODE.get(code)


def told_error(told: Mapping[str, Any], *, status: int | None = None, request_id: str | None = None) -> HoldfastError:
    """The error that a document `{code, message, hint?}` stands for.

    `status` is that of the answer, if it came with one. It decides the class where the code is unknown.
    """
    code = str(told.get("code", f"http_{status}"))
    fallback = ServerFailed if status is not None and status >= 500 else Refused
    kind = class_of(code) or _BY_STATUS.get(status or 400) or fallback
    hint = str(told["hint"]) if told.get("hint") else None
    return kind(str(told.get("message", "")), status=status, code=code, hint=hint, request_id=request_id)


def error_of(status: int, headers: Mapping[str, str], body: bytes, asked: str) -> HoldfastError:
    """The error that an unsuccessful answer stands for. `asked` is the request in words (`GET /v1/threads`)."""
    request_id = headers.get("x-request-id")
    told = _told(body)
    if not told:
        said = body[:200].decode(errors="replace").strip()
        told = {"message": f"{asked} was answered {status} {said}".rstrip()}
        if cause := next((code for expected, name, code in _BY_HEADER if status == expected and name in headers), None):
            told["code"] = cause
    told.setdefault("message", f"{asked} was answered {status}")
    if 300 <= status < 400:
        hint = "is this the URL of a Holdfast server?"
        return NotUnderstood(str(told["message"]), status=status, code=f"http_{status}", hint=hint)
    return told_error(told, status=status, request_id=request_id)


def _told(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)["error"]
    except (ValueError, TypeError, LookupError):
        return {}
    return told if isinstance(told, dict) else {}
