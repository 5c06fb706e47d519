"""Errors in Daytona's own shape: the status selects the SDK's exception class, and the code a more precise one."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError
from starlette.responses import Response

from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import (
    BoxGone,
    BoxStopped,
    ExecTimeout,
    FileDenied,
    FileExists,
    FileMissing,
    InvalidSpec,
    ProcessLost,
    ProcessNotFound,
    Unsupported,
    WrongFileKind,
)
from holdfast.api.problems import describe_problems

CONTROL_PLANE: Final = "DAYTONA_API"
TOOLBOX: Final = "DAYTONA_DAEMON"
_CODES: Final = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    410: "GONE",
    413: "PAYLOAD_TOO_LARGE",
    422: "UNPROCESSABLE_ENTITY",
    501: "NOT_IMPLEMENTED",
    502: "BAD_GATEWAY",
    503: "SERVICE_UNAVAILABLE",
}


class ApiError(Exception):
    """A request that is refused or failed. `code` defaults to the usual one of the status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or _CODES.get(status, "INTERNAL_SERVER_ERROR")


def bad_request(message: str) -> ApiError:
    return ApiError(400, message)


def not_found(message: str) -> ApiError:
    return ApiError(404, message)


def conflict(message: str) -> ApiError:
    return ApiError(409, message)


def not_supported(message: str) -> ApiError:
    """For what Holdfast's boxes cannot do. Clear at once, so that nobody retries."""
    return ApiError(501, message)


_TRANSLATED: Final[tuple[tuple[type[HoldfastError], int, str | None], ...]] = (
    (FileMissing, 404, "FILE_NOT_FOUND"),
    (FileDenied, 403, "FILE_ACCESS_DENIED"),
    (FileExists, 409, None),
    (WrongFileKind, 400, "INVALID_FILE_PATH"),
    (ExecTimeout, 408, "PROCESS_EXECUTION_TIMEOUT"),
    (ProcessNotFound, 404, "PROCESS_NOT_FOUND"),
    (ProcessLost, 410, None),
    (BoxStopped, 400, None),
    (BoxGone, 404, None),
    (InvalidSpec, 400, None),
    (Unsupported, 501, None),
)


def api_error(error: Exception) -> ApiError:
    """Returns any error as one of Daytona's. An error that nobody foresaw tells nothing about the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return ApiError(400, describe_problems(error.errors()), "INVALID_REQUEST_BODY")
    if isinstance(error, HoldfastError):
        message = f"{error.message}: {error.hint}" if error.hint else error.message
        for kind, status, code in _TRANSLATED:
            if isinstance(error, kind):
                return ApiError(status, message, code)
        return ApiError(error.status or 500, message)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiError(507, "the server's disk is full: not all of this was done")
    return ApiError(500, "the server failed; its log says more")


def document(error: ApiError, source: str, path: str, method: str) -> dict[str, object]:
    return {
        "statusCode": error.status,
        "message": error.message,
        "code": error.code,
        "error": error.code,
        "source": source,
        "path": path,
        "method": method,
        "timestamp": datetime.now(UTC).isoformat(),
    }


def response(error: ApiError, source: str, path: str, method: str) -> Response:
    headers = {"www-authenticate": 'Bearer realm="holdfast"'} if error.status == 401 else None
    body = json.dumps(document(error, source, path, method))
    return Response(body, error.status, headers, media_type="application/json")
