"""The files of a box that is reached over a stream. They are opened in the box, as its user."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, Final

from holdfast.api.box.files import MAX_READ
from holdfast.api.errors.boxes import BoxUnreachable, HostileArchive, InvalidSpec, OutputTooLarge, file_problem
from holdfast.providers.guest_files import QUICK, AskedFiles
from holdfast.providers.guest_protocol import ArchiveRefused, GuestRefused
from holdfast.providers.stream.guest_client import DEFAULT_SECONDS, GuestRequests

_PIECE: Final = 1 << 18


class StreamFiles(AskedFiles):
    def __init__(self, guest: GuestRequests, workdir: str) -> None:
        super().__init__(workdir)
        self._guest = guest

    async def _ask(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        try:
            seconds = DEFAULT_SECONDS if operation in QUICK else None
            return await self._guest.ask_path(self._request(operation, path, **more), path, seconds=seconds)
        except ArchiveRefused as refused:
            raise InvalidSpec(str(refused)) from None

    # --- one file ---

    async def _pieces(self, path: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        request = self._request("open", path, offset=offset, length=length)
        try:
            with await self._guest.call(request) as call:
                await call.answer()
                while data := await call.streams[0].read(_PIECE):
                    yield data
                await call.answer()
        except GuestRefused as refused:
            raise file_problem(refused.number, refused.about or path) from None

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidSpec("offset and length cannot be negative")
        wanted = MAX_READ + 1 if length is None else min(length, MAX_READ + 1)
        found: list[bytes] = []
        size = 0
        async with contextlib.aclosing(self._pieces(path, offset, wanted)) as pieces:
            async for data in pieces:
                found.append(data)
                size += len(data)
                if size > MAX_READ:
                    raise OutputTooLarge(f"{path} has more than {MAX_READ} bytes", hint="stream it, or read a part")
        if size > wanted:
            raise BoxUnreachable(f"box {self._guest.box} sent more than was requested")
        return b"".join(found)

    async def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        if offset < 0:
            raise InvalidSpec("an offset cannot be negative")
        async with contextlib.aclosing(self._pieces(path, offset, None)) as pieces:
            async for data in pieces:
                yield data

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        if not 0 <= mode <= 0o7777:
            raise InvalidSpec(f"{mode:o} is not a valid file mode")
        with await self._guest.call(self._request("write", path, mode=mode)) as call:
            stream = call.streams[0]
            try:
                # If it was refused meanwhile, the answer has the reason.
                with contextlib.suppress(BrokenPipeError):
                    if isinstance(data, (bytes, bytearray, memoryview)):
                        await stream.write(bytes(data))
                    else:
                        async for piece in data:
                            await stream.write(piece)
                stream.finish()
            except BoxUnreachable:
                if not call.has_answer:
                    raise
            try:
                await call.answer()
            except GuestRefused as refused:
                raise file_problem(refused.number, refused.about or path) from None

    # --- trees ---

    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        with await self._guest.call(self._request("unpack", path)) as call:
            stream = call.streams[0]
            try:
                with contextlib.suppress(BrokenPipeError):  # it stopped reading: its answer has the reason
                    async for piece in archive:
                        await stream.write(piece)
                stream.finish()
            except BoxUnreachable:
                if not call.has_answer:
                    raise
            try:
                await call.answer(None)
            except ArchiveRefused as refused:
                raise HostileArchive(f"the archive was refused: {refused}") from None
            except GuestRefused as refused:
                raise file_problem(refused.number, refused.about or path) from None

    async def download_tar(self, path: str) -> AsyncGenerator[bytes, None]:
        with await self._guest.call(self._request("pack", path)) as call:
            while data := await call.streams[0].read(_PIECE):
                yield data
            try:
                await call.answer(None)
            except GuestRefused as refused:
                raise file_problem(refused.number, refused.about or path) from None
