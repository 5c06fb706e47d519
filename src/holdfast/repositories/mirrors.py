"""Copies of remote repositories on this machine, so that a second clone fetches only what is new.

A mirror is bare, has no hooks and no configuration but ours, and is used under a lock: two commands that clone the same
URL fetch once after the other. The least recently used ones are removed when there are too many.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.api.errors.repositories import RepositoryFailed
from holdfast.repositories.address import Address, is_commit, without_user
from holdfast.repositories.git import NETWORK_SECONDS, Git, last_words

MOST_MIRRORS: Final = 50
MOST_BYTES: Final = 20 * 1024**3
_POLL_SECONDS: Final = 0.1
_HEAD: Final = b"ref: refs/heads/"
_REFSPECS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


@dataclass(frozen=True, slots=True)
class Mirrors:
    """A folder of mirrors. `environment` is that of the user, whose git configuration has the credentials."""

    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    most: int = MOST_MIRRORS
    most_bytes: int = MOST_BYTES
    lock_seconds: float = NETWORK_SECONDS
    sleep: Callable[[float], None] = time.sleep

    @contextlib.contextmanager
    def fetched(self, address: Address) -> Iterator[Path]:
        """Yields the mirror of a URL with all its branches and tags, locked. Raises `RepositoryFailed`."""
        name = hashlib.sha256(address.url.encode()).hexdigest()[:32]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(name, address):
            mirror = self.folder / f"{name}.git"
            self._create(mirror)
            self._fetch(mirror, address)
            os.utime(mirror)
            yield mirror
        self._remove_oldest()

    def _create(self, mirror: Path) -> None:
        if mirror.is_dir():
            return
        half = mirror.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        Git.alone(self.environment).run(self.folder, "init", "--quiet", "--bare", "--template=", str(half))
        half.rename(mirror)

    def _fetch(self, mirror: Path, address: Address) -> None:
        git = Git.of_user(self.environment, address.protocol)
        for each in (mirror / "objects" / "pack").glob("tmp_pack_*"):
            each.unlink(missing_ok=True)  # of a fetch that was killed
        told = git.try_(mirror, "ls-remote", "--symref", "--", address.url, "HEAD", seconds=NETWORK_SECONDS)
        if told.returncode:
            raise _cannot_reach(address, last_words(told))
        fetch = ("fetch", "--quiet", "--prune", "--no-tags", "--no-write-fetch-head", "--force")
        done = git.try_(mirror, *fetch, "--", address.url, *_REFSPECS, seconds=NETWORK_SECONDS)
        if done.returncode:
            raise _cannot_reach(address, last_words(done))
        head = next((line for line in told.stdout.splitlines() if line.startswith(_HEAD)), None)
        if head is not None:
            ref = os.fsdecode(head[len("ref: ") :].partition(b"\t")[0])
            git.run(mirror, "symbolic-ref", "HEAD", ref)
        wanted = address.ref
        if wanted is not None and is_commit(wanted):
            known = git.try_(mirror, "cat-file", "-e", f"{wanted}^{{commit}}").returncode == 0
            if not known:
                git.try_(mirror, *fetch, "--", address.url, wanted, seconds=NETWORK_SECONDS)

    @contextlib.contextmanager
    def _locked(self, name: str, address: Address) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("a") as lock:
            waited = 0.0
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if waited >= self.lock_seconds:
                        raise RepositoryFailed(
                            f"another command has been cloning {without_user(address.url)} for {waited:.0f} s",
                            hint="wait for it, or end it",
                        ) from None
                self.sleep(_POLL_SECONDS)
                waited += _POLL_SECONDS
            yield

    def _remove_oldest(self) -> None:
        """Remove mirrors beyond the limits. One that is in use is left."""
        found = sorted(self.folder.glob("*.git"), key=lambda each: each.stat().st_mtime, reverse=True)
        size = 0
        for number, mirror in enumerate(found):
            size += _size(mirror)
            if number and (number >= self.most or size > self.most_bytes):
                with contextlib.suppress(OSError), mirror.with_suffix(".lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(mirror, ignore_errors=True)


def _cannot_reach(address: Address, why: str) -> RepositoryFailed:
    return RepositoryFailed(
        f"cannot fetch {without_user(address.url)}: {why}",
        hint=f"try it yourself, with the same credentials: git ls-remote {without_user(address.url)}",
    )


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total
