"""Uploads the files that the setup of an environment reads, and the repositories that it has."""

from __future__ import annotations

import asyncio
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.environment.reference import parse_reference
from holdfast.cli.run.workspace.files import send_folder
from holdfast.cli.run.workspace.folder import choose_folder
from holdfast.cli.run.workspace.repositories import clone_all, repositories_in

if TYPE_CHECKING:
    from holdfast.api.run.repositories import ClonedRepository
    from holdfast.client import Client

_IN_MEMORY = 32 << 20


async def upload_inputs(
    client: Client, reference: str | None, text: str | None, directory: Path | None, home: Path, *, quiet: bool
) -> tuple[str | None, tuple[ClonedRepository, ...]]:
    """Returns the digest of what was uploaded, or None if the setup reads no files, and the repositories in it.

    Only for a text that its user has allowed: its repositories are cloned.
    """
    if text is None:
        assert reference is not None
        name, version = parse_reference(reference)
        text = (await client.environments.get(name, version=version)).text
    further = repositories_in(text)
    try:
        reads = bool(tomllib.loads(text).get("inputs"))
    except (ValueError, RecursionError):
        return None, ()  # the server explains what is wrong
    folder = choose_folder(directory, Path.cwd(), Path.home()) if reads else None
    if folder is None and not further:
        return None, ()
    with ExitStack() as held, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        beside = await asyncio.to_thread(clone_all, further, home, held, quiet=quiet)
        digest = await send_folder(client, folder, spool, beside, quiet=True)
        return digest, tuple(each.repository for each in beside)
