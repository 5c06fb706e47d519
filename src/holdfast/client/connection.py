"""One server over HTTP: its URL, the credential, retries, and refusals as typed errors. Knows nothing of threads."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import httpx

from holdfast.api.errors import (
    HoldfastError,
    NotUnderstood,
    Refused,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_of,
)
from holdfast.client.backoff import Backoff, RetryNotice

DEFAULT_TIMEOUT: Final = 30.0
DEFAULT_RETRY_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 75.0
"""A live read that is silent for longer is dead: the server ends each one after about 60 seconds."""
_LIMITS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=20, keepalive_expiry=3.0)
"""Idle connections are dropped before a server drops them, or a request could meet a closing one."""

_CHEAP: Final = "/v1/threads?limit=1"
"""What every credential of a home may ask, and costs next to nothing."""

_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST: Final = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)

T = TypeVar("T")
Parameters = Sequence[tuple[str, str]]
FindAgain = Callable[[], Awaitable[tuple[str, str | None] | None]]
"""Where a server is now, and with which credential: it may have been started anew. None where nobody knows."""
Address = tuple[str, str | None]
"""The URL of a server, and what goes into the header `authorization`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    repeated: bool
    """An earlier attempt may have been carried out, its answer lost."""

    def read(self, from_json: Callable[[Any], T]) -> T:
        """The body as what it stands for."""
        try:
            return from_json(json.loads(self.body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise not_understood(f"the answer cannot be read: {self.body[:80]!r}") from error


def encode_json(value: Any) -> bytes:
    """Compact and lossless: whole numbers of any length stay, and what JSON cannot say is refused, not changed."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def is_temporary(status: int) -> bool:
    """Whether the same request can succeed later without anybody's help. A full disk needs help."""
    return status == 429 or (status >= 500 and status not in (501, 505, 507))


def is_final(error: HoldfastError) -> bool:
    """Whether the refusal is about a box. Its status may be that of a failing server, but a retry would not help."""
    from holdfast.api.errors.boxes import BoxError  # here: only failures need it

    return isinstance(error, BoxError)


class ServerConnection:
    """Asks one server. Owned, and closed, by a client; reads no environment variable, not even a proxy's."""

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
    ) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"{url!r} is not the URL of a server: it should look like http://127.0.0.1:8484")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        self.backoff = backoff or Backoff()
        self._on_retry = on_retry
        # The authorities that https trusts take 40 ms to load. Without them nobody is trusted.
        trusted = True if parsed.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(base_url=self.url, trust_env=False, limits=_LIMITS, verify=trusted)
        self._find_again = find_again
        self.use_credential(api_key)

    @property
    def address(self) -> Address:
        """What a request that is sent now is sent with."""
        return self.url, self._http.headers.get("authorization")

    async def found_elsewhere(self, error: HoldfastError, used: Address) -> bool:
        """Whether the server is elsewhere by now, or takes another credential: then that is used from now on.

        `used` is the address of the request that failed: another task may have found the new one meanwhile.
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
        self._http.base_url = httpx.URL(url)
        self.use_credential(credential)
        return True

    def use_credential(self, credential: str | None) -> None:
        self._http.headers.pop("authorization", None)
        if credential is not None:
            self._http.headers["authorization"] = f"Bearer {credential}"

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
        """Ask until there is an answer or the time for retries is over.

        `repeatable=False` is for what must not happen twice: then only attempts that never reached the server
        are tried again. `timeout` is for what takes longer than other questions.
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
                response = await self._http.request(
                    method,
                    path,
                    params=list(parameters),
                    content=body,
                    headers=headers,
                    timeout=self._timeouts(deadline, attempt, timeout or self.timeout),
                )
            except LOST as lost:
                error, asked_delay = self.lost(asked, lost), 0.0
                harmless = isinstance(lost, _NEVER_SENT)
            except httpx.InvalidURL as invalid:
                raise ValueError(f"{self.url}{path} is not a URL: {invalid}") from None
            except httpx.HTTPError as broken:
                raise not_understood(f"{asked} failed: {broken}") from broken
            else:
                if response.is_success:
                    return Answer(response.status_code, response.headers, response.content, repeated)
                error = error_of(response.status_code, response.headers, response.content, asked)
                error.repeated = repeated
                if isinstance(error, Unauthorized) and await self.found_elsewhere(error, used):
                    continue
                if not is_temporary(response.status_code) or is_final(error):
                    raise error
                asked_delay = retry_after(response.headers)
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
        """Begin a live read. The caller closes the response, and knows what to do about every failure."""
        request = self._http.build_request(
            "GET",
            path,
            params=list(parameters),
            headers={"accept": "text/event-stream"},
            timeout=httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
        )
        return await self._http.send(request, stream=True)

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: AsyncIterable[bytes] | bytes | None = None,
        media_type: str = "application/octet-stream",
        silence: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Ask once, with a body that is sent as it comes, for an answer that is read as it comes.

        `silence` is how long the other side may be silent. What breaks in the middle is `Unreachable`.
        """
        asked = f"{method} {path}"
        seconds = silence or self.timeout
        streams = body is not None and not isinstance(body, bytes)
        if streams and self._find_again is not None:
            # A body that comes only once must not be spent on a refusal: this finds the server, and its key, first.
            await self._ensure_known()
        try:
            while True:
                used = self.address
                request = self._http.build_request(
                    method,
                    path,
                    params=list(parameters),
                    content=body,
                    headers={} if body is None else {"content-type": media_type},
                    timeout=httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
                )
                try:
                    response = await self._http.send(request, stream=True)
                except _NEVER_SENT as lost:
                    if not await self.found_elsewhere(self.lost(asked, lost), used):
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
            raise self.lost(asked, lost) from lost
        except httpx.HTTPError as broken:
            raise not_understood(f"{asked} failed: {broken}") from broken

    async def _ensure_known(self) -> None:
        """Have the address of the server, and a credential that it knows. What that may do, it says itself."""
        with contextlib.suppress(Refused):
            await self.ask("GET", _CHEAP)

    @property
    def credential_header(self) -> dict[str, str]:
        """For what does not go through here: WebSockets."""
        value = self._http.headers.get("authorization")
        return {} if value is None else {"authorization": value}

    async def wait(self, error: HoldfastError, delay: float, attempt: int) -> None:
        if self._on_retry is not None:
            self._on_retry(RetryNotice(error.message, delay, attempt))
        await anyio.sleep(delay)

    def lost(self, asked: str, error: httpx.TransportError) -> Unreachable:
        reason = _reason(error)
        unreachable = Unreachable(
            f"{self.url} cannot be reached: {reason} ({asked})",
            hint="check that the server runs and that the URL is right",
        )
        unreachable.__cause__ = error
        return unreachable

    async def aclose(self) -> None:
        await self._http.aclose()

    def _timeouts(self, deadline: float, attempt: int, seconds: float) -> httpx.Timeout:
        if attempt:  # retries stay within the time that the caller has
            seconds = min(seconds, max(1.0, deadline - time.monotonic()))
        return httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that the server asks to wait; dates, the header's other form, are not worth a parser here."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    cause: BaseException | None = error
    reason = str(error) or "the connection was lost"
    while cause is not None:
        # The innermost says most. The numbers of TLS and of name resolution are not the system's.
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
            reason = os.strerror(cause.errno or 0).lower()
        cause = cause.__cause__ or cause.__context__
    return reason


def not_understood(message: str) -> NotUnderstood:
    return NotUnderstood(message, hint="is this the URL of a Holdfast server?")
