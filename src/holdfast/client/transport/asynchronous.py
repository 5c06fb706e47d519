"""Requests through httpx on an event loop: the transport of `Client`. It can also stream responses."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Final

import anyio
import httpx

from holdfast.client.transport import AnswerLost, NotHttp, NotSent, Reply, Transport

_LIMITS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=20, keepalive_expiry=3.0)
"""Shorter than the server's own limit, so that a request does not meet a connection that is being closed."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST: Final = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)


class AsyncTransport(Transport):
    def __init__(self, *, secure: bool) -> None:
        # Loading the trusted certificate authorities takes 40 ms. Without them, no https server is trusted.
        trusted = True if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(trust_env=False, limits=_LIMITS, verify=trusted)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout: float,
        connect_timeout: float,
    ) -> Reply:
        try:
            response = await self.open(method, url, headers, body, timeout=timeout, connect_timeout=connect_timeout)
            try:
                content = await response.aread()
            finally:
                await response.aclose()
        except LOST as lost:
            failed = NotSent if isinstance(lost, NEVER_SENT) else AnswerLost
            raise failed(reason_of(lost)) from lost
        except httpx.InvalidURL as invalid:
            raise ValueError(f"{url} is not a valid URL: {invalid}") from None
        except httpx.HTTPError as broken:
            raise NotHttp(str(broken)) from broken
        return Reply(response.status_code, response.headers, content)

    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: AsyncIterable[bytes] | bytes | None,
        *,
        timeout: float,
        connect_timeout: float,
    ) -> httpx.Response:
        """Send one request and stream both its body and the response.

        The caller closes the response and handles httpx exceptions.
        """
        request = self._http.build_request(
            method, url, content=body, headers=headers, timeout=httpx.Timeout(timeout, connect=connect_timeout)
        )
        response = await self._http.send(request, stream=True)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _ReleasedStream(response.stream)
        return response

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def aclose(self) -> None:
        await self._http.aclose()


class _ReleasedStream(httpx.AsyncByteStream):
    """The stream of a response, until it is closed.

    That of httpx refers to its response, which refers to it. Both bodies, of which each may be large, would stay in
    memory until Python collects all its garbage, which it rarely does in a process that is idle.
    """

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream: httpx.AsyncByteStream | None = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        if self._stream is None:
            raise httpx.StreamClosed
        return aiter(self._stream)

    async def aclose(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


def reason_of(error: httpx.TransportError) -> str:
    """Returns a short reason why there was no response."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    cause: BaseException | None = error
    reason = str(error) or "the connection was lost"
    while cause is not None:
        # The innermost error is the most specific. Error numbers of TLS and of name resolution are not from the system.
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
            reason = os.strerror(cause.errno or 0).lower()
        cause = cause.__cause__ or cause.__context__
    return reason
