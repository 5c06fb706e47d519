"""The namespace of a home: keeps its sprites apart from those of other homes of the same account."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path
from typing import Final

NAMESPACE: Final = re.compile(r"[a-z0-9]{4,16}")
_FILE: Final = "namespace"


def namespace_of(home: Path) -> str:
    """Returns the namespace of a home, and makes one for a home that has none. Blocks."""
    note = home / "sprites" / _FILE
    with contextlib.suppress(OSError):
        text = note.read_text().strip()
        if NAMESPACE.fullmatch(text):
            return text
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = note.with_name(f".{_FILE}.{secrets.token_hex(4)}")
    fresh.write_text(secrets.token_hex(4))
    try:
        note.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process was quicker
    finally:
        fresh.unlink()
    return note.read_text().strip()
