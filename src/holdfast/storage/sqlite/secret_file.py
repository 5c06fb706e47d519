"""The root secret of a home, in a file that only its owner can read."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

from holdfast.private_file import create_private


class SecretFile:
    """`SecretStore` in a file. If several processes create it at once, one succeeds and the others read it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def root(self) -> bytes:
        return await asyncio.to_thread(self._read_or_create)

    def _read_or_create(self) -> bytes:
        if not self._path.exists():
            with suppress(FileExistsError):
                create_private(self._path, secrets.token_bytes(32).hex())
        return bytes.fromhex(self._path.read_text())
