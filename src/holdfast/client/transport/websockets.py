"""Opens WebSockets to a server, with the credential and the retries of a connection."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

from holdfast.api.errors import Unauthorized, Unreachable, error_of
from holdfast.client.connection import Parameters, ServerConnection, not_understood

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

MAX_MESSAGE: Final = 1024 * 1024
"""The largest message in bytes that a server accepts."""
OPEN_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_PING_SECONDS: Final = 20.0


async def open_socket(connection: ServerConnection, path: str, parameters: Parameters = ()) -> ClientConnection:
    """Open a WebSocket, retrying while the server is unreachable. The caller closes it."""
    return await keep_trying(connection, lambda: open_once(connection, path, parameters))


async def keep_trying(connection: ServerConnection, attempt_once: Callable[[], Awaitable[T]]) -> T:
    """Call `attempt_once`, retrying while the server is unreachable."""
    deadline, attempt = time.monotonic() + connection.retry_seconds, 0
    while True:
        used = connection.address
        try:
            return await attempt_once()
        except (Unreachable, Unauthorized) as error:
            if await connection.found_elsewhere(error, used):
                continue
            if isinstance(error, Unauthorized):
                raise
            delay = connection.backoff.delay(attempt)
            if time.monotonic() + delay >= deadline:
                raise
            await connection.wait(error, delay, attempt + 1)
            attempt += 1


async def open_once(
    connection: ServerConnection, path: str, parameters: Parameters = (), *, max_message: int | None = MAX_MESSAGE
) -> ClientConnection:
    """Tried this once. `max_message` is what may come from the server."""
    from websockets.asyncio.client import connect  # here: most who import a client open none
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

    query = f"?{urlencode(list(parameters))}" if parameters else ""
    asked = words_of(path)
    try:
        return await connect(
            f"ws{connection.url.removeprefix('http')}{path}{query}",
            additional_headers=connection.credential_header,
            proxy=None,
            compression=None,
            max_size=max_message,
            open_timeout=OPEN_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            ping_interval=_PING_SECONDS,
            # A server that waits for us to read answers pings slowly, and is not dead.
            ping_timeout=None,
        )
    except InvalidStatus as refused:
        answer = refused.response
        headers = {name.lower(): value for name, value in answer.headers.raw_items()}
        raise error_of(answer.status_code, headers, bytes(answer.body or b""), asked) from None
    except InvalidURI as error:
        raise ValueError(f"{connection.url} is not a valid URL: {error}") from None
    except InvalidHandshake as error:
        raise not_understood(f"{asked} failed: {error}") from error
    except (OSError, TimeoutError, EOFError) as error:
        raise unreachable(connection.url, asked, error) from error


def words_of(path: str) -> str:
    """Returns how messages name the request of a WebSocket."""
    return f"WebSocket {path}"


def unreachable(url: str, asked: str, error: BaseException) -> Unreachable:
    reason = str(error) or "no answer in time"
    return Unreachable(
        f"{url} cannot be reached: {reason} ({asked})",
        hint="check that the server is running and that the URL is correct",
    )
