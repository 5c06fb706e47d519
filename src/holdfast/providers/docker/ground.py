"""The ground of a home: what tells its objects at a daemon from those of other homes there."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path
from typing import Final

from holdfast.boxes.errors import InvalidSpec

_GROUND: Final = re.compile(r"[a-z0-9]{4,16}")


def check_ground(ground: str) -> None:
    if not _GROUND.fullmatch(ground):
        raise InvalidSpec(f"{ground!r} cannot name a ground: 4 to 16 lower case letters and digits")


def ground_of(home: Path) -> str:
    """The ground of a home, made where there is none. Blocks."""
    note = home / "docker" / "ground"
    with contextlib.suppress(OSError):
        text = note.read_text().strip()
        if _GROUND.fullmatch(text):
            return text
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = note.with_name(f".ground.{secrets.token_hex(4)}")
    fresh.write_text(secrets.token_hex(4))
    try:
        note.hardlink_to(fresh)
    except FileExistsError:
        pass  # another process was quicker
    finally:
        fresh.unlink()
    return note.read_text().strip()
