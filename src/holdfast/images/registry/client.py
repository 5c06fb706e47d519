"""A client of one registry over HTTP (the OCI distribution API): manifests and blobs, for one pull.

The registry's answers are untrusted. They do not decide where credentials go, whether TLS is used, how much is read,
and how long it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx

from holdfast.api.errors.images import NotInRegistry, RegistryFailed, RegistryRefused
from holdfast.egress.addresses import is_local_name, refusal
from holdfast.egress.models.upstream import Upstream
from holdfast.images.registry.authentication import (
    LARGEST_ANSWER,
    Challenge,
    Credentials,
    parse_challenges,
    parse_token,
)
from holdfast.images.registry.manifest import ACCEPTED, LARGEST_MANIFEST
from holdfast.images.registry.reference import Reference, is_loopback
from holdfast.time_limit import time_limit

T = TypeVar("T")

PAUSES: Final = (0.3, 1.0, 3.0)
"""Seconds between attempts after a temporary failure."""
_TIMEOUTS: Final = {"connect": 15.0, "read": 30.0, "write": 30.0, "pool": 30.0}
_DOCUMENT_SECONDS: Final = 60.0
_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_LARGEST_REFUSAL: Final = 1 << 16
_SHOWN: Final = 200


class Registry:
    """Requests of one repository at one registry. The caller owns `upstream` and closes it."""

    def __init__(
        self,
        upstream: Upstream,
        reference: Reference,
        *,
        address: str | None = None,
        credentials: Credentials | None = None,
        insecure: bool = False,
    ) -> None:
        """`address` is the URL of a mirror to use instead. `insecure` allows plain HTTP to any host."""
        self._upstream = upstream
        self._reference = reference
        self._credentials = credentials
        self._insecure = insecure
        self._authorization: str | None = None
        self._authorizing = asyncio.Lock()
        if address is not None:
            self._bases: tuple[str, ...] = (address.rstrip("/"),)
        elif insecure or is_loopback(reference.host):
            self._bases = (f"https://{reference.host}", f"http://{reference.host}")
        else:
            self._bases = (f"https://{reference.host}",)
        self.host = urlsplit(self._bases[0]).netloc

    async def digest(self) -> str | None:
        """Returns the current digest of the tag, with one small request, or None if the registry does not tell."""

        async def ask() -> str | None:
            async with self._answer("HEAD", self._manifest_path(self._reference.version), _ACCEPT) as response:
                await self._check(response)
                digest: str | None = response.headers.get("docker-content-digest")
                return digest

        return await self._persistently(ask)

    async def manifest(self, version: str) -> bytes:
        """Returns a manifest by tag or digest, unverified: the caller compares its digest."""

        async def ask() -> bytes:
            async with self._answer("GET", self._manifest_path(version), _ACCEPT) as response:
                await self._check(response)
                return await self._read(response, LARGEST_MANIFEST, "a manifest")

        return await self._persistently(ask)

    @contextlib.asynccontextmanager
    async def blob(self, digest: str, start: int) -> AsyncIterator[httpx.Response]:
        """Yields the answer to a request for a blob, from `start` on if the registry supports that (status 206)."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._answer("GET", f"/v2/{self._reference.repository}/blobs/{digest}", headers) as response:
            if response.status_code != 416:
                await self._check(response)
            yield response

    # --- requests ---

    async def _persistently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry after temporary failures: a busy registry, or a broken connection."""
        for pause in (*PAUSES, None):
            try:
                async with time_limit(_DOCUMENT_SECONDS):
                    return await attempt()
            except (httpx.TransportError, Busy, TimeoutError) as error:
                if pause is None or is_final(error):
                    raise self.failure(error) from error
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def failure(self, error: Exception) -> RegistryFailed:
        """Returns the error for a request without an answer."""
        if isinstance(error, httpx.ConnectError) and _is_about_certificate(error):
            return RegistryFailed(
                f"the certificate of the registry {self.host} is not trusted: {error}"[:300],
                hint="add its authority to the certificates that this machine trusts",
            )
        reason = str(error) or ("it takes too long" if isinstance(error, TimeoutError) else type(error).__name__)
        plain = "; --insecure allows plain HTTP" if len(self._bases) == 1 and self._bases[0].startswith("https") else ""
        return RegistryFailed(
            f"the registry {self.host} does not answer: {printable(reason)}",
            hint=f"check its name and the network of the server{plain}; downloads are kept for the next attempt",
        )

    @contextlib.asynccontextmanager
    async def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        used = self._authorization
        response = await self._send(method, path, headers)
        if response.status_code == 401:
            challenges = response.headers.get_list("www-authenticate")
            await response.aclose()
            await self._authorize(parse_challenges(challenges), used)
            response = await self._send(method, path, headers)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(self, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Tries TLS first. If plain HTTP is allowed, the first answer decides for the whole pull."""
        for base in self._bases[:-1]:
            with contextlib.suppress(httpx.ConnectError, httpx.RemoteProtocolError):
                return await self._decided(base, method, path, headers)
        return await self._decided(self._bases[-1], method, path, headers)

    async def _decided(self, base: str, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        try:
            response = await self._follow(base, method, path, headers)
        except httpx.ConnectError as error:
            if _is_about_certificate(error):
                raise self.failure(error) from error
            raise
        self._bases = (base,)
        return response

    async def _follow(self, base: str, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Sends credentials only to the registry itself, wherever it redirects."""
        home = httpx.URL(base)
        url = httpx.URL(base + path)
        for _ in range(_MOST_REDIRECTS + 1):
            sent = {"User-Agent": "holdfast", "Accept-Encoding": "identity", **headers}
            if self._authorization is not None and _origin(url) == _origin(home):
                sent["Authorization"] = self._authorization
            response = await self._exchange(method, url, sent)
            if response.status_code not in _REDIRECTS:
                return response
            location = response.headers.get("location", "")
            await response.aclose()
            url = self._checked(home, location, url, "redirects")
        raise RegistryFailed(f"the registry {self.host} redirects without end")

    async def _exchange(self, method: str, url: httpx.URL, headers: Mapping[str, str]) -> httpx.Response:
        request = httpx.Request(method, url, headers=dict(headers), extensions={"timeout": _TIMEOUTS})
        response = await self._upstream.send(request)
        response.request = request
        return response

    def _checked(self, home: httpx.URL, location: str, at: httpx.URL, what: str) -> httpx.URL:
        """Checks a URL that the registry names: it must not leave TLS, or lead into the network of this machine."""
        try:
            url = at.join(location)
        except (httpx.InvalidURL, ValueError):
            raise RegistryFailed(f"the registry {self.host} {what} to no URL: {printable(location)}") from None
        schemes = ("https", "http") if home.scheme == "http" else ("https",)
        if url.scheme not in schemes or not url.host or url.userinfo:
            raise RegistryFailed(f"the registry {self.host} {what} to {printable(location)}: only https is followed")
        if _is_near(url.host) and not (_is_near(home.host) or self._insecure):
            raise RegistryFailed(
                f"the registry {self.host} {what} to {printable(url.host)}, which is in this machine's own network",
                hint="--insecure follows it, if you trust that registry",
            )
        return url

    # --- who asks ---

    async def _authorize(self, challenge: Challenge | None, used: str | None) -> None:
        async with self._authorizing:
            if self._authorization != used:
                return  # another task got a new token meanwhile
            if challenge is None:
                raise self._refused("it does not declare how to log in")
            if challenge.realm is not None:
                self._authorization = f"Bearer {await self._token(challenge)}"
            elif self._credentials is not None and used is None:
                self._authorization = self._credentials.basic
            else:
                raise self._refused("it requires a user and a password" if used is None else "it does not accept them")

    async def _token(self, challenge: Challenge) -> str:
        home = httpx.URL(self._bases[0])
        realm = self._checked(home, challenge.realm or "", home, "sends who logs in")
        asked = {"scope": f"repository:{self._reference.repository}:pull"}
        if challenge.service:
            asked["service"] = challenge.service[:_SHOWN]
        headers = {"User-Agent": "holdfast", "Accept-Encoding": "identity"}
        if self._credentials is not None:
            headers["Authorization"] = self._credentials.basic
            asked["account"] = self._credentials.username
        response = await self._exchange("GET", realm.copy_merge_params(asked), headers)
        try:
            if response.status_code in (400, 401, 403, 404):
                raise self._refused("it issues no token for this image to this user")
            if response.status_code != 200:
                raise Busy(response.status_code)
            token = parse_token(await self._read(response, LARGEST_ANSWER, "a token"))
        finally:
            await response.aclose()
        if token is None:
            raise RegistryFailed(f"the registry {self.host} issued an invalid token")
        return token

    def _refused(self, why: str) -> RegistryRefused:
        hint = "log in: holdfast image pull --username USER --password-stdin NAME"
        if self._credentials is not None:
            hint = "check the user name, the password, and the name of the image"
        return RegistryRefused(f"the registry {self.host} does not let {self._reference} be pulled: {why}", hint=hint)

    # --- answers ---

    async def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        if status in (401, 403):
            raise self._refused("there is no such image, or it is not for this user")
        if status == 404:
            raise NotInRegistry(f"the registry {self.host} has no {self._reference}", hint="check its name and its tag")
        text = ""
        with contextlib.suppress(RegistryFailed):
            text = (await self._read(response, _LARGEST_REFUSAL, "an error")).decode("utf-8", "replace")
        if status in (408, 429) or status >= 500:
            raise Busy(status, printable(text))
        raise RegistryFailed(f"the registry {self.host} answers {status}: {printable(text)}")

    async def _read(self, response: httpx.Response, most: int, what: str) -> bytes:
        kept = bytearray()
        async for piece in response.aiter_raw():
            kept += piece
            if len(kept) > most:
                raise RegistryFailed(f"the registry {self.host} sends {what} of more than {most} bytes")
        return bytes(kept)

    def _manifest_path(self, version: str) -> str:
        return f"/v2/{self._reference.repository}/manifests/{version}"


class Busy(Exception):
    """A temporary failure."""

    def __init__(self, status: int, text: str = "") -> None:
        limited = "it has had too many requests from here, for now" if status == 429 else f"it answers {status}"
        super().__init__(f"{limited}: {text}" if text else limited)


_ACCEPT: Final = {"Accept": ACCEPTED}


def is_final(error: Exception) -> bool:
    """Returns whether another attempt would fail in the same way."""
    return isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)


def printable(text: str) -> str:
    """Returns untrusted text for an error message."""
    return "".join(each if each.isprintable() else " " for each in text[:_SHOWN]).strip()


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _is_near(host: str) -> bool:
    """Returns whether a host is this machine, or in its own network, judging by its name."""
    return is_local_name(host) or refusal(host) not in (None, "no address")


def _is_about_certificate(error: httpx.ConnectError) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
