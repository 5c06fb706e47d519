"""Sends one webhook request to a checked address, without redirects, with limits on time and size.

`rules` decides when to retry, and the service does it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import orjson

from holdfast.threads.subscriptions.errors import WebhookRefused
from holdfast.threads.subscriptions.urls import Resolver, WebhookTarget, find_address, parse_target, resolve
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    import httpx  # loaded when the first webhook is: most servers send none, and every start would wait for it

DELIVERY_SECONDS: Final = 15.0
"""For the whole delivery: name resolution, connection, request and response."""
LOOKUP_SECONDS: Final = 5.0
MAX_ANSWER: Final = 16 * 1024
_USER_AGENT: Final = "holdfast-webhooks"

TransportFactory = Callable[[], "httpx.AsyncBaseTransport"]


class DeliveryFailed(Exception):
    """The subscriber was not reached or did not accept. The message is meant for the subscription's owner."""


class WebhookSender:
    """Sends webhook requests. Keeps no connections: each delivery opens and closes its own.

    Sharing them would be wrong: connections are made to addresses, but certificates are for names.
    """

    def __init__(
        self,
        *,
        allow_local: bool,
        resolver: Resolver = resolve,
        transport: TransportFactory | None = None,
        timeout: float = DELIVERY_SECONDS,
    ) -> None:
        self._allow_local = allow_local
        self._resolver = resolver
        self._timeout = timeout
        self._certificates: ssl.SSLContext | None = None
        self._transport = transport or self._new_transport

    async def check(self, url: str) -> None:
        """Raises `WebhookRefused` if this URL may not be called now. Resolves its name, but sends nothing."""
        target = parse_target(url, allow_local=self._allow_local)
        try:
            async with time_limit(min(LOOKUP_SECONDS, self._timeout)):
                await find_address(target, self._resolver)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            raise WebhookRefused(
                f"the address of {target.host} could not be found", hint="check the host name, or try again later"
            ) from error

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> bool:
        """Deliver a request. Returns True if the subscriber answers that it is already done."""
        import httpx

        try:
            target = parse_target(url, allow_local=self._allow_local)
            async with time_limit(self._timeout):
                return await self._send(target, body, headers)
        except TimeoutError:
            raise DeliveryFailed(f"no complete answer within {self._timeout:g} s") from None
        except WebhookRefused as error:
            raise DeliveryFailed(error.message) from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise DeliveryFailed(f"{type(error).__name__}: {error}"[:500]) from error

    async def _send(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> bool:
        import httpx

        address = await find_address(target, self._resolver)
        async with (
            httpx.AsyncClient(
                transport=self._transport(), timeout=self._timeout, follow_redirects=False, trust_env=False
            ) as client,
            client.stream(
                "POST",
                target.at(address),
                content=body,
                headers={
                    **headers,
                    "host": target.url.netloc.decode("ascii"),
                    "user-agent": _USER_AGENT,
                    "accept-encoding": "identity",
                    "connection": "close",
                },
                # The certificate must match the name, although the connection is made to an address.
                extensions={"sni_hostname": target.host},
            ) as response,
        ):
            if not response.is_success:
                raise DeliveryFailed(f"the webhook returned status {response.status_code}")
            return _says_done(await _read_some(response))

    def _new_transport(self) -> httpx.AsyncBaseTransport:
        import httpx

        if self._certificates is None:
            self._certificates = httpx.create_ssl_context(trust_env=False)
        return httpx.AsyncHTTPTransport(verify=self._certificates, trust_env=False, retries=0)


async def _read_some(response: httpx.Response) -> bytes | None:
    """Returns the raw body, or None if it is longer than the limit."""
    answer = bytearray()
    async for piece in response.aiter_raw():
        answer += piece
        if len(answer) > MAX_ANSWER:
            return None
    return bytes(answer)


def _says_done(answer: bytes | None) -> bool:
    try:
        parsed = orjson.loads(answer or b"null")
    except orjson.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and parsed.get("done") is True
