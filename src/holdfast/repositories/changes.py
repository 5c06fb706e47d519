"""Reads the changed files of a thread, as the server sends them. Everything in them is untrusted.

The archive has both versions of each file under their hashes, and one document with the paths. Contents go into a
folder of ours, named by their hashes. No path of the archive becomes a path here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from holdfast.api.errors.repositories import CannotApply
from holdfast.api.run.repositories import Source
from holdfast.repositories.names import is_head, refusal

MOST_FILES: Final = 100_000
MOST_BYTES: Final = 1024 * 1024 * 1024
_MOST_ABOUT: Final = 64 * 1024 * 1024
_MOST_TARGET: Final = 4096
_PIECE: Final = 1024 * 1024
_BLOB: Final = re.compile(r"blobs/([0-9a-f]{40})")
FILE_MODES: Final = ("100644", "100755")
LINK_MODE: Final = "120000"


@dataclass(frozen=True, slots=True)
class Version:
    """A file as git sees it."""

    mode: str
    hash: str

    @property
    def is_link(self) -> bool:
        return self.mode == LINK_MODE


@dataclass(frozen=True, slots=True)
class ChangedFile:
    path: bytes
    before: Version | None
    after: Version | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    path: bytes
    why: str


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    thread: str
    source: Source | None
    files: tuple[ChangedFile, ...]
    left_out: tuple[LeftOut, ...]
    """What may not go into a checkout."""
    ignored: int
    """New files that the `.gitignore` files of the workspace exclude."""
    contents: Path
    """The folder with the contents, by hash."""
    digest: str = ""
    """Of all changes, also those left out: see `digest_of`."""

    @property
    def prefix(self) -> bytes:
        """What stands before each path in the repository: empty, or a folder with a slash at its end."""
        folder = None if self.source is None else self.source.folder
        return b"" if not folder else os.fsencode(folder) + b"/"


def digest_of(changes: Iterable[tuple[bytes, str | None, str | None]]) -> str:
    """Returns what a user consents to by name: each path, and its mode and hash before and after, joined by a space.

    The server and the client calculate it from what each has. It is long enough that nobody can make other changes
    with the same digest in advance.
    """
    digest = hashlib.sha256()
    for path, before, after in sorted(changes):
        for part in (path, (before or "").encode(), (after or "").encode()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


def read_changed_files(archive: IO[bytes], contents: Path) -> ChangedFiles:
    """Read an archive into an empty folder. Raises `CannotApply` if it is not such an archive, or too large."""
    about: Mapping[str, Any] | None = None
    known: set[str] = set()
    total = 0
    try:
        with tarfile.open(fileobj=archive, mode="r|") as members:
            for member in members:
                total += member.size
                if not member.isreg() or total > MOST_BYTES or len(known) > 2 * MOST_FILES:
                    raise _too_much()
                content = members.extractfile(member)
                assert content is not None
                if about is None:
                    if member.name != "changes.json" or member.size > _MOST_ABOUT:
                        raise _malformed("it does not begin with changes.json")
                    about = json.load(content)
                    continue
                named = _BLOB.fullmatch(member.name)
                if named is None:
                    raise _malformed(f"it has a member {member.name[:80]!r}")
                _keep(content, member.size, contents / named[1], named[1])
                known.add(named[1])
        if not isinstance(about, dict):
            raise _malformed("it is empty")
        return _read(about, known, contents)
    except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError) as error:
        raise _malformed(str(error)) from None


def _read(about: Mapping[str, Any], known: set[str], contents: Path) -> ChangedFiles:
    if about["version"] != 1:
        raise _malformed(f"version {about['version']!r} is not known here", hint="install the server's version")
    if len(about["files"]) > MOST_FILES:
        raise _too_much()
    files: dict[bytes, ChangedFile] = {}
    beside = tuple(os.fsencode(str(path).strip("/")) for path in about.get("repositories", ()))
    left_out = [LeftOut(str(path).encode("utf-8", "replace"), "its name belongs to git") for path in about["refused"]]
    for each in about["files"]:
        path = os.fsencode(each["path"])
        before, after = (_version(each[name], known) for name in ("before", "after"))
        why = refusal(path, None) or next(
            filter(None, (refusal(path, link_target(contents, version)) for version in (before, after))), None
        )
        if why is None and any(path == each or path.startswith(each + b"/") for each in beside):
            why = "it belongs to another repository of the environment"
        if why is None and before is None and is_head(path):
            why = "with it, git could take its folder for a repository, whose settings can name programs"
        if before == after or path in files:
            raise _malformed(f"{path!r} is there twice, or unchanged")
        if why is not None:
            left_out.append(LeftOut(path, why))
        else:
            files[path] = ChangedFile(path, before, after)
    there = {path for path, file in files.items() if file.after is not None}
    for path in there:
        parts = path.split(b"/")
        if any(b"/".join(parts[:count]) in there for count in range(1, len(parts))):
            raise _malformed(f"{path!r} is below a file")
    source = None if about.get("source") is None else Source.from_json(about["source"])
    if source is not None and source.folder is not None and refusal(os.fsencode(source.folder), None):
        raise _malformed(f"{source.folder[:80]!r} is not a folder of a repository")
    thread = str(about["thread"])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", thread):
        raise _malformed(f"{thread[:80]!r} is not a thread")
    ordered = tuple(files[path] for path in sorted(files))
    digest = digest_of(
        (
            os.fsencode(each["path"]),
            each["before"] and " ".join(each["before"]),
            each["after"] and " ".join(each["after"]),
        )
        for each in about["files"]
    )
    return ChangedFiles(thread, source, ordered, tuple(left_out), int(about["ignored"]), contents, digest)


def _version(value: Any, known: set[str]) -> Version | None:
    if value is None:
        return None
    mode, hash = value
    if mode not in (*FILE_MODES, LINK_MODE) or hash not in known:
        raise _malformed(f"{value!r} is no version of a file")
    return Version(mode, hash)


def link_target(contents: Path, version: Version | None) -> bytes | None:
    """Returns where a link leads, or None for anything else."""
    if version is None or not version.is_link:
        return None
    with (contents / version.hash).open("rb") as file:
        return file.read(_MOST_TARGET + 1)


def _keep(content: IO[bytes], size: int, path: Path, hash: str) -> None:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("xb") as file:
        while piece := content.read(_PIECE):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != hash:
        raise _malformed(f"the content of {hash} is another one")


def _malformed(why: str, hint: str | None = None) -> CannotApply:
    return CannotApply(f"the changed files that the server sent cannot be read: {why}", hint=hint)


def _too_much() -> CannotApply:
    return CannotApply(
        f"there are more than {MOST_FILES:,} changed files, or {MOST_BYTES >> 20} MB of them",
        hint="copy what you need with holdfast box cp",
    )
