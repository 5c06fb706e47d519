"""A clean checkout of a repository in a temporary folder, for the workspace of a run, and what is known about one.

The checkout is made with no configuration of the user: no filter runs on the files of others. So files of Git LFS stay
pointers, and submodules stay empty folders. Both are counted, for the user to know.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.repositories import InvalidRepository
from holdfast.api.run.repositories import Source
from holdfast.repositories.address import Address, is_commit, without_user
from holdfast.repositories.git import NETWORK_SECONDS, Git
from holdfast.repositories.mirrors import Mirrors

_MOST_ATTRIBUTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Checkout:
    folder: Path
    """Removed at the end of the block."""
    source: Source
    submodules: int
    """Submodules, which are empty folders."""
    lfs: bool
    """Whether files of Git LFS are pointers to their content."""


@contextlib.contextmanager
def check_out(address: Address, mirrors: Mirrors) -> Iterator[Checkout]:
    """Yields a checkout of a repository at a ref, with the history of that ref. Raises `InvalidRepository`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-clone-", ignore_cleanup_errors=True) as folder:
        target = Path(folder) / "clone"
        if address.is_path:
            source = _clone(Path(address.url), address, target, mirrors.environment)
        else:
            with mirrors.fetched(address) as mirror:
                source = _clone(mirror, address, target, mirrors.environment)
        submodules, lfs = _not_there(target, mirrors.environment)
        yield Checkout(target, source, submodules, lfs)


def source_of(folder: Path, environment: Mapping[str, str]) -> Source | None:
    """Returns what is known about a folder of a working tree, or None if git does not read it."""
    git = Git.of_user(environment).in_checkout(folder)
    commit = git.try_(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if commit.returncode not in (0, 1):
        return None
    branch = git.try_(folder, "symbolic-ref", "--quiet", "--short", "HEAD")
    changed = git.try_(folder, "status", "--porcelain", "-z", "--ignore-submodules=all", "--", ".")
    prefix = _text(git.try_(folder, "rev-parse", "--show-prefix").stdout)
    return Source(
        repository=_origin(git, folder),
        ref=_text(branch.stdout),
        commit=_text(commit.stdout),
        folder=None if prefix is None else prefix.rstrip("/"),
        changed=bool(changed.stdout),
    )


def _clone(place: Path, address: Address, target: Path, environment: Mapping[str, str]) -> Source:
    git = Git.alone(environment, "file")
    branch, commit = _resolve(git, place, address)
    git.run(target.parent, "init", "--quiet", "--template=", str(target))
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", str(place), commit)
    git.run(target, *fetch, seconds=NETWORK_SECONDS)
    url = _home(Git.of_user(environment), place) if address.is_path else without_user(address.url)
    if url is not None:
        git.run(target, "config", "remote.origin.url", url)
        git.run(target, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    if branch is None:
        git.run(target, "checkout", "--quiet", "--detach", commit, seconds=NETWORK_SECONDS)
    else:
        git.run(target, "update-ref", f"refs/remotes/origin/{branch}", commit)
        git.run(target, "update-ref", f"refs/heads/{branch}", commit)
        git.run(target, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        git.run(target, "reset", "--quiet", "--hard", seconds=NETWORK_SECONDS)
    return Source(repository=url, ref=address.ref or branch, commit=commit)


def _resolve(git: Git, place: Path, address: Address) -> tuple[str | None, str]:
    """Returns the branch, if the ref is one, and the commit."""
    ref = address.ref
    shown = without_user(address.url)
    if ref is None:
        commit = git.try_(place, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        if commit.returncode:
            raise InvalidRepository(f"{shown} is not a git repository with a commit", hint="commit something first")
        return _text(git.try_(place, "symbolic-ref", "--quiet", "--short", "HEAD").stdout), _hash(commit.stdout)
    names = [(f"refs/heads/{ref}", ref), (f"refs/tags/{ref}", None), (f"refs/remotes/origin/{ref}", ref)]
    if is_commit(ref):
        names.append((ref, None))
    for name, branch in names:
        found = git.try_(place, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if not found.returncode:
            return branch, _hash(found.stdout)
    raise InvalidRepository(f"{shown} has no branch, tag or commit {ref!r}", hint=f"list them: git ls-remote {shown}")


def _not_there(folder: Path, environment: Mapping[str, str]) -> tuple[int, bool]:
    """Returns the number of submodules, and whether there are files of Git LFS."""
    listed = Git.alone(environment).run(folder, "ls-tree", "-r", "-z", "HEAD").split(b"\0")
    submodules, lfs = 0, False
    for line in listed:
        about, _, path = line.partition(b"\t")
        if about.startswith(b"160000 "):
            submodules += 1
        elif not lfs and path.rpartition(b"/")[2] == b".gitattributes" and about.startswith(b"100"):
            with contextlib.suppress(OSError), (folder / os.fsdecode(path)).open("rb") as file:
                lfs = b"filter=lfs" in file.read(_MOST_ATTRIBUTES)
    return submodules, lfs


def _home(git: Git, folder: Path) -> str | None:
    """Returns where the work on a repository of this machine goes: a bare one is its own home, a checkout has one."""
    bare = _text(git.try_(folder, "rev-parse", "--is-bare-repository").stdout) == "true"
    return str(folder) if bare else _origin(git, folder)


def _origin(git: Git, folder: Path) -> str | None:
    url = _text(git.try_(folder, "config", "--get", "remote.origin.url").stdout)
    return None if url is None else without_user(url)


def _hash(output: bytes) -> str:
    return output.decode("ascii").strip()


def _text(output: bytes) -> str | None:
    text = output.decode("utf-8", "replace").strip()
    return text if text and text.isprintable() and len(text) <= 1024 else None
