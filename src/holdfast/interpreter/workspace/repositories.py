"""Where a repository comes from: a URL that the box can reach, or a folder of this machine, brought as a bundle.

Credentials stay on this machine: a box gets commits, never a password, a key or a helper.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.api.errors.interpreters import InvalidInterpreter, WorkspaceFailed
from holdfast.client.host_git import READ_ONLY, read_environment
from holdfast.time_limit import time_limit

COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_BYTES: Final = 4 << 30
"""Of a bundle."""
_ASK_SECONDS: Final = 60.0
_BUNDLE_SECONDS: Final = 1800.0
_MOST_OUTPUT: Final = 1 << 20
_LONGEST: Final = 2048
_ABBREVIATED: Final = re.compile(r"[0-9a-f]{7,64}")
_OTHER_MACHINE: Final = re.compile(r"[^/\s:]+@?[^/\s:]*:(?!//).+")
_PARTIAL: Final = r"^(extensions\.partialclone|remote\..*\.promisor)$"
_HISTORY: Final = ("objects", "refs", "packed-refs")


@dataclass(frozen=True, slots=True)
class Remote:
    url: str

    @property
    def identity(self) -> str:
        return _digest(self.url)

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class OnHost:
    folder: Path

    @property
    def identity(self) -> str:
        """Says nothing of this machine to the box."""
        return _digest(f"file://{self.folder}")

    def __str__(self) -> str:
        return str(self.folder)


Repository = Remote | OnHost


@dataclass(frozen=True, slots=True)
class Tip:
    """What a ref is."""

    commit: str
    branch: str | None
    """None: a tag or a commit, which has no branch to work on."""


def locate(repo_url: str | Path, roots: Sequence[Path] | None = None) -> Repository:
    """`roots` are the folders of this machine that may be used; None: all that its user may read."""
    text = str(repo_url)
    if not text or len(text) > _LONGEST or text.startswith("-") or any(each < " " for each in text):
        raise InvalidInterpreter(f"repo_url {text[:80]!r} names no repository", hint="a URL, or a folder")
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme in ("http", "https"):
        return _remote(text)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise InvalidInterpreter(f"repo_url {text!r} is on another machine", hint="file:///folder is on this one")
        return OnHost(allowed(Path(unquote(parts.path)), roots))
    path = Path(text).expanduser()
    if scheme or (not path.exists() and _OTHER_MACHINE.fullmatch(text)):
        raise InvalidInterpreter(
            f"a box cannot reach {text!r}: it has no keys, and speaks HTTPS alone",
            hint="git clone it on this machine, and give that folder as repo_url",
        )
    return OnHost(allowed(path, roots))


def _remote(text: str) -> Remote:
    try:
        host, place = urlsplit(text).hostname, urlsplit(text).netloc
    except ValueError:
        host, place = None, ""
    if not host:
        raise InvalidInterpreter(f"repo_url {text[:80]!r} has no host")
    if "@" in place:
        # Not shown: it may be a password.
        raise InvalidInterpreter(
            f"the repo_url of {host} has a user name or password in it, and boxes get none",
            hint="git clone it on this machine, and give that folder as repo_url",
        )
    return Remote(text)


def allowed(path: Path, roots: Sequence[Path] | None) -> Path:
    """The path as it really is, links followed. Raises where it is not there, or not in one of the roots."""
    try:
        real = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        real = None
    if roots is not None and not (real and any(real.is_relative_to(root.resolve()) for root in roots)):
        # Whether it is there is none of the caller's business.
        raise InvalidInterpreter(f"{path} is not among the folders that may be used here", hint="upload the files")
    if real is None:
        raise InvalidInterpreter(f"there is no {path} on this machine", hint="check the path")
    return real


def check_ref(ref: str | None) -> str | None:
    if ref is None:
        return None
    fits = (
        0 < len(ref) <= 250
        and not ref.startswith(("-", "/", "."))
        and not ref.endswith(("/", ".", ".lock"))
        and not any(each <= " " or each in "~^:?*[\\\x7f" for each in ref)
        and not any(each in ref for each in ("..", "@{", "//", "/."))
        and ref != "@"
    )
    if not fits:
        raise InvalidInterpreter(f"ref {ref[:80]!r} is none", hint="the name of a branch or tag, or a commit")
    return None if ref == "HEAD" else ref


class HostGit:
    """The repository of a folder of this machine, by this machine's git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def tip(self, ref: str | None) -> Tip:
        if await self._maybe("rev-parse", "--git-dir") is None:
            raise WorkspaceFailed(f"{self._folder} is no git repository", hint="git init there, or give another folder")
        await self._check_history()
        if ref is None:
            commit = await self._commit("HEAD")
            if commit is None:
                raise WorkspaceFailed(f"{self._folder} has no commit yet", hint="commit something there")
            return Tip(commit, await self._maybe("symbolic-ref", "-q", "--short", "HEAD"))
        short = ref.removeprefix("refs/heads/")
        for name in (f"refs/heads/{short}", f"refs/remotes/origin/{short}"):
            if (commit := await self._commit(name)) is not None:
                return Tip(commit, short)
        names = (
            [f"refs/tags/{ref.removeprefix('refs/tags/')}", ref] if ref.startswith("refs/") else [f"refs/tags/{ref}"]
        )
        names += [ref] if _ABBREVIATED.fullmatch(ref) else []
        for name in names:
            if (commit := await self._commit(name)) is not None:
                return Tip(commit, None)
        branches = await self._maybe("for-each-ref", "--count=10", "--format=%(refname:short)", "refs/heads") or ""
        raise WorkspaceFailed(
            f"{self._folder} has no branch, tag or commit {ref}",
            hint=f"its branches are {', '.join(branches.split()) or 'none'}",
        )

    async def bundle(self, tip: Tip, known: Sequence[str], target: Path) -> bool:
        """Branches and tags with their commits, but for those that are known already, as a file. Whether HEAD is in it.

        Where all commits of a name are known, it is not."""
        have = [f"^{each}" for each in known if COMMIT.fullmatch(each) and await self._commit(each) == each]
        for what in (("--branches", "--tags"), ("--branches", "--tags", "--remotes")):
            # A commit that is on no branch can come along only if HEAD, or a remote's branch, has it.
            if not await self._run("rev-list", "-n", "1", tip.commit, "--not", "HEAD", *what):
                break
        else:
            raise WorkspaceFailed(
                f"commit {tip.commit} of {self._folder} is on no branch or tag", hint="git branch NAME COMMIT there"
            )
        try:
            await self._run("bundle", "create", "-q", str(target), "HEAD", *what, *have, seconds=_BUNDLE_SECONDS)
        except WorkspaceFailed as error:
            if await self._maybe("config", "--get-regexp", _PARTIAL) is None:
                raise
            raise WorkspaceFailed(
                f"{self._folder} is a partial clone, and some of its objects are not on this machine: {error.message}",
                hint=f"if you cloned it yourself, bring them here: git -C {self._folder} fetch --refetch --no-filter. "
                "In a repository that came out of a box, that would run what the box wrote",
            ) from None
        if (size := (await asyncio.to_thread(target.stat)).st_size) > MOST_BYTES:
            raise WorkspaceFailed(
                f"the history of {self._folder} has {size >> 20:,} MB, and {MOST_BYTES >> 20:,} at most",
                hint="git clone --depth 1 it to another folder, and give that one",
            )
        return bool(await self._run("bundle", "list-heads", str(target), "HEAD"))

    async def shallow(self) -> bytes | None:
        """Where the history was cut off, if it was: who gets the commits has to know."""
        path = await self._maybe("rev-parse", "--git-path", "shallow")
        if not path:
            return None
        with contextlib.suppress(OSError):
            return await asyncio.to_thread((self._folder / path).read_bytes)
        return None

    async def _check_history(self) -> None:
        """Refuse a folder that only says where a history is: another repository's would go into the box.

        The history is in the folder, or the repository that has it knows the folder as its own: as a working tree of
        `git worktree`, or as a submodule.
        """
        own = await self._maybe("rev-parse", "--absolute-git-dir")
        common = await self._maybe("rev-parse", "--path-format=absolute", "--git-common-dir")
        if own is None or common is None:
            raise WorkspaceFailed(f"git does not say where the history of {self._folder} is")
        worktree = await self._maybe("config", "--file", f"{common}/config", "--get", "core.worktree")
        if not await asyncio.to_thread(_is_own_history, self._folder, Path(own), Path(common), worktree):
            raise WorkspaceFailed(
                f"the history of {self._folder} is in {common}, and that repository does not know of this folder",
                hint="give the repository itself, or git clone it to a folder of its own",
            )

    async def _commit(self, name: str) -> str | None:
        found = await self._maybe("rev-parse", "-q", "--verify", f"{name}^{{commit}}")
        return found if found and COMMIT.fullmatch(found) else None

    async def _maybe(self, *arguments: str) -> str | None:
        code, out, _ = await self._git(arguments, _ASK_SECONDS)
        return None if code else out.decode("utf-8", "replace").strip()

    async def _run(self, *arguments: str, seconds: float = _ASK_SECONDS) -> str:
        code, out, said = await self._git(arguments, seconds)
        if code:
            raise WorkspaceFailed(f"git {arguments[0]} failed in {self._folder}: {last_line(said)}")
        return out.decode("utf-8", "replace").strip()

    async def _git(self, arguments: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *READ_ONLY, "-c", "safe.directory=*", *arguments,
                cwd=self._folder, env=read_environment(os.environ),
                stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
                start_new_session=True, limit=_MOST_OUTPUT,
            )  # fmt: skip
        except FileNotFoundError:
            raise WorkspaceFailed("this machine has no git, which a folder as repo_url needs") from None
        except NotADirectoryError:
            raise InvalidInterpreter(f"{self._folder} is no folder", hint="give a folder, or a URL") from None
        try:
            async with time_limit(seconds):
                out, said = await process.communicate()
        except TimeoutError:
            raise WorkspaceFailed(f"git {arguments[0]} did not end within {seconds:g} s in {self._folder}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, out, said


def _is_own_history(folder: Path, own: Path, common: Path, worktree: str | None) -> bool:
    """Whether the history in `common` is that of a folder. `own` is what git found there, `worktree` the folder that
    the settings in `common` name. What the folder says of itself does not count."""
    top = next((each for each in (folder, *folder.parents) if _begins_repository(each)), folder).resolve()
    own, common = own.resolve(), common.resolve()
    places = [(common / name).resolve() for name in _HISTORY]
    if all(each.is_relative_to(top) for each in (common, *places)):
        return True
    if not all(each.is_relative_to(common) for each in places):
        return False
    if own.parent == common / "worktrees":
        with contextlib.suppress(OSError, ValueError):
            return Path((own / "gitdir").read_text().strip()).parent.resolve() == top
    return own == common and worktree is not None and (common / worktree).resolve() == top


def _begins_repository(folder: Path) -> bool:
    """Whether git, on its way up, stops here."""
    return os.path.lexists(folder / ".git") or ((folder / "HEAD").exists() and not (folder / "HEAD").is_dir())


def last_line(said: bytes) -> str:
    """The end of what git said, for people: all of it can be printed."""
    lines = [line.strip() for line in said[-4096:].decode("utf-8", "replace").splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    return printable(told)[:300]


def printable(text: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in text)


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:24]
