"""What a home keeps about its sprites: a key, and the records that the API refuses as labels.

Code in a sprite can write to every file of the sprite, and can take checkpoints of it. So nothing that decides what a
box may do is read from there: a record in a file would let a box open its own network, and a checkpoint with a made-up
comment would be the latest snapshot of somebody else's key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from holdfast.providers.record_files import RecordFiles
from holdfast.providers.sprites.records import BoxRecord

_KEY_BYTES: Final = 32
_MAC_BYTES: Final = 16


class HomeFiles:
    """The files of one home. All methods block for a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = RecordFiles(folder / "boxes")
        self._key = b""

    def prepare(self) -> None:
        self._records.prepare()
        self._key = _key_of(self._folder / "key")

    def read(self, id: str) -> BoxRecord | None:
        found = self._records.read(id)
        return None if found is None else BoxRecord.from_json(found)

    def write(self, record: BoxRecord) -> None:
        self._records.write(record.id, record.to_json())

    def remove(self, id: str) -> None:
        self._records.remove(id)

    def seal(self, text: str) -> str:
        """Returns the text with a seal, which only this home can make."""
        return f"{self._mac(text)} {text}"

    def opened(self, sealed: str) -> str | None:
        """Returns the text of a seal of this home, or None if it is none."""
        mac, _, text = sealed.partition(" ")
        return text if hmac.compare_digest(mac.encode(), self._mac(text).encode()) else None

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).digest()[:_MAC_BYTES].hex()


def _key_of(path: Path) -> bytes:
    """Returns the key in a file, and makes one if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
    return path.read_bytes()
