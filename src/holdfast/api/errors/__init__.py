"""Errors, one class per cause. A caller catches a cause and never parses a message.

Each class has an HTTP status and a code. The server answers with both, and `error_of` turns the answer into the same
class again: a client raises the same error that was raised in the server.

This module contains the base class and the errors that any part may raise. Errors about one noun are in its module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.api.thread.entries import Entry

Headers = tuple[tuple[bytes, bytes], ...]
_BY_CODE: Final[dict[str, type[HoldfastError]]] = {}


class HoldfastError(Exception):
    """The base class of all errors of Holdfast. Subclasses set `status` and `code`; an instance can override them."""

    status: int | None = None
    """The HTTP status. None if there was no response."""
    code: str = "error"
    """The cause as one word, the same in server and client."""
    hint: str | None = None
    """What to do next, if the message does not make that clear."""
    headers: Headers = ()
    """HTTP headers of the response."""

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
        """To find this request in the server's log."""
        self.repeated = False
        """Whether an earlier attempt may have been carried out although its response was lost."""


class Unreachable(HoldfastError):
    """There was no response, in spite of retries. The request may or may not have been carried out."""

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
        """The entries that were not acknowledged. Appending them again is safe: the server drops duplicates."""


class NotUnderstood(HoldfastError):
    """The response cannot be parsed. Most likely this is not a Holdfast server."""

    code = "not_understood"


class Refused(HoldfastError):
    """The server refused the request."""

    status: int = 400


class InvalidRequest(Refused):
    """The request is invalid: a bad header, offset, entry, id or field."""

    code = "invalid_request"


class MethodNotAllowed(Refused):
    status = 405
    code = "method_not_allowed"


class Unauthorized(Refused):
    """The credential is missing, unknown, revoked or expired."""

    status = 401
    code = "unauthorized"
    headers = ((b"www-authenticate", b'Bearer realm="holdfast"'),)


class Forbidden(Refused):
    """The credential is valid, but not for this request."""

    status = 403
    code = "forbidden"


class NotFound(Refused):
    """Nothing has this id or path, or it has expired."""

    status = 404
    code = "not_found"


class Gone(NotFound):
    """It was deleted. Only forks of a stream can still read its data."""

    status = 410
    code = "gone"


class Conflict(Refused):
    """It already exists, or is not of the expected kind."""

    status = 409
    code = "conflict"


class TooLarge(Refused):
    """The request has more bytes than the server accepts."""

    status = 413
    code = "too_large"


class TooManyRequests(Refused):
    """There were too many requests: send them more slowly."""

    status = 429
    code = "too_many_requests"


class QuotaExceeded(Forbidden):
    """The tenant has as much as it may have. The operator of the server can allow more."""

    code = "quota_exceeded"


class DiskFull(Refused):
    """The server's disk is full. Nothing was written; reading still works."""

    status = 507
    code = "disk_full"


class ServerFailed(Refused):
    """The server failed because of a problem of its own."""

    status = 500
    code = "internal"


class Unavailable(ServerFailed):
    """The server is starting or shutting down, or its store cannot write for a reason other than a full disk."""

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
"""Headers that name the cause if there is no body: in a response to HEAD, or from another server of the protocol."""


def class_of(code: str) -> type[HoldfastError] | None:
    """Returns the class of an error by its code, or None."""
    from holdfast.api.errors import (  # noqa: F401  # they register
        agents,
        boxes,
        environments,
        images,
        interpreters,
        models,
        providers,
        runs,
        secrets,
        sessions,
        tasks,
        threads,
    )

    return _BY_CODE.get(code)


def error_from_document(
    document: Mapping[str, Any], *, status: int | None = None, request_id: str | None = None
) -> HoldfastError:
    """Returns the error of a document `{code, message, hint?}`.

    `status` is that of the response, if there was one. It decides the class if the code is unknown.
    """
    code = str(document.get("code", f"http_{status}"))
    fallback = ServerFailed if status is not None and status >= 500 else Refused
    kind = class_of(code) or _BY_STATUS.get(status or 400) or fallback
    hint = str(document["hint"]) if document.get("hint") else None
    return kind(str(document.get("message", "")), status=status, code=code, hint=hint, request_id=request_id)


def error_of(status: int, headers: Mapping[str, str], body: bytes, asked: str) -> HoldfastError:
    """Returns the error of an unsuccessful response. `asked` describes the request (`GET /v1/threads`)."""
    request_id = headers.get("x-request-id")
    document = _error_document(body)
    if not document:
        text = body[:200].decode(errors="replace").strip()
        document = {"message": f"{asked} was answered {status} {text}".rstrip()}
        if cause := next((code for expected, name, code in _BY_HEADER if status == expected and name in headers), None):
            document["code"] = cause
    document.setdefault("message", f"{asked} was answered {status}")
    if 300 <= status < 400:
        hint = "check that this is the URL of a Holdfast server"
        return NotUnderstood(str(document["message"]), status=status, code=f"http_{status}", hint=hint)
    return error_from_document(document, status=status, request_id=request_id)


def _error_document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)["error"]
    except (ValueError, TypeError, LookupError):
        return {}
    return document if isinstance(document, dict) else {}
