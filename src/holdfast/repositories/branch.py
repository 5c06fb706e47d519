"""Puts the changes of a thread on a branch, as a commit, and pushes it. The working tree stays as it is.

The commit's parent is the commit that the thread began with. It is the same commit each time: its dates are those of
the thread. So a second push has nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.repositories import CannotApply, InvalidRepository, RepositoryFailed
from holdfast.calendar_time import LAST
from holdfast.repositories.address import check_ref, without_user
from holdfast.repositories.changes import ChangedFiles, Version
from holdfast.repositories.git import NETWORK_SECONDS, Git, last_words
from holdfast.repositories.merge import Action, Side, decide, merge_lines
from holdfast.repositories.surroundings import CommittedFiles, outside_repositories

PROTOCOLS: Final = "https:ssh:file"
_TRAILER: Final = "Holdfast-Thread"
_SHOWN: Final = 10
_OF_OTHERS: Final = ("(fetch first)", "(non-fast-forward)")
"""Why git refuses a push that would lose commits."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a commit says."""

    title: str
    at: int
    """UTC milliseconds, for its dates."""


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    commit: str
    is_new: bool
    """Whether there was no such commit on the branch yet."""


def make_branch(git: Git, folder: Path, changed: ChangedFiles, name: str, work: Work) -> Branch:
    """Create a branch with the changes, or add a commit to the branch that an earlier call made.

    Raises `CannotApply` if there is a branch of someone else, or if a file conflicts with its committed version.
    """
    check_ref(name)
    ref = f"refs/heads/{name}"
    changed = outside_repositories(changed, files_at_begin(git, folder, changed), changed.prefix)
    with _index(git, folder, changed) as (base, more):
        tree = _tree(git, folder, changed, base, more)
        tip = _hash(git.try_(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").stdout)
        parent = base
        if tip is not None:
            if _thread_of(git, folder, tip) != changed.thread:
                raise CannotApply(
                    f"there is a branch {name} already, and thread {changed.thread} did not make it",
                    hint="choose another with --branch NAME",
                )
            if _hash(git.run(folder, "rev-parse", f"{tip}^{{tree}}")) == tree:
                return Branch(name, tip, False)
            parent = tip
        if _hash(git.run(folder, "rev-parse", f"{parent}^{{tree}}")) == tree:
            raise CannotApply(f"thread {changed.thread} changed no file", hint=f"holdfast diff {changed.thread}")
        commit = _commit(git, folder, tree, parent, changed.thread, work)
        nothing = "0" * len(commit)
        git.run(folder, "update-ref", ref, commit, nothing if tip is None else tip)
        return Branch(name, commit, True)


def push(git: Git, folder: Path, branch: Branch, remote: str) -> bool:
    """Push a branch to a remote, or a URL. Returns False if it was there already. Never forces."""
    if not remote or remote.startswith("-"):
        raise InvalidRepository(f"{remote!r} is not a remote")
    refspec = f"{branch.commit}:refs/heads/{branch.name}"
    done = git.try_(folder, "push", "--porcelain", "--no-verify", "--", remote, refspec, seconds=NETWORK_SECONDS)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if done.returncode and _is_there(git, folder, branch, remote):
        return False
    if done.returncode:
        told = next((line.split("\t")[-1] for line in lines if line.startswith("!")), last_words(done))
        if any(reason in told for reason in _OF_OTHERS):
            raise RepositoryFailed(
                f"cannot push {branch.name} to {without_user(remote)}: it has commits there that are not in yours",
                hint=f"look at them with git fetch {without_user(remote)} {branch.name}, or push to another branch with"
                " --branch NAME",
            )
        raise RepositoryFailed(
            f"cannot push {branch.name} to {without_user(remote)}: {told}",
            hint="try it yourself, with the same credentials: git push --dry-run",
        )
    return not any(line.startswith("=") for line in lines)


def _is_there(git: Git, folder: Path, branch: Branch, remote: str) -> bool:
    """Returns whether the remote has a commit of the same thread with the same files, made by another user of it."""
    ref = f"refs/heads/{branch.name}"
    listed = git.try_(folder, "ls-remote", "--", remote, ref, seconds=NETWORK_SECONDS).stdout.split(b"\t")[0]
    tip = _hash(listed)
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", remote, ref)
    if tip is None or git.try_(folder, *fetch, seconds=NETWORK_SECONDS).returncode:
        return False
    trees = {_hash(git.run(folder, "rev-parse", f"{each}^{{tree}}")) for each in (tip, branch.commit)}
    return len(trees) == 1 and _thread_of(git, folder, tip) == _thread_of(git, folder, branch.commit)


def remote_url(git: Git, folder: Path, remote: str) -> str | None:
    """Returns the URL to which a remote is pushed, or None if there is no such remote."""
    done = git.try_(folder, "remote", "get-url", "--push", "--", remote)
    return None if done.returncode else done.stdout.decode("utf-8", "replace").splitlines()[0]


def files_at_begin(git: Git, folder: Path, changed: ChangedFiles) -> CommittedFiles:
    """Returns the files of the commit that a branch begins with. Raises `CannotApply`."""
    return CommittedFiles(git, folder, _base(git, folder, changed))


def _base(git: Git, folder: Path, changed: ChangedFiles) -> str:
    source = changed.source
    wanted = "HEAD" if source is None or source.commit is None else source.commit
    base = _hash(git.try_(folder, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}").stdout)
    if base is None:
        raise CannotApply(
            f"this repository does not have commit {wanted[:12]}, with which thread {changed.thread} began",
            hint="go to the checkout that the run began with, or fetch the commit",
        )
    return base


@contextlib.contextmanager
def _index(git: Git, folder: Path, changed: ChangedFiles) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the commit that the thread began with, and the environment of an index with its files."""
    base = _base(git, folder, changed)
    with tempfile.TemporaryDirectory(prefix="holdfast-branch-") as temporary:
        more = {"GIT_INDEX_FILE": str(Path(temporary) / "index")}
        git.run(folder, "read-tree", base, more=more)
        yield base, more


def _tree(git: Git, folder: Path, changed: ChangedFiles, base: str, more: Mapping[str, str]) -> str:
    _check_filters(git, folder, changed, more)
    listed = git.run(folder, "ls-tree", "-r", "-z", "--full-tree", base).split(b"\0")
    there: dict[bytes, Version] = {}
    for line in listed:
        about, _, path = line.partition(b"\t")
        if path:
            mode, _, hash = about.decode("ascii").split(" ")
            there[path] = Version(mode, hash)
    hashes = _store(git, folder, changed)
    entries, conflicts = [], []
    for file in changed.files:
        before, after = (
            None if version is None else Version(version.mode, hashes[version.hash])
            for version in (file.before, file.after)
        )
        path = changed.prefix + file.path
        ours = there.get(path)
        result: Version | None = None
        match decide(before, ours, after):
            case Action.KEEP:
                continue
            case Action.TAKE:
                result = after
            case Action.MERGE:
                result = _merged(git, folder, before, ours, after)
                if result is None:
                    conflicts.append(file.path)
                    continue
            case Action.CONFLICT:
                conflicts.append(file.path)
                continue
        if result is None:
            entries.append(b"0 %b\t%b\0" % (b"0" * len(base), path))
        else:
            entries.append(b"%b %b 0\t%b\0" % (result.mode.encode(), result.hash.encode(), path))
    if conflicts:
        raise CannotApply(
            f"{_listed(conflicts)} had changes that were not committed when the run began, and they conflict with the"
            " committed version",
            hint=f"holdfast apply {changed.thread} in your checkout, and commit there",
        )
    # Removals first: an entry below a file that is removed could not be added.
    entries.sort(key=lambda entry: not entry.startswith(b"0 "))
    git.run(folder, "update-index", "-z", "--index-info", stdin=b"".join(entries), more=more)
    tree = _hash(git.run(folder, "write-tree", more=more))
    assert tree is not None
    return tree


def _merged(git: Git, folder: Path, *versions: Version | None) -> Version | None:
    """Returns the merge of base, ours and theirs, or None if they conflict."""
    base, ours, theirs = versions
    with tempfile.TemporaryDirectory(prefix="holdfast-merge-") as temporary:
        sides: list[Side] = []
        for version in (ours, base, theirs):
            file = Path(temporary) / str(len(sides))
            file.write_bytes(b"" if version is None else git.run(folder, "cat-file", "blob", version.hash))
            sides.append(Side("", None if version is None else version.mode, file))
        merged = merge_lines(git, folder, *sides)
        if merged.conflicts:
            return None
        told = git.run(folder, "hash-object", "-w", "--stdin", "--no-filters", stdin=merged.content)
        return Version(merged.mode, told.decode("ascii").strip())


def _check_filters(git: Git, folder: Path, changed: ChangedFiles, more: Mapping[str, str]) -> None:
    """Git stores some files in another form, such as pointers of Git LFS. That is left to git, on `git add`."""
    paths = b"".join(changed.prefix + file.path + b"\0" for file in changed.files)
    told = git.run(folder, "check-attr", "--cached", "-z", "--stdin", "filter", stdin=paths, more=more).split(b"\0")
    values = zip(told[::3], told[2::3], strict=False)
    filtered = [path for path, value in values if value not in (b"unspecified", b"unset")]
    if filtered:
        raise CannotApply(
            f"{_listed(filtered)} is stored by a filter of git, such as Git LFS",
            hint=f"holdfast apply {changed.thread} in your checkout, and commit there",
        )


def _store(git: Git, folder: Path, changed: ChangedFiles) -> dict[str, str]:
    wanted = sorted({version.hash for file in changed.files for version in (file.before, file.after) if version})
    if not wanted:
        return {}
    names = "".join(f"{changed.contents / each}\n" for each in wanted).encode()
    told = git.run(folder, "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=names).decode("ascii").split()
    return dict(zip(wanted, told, strict=True))


def _commit(git: Git, folder: Path, tree: str, parent: str, thread: str, work: Work) -> str:
    title = " ".join(work.title.split()) or "Changes of an agent"
    text = f"{title}\n\n{_TRAILER}: {thread}\n"
    date = f"@{min(work.at, LAST) // 1000} +0000"  # a run says itself when it ended
    more = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, **_identity(git, folder)}
    made = git.run(folder, "commit-tree", tree, "-p", parent, stdin=text.encode("utf-8", "replace"), more=more)
    commit = _hash(made)
    assert commit is not None
    return commit


def _identity(git: Git, folder: Path) -> dict[str, str]:
    """Returns an identity for the commit where git knows none of the user, as in a container."""
    if git.try_(folder, "var", "GIT_COMMITTER_IDENT").returncode == 0:
        return {}
    return {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "Holdfast agent"), ("EMAIL", "agent@holdfast.invalid"))
    }


def _thread_of(git: Git, folder: Path, commit: str) -> str | None:
    text = git.run(folder, "cat-file", "commit", commit).decode("utf-8", "replace")
    lines = [line for line in text.partition("\n\n")[2].splitlines() if line.startswith(f"{_TRAILER}: ")]
    return lines[-1].partition(": ")[2].strip() if lines else None


def _hash(output: bytes) -> str | None:
    return output.decode("ascii").strip() or None


def _listed(paths: list[bytes]) -> str:
    shown = ", ".join(
        "".join(each if each.isprintable() else "�" for each in os.fsdecode(path)) for path in paths[:_SHOWN]
    )
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
