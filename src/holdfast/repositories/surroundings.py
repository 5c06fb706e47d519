"""What is around the changed files, where they go: a folder on disk, or the files of a commit.

A file is more than its path. Below a folder that git takes for a repository, `config` and `hooks` name programs that
git starts. And a link elsewhere can give a file a second path, one that an editor or a shell runs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from holdfast.api.errors.repositories import CannotApply
from holdfast.repositories.changes import LINK_MODE, ChangedFile, ChangedFiles, LeftOut, link_target
from holdfast.repositories.git import Git
from holdfast.repositories.names import seen_name

_MOST_ENTRIES: Final = 200_000
_NOT_SEARCHED: Final = frozenset((".git", "node_modules"))
_HEAD: Final = b"head"
_BESIDE_HEAD: Final = frozenset((b"objects", b"refs", b"commondir"))
_IN_REPOSITORY: Final = "git can take its folder for a repository, whose settings and hooks name programs"


class Surroundings(Protocol):
    """The files that are there before the change. Paths begin at the top of the repository, or of the plain folder."""

    def names(self, folder: bytes) -> Iterable[tuple[bytes, bool]]:
        """Returns the names in a folder, each with whether it is a folder. Empty if there is no such folder."""

    def links(self) -> Mapping[bytes, bytes]:
        """Returns the targets of links, by path."""


class FolderOnDisk:
    def __init__(self, top: Path) -> None:
        self._top = os.fsencode(top)

    def names(self, folder: bytes) -> Iterable[tuple[bytes, bool]]:
        try:
            with os.scandir(self._top + b"/" + folder) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except PermissionError as error:
            raise CannotApply(f"a folder cannot be read: {error}", hint="allow yourself to read it") from None
        except OSError:  # there is none
            return ()

    def links(self) -> Mapping[bytes, bytes]:
        """As `Surroundings` says. Of a huge folder, only what is near to its top is searched."""
        found: dict[bytes, bytes] = {}
        waiting, count = deque([b""]), 0
        while waiting and count < _MOST_ENTRIES:
            here = waiting.popleft()
            try:
                with os.scandir(self._top + b"/" + here) as entries:
                    for entry in entries:
                        count += 1
                        path = here + b"/" + entry.name if here else entry.name
                        if entry.is_symlink():
                            found[path] = self._target(path, os.readlink(entry.path))  # noqa: PTH115
                        elif entry.is_dir(follow_symlinks=False) and os.fsdecode(entry.name) not in _NOT_SEARCHED:
                            waiting.append(path)
            except OSError:  # it is gone meanwhile, or may not be read
                continue
        return found

    def _target(self, path: bytes, target: bytes) -> bytes:
        """Returns a target from its link on, also if it is written with the whole path of a file in here."""
        inside = target.startswith(self._top + b"/")
        return b"../" * path.count(b"/") + target[len(self._top) + 1 :] if inside else target


class CommittedFiles:
    """The files of a commit."""

    def __init__(self, git: Git, folder: Path, commit: str) -> None:
        self._names: dict[bytes, set[tuple[bytes, bool]]] = {}
        links: list[tuple[bytes, bytes]] = []
        for line in git.run(folder, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
            about, _, path = line.partition(b"\t")
            if path:
                self._add(path)
            if about.startswith(LINK_MODE.encode()):
                links.append((path, about.split(b" ")[2]))
        targets = _contents(git, folder, [hash for _, hash in links])
        self._links = {path: target for (path, _), target in zip(links, targets, strict=True)}

    def _add(self, path: bytes) -> None:
        is_folder = False
        while path:
            above, _, name = path.rpartition(b"/")
            beside = self._names.setdefault(_joined(above.split(b"/")), set())
            if (name, is_folder) in beside:
                return
            beside.add((name, is_folder))
            path, is_folder = above, True

    def names(self, folder: bytes) -> Iterable[tuple[bytes, bool]]:
        return self._names.get(_joined(folder.split(b"/")), ())

    def links(self) -> Mapping[bytes, bytes]:
        return self._links


def _contents(git: Git, folder: Path, hashes: Sequence[bytes]) -> Iterator[bytes]:
    told = git.run(folder, "cat-file", "--batch", stdin=b"".join(each + b"\n" for each in hashes)) if hashes else b""
    begin = 0
    for _ in hashes:
        end = told.index(b"\n", begin)
        size = int(told[begin:end].split(b" ")[2])
        yield told[end + 1 : end + 1 + size]
        begin = end + 1 + size + 1


def outside_repositories(changed: ChangedFiles, around: Surroundings, prefix: bytes) -> ChangedFiles:
    """Returns the changes without those below a folder that git could take for a repository, before or after them.

    `prefix` is the folder of the workspace: empty, or with a slash at its end.
    """
    added: dict[bytes, set[bytes]] = {}
    for file in changed.files:
        if file.after is not None:
            parts = (prefix + file.path).split(b"/")
            for count, name in enumerate(parts):
                seen = seen_name(name)
                if seen in _BESIDE_HEAD or (seen == _HEAD and count == len(parts) - 1):
                    added.setdefault(_joined(parts[:count]), set()).add(seen)
    known: dict[bytes, bool] = {}

    def is_repository(folder: bytes) -> bool:
        if folder not in known:
            there = {seen for name, inner in around.names(folder) if (seen := seen_name(name)) != _HEAD or not inner}
            there |= added.get(_joined(folder.split(b"/")), set())
            known[folder] = _HEAD in there and not _BESIDE_HEAD.isdisjoint(there)
        return known[folder]

    kept: list[ChangedFile] = []
    left_out: list[LeftOut] = []
    for file in changed.files:
        parts = (prefix + file.path).split(b"/")
        if any(is_repository(b"/".join(parts[:count])) for count in range(len(parts))):
            left_out.append(LeftOut(file.path, _IN_REPOSITORY))
        else:
            kept.append(file)
    return replace(changed, files=tuple(kept), left_out=(*changed.left_out, *left_out))


def links_after(changed: ChangedFiles, around: Surroundings, prefix: bytes) -> dict[bytes, bytes]:
    """Returns the targets of all links that are there once the changes are, by path."""
    links = dict(around.links())
    for file in changed.files:
        target = link_target(changed.contents, file.after)
        if target is not None:
            links[prefix + file.path] = target
        else:
            links.pop(prefix + file.path, None)
    return links


def _joined(parts: Iterable[bytes]) -> bytes:
    """Returns a folder as the least exact file system reads it."""
    return b"/".join(map(seen_name, parts))
