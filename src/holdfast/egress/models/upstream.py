"""Connects the gateway to providers: pooled connections, through the machine's own proxy if it has one.

Direct connections are our own (`egress/http_client.py`), because httpx took most of the time of a request. Behind a
proxy, httpx is used.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Final, Protocol

import httpx

from holdfast.egress.addresses import is_local_name, refusal
from holdfast.egress.http_client import HttpClient

_NO_ADDRESS: Final = "no address"
_CONNECTIONS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=30.0)
_LOADED_LATE: Final = ("httpcore", "httpcore._backends.anyio", "anyio._backends._asyncio")
"""What httpx loads with its first request: about a hundred modules."""


class Upstream(Protocol):
    """Sends a request unchanged and returns the answer as it arrives. Follows no redirect, adds nothing."""

    async def send(self, request: httpx.Request) -> httpx.Response: ...

    async def close(self) -> None: ...


class CannotReach(httpx.ConnectError):
    """The host cannot be reached."""


class NetworkUpstream:
    """The network of this machine. `environment` names its proxies, as curl understands it.

    With `public_only`, it reaches no address of this machine or of a private network.
    """

    def __init__(self, environment: Mapping[str, str], *, public_only: bool = False) -> None:
        self._environment = environment
        self._public_only = public_only
        self._direct = HttpClient(self._trust, public_only=public_only)
        self._transports: dict[str, httpx.AsyncHTTPTransport] = {}
        """By proxy."""
        self._tls: ssl.SSLContext | None = None
        self._loading = asyncio.Lock()

    async def send(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_for(request.url.scheme, request.url.host, self._environment)
        if proxy is None:
            return await self._direct.send(request)
        host = request.url.host
        if self._public_only and (refusal(host) not in (None, _NO_ADDRESS) or is_local_name(host)):
            raise CannotReach(f"{host} is not reached from here: it is not a public host")
        transport = self._transports.get(proxy)
        if transport is None:
            transport = await self._open(proxy)
        return await transport.handle_async_request(request)

    async def close(self) -> None:
        await self._direct.close()
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.aclose()

    async def _open(self, proxy: str) -> httpx.AsyncHTTPTransport:
        trust = await self._trust()
        async with self._loading:
            if proxy not in self._transports:
                # Otherwise everybody waits for it, including the heartbeats of runs.
                await asyncio.to_thread(_load)
                try:
                    self._transports[proxy] = httpx.AsyncHTTPTransport(
                        verify=trust, trust_env=False, limits=_CONNECTIONS, proxy=proxy
                    )
                except (ValueError, ImportError) as error:
                    raise CannotReach(f"the proxy of this machine cannot be used: {error}") from None
            return self._transports[proxy]

    async def _trust(self) -> ssl.SSLContext:
        async with self._loading:
            if self._tls is None:  # reading all certificates takes time
                self._tls = await asyncio.to_thread(_trusted)
            return self._tls


class LoopbackUpstream:
    """Only this machine, for servers under test: no mistake in a test reaches the network."""

    def __init__(self) -> None:
        self._network = NetworkUpstream({})

    async def send(self, request: httpx.Request) -> httpx.Response:
        if not _is_loopback(request.url.host):
            raise CannotReach(f"{request.url.host} is out of reach here")
        return await self._network.send(request)

    async def close(self) -> None:
        await self._network.close()


def proxy_for(scheme: str, host: str, environment: Mapping[str, str]) -> str | None:
    """Returns the proxy for a host. Ignores `HTTP_PROXY` in capitals, which web servers set from a request header."""
    names = ("https_proxy", "HTTPS_PROXY") if scheme == "https" else ("http_proxy",)
    proxy = next((environment[name] for name in (*names, "all_proxy", "ALL_PROXY") if environment.get(name)), None)
    if proxy is None or _is_loopback(host):
        return None
    direct = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    for each in (part.strip().lower().removeprefix("*").lstrip(".") for part in direct.split(",")):
        if each and (host.lower() == each or host.lower().endswith(f".{each}")):
            return None
    return None if direct.strip() == "*" else proxy


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _load() -> None:
    for name in _LOADED_LATE:
        importlib.import_module(name)


def _trusted() -> ssl.SSLContext:
    """Returns what this machine trusts, which may include a company's own authority, and the usual ones."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
