"""The root secret of a home, in a file that only its owner can read."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from holdfast.private_file import write_private


class SecretFile:
    """`SecretStore` in a file. A home has one server at a time, so no two create it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def root(self) -> bytes:
        return await asyncio.to_thread(self._read_or_create)

    def _read_or_create(self) -> bytes:
        try:
            return bytes.fromhex(self._path.read_text())
        except FileNotFoundError:
            secret = secrets.token_bytes(32)
            write_private(self._path, secret.hex())
            return secret
