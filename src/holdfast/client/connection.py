"""One server over HTTP: its URL, the credential, retries, and error responses as typed errors."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from holdfast.api.errors import (
    HoldfastError,
    NotUnderstood,
    Refused,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_of,
)
from holdfast.client.transport import NotHttp, NotSent, Transport, TransportError

if TYPE_CHECKING:
    import httpx

    from holdfast.client.transport.asynchronous import AsyncTransport

DEFAULT_TIMEOUT: Final = 30.0
DEFAULT_RETRY_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 75.0
"""A live read that is silent for longer is dead, because the server ends each one after about 60 seconds."""
_CHEAP: Final = "/v1/threads?limit=1"
"""A cheap request that every credential of a home may make."""

T = TypeVar("T")
Parameters = Sequence[tuple[str, str]]
FindAgain = Callable[[], Awaitable[tuple[str, str | None] | None]]
"""Returns the current URL and credential of a server that may have been restarted, or None if they are unknown."""
Address = tuple[str, str | None]
"""The URL of a server, and the value of the `authorization` header."""


def _random() -> float:
    import random  # here: most clients never wait

    return random.random()


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a retry. The wait doubles each time up to a cap, with jitter that spreads clients out."""

    first: float = 0.1
    """Seconds before the first retry."""
    cap: float = 5.0
    """The longest wait in seconds."""
    randomness: Callable[[], float] = _random

    def delay(self, attempt: int, asked: float = 0.0) -> float:
        """Returns the seconds to wait after failure number `attempt` (from 0), at least `asked` but never more than the
        cap.
        """
        ceiling = min(self.cap, self.first * 2.0 ** min(attempt, 32))
        return max(ceiling * (0.5 + self.randomness() / 2), min(asked, self.cap))


@dataclass(frozen=True, slots=True)
class RetryNotice:
    """Passed to `on_retry`: something failed and will be tried again."""

    reason: str
    delay: float
    """Seconds until the next attempt."""
    attempt: int
    """How many attempts have failed so far."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful response."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    repeated: bool
    """Whether an earlier attempt may have been carried out although its response was lost."""

    def read(self, from_json: Callable[[Any], T]) -> T:
        """Returns the parsed JSON body. Raises `NotUnderstood` if it cannot be parsed."""
        try:
            return from_json(json.loads(self.body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise not_understood(f"the response cannot be read: {self.body[:80]!r}") from error


def encode_json(value: Any) -> bytes:
    """Encode without loss: integers of any size are kept, and values that JSON cannot represent raise `ValueError`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def is_temporary(status: int) -> bool:
    """Returns whether the same request can succeed later on its own. A full disk needs someone to act."""
    return status == 429 or (status >= 500 and status not in (501, 505, 507))


def is_final(error: HoldfastError) -> bool:
    """Whether the error is about a box. Then a retry does not help, even if the status is that of a failing server."""
    from holdfast.api.errors.boxes import BoxError  # here: only failures need it

    return isinstance(error, BoxError)


class ServerConnection:
    """Sends requests to one server. A client owns and closes it. Reads no environment variables, not even proxies."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float,
        retry_seconds: float,
        on_retry: Callable[[RetryNotice], None] | None,
        backoff: Backoff | None = None,
        find_again: FindAgain | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not is_server_url(url):
            raise ValueError(f"{url!r} is not a server URL: it should look like http://127.0.0.1:8484")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        self.backoff = backoff or Backoff()
        self._on_retry = on_retry
        self._transport = transport or _async_transport(url)
        self._find_again = find_again
        self.use_credential(api_key)

    @property
    def address(self) -> Address:
        """The URL and credential that the next request will use."""
        return self.url, self._authorization

    async def found_elsewhere(self, error: HoldfastError, used: Address) -> bool:
        """Look for a new address or credential of the server, and use it from now on. Returns whether it changed.

        `used` is the address of the failed request. Another task may have found the new one in the meantime.
        """
        if self._find_again is None or not isinstance(error, Unreachable | Unauthorized):
            return False
        if self.address != used:
            return True
        found = await self._find_again()
        if self.address != used:
            return True
        if found is None:
            return False
        url, credential = found[0].rstrip("/"), found[1]
        if (url, None if credential is None else f"Bearer {credential}") == used:
            return False
        self.url = url
        self.use_credential(credential)
        return True

    def use_credential(self, credential: str | None) -> None:
        self._authorization = None if credential is None else f"Bearer {credential}"

    async def ask(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
    ) -> Answer:
        """Send a request, and retry until there is a response or the time for retries is over.

        `repeatable=False` is for requests that must not be carried out twice: they are retried only if they never
        reached the server. `timeout` overrides the default for slow requests.
        """
        asked = f"{method} {path}"
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("content-type", "application/json")
        deadline = time.monotonic() + self.retry_seconds
        attempt, repeated = 0, False
        while True:
            error: HoldfastError
            used = self.address
            try:
                seconds = self._seconds(deadline, attempt, timeout or self.timeout)
                reply = await self._transport.request(
                    method,
                    self._url(path, parameters),
                    {**headers, **self.credential_header},
                    body,
                    timeout=seconds,
                    connect_timeout=min(seconds, _CONNECT_SECONDS),
                )
            except NotHttp as broken:
                raise not_understood(f"{asked} failed: {broken}") from broken
            except TransportError as lost:
                error, asked_delay = self.lost(asked, str(lost), lost), 0.0
                harmless = isinstance(lost, NotSent)
            else:
                if 200 <= reply.status < 300:
                    return Answer(*reply, repeated)
                error = error_of(reply.status, reply.headers, reply.body, asked)
                error.repeated = repeated
                if isinstance(error, Unauthorized) and await self.found_elsewhere(error, used):
                    continue
                if not is_temporary(reply.status) or is_final(error):
                    raise error
                asked_delay = retry_after(reply.headers)
                harmless = isinstance(error, TooManyRequests)
            repeated = repeated or not harmless
            if not (repeated and not repeatable) and await self.found_elsewhere(error, used):
                continue
            delay = self.backoff.delay(attempt, asked_delay)
            if (repeated and not repeatable) or time.monotonic() + delay >= deadline:
                raise error
            await self.wait(error, delay, attempt + 1)
            attempt += 1

    async def open_events(self, path: str, parameters: Parameters) -> httpx.Response:
        """Begin a live read. The caller closes the response and handles all failures."""
        return await self._streams().open(
            "GET",
            self._url(path, parameters),
            {"accept": "text/event-stream", **self.credential_header},
            None,
            timeout=_SILENCE_SECONDS,
            connect_timeout=_CONNECT_SECONDS,
        )

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: AsyncIterable[bytes] | bytes | None = None,
        media_type: str = "application/octet-stream",
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send one request and stream both its body and the response.

        `silence` is how long the server may be silent. Raises `Unreachable` if the connection breaks.
        """
        import httpx

        from holdfast.client.transport.asynchronous import LOST, NEVER_SENT, reason_of

        asked = f"{method} {path}"
        seconds = silence or self.timeout
        sent = dict(headers or {}) | ({} if body is None else {"content-type": media_type})
        streams = body is not None and not isinstance(body, bytes)
        if streams and self._find_again is not None:
            # A streamed body can be sent only once, so find the server and its key before sending it.
            await self._ensure_known()
        try:
            while True:
                used = self.address
                try:
                    response = await self._streams().open(
                        method,
                        self._url(path, parameters),
                        {**sent, **self.credential_header},
                        body,
                        timeout=seconds,
                        connect_timeout=min(seconds, _CONNECT_SECONDS),
                    )
                except NEVER_SENT as lost:
                    if not await self.found_elsewhere(self.lost(asked, reason_of(lost), lost), used):
                        raise
                    continue
                try:
                    if not response.is_success:
                        refused = error_of(response.status_code, response.headers, await response.aread(), asked)
                        if streams or not await self.found_elsewhere(refused, used):
                            raise refused
                        continue
                    yield response
                    return
                finally:
                    await response.aclose()
        except LOST as lost:
            raise self.lost(asked, reason_of(lost), lost) from lost
        except httpx.HTTPError as broken:
            raise not_understood(f"{asked} failed: {broken}") from broken

    async def _ensure_known(self) -> None:
        """Make sure that the address and the credential are current. Other refusals do not matter here."""
        with contextlib.suppress(Refused):
            await self.ask("GET", _CHEAP)

    @property
    def credential_header(self) -> dict[str, str]:
        return {} if self._authorization is None else {"authorization": self._authorization}

    async def wait(self, error: HoldfastError, delay: float, attempt: int) -> None:
        if self._on_retry is not None:
            self._on_retry(RetryNotice(error.message, delay, attempt))
        await self._transport.sleep(delay)

    def lost(self, asked: str, reason: str, error: Exception) -> Unreachable:
        unreachable = Unreachable(
            f"{self.url} cannot be reached: {reason} ({asked})",
            hint="check that the server is running and that the URL is correct",
        )
        unreachable.__cause__ = error
        return unreachable

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _url(self, path: str, parameters: Parameters) -> str:
        query = urlencode(list(parameters))
        return f"{self.url}{path}?{query}" if query else f"{self.url}{path}"

    def _seconds(self, deadline: float, attempt: int, seconds: float) -> float:
        if attempt:  # retries stay within the caller's deadline
            seconds = min(seconds, max(1.0, deadline - time.monotonic()))
        return seconds

    def _streams(self) -> AsyncTransport:
        from holdfast.client.transport.asynchronous import AsyncTransport

        if not isinstance(self._transport, AsyncTransport):
            raise TypeError("this transport does not support streaming")
        return self._transport


def is_server_url(url: str) -> bool:
    try:
        parsed = urlsplit(url)
        return parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        return False


def _async_transport(url: str) -> Transport:
    from holdfast.client.transport.asynchronous import AsyncTransport  # here: httpx takes long to import

    return AsyncTransport(secure=url.startswith("https:"))


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds to wait that the server asked for. The header's other form, a date, is ignored."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def not_understood(message: str) -> NotUnderstood:
    return NotUnderstood(message, hint="check that this is the URL of a Holdfast server")
