"""The namespace of a home: keeps its boxes apart from those of other homes of the same account or daemon."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path
from typing import Final

from holdfast.api.errors.boxes import InvalidSpec

_NAMESPACE: Final = re.compile(r"[a-z0-9]{4,16}")


def check_namespace(namespace: str) -> None:
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidSpec(f"{namespace!r} cannot name a namespace: 4 to 16 lower case letters and digits")


def namespace_of(folder: Path, file: str = "namespace") -> str:
    """Returns the namespace that a provider noted in its folder of the home, and makes one if it has none. Blocks."""
    note = folder / file
    with contextlib.suppress(OSError):
        text = note.read_text().strip()
        if _NAMESPACE.fullmatch(text):
            return text
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = note.with_name(f".{file}.{secrets.token_hex(4)}")
    fresh.write_text(secrets.token_hex(4))
    try:
        note.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process was faster
    finally:
        fresh.unlink()
    return note.read_text().strip()
