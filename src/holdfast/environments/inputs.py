"""The files that setup commands read: taken from the archive of a workspace, in a form that depends on nothing else.

An archive comes from a repository, so its names and links are not trusted: only plain files below it are taken.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from holdfast.api.errors.environments import SetupFailed

_MOST_FILES: Final = 20_000
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Inputs:
    digest: str
    archive: bytes
    """A tar archive, for the workspace of a box."""


NO_INPUTS: Final = Inputs("", b"")


def read_inputs(workspace: Path | None, wanted: Sequence[str]) -> Inputs:
    """Blocks. Raises `SetupFailed` if an input is missing, a link, or too large."""
    if not wanted:
        return NO_INPUTS
    if workspace is None:
        raise SetupFailed(
            f"the setup reads {', '.join(wanted)}, and there is no workspace to take them from",
            hint="start the run with the files of the repository: --dir PATH",
        )
    folders = tuple(PurePosixPath(each) for each in wanted)
    missing = set(folders)
    found: dict[str, tuple[bytes, int]] = {}
    size = 0
    try:
        with tarfile.open(workspace, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                belongs = [each for each in folders if name == each or each in name.parents]
                if not belongs or name.is_absolute() or ".." in name.parts:
                    continue
                if member.isdir():
                    missing.difference_update(each for each in belongs if name == each)
                    continue
                if not member.isreg():
                    raise SetupFailed(
                        f"the setup input {name} is a link, and inputs are plain files",
                        hint="name the file that it leads to",
                    )
                size += member.size
                if size > _MOST_BYTES or len(found) >= _MOST_FILES:
                    raise SetupFailed(
                        f"the setup inputs have more than {_MOST_BYTES >> 20} MB or {_MOST_FILES} files",
                        hint="list only what the commands read, such as lock files",
                    )
                content = archive.extractfile(member)
                assert content is not None
                found[str(name)] = content.read(), 0o755 if member.mode & 0o100 else 0o644
                missing.difference_update(belongs)
    except tarfile.TarError as error:
        raise SetupFailed(f"the workspace cannot be read: {error}") from None
    if missing:
        names = ", ".join(sorted(map(str, missing)))
        raise SetupFailed(f"the setup reads {names}, which the workspace does not have", hint="correct inputs = […]")
    return _pack(found)


def pick_folders(workspace: Path | None, folders: Sequence[str], into: IO[bytes]) -> None:
    """Write an archive of some folders of a workspace, with all that is in them. Blocks. Raises `SetupFailed` if one is
    missing. A box unpacks it, so links are not dangerous here.
    """
    missing = set(map(PurePosixPath, folders))
    wanted = tuple(missing)
    try:
        if workspace is not None:
            with tarfile.open(workspace, "r:*") as archive, tarfile.open(fileobj=into, mode="w") as picked:
                for member in archive:
                    name = PurePosixPath(member.name)
                    belongs = [each for each in wanted if name == each or each in name.parents]
                    if not belongs:
                        continue
                    missing.difference_update(belongs)
                    picked.addfile(member, archive.extractfile(member) if member.isreg() else None)
    except tarfile.TarError as error:
        raise SetupFailed(f"the workspace cannot be read: {error}") from None
    if missing:
        names = ", ".join(sorted(map(str, missing)))
        raise SetupFailed(
            f"the workspace does not have the repositories of the environment: {names}",
            hint="holdfast run and holdfast env build clone them; through the API, upload them with the workspace",
        )


def _pack(found: dict[str, tuple[bytes, int]]) -> Inputs:
    digest = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(found):
            content, mode = found[name]
            digest.update(f"{len(name.encode())} {mode} {len(content)}\n".encode() + name.encode() + content)
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return Inputs(digest.hexdigest(), packed.getvalue())
