"""Uploads the files that the setup of an environment reads."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.environment.reference import parse_reference
from holdfast.cli.run.files import send_folder
from holdfast.cli.run.workspace import choose_folder

if TYPE_CHECKING:
    from holdfast.client import Client

_IN_MEMORY = 32 << 20


async def upload_inputs(client: Client, reference: str | None, text: str | None, directory: Path | None) -> str | None:
    """Returns the digest of the uploaded folder, or None if the setup reads no files."""
    if text is None:
        assert reference is not None
        name, version = parse_reference(reference)
        text = (await client.environments.get(name, version=version)).text
    try:
        if not tomllib.loads(text).get("inputs"):
            return None
    except tomllib.TOMLDecodeError:
        return None  # the server explains what is wrong
    folder = choose_folder(directory, Path.cwd(), Path.home())
    if folder is None:
        return None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        return await send_folder(client, folder, spool, quiet=True)
