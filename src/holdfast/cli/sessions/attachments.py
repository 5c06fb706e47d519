"""Files that belong to a prompt: read, checked and encoded."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit

if TYPE_CHECKING:
    from holdfast.api.session.sessions import Attachment

_TEXT: Final = "text/plain"
_BYTES: Final = "application/octet-stream"


def read_attachments(paths: Sequence[Path]) -> list[Attachment]:
    """Returns files as attachments of a prompt. Raises `CommandError`."""
    from holdfast.api.session.sessions import MAX_ATTACHMENTS, MOST_ATTACHMENTS, Attachment

    if len(paths) > MOST_ATTACHMENTS:
        raise CommandError(
            f"a prompt has at most {MOST_ATTACHMENTS} attachments, not {len(paths)}",
            next_step="send them with several prompts",
            exit=Exit.USAGE,
        )
    left = MAX_ATTACHMENTS // 4 * 3
    made = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}", exit=Exit.USAGE) from None
        if not data:
            raise CommandError(f"{path} is empty", exit=Exit.USAGE)
        left -= len(data)
        if left < 0:
            raise CommandError(
                f"with {path}, the attachments have more than {MAX_ATTACHMENTS // 4 * 3} bytes",
                next_step="send smaller files, or copy them into the box: holdfast box cp",
                exit=Exit.USAGE,
            )
        made.append(Attachment(mime=_mime(path, data), data=base64.b64encode(data).decode(), filename=path.name))
    return made


def _mime(path: Path, data: bytes) -> str:
    """Returns the type of a file: by its name, or text if it is that."""
    known, encoding = mimetypes.guess_type(path.name)
    if known is not None and encoding is None:
        return known
    try:
        data.decode()
    except UnicodeDecodeError:
        return _BYTES
    return _TEXT
