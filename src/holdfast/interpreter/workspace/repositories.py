"""The source of a repository: a URL that the box can reach, or a folder of this machine, copied as a bundle.

Credentials stay on this machine: a box gets commits, never a password, a key or a credential helper.
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
"""The largest bundle."""
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
        """A digest, so that the box does not learn the path."""
        return _digest(f"file://{self.folder}")

    def __str__(self) -> str:
        return str(self.folder)


Repository = Remote | OnHost


@dataclass(frozen=True, slots=True)
class Tip:
    """The commit of a ref."""

    commit: str
    branch: str | None
    """None for a tag or a commit."""


def locate(repo_url: str | Path, roots: Sequence[Path] | None = None) -> Repository:
    """`roots` are the folders of this machine that may be used; None allows all."""
    text = str(repo_url)
    if not text or len(text) > _LONGEST or text.startswith("-") or any(each < " " for each in text):
        raise InvalidInterpreter(f"repo_url {text[:80]!r} does not name a repository", hint="give a URL, or a folder")
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
            f"a box cannot reach {text!r}: it has no keys, and only HTTPS is supported",
            hint="clone it on this machine, and give that folder as repo_url",
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
        # The message does not contain it, because it may be a password.
        raise InvalidInterpreter(
            f"the repo_url of {host} contains a user name or password, and boxes get no credentials",
            hint="clone it on this machine, and give that folder as repo_url",
        )
    return Remote(text)


def allowed(path: Path, roots: Sequence[Path] | None) -> Path:
    """Resolve a path with its links. Raises if it does not exist, or is outside of the roots."""
    try:
        real = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        real = None
    if roots is not None and not (real and any(real.is_relative_to(root.resolve()) for root in roots)):
        # The caller must not learn whether it exists.
        raise InvalidInterpreter(f"{path} is not among the folders that may be used here", hint="upload the files")
    if real is None:
        raise InvalidInterpreter(f"{path} does not exist on this machine", hint="check the path")
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
        raise InvalidInterpreter(f"{ref[:80]!r} is not a valid ref", hint="give a branch, a tag or a commit")
    return None if ref == "HEAD" else ref


class HostGit:
    """Reads a repository in a folder of this machine, with the git of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def tip(self, ref: str | None) -> Tip:
        if await self._maybe("rev-parse", "--git-dir") is None:
            raise WorkspaceFailed(f"{self._folder} is not a git repository", hint="give another folder")
        await self._check_history()
        if ref is None:
            commit = await self._commit("HEAD")
            if commit is None:
                raise WorkspaceFailed(f"{self._folder} has no commits", hint="commit something there")
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
        """Write branches and tags to a file, without commits that are known. Returns whether the file contains
        HEAD, which it does not if all of its commits are known."""
        have = [f"^{each}" for each in known if COMMIT.fullmatch(each) and await self._commit(each) == each]
        for what in (("--branches", "--tags"), ("--branches", "--tags", "--remotes")):
            # A commit that is on no branch is included only if HEAD or a remote branch contains it.
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
                hint=f"if you cloned it yourself, run git -C {self._folder} fetch --refetch --no-filter. "
                "Do not do so in a repository that came from a box: it would run code of the box",
            ) from None
        if (size := (await asyncio.to_thread(target.stat)).st_size) > MOST_BYTES:
            raise WorkspaceFailed(
                f"the history of {self._folder} has {size >> 20:,} MB, and at most {MOST_BYTES >> 20:,} are allowed",
                hint="clone it with --depth 1 to another folder, and give that one",
            )
        return bool(await self._run("bundle", "list-heads", str(target), "HEAD"))

    async def shallow(self) -> bytes | None:
        """The commits at which a shallow history ends. The receiver of a bundle needs them."""
        path = await self._maybe("rev-parse", "--git-path", "shallow")
        if not path:
            return None
        with contextlib.suppress(OSError):
            return await asyncio.to_thread((self._folder / path).read_bytes)
        return None

    async def _check_history(self) -> None:
        """Refuse a folder that points to the history of another repository, which would be copied into the box.

        The history must be in the folder, or in a repository that knows the folder as a working tree of `git worktree`
        or as a submodule.
        """
        own = await self._maybe("rev-parse", "--absolute-git-dir")
        common = await self._maybe("rev-parse", "--path-format=absolute", "--git-common-dir")
        if own is None or common is None:
            raise WorkspaceFailed(f"git does not tell where the history of {self._folder} is")
        worktree = await self._maybe("config", "--file", f"{common}/config", "--get", "core.worktree")
        if not await asyncio.to_thread(_is_own_history, self._folder, Path(own), Path(common), worktree):
            raise WorkspaceFailed(
                f"the history of {self._folder} is in {common}, and that repository does not know of this folder",
                hint="give the repository itself, or clone it to another folder",
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
            raise InvalidInterpreter(f"{self._folder} is not a folder", hint="give a folder, or a URL") from None
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
    """Whether the history in `common` belongs to a folder. `own` is the git folder that git found, `worktree` the
    folder that the settings in `common` name. Claims of the folder itself do not count."""
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
    """Returns whether git, which searches upwards, stops at this folder."""
    return os.path.lexists(folder / ".git") or ((folder / "HEAD").exists() and not (folder / "HEAD").is_dir())


def last_line(stderr: bytes) -> str:
    """The error in the output of git, in printable characters."""
    lines = [line.strip() for line in stderr[-4096:].decode("utf-8", "replace").splitlines() if line.strip()]
    line = next((each for each in reversed(lines) if each.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    return printable(line)[:300]


def printable(text: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in text)


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:24]
