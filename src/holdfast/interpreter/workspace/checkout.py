"""The checkout in a box. git runs in the box, so that a hostile repository harms only its own box.

Local changes are carried over to the next ref, as git does it, or the checkout is refused: they are never lost. Each
repository has a folder under `.holdfast/repositories`; the one that is checked out is `.git` of the workdir. Returning
to a repository therefore needs no second clone, and finds its branches.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileKind
from holdfast.api.box.network import Network
from holdfast.api.box.process import Completed
from holdfast.api.errors.boxes import BoxError, CannotExecute, ExecTimeout, FileMissing, FileProblem, OutputTooLarge
from holdfast.api.errors.interpreters import WorkspaceConflict, WorkspaceFailed
from holdfast.interpreter.workspace.repositories import (
    COMMIT,
    HostGit,
    OnHost,
    Remote,
    Repository,
    Tip,
    last_line,
    printable,
)

OURS: Final = ".holdfast"
"""The folder of Holdfast in a workdir, which git ignores."""
_REPOSITORIES: Final = f"{OURS}/repositories"
_QUICK_SECONDS: Final = 120.0
_LONG_SECONDS: Final = 3600.0
_MOST_OUTPUT: Final = 4 << 20
_SHOWN: Final = 5
_EMPTY_TREE: Final = ("hash-object", "-t", "tree", "-w", "/dev/null")
_REFSPECS: Final = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_EXCLUDED: Final = f"/{OURS}/\n/context\n"
_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1",
    "GIT_HTTP_LOW_SPEED_TIME": "120",
}
_SETTINGS: Final = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "credential.helper=",
    "-c", "safe.directory=*", "-c", "advice.detachedHead=false", "-c", "gc.auto=0", "-c", "core.quotePath=false",
    "-c", "submodule.recurse=false", "-c", "fetch.recurseSubmodules=false",
)  # fmt: skip
_AWAY: Final = re.compile(
    r"could not resolve|failed to connect|connection (reset|refused)|unable to connect|tunnel failed|blocked|"
    r"proxy|timed out|network is unreachable|error: 403",
    re.IGNORECASE,
)
_CLOSED: Final = re.compile(
    r"could not read username|authentication failed|terminal prompts disabled|not found|error: 401", re.IGNORECASE
)


class Step(StrEnum):
    """A step of a checkout, in this order."""

    FETCH = "fetch"
    SWITCH = "switch"
    """Put the present repository aside, and the wanted one in its place."""
    CHECK_OUT = "check out"


@dataclass(frozen=True, slots=True)
class ExistingCheckout:
    """The present checkout."""

    identity: str | None
    """The identity of its repository, as we recorded it. None if we did not make the checkout."""
    ref: str | None
    """The ref requested last; empty for the default."""
    commit: str | None
    """The commit of the ref at that time. None if the checkout was never completed."""
    url: str | None = None
    emptied: bool = False
    """Its files were removed to make room for another repository, and have to be restored."""


@dataclass(frozen=True, slots=True)
class WantedCheckout:
    repository: Repository
    ref: str | None
    tip: Tip | None = None
    """The commit of the ref, if it is known before the fetch."""


@dataclass(frozen=True, slots=True)
class CheckedOut:
    commit: str
    branch: str | None
    steps: tuple[Step, ...]
    kept: tuple[str, ...] = ()
    """Descriptions of what was kept of the previous checkout."""


def plan(found: ExistingCheckout | None, wanted: WantedCheckout) -> tuple[Step, ...]:
    """The steps that are needed. A checkout of the same ref is left alone, with its local changes."""
    if found is None or not _is_same(found, wanted.repository):
        return (Step.FETCH, Step.SWITCH, Step.CHECK_OUT)
    done = found.commit is not None and found.ref == (wanted.ref or "") and not found.emptied
    moved = wanted.tip is not None and found.commit != wanted.tip.commit
    return () if done and not moved else (Step.FETCH, Step.CHECK_OUT)


def _is_same(found: ExistingCheckout, repository: Repository) -> bool:
    if found.identity is not None:
        return found.identity == repository.identity
    return isinstance(repository, Remote) and found.url == repository.url


@dataclass(frozen=True, slots=True)
class Pending:
    """A planned checkout. Nothing has been done yet."""

    git: _Git
    found: ExistingCheckout | None
    wanted: WantedCheckout
    steps: tuple[Step, ...]

    async def make(self) -> CheckedOut:
        if self.steps:
            return await _Change(self.git, self.found, self.wanted, self.steps).make()
        head, branch = await asyncio.gather(self.git.commit("HEAD"), self.git.branch())
        return CheckedOut(head or "", branch, ())


async def prepare(box: Box, workdir: str, repository: Repository, ref: str | None) -> Pending:
    """Plan the checkout of a ref."""
    if isinstance(repository, OnHost):
        tip, found = await asyncio.gather(HostGit(repository.folder).tip(ref), find_checkout(box, workdir))
        wanted = WantedCheckout(repository, ref, tip)
    else:
        wanted, found = WantedCheckout(repository, ref), await find_checkout(box, workdir)
    return Pending(_Git(box, workdir), found, wanted, plan(found, wanted))


async def find_checkout(box: Box, workdir: str) -> ExistingCheckout | None:
    try:
        folder = await box.files.stat(posixpath.join(workdir, ".git"))
    except (FileMissing, FileProblem):
        return None
    if folder.kind is not FileKind.FOLDER:
        raise WorkspaceConflict(
            f"{workdir}/.git in the box is not a folder: this checkout is not ours",
            hint=f"move {workdir}/.git away, or request a new box (force_new)",
        )
    done = await _Git(box, workdir).run("config", "--local", "--null", "--list", check=False)
    settings: dict[str, str] = {}
    for each in done.text.split("\0"):
        name, _, value = each.partition("\n")
        settings[name] = value
    commit = settings.get("holdfast.commit", "")
    return ExistingCheckout(
        settings.get("holdfast.repository"),
        settings.get("holdfast.ref"),
        commit if COMMIT.fullmatch(commit) else None,
        settings.get("remote.origin.url"),
        "holdfast.emptied" in settings,
    )


async def changes(box: Box, workdir: str) -> tuple[str, ...]:
    """Describe what a new box would lack: commits that were made here, also in repositories that were put aside, and
    files that differ from the last commit, including new ones."""
    git = _Git(box, workdir)
    exists = await find_checkout(box, workdir) is not None
    commits = await git.count_local_commits() if exists else 0
    for aside in await _repositories_aside(box, workdir):
        commits += await git.at(aside).count_local_commits()
    local = (f"{commits} commit{'s that are' if commits > 1 else ' that is'} nowhere else",) if commits else ()
    return local + (await git.changed("--untracked-files=all") if exists else ())


async def _repositories_aside(box: Box, workdir: str) -> list[str]:
    """The folders of repositories that were put aside."""
    try:
        found = await box.files.list(posixpath.join(workdir, _REPOSITORIES))
    except (FileMissing, FileProblem):
        return []
    return [f"{_REPOSITORIES}/{each.name}" for each in found if each.kind is FileKind.FOLDER]


class _Git:
    """Runs the git of a box in its workdir, on `.git` or another folder there."""

    def __init__(self, box: Box, workdir: str, folder: str | None = None) -> None:
        self.box = box
        self.workdir = workdir
        self.folder = folder

    def at(self, folder: str) -> _Git:
        return _Git(self.box, self.workdir, folder)

    def path(self, *parts: str) -> str:
        return posixpath.join(self.workdir, *parts)

    async def run(
        self, *arguments: str, check: bool = True, seconds: float = _QUICK_SECONDS, env: Mapping[str, str] | None = None
    ) -> Completed:
        where = ("--git-dir", self.folder, "--work-tree", ".") if self.folder is not None else ()
        try:
            done = await self.box.exec(
                ("git", *_SETTINGS, *where, *arguments),
                env={**_ENVIRONMENT, **(env or {})},
                cwd=self.workdir,
                timeout=seconds,
                max_output=_MOST_OUTPUT,
            )
        except CannotExecute as error:
            raise WorkspaceFailed(
                f"box {self.box.id} cannot run git: {error.message}",
                hint="use a template or an image with git, such as holdfast/base",
            ) from error
        except ExecTimeout as error:
            raise WorkspaceFailed(
                f"git {arguments[0]} did not end within {seconds:g} s in box {self.box.id}",
                hint="use a smaller repository, or clone it on this machine with --depth 1",
            ) from error
        except OutputTooLarge as error:
            raise WorkspaceFailed(f"git {arguments[0]} printed more than {_MOST_OUTPUT} bytes") from error
        if check and not done.ok:
            raise WorkspaceFailed(f"git {arguments[0]} failed in box {self.box.id}: {last_line(done.stderr)}")
        return done

    async def commit(self, name: str) -> str | None:
        done = await self.run("rev-parse", "-q", "--verify", f"{name}^{{commit}}", check=False)
        found = done.text.strip()
        return found if done.ok and COMMIT.fullmatch(found) else None

    async def branch(self) -> str | None:
        done = await self.run("symbolic-ref", "-q", "--short", "HEAD", check=False)
        return printable(done.text.strip()) or None if done.ok else None

    async def is_ancestor(self, one: str, other: str) -> bool:
        return (await self.run("merge-base", "--is-ancestor", one, other, check=False)).ok

    async def count_local_commits(self) -> int:
        """Count the commits of its branches that were made in the box."""
        fetched = ("--remotes", "--tags", "--glob=refs/holdfast/*")
        heads = ("--branches", *(("HEAD",) if await self.commit("HEAD") is not None else ()))
        counted = (await self.run("rev-list", "--count", *heads, "--not", *fetched)).text.strip()
        if not re.fullmatch("[0-9]{1,12}", counted):  # the git of a box is not trusted
            raise WorkspaceFailed(f"git rev-list in box {self.box.id} printed no number: {printable(counted[:80])!r}")
        return int(counted)

    async def changed(self, untracked: str) -> tuple[str, ...]:
        done = await self.run("status", "--porcelain", "-z", "--no-renames", untracked)
        return tuple(printable(each[3:]) for each in done.text.split("\0") if len(each) > 3)


class _Change:
    """One change of a checkout. Steps that are likely to fail come before anything is moved."""

    def __init__(
        self, git: _Git, found: ExistingCheckout | None, wanted: WantedCheckout, steps: tuple[Step, ...]
    ) -> None:
        self._git = git
        self._found = found
        self._wanted = wanted
        self._steps = steps
        self._identity = wanted.repository.identity
        self._kept: list[str] = []

    async def make(self) -> CheckedOut:
        switching = Step.SWITCH in self._steps
        place = f"{_REPOSITORIES}/{self._identity}" if switching else ".git"
        git = self._git.at(place)
        if switching:
            await self._prepare(git, place)
        tip = await self._fetch(git)
        await self._check_reserved(git, tip)
        if not switching:
            if self._found is not None and self._found.emptied:
                await self._restore()  # an earlier change was interrupted
            await self._move_to(self._git, tip)
        else:
            await self._switch(place, tip)
        await self._record(tip)
        return CheckedOut(tip.commit, tip.branch, self._steps, tuple(self._kept))

    # --- fetch ---

    async def _prepare(self, git: _Git, place: str) -> None:
        """Create a folder for the repository, if there is none. The present checkout does not change."""
        if not await git.box.files.exists(git.path(place, "HEAD")):
            await git.box.files.mkdir(git.path(_REPOSITORIES))
            await self._git.run("init", "-q", "--bare", place)
        await git.run("config", "core.bare", "false")
        await git.run("config", "holdfast.repository", self._identity)
        if isinstance(self._wanted.repository, Remote):
            await git.run("config", "remote.origin.url", self._wanted.repository.url)
            await git.run("config", "remote.origin.fetch", _REFSPECS[0])

    async def _fetch(self, git: _Git) -> Tip:
        repository = self._wanted.repository
        if isinstance(repository, OnHost):
            assert self._wanted.tip is not None
            return await self._fetch_bundle(git, repository, self._wanted.tip)
        await self._run_remote(git, repository, "fetch", "-q", "--prune", repository.url, *_REFSPECS)
        return await self._resolve(git, repository)

    async def _fetch_bundle(self, git: _Git, repository: OnHost, tip: Tip) -> Tip:
        """Copy commits from this machine, as a bundle."""
        if await git.commit(tip.commit) is None:
            host, incoming = HostGit(repository.folder), f"{OURS}/incoming-{secrets.token_hex(6)}"
            known: tuple[str, ...] = ()
            if self._found is not None and self._found.commit and await git.commit(self._found.commit) is not None:
                known = (self._found.commit,)
            try:
                with tempfile.TemporaryDirectory(prefix="holdfast-bundle-") as folder:
                    has_head = await host.bundle(tip, known, Path(folder) / "bundle")
                    await git.box.files.upload(Path(folder) / "bundle", git.path(incoming))
                if (shallow := await host.shallow()) is not None:
                    await git.box.files.write(git.path(git.folder or ".git", "shallow"), shallow)
                refs: tuple[str, ...] = (*_REFSPECS, "+refs/remotes/*:refs/holdfast/remotes/*")
                refs += ("+HEAD:refs/holdfast/head",) if has_head else ()
                await git.run("fetch", "-q", incoming, *refs, seconds=_LONG_SECONDS)
            finally:
                with contextlib.suppress(BoxError):
                    await git.box.files.delete(git.path(incoming))
        if tip.branch is not None:
            await git.run("update-ref", f"refs/remotes/origin/{tip.branch}", tip.commit)
        return tip

    async def _resolve(self, git: _Git, repository: Remote) -> Tip:
        """Find the commit of the ref, after the fetch."""
        ref = self._wanted.ref
        if ref is None:
            done = await self._run_remote(git, repository, "ls-remote", "--symref", repository.url, "HEAD")
            head = re.search(r"^ref: refs/heads/(\S+)\tHEAD$", done.text, re.MULTILINE)
            ref = head[1] if head is not None else "HEAD"
        short = ref.removeprefix("refs/heads/")
        if (commit := await git.commit(f"refs/remotes/origin/{short}")) is not None:
            return Tip(commit, short)
        tag = ref.removeprefix("refs/tags/")
        if (commit := await git.commit(f"refs/tags/{tag}")) is not None:
            return Tip(commit, None)
        if re.fullmatch(r"[0-9a-f]{7,64}", ref) and (commit := await git.commit(ref)) is not None:
            return Tip(commit, None)
        # Not on any branch: a pull request, or a commit that the server serves by its id.
        if ref == "HEAD" or ref.startswith("refs/") or COMMIT.fullmatch(ref):
            done = await git.run(
                "fetch", "-q", repository.url, f"+{ref}:refs/holdfast/wanted", check=False, seconds=_LONG_SECONDS
            )
            if done.ok and (commit := await git.commit("refs/holdfast/wanted")) is not None:
                return Tip(commit, None)
        branches = await git.run("for-each-ref", "--count=10", "--format=%(refname:lstrip=3)", "refs/remotes/origin")
        raise WorkspaceFailed(
            f"{repository} has no branch, tag or commit {ref}",
            hint=f"its branches are {printable(', '.join(branches.text.split())) or 'none: it is empty'}",
        )

    async def _run_remote(self, git: _Git, repository: Remote, *arguments: str) -> Completed:
        done = await git.run(*arguments, check=False, seconds=_LONG_SECONDS)
        if done.ok:
            return done
        said = done.stderr[-4096:].decode("utf-8", "replace")
        box, host = git.box, repository.url.split("/")[2]
        hint = "clone it on this machine, and give that folder as repo_url"
        if _CLOSED.search(said):
            hint = f"boxes have no credentials. {hint[:1].upper()}{hint[1:]}"
        elif box.spec.network.mode is Network.NONE or _AWAY.search(said):
            hint = f"let the box reach it with: holdfast box network {box.id} --allow {host}. Or {hint}"
        raise WorkspaceFailed(f"{repository} could not be fetched in box {box.id}: {last_line(done.stderr)}", hint=hint)

    async def _check_reserved(self, git: _Git, tip: Tip) -> None:
        if (await git.run("ls-tree", "--name-only", tip.commit, "--", OURS)).text.strip():
            raise WorkspaceConflict(
                f"{self._wanted.repository} contains {OURS} at {tip.commit[:12]}, which Holdfast reserves",
                hint=f"use a ref without {OURS}",
            )

    # --- check out ---

    async def _switch(self, place: str, tip: Tip) -> None:
        """Replace the repository by another one. If that fails, put the old one back."""
        git, files = self._git, self._git.box.files
        aside: str | None = None
        if self._found is not None:
            name = self._found.identity or secrets.token_hex(12)
            aside = f"{_REPOSITORIES}/{name if re.fullmatch('[0-9a-f]{24}', name) else secrets.token_hex(12)}"
            await self._empty()
            await files.move(git.path(".git"), git.path(aside))
        try:
            await files.move(git.path(place), git.path(".git"))
            try:
                await self._exclude()
                await self._fill(tip)
            except BaseException:
                await files.move(git.path(".git"), git.path(place))
                raise
        except BaseException:
            if aside is not None:
                await files.move(git.path(aside), git.path(".git"))
                await self._restore()
            raise
        if aside is not None:
            self._kept.append(f"the previous repository, in {aside}")

    async def _empty(self) -> None:
        """Remove the files of the checkout. Raises `WorkspaceConflict` if one of them was changed."""
        if changed := await self._git.changed("--untracked-files=no"):
            raise WorkspaceConflict(
                f"another repository was requested, but {_listed(changed)} in the box {_have(changed)} local changes",
                hint="commit them in the box: commits are kept. Or request a new box (force_new), which loses them",
            )
        if await self._git.commit("HEAD") is not None:
            await self._keep_commits()
            await self._git.run("config", "holdfast.emptied", "true")
            empty = (await self._git.run(*_EMPTY_TREE)).text.strip()
            done = await self._git.run("read-tree", "-m", "-u", "HEAD", empty, check=False)
            if not done.ok:
                await self._git.run("config", "--unset", "holdfast.emptied")
                raise _conflict(done)

    async def _restore(self) -> None:
        """Undo `_empty`. Does nothing if no files were removed."""
        if await self._git.commit("HEAD") is None:
            return
        empty = (await self._git.run(*_EMPTY_TREE)).text.strip()
        done = await self._git.run("read-tree", "-m", "-u", empty, "HEAD", check=False)
        if not done.ok:
            raise _conflict(done)
        await self._git.run("config", "--unset", "holdfast.emptied", check=False)

    async def _fill(self, tip: Tip) -> None:
        """Check out a repository that has no files in the workdir."""
        await self._restore()
        try:
            await self._move_to(self._git, tip)
        except BaseException:
            await self._empty()
            raise

    async def _move_to(self, git: _Git, tip: Tip) -> None:
        """Check out a commit. Local changes are carried over, or git refuses and nothing is changed."""
        await self._keep_commits()
        arguments: tuple[str, ...]
        if tip.branch is None:
            arguments = ("--detach", tip.commit)
        else:
            local = await git.commit(f"refs/heads/{tip.branch}")
            if local is None or local == tip.commit or await git.is_ancestor(local, tip.commit):
                arguments = ("-B", tip.branch, tip.commit)
            elif await git.is_ancestor(tip.commit, local):
                self._kept.append(f"commits of branch {tip.branch} that were made in the box")
                arguments = ("-B", tip.branch, local)
            else:
                raise WorkspaceConflict(
                    f"branch {tip.branch} in the box and in {self._wanted.repository} have diverged",
                    hint="rebase or merge in the box, or give another ref. Nothing was changed",
                )
        before = await git.changed("--untracked-files=no") if await git.commit("HEAD") is not None else ()
        done = await git.run("checkout", "-q", "--no-overwrite-ignore", *arguments, check=False, seconds=_LONG_SECONDS)
        if not done.ok:
            raise _conflict(done)
        if before:
            self._kept.append(f"local changes of {_listed(before)}")
        if tip.branch is not None and isinstance(self._wanted.repository, Remote):
            await git.run("branch", "-q", f"--set-upstream-to=origin/{tip.branch}", tip.branch, check=False)

    async def _keep_commits(self) -> None:
        """Create a branch for commits of the box that no branch contains."""
        head = await self._git.commit("HEAD")
        if head is None or await self._git.branch() is not None:
            return
        contained = await self._git.run("for-each-ref", "--contains", head, "--count=1", check=False)
        if contained.text.strip() or (self._found is not None and head == self._found.commit):
            return
        name = f"holdfast/kept-{head[:12]}"
        await self._git.run("branch", "-f", name, head)
        self._kept.append(f"commits that were made in the box, on branch {name}")

    async def _exclude(self) -> None:
        await self._git.box.files.write(self._git.path(".git", "info", "exclude"), _EXCLUDED.encode())

    async def _record(self, tip: Tip) -> None:
        git = self._git
        await git.run("config", "holdfast.repository", self._identity)
        await git.run("config", "holdfast.ref", self._wanted.ref or "")
        await git.run("config", "holdfast.commit", tip.commit)


def _conflict(done: Completed) -> WorkspaceConflict | WorkspaceFailed:
    """Build the error for what git printed when it refused."""
    printed = done.stderr[-65536:].decode("utf-8", "replace")
    files = tuple(printable(line[1:]) for line in printed.splitlines() if line.startswith("\t"))
    files += tuple(printable(each) for each in re.findall(r"^error: Entry '(.+)' not uptodate", printed, re.MULTILINE))
    hint = "commit or move them in the box, or request a new box (force_new), which loses them. Nothing was changed"
    if "untracked" in printed and files:
        return WorkspaceConflict(f"{_listed(files)} in the box would be overwritten by the checkout", hint=hint)
    if files:
        return WorkspaceConflict(f"local changes of {_listed(files)} in the box would be lost", hint=hint)
    if "index first" in printed or "merge" in printed:
        return WorkspaceConflict(f"the checkout in the box has an unfinished operation: {last_line(done.stderr)}")
    hint = "if no git runs in the box any more, remove .git/index.lock there" if ".lock" in printed else ""
    return WorkspaceFailed(f"git checkout failed: {last_line(done.stderr)}", hint=hint or None)


def _listed(files: tuple[str, ...]) -> str:
    shown = ", ".join(each[:100] for each in files[:_SHOWN])
    return shown if len(files) <= _SHOWN else f"{shown} and {len(files) - _SHOWN} more"


def _have(files: tuple[str, ...]) -> str:
    return "has" if len(files) == 1 else "have"
