"""The files that a run begins with: a folder, a clone of a repository, or none. Chosen by options, then uploaded."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.terminal.console import Cell, note
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.run.repositories import Source
    from holdfast.cli.run.workspace.folder import Folder
    from holdfast.cli.run.workspace.repositories import Beside
    from holdfast.client import Client
    from holdfast.repositories.address import Address
    from holdfast.repositories.checkout import Checkout

_PIECE: Final = 1 << 18
_IN_MEMORY: Final = 32 << 20
MIRRORS: Final = "repositories"
"""The folder of a home with the mirrors of repositories."""


@dataclass(frozen=True)
class FilesOptions(OptionGroup):
    """Where the files of a workspace come from."""

    directory: Annotated[
        Path | None,
        Option("--dir", metavar="PATH", help="Folder to work on. Default: the current git repository, or this folder."),
    ] = None
    repo: Annotated[
        str | None,
        Option("--repo", metavar="PATH|URL[@REF]", help="Repository to clone, at a branch, tag or commit."),
    ] = None
    uncommitted: Annotated[
        bool, Option("--uncommitted", help="With --repo PATH: also uncommitted changes and untracked files.")
    ] = False
    empty: Annotated[bool, Option("--empty", help="Start with no files.")] = False

    def choose(self, here: Path, user_home: Path, *, continues: bool) -> Folder | Address | None:
        """Return the folder to pack or the repository to clone. `continues` means that the thread has its files."""
        from holdfast.cli.run.workspace.folder import choose_folder

        given = [
            name for name, value in (("--empty", self.empty), ("--dir", self.directory), ("--repo", self.repo)) if value
        ]
        if len(given) > 1:
            raise CommandError(
                f"{given[0]} and {given[1]} exclude each other", next_step="give only one of them", exit=Exit.USAGE
            )
        if self.repo is not None:
            return self._choose_repository(self.repo, here)
        if self.uncommitted:
            raise _uncommitted_what()
        if self.empty or (continues and self.directory is None):
            return None
        return choose_folder(self.directory, here, user_home)

    def _choose_repository(self, repo: str, here: Path) -> Folder | Address:
        from holdfast.api.errors import HoldfastError
        from holdfast.cli.run.workspace.folder import Folder, find_repository
        from holdfast.repositories.address import parse_address

        try:
            address = parse_address(repo, here)
        except HoldfastError as error:
            raise command_error(error) from None
        if not self.uncommitted:
            return address
        top = find_repository(Path(address.url)) if address.is_path and address.ref is None else None
        if top is None:
            raise _uncommitted_what()
        return Folder(top, repository=True)


@dataclass(frozen=True, slots=True)
class Sent:
    """Files that were uploaded."""

    digest: str
    source: Source | None


@contextmanager
def opened(chosen: Folder | Address | None, home: Path, *, quiet: bool) -> Iterator[Folder | Checkout | None]:
    """Yields the files on this machine: a repository is cloned, and the clone removed at the end of the block.

    `home` has the mirrors of repositories.
    """
    from holdfast.api.errors import HoldfastError
    from holdfast.repositories.address import Address
    from holdfast.repositories.checkout import check_out
    from holdfast.repositories.mirrors import Mirrors

    if not isinstance(chosen, Address):
        yield chosen
        return
    with ExitStack() as held:
        try:
            made = held.enter_context(check_out(chosen, Mirrors(home / MIRRORS, os.environ)))
        except HoldfastError as error:
            raise command_error(error) from None
        if not quiet:
            ref = made.source.ref or "detached"
            note("repository", made.source.repository or chosen.url, Cell(f"  {ref} {made.source.commit}"[:48], "dim"))
            if made.submodules:
                count = "1 submodule" if made.submodules == 1 else f"{made.submodules} submodules"
                note("", Cell(f"without the files of {count}: their folders are empty", "dim"))
            if made.lfs:
                note("", Cell("without the content of Git LFS files: they are pointers", "dim"))
        yield made


async def send_files(
    client: Client, files: Folder | Checkout | None, beside: Sequence[Beside] = (), *, quiet: bool
) -> Sent | None:
    """Upload the files of the workspace and the repositories beside them, and print what was uploaded."""
    from holdfast.cli.run.workspace.folder import Folder, find_repository
    from holdfast.repositories.checkout import source_of

    if files is None and not beside:
        return None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        if isinstance(files, Folder):
            known = find_repository(files.path) is not None
            source = await asyncio.to_thread(source_of, files.path, os.environ) if known else None
            return Sent(await send_folder(client, files, spool, beside, quiet=quiet), source)
        folder = None if files is None else Folder(files.folder, repository=True)
        return Sent(
            await send_folder(client, folder, spool, beside, quiet=True), None if files is None else files.source
        )


async def send_folder(
    client: Client, folder: Folder | None, spool: IO[bytes], beside: Sequence[Beside] = (), *, quiet: bool
) -> str:
    """Pack a folder and the repositories beside it, upload them, and print what was uploaded."""
    from holdfast.cli.run.workspace.folder import Folder, pack_all

    parts = {} if folder is None else {"": folder}
    parts |= {each.repository.path: Folder(each.folder, repository=True) for each in beside}
    packed = await asyncio.to_thread(pack_all, parts, spool)
    if not quiet and folder is not None:
        kind = "git repository" if folder.repository else "folder"
        files = "1 file" if packed.files == 1 else f"{packed.files:,} files"
        if not folder.named:
            files += ": the whole folder, because it is not in a git repository"
        note("workspace", f"{kind} {folder.path}", Cell(f"  {files}, {describe_size(packed.size)}", "dim"))
        for what in packed.left_out:
            note("", Cell(f"without {what}", "dim"))
    spool.seek(0)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(spool.read, _PIECE):
            yield piece

    return await client.runs.upload_tar(pieces())


def _uncommitted_what() -> CommandError:
    return CommandError(
        "--uncommitted needs the path of a repository on this machine, without a ref",
        next_step="--repo PATH --uncommitted",
        exit=Exit.USAGE,
    )
