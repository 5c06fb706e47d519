"""What becomes of a registry's answer on its way to a box: files are kept, index pages read and their links mapped."""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from dataclasses import replace
from typing import Final
from urllib.parse import urljoin

from holdfast.egress.http_body import read_body
from holdfast.egress.http_head import Body, Response, values
from holdfast.egress.packages import index_pages
from holdfast.egress.packages.cache import Digest, NewFile
from holdfast.egress.packages.mirror import PackageMirror, PackageRequest
from holdfast.egress.sockets import Ended, Wire

log = logging.getLogger(__name__)

_MOST_PAGE: Final = 64 << 20
_NOT_KEPT: Final = re.compile(rb"\b(?:no-store|private)\b", re.IGNORECASE)
_PAGE: Final = re.compile(rb"(?:text/html|application/(?:[a-z0-9.+-]*\+)?(?:json|html))\b", re.IGNORECASE)
_OF_LENGTH: Final = (b"content-length", b"content-encoding", b"transfer-encoding", b"etag", b"content-md5", b"digest")


class PageTooLong(Exception):
    """An index page has more bytes than are read."""


class FileAnswer:
    """Relays a file to the box, and keeps it if it is whole and what the registry says it is."""

    def __init__(self, mirror: PackageMirror, asked: PackageRequest) -> None:
        self._mirror = mirror
        self._asked = asked
        self._new: NewFile | None = None

    def head(self, response: Response) -> Response:
        length = response.body.length
        control = b", ".join(values(response.headers, b"cache-control"))
        encoded = values(response.headers, b"content-encoding") or values(response.headers, b"set-cookie")
        if response.status == 200 and length and not encoded and not _NOT_KEPT.search(control):
            url = self._asked.url
            digest = self._mirror.digest(url)
            # npm with a lock file asks for no index, and compares the tarball with the lock file itself.
            if digest is not None or self._asked.is_tarball:
                self._new = self._mirror.cache.begin(url, length, digest)
        return _with_location(response, self._mirror, self._asked)

    async def body(self, source: Wire, to: Wire, body: Body) -> None:
        try:
            left = body.length or 0
            async for piece in read_body(source, body):
                left -= len(piece)
                await self._keep(piece, is_last=left == 0)
                await to.write(_framed(piece, body))
            if body.chunked:
                await to.write(b"0\r\n\r\n")
        finally:
            self.close()

    def close(self) -> None:
        if self._new is not None:
            self._new.discard()
            self._new = None

    async def _keep(self, piece: bytes, *, is_last: bool) -> None:
        """Kept before the box has the last piece, so that it is there for the next box."""
        if self._new is None:
            return
        try:
            await self._new.add(piece)
            if is_last and not await self._new.keep():
                log.warning("%s is not what its index says: it is not kept", self._asked.url)
        except OSError as error:
            log.warning("cannot keep %s: %s", self._asked.url, error)
            self.close()

    async def stream(self, source: Wire, to: Wire) -> None:
        raise Ended("a file is no stream")


class PageAnswer:
    """Reads an index page on its way to the box. If the box knows the registry by a path, its links are mapped."""

    def __init__(self, mirror: PackageMirror, asked: PackageRequest) -> None:
        self._mirror = mirror
        self._asked = asked
        self._is_read = False
        self._is_compressed = False

    def head(self, response: Response) -> Response:
        encoding = b", ".join(values(response.headers, b"content-encoding")).lower()
        kind = values(response.headers, b"content-type")[:1]
        self._is_compressed = encoding == b"gzip"
        self._is_read = response.status == 200 and bool(kind and _PAGE.match(kind[0])) and encoding in (b"", b"gzip")
        if self._is_read and self._asked.by_path:
            headers = [each for each in response.headers if each[0].lower() not in _OF_LENGTH]
            return replace(response, headers=[*headers, (b"Transfer-Encoding", b"chunked")])
        return _with_location(response, self._mirror, self._asked)

    async def body(self, source: Wire, to: Wire, body: Body) -> None:
        page = bytearray()
        is_mapped = self._is_read and self._asked.by_path
        async for piece in read_body(source, body):
            if self._is_read and len(page) <= _MOST_PAGE:
                page += piece
            if is_mapped and len(page) > _MOST_PAGE:
                raise Ended(f"an index page has more than {_MOST_PAGE} bytes")
            if not is_mapped:
                await to.write(_framed(piece, body))
        if body.chunked and not is_mapped:
            await to.write(b"0\r\n\r\n")
        if self._is_read and len(page) <= _MOST_PAGE:
            digests, mapped = await asyncio.to_thread(self._read, bytes(page))
            self._mirror.learn(digests)
            if is_mapped:
                await to.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(mapped), mapped) if mapped else b"0\r\n\r\n")

    def _read(self, page: bytes) -> tuple[dict[str, Digest], bytes]:
        """Returns what a page says about files, and the page with mapped links, if they have to be. Raises `Ended`."""
        url = self._asked.url
        try:
            plain = _plain(page) if self._is_compressed else page
        except (zlib.error, PageTooLong) as error:
            if self._asked.by_path:
                raise Ended(f"{url} cannot be read: {error}") from None
            return {}, page
        mapped = index_pages.rewrite(plain, url, self._mirror.path_of) if self._asked.by_path else page
        return index_pages.digests(plain, url), mapped

    def close(self) -> None:
        """There is nothing to free."""

    async def stream(self, source: Wire, to: Wire) -> None:
        raise Ended("a page is no stream")


def _with_location(response: Response, mirror: PackageMirror, asked: PackageRequest) -> Response:
    """A box that knows the registry by a path would read a relative redirect as one of the guest API."""
    if not asked.by_path or not values(response.headers, b"location"):
        return response

    def mapped(value: bytes) -> bytes:
        try:
            return mirror.path_of(urljoin(asked.url, value.decode("ascii"))).encode("ascii")
        except ValueError:
            return value

    headers = [(name, mapped(value) if name.lower() == b"location" else value) for name, value in response.headers]
    return replace(response, headers=headers)


def _framed(piece: bytes, body: Body) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece) if body.chunked else piece


def _plain(page: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    plain = unpacking.decompress(page, _MOST_PAGE)
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise PageTooLong("it is too long, or not complete")
    return plain
