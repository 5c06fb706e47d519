"""Requests by httpx, on an event loop: the transport of `Client`. Answers can also be read as they come."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterable, Mapping
from typing import Final

import anyio
import httpx

from holdfast.client.transport import AnswerLost, NotHttp, NotSent, Reply, Transport

_LIMITS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=20, keepalive_expiry=3.0)
"""Idle connections are dropped before a server drops them, or a request could meet a closing one."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST: Final = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)


class AsyncTransport(Transport):
    def __init__(self, *, secure: bool) -> None:
        # The authorities that https trusts take 40 ms to load. Without them nobody is trusted.
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
            response = await self._http.request(
                method, url, content=body, headers=headers, timeout=httpx.Timeout(timeout, connect=connect_timeout)
            )
        except LOST as lost:
            failed = NotSent if isinstance(lost, NEVER_SENT) else AnswerLost
            raise failed(reason_of(lost)) from lost
        except httpx.InvalidURL as invalid:
            raise ValueError(f"{url} is not a URL: {invalid}") from None
        except httpx.HTTPError as broken:
            raise NotHttp(str(broken)) from broken
        return Reply(response.status_code, response.headers, response.content)

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
        """Ask once, with a body that is sent as it comes, for an answer that is read as it comes.

        The caller closes the response, and meets the exceptions of httpx.
        """
        request = self._http.build_request(
            method, url, content=body, headers=headers, timeout=httpx.Timeout(timeout, connect=connect_timeout)
        )
        return await self._http.send(request, stream=True)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def aclose(self) -> None:
        await self._http.aclose()


def reason_of(error: httpx.TransportError) -> str:
    """Why there is no answer, in a few words."""
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
