"""The files of a box whose guest passes descriptors. They are opened inside the box, as its user, and read here."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, Final

from holdfast.api.box.files import MAX_READ, FileInfo
from holdfast.api.errors.boxes import (
    BoxUnreachable,
    HostileArchive,
    InvalidSpec,
    OutputTooLarge,
    WrongFileKind,
    file_problem,
)
from holdfast.providers.guest_files import QUICK, AskedFiles, write_all
from holdfast.providers.guest_protocol import ArchiveRefused, GuestRefused, info
from holdfast.providers.host import guest_client
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.pipes import Pipe
from holdfast.time_limit import time_limit

_PIECE: Final = 1 << 18


class GuestFiles(AskedFiles):
    def __init__(self, guest: GuestClient, workdir: str) -> None:
        super().__init__(workdir)
        self._guest = guest

    async def _ask(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        try:
            seconds = guest_client.DEFAULT_SECONDS if operation in QUICK else None
            return await self._guest.ask_path(self._request(operation, path, **more), path, seconds=seconds)
        except ArchiveRefused as refused:
            raise InvalidSpec(str(refused)) from None

    # --- one file ---

    async def _open(self, path: str) -> tuple[int, FileInfo]:
        """Open a plain file. Anything else, such as a pipe or a device, is refused before a byte is read."""
        try:
            answer, received = await self._guest.ask_descriptors(self._request("open", path))
        except GuestRefused as refused:
            raise file_problem(refused.number, refused.about or path) from None
        descriptor, *others = received or [-1]
        for each in others:
            os.close(each)
        if descriptor < 0:
            raise BoxUnreachable("the guest did not return a file")
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WrongFileKind(f"{path}: not a plain file")
            return descriptor, info(answer.get("file"))
        except BaseException:
            os.close(descriptor)
            raise

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidSpec("offset and length cannot be negative")
        descriptor, _ = await self._open(path)
        try:
            wanted = MAX_READ + 1 if length is None else min(length, MAX_READ + 1)
            data = await asyncio.to_thread(_read_all, descriptor, offset, wanted)
        finally:
            os.close(descriptor)
        if len(data) > MAX_READ:
            raise OutputTooLarge(f"{path} has more than {MAX_READ} bytes", hint="stream it, or read a part")
        return data

    async def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        if offset < 0:
            raise InvalidSpec("an offset cannot be negative")
        descriptor, _ = await self._open(path)
        try:
            while data := await asyncio.to_thread(os.pread, descriptor, _PIECE, offset):
                offset += len(data)
                yield data
        finally:
            os.close(descriptor)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        if not 0 <= mode <= 0o7777:
            raise InvalidSpec(f"{mode:o} is not a valid file mode")
        with await self._guest.call(self._request("write", path, mode=mode)) as call:
            try:
                async with time_limit(guest_client.DEFAULT_SECONDS):
                    _, received = await call.answer()
                if len(received) != 1:
                    for each in received:
                        os.close(each)
                    raise BoxUnreachable("the guest did not return a file")
                descriptor = received[0]
                try:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        raise BoxUnreachable("the guest returned something that is not a file")
                    if isinstance(data, (bytes, bytearray, memoryview)):
                        await asyncio.to_thread(write_all, descriptor, bytes(data))
                    else:
                        async for piece in data:
                            await asyncio.to_thread(write_all, descriptor, piece)
                except OSError as error:
                    raise file_problem(error.errno or errno.EIO, path) from None
                finally:
                    os.close(descriptor)
                call.send({"op": "commit"})
                async with time_limit(guest_client.DEFAULT_SECONDS):
                    await call.done()
            except GuestRefused as refused:
                raise file_problem(refused.number, refused.about or path) from None
            except TimeoutError:
                raise BoxUnreachable(f"the guest did not answer in {guest_client.DEFAULT_SECONDS:.0f} s") from None

    # --- trees ---

    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(write)
        pipe.widen()
        try:
            try:
                call = await self._guest.call(self._request("unpack", path), (read,))
            finally:
                os.close(read)
            with call:
                try:
                    async for piece in archive:
                        await pipe.write(piece)
                except BrokenPipeError:
                    pass  # it stopped reading: its answer has the reason
                pipe.close()
                try:
                    await call.done()
                except ArchiveRefused as refused:
                    raise HostileArchive(f"the archive was refused: {refused}") from None
                except GuestRefused as refused:
                    raise file_problem(refused.number, refused.about or path) from None
        finally:
            pipe.close()

    async def download_tar(self, path: str) -> AsyncGenerator[bytes, None]:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(read)
        pipe.widen()
        try:
            try:
                call = await self._guest.call(self._request("pack", path), (write,))
            finally:
                os.close(write)
            with call:
                while data := await pipe.read(_PIECE):
                    yield data
                try:
                    await call.done()
                except GuestRefused as refused:
                    raise file_problem(refused.number, refused.about or path) from None
        finally:
            pipe.close()


def _read_all(descriptor: int, offset: int, wanted: int) -> bytes:
    pieces = []
    while wanted > 0 and (data := os.pread(descriptor, min(wanted, 1 << 22), offset)):
        pieces.append(data)
        offset += len(data)
        wanted -= len(data)
    return b"".join(pieces)
