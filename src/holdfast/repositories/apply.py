"""Applies the changes of a thread to a checkout: a three-way merge into its working tree.

Nothing is written until all is decided. Then the plan goes into the repository, under a ref of this working tree, with
the contents that it replaces. Whoever is killed after that leaves a plan, and the next apply completes it. What was
applied stays noted there, so applying again changes nothing, and after another turn of the agent only what is new. If
nothing of it is left in the working tree, the user has discarded it, and it is applied again.

Only files of the working tree are written, and the entries of conflicts in its index. Git's own `checkout`, `merge` and
`apply` are not used: no filter, merge driver or hook runs on what a box wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.errors.repositories import CannotApply, RepositoryFailed
from holdfast.repositories.changes import FILE_MODES, ChangedFiles, Version
from holdfast.repositories.git import Git
from holdfast.repositories.merge import Action, Side, decide, merge_lines
from holdfast.repositories.surroundings import FolderOnDisk, outside_repositories
from holdfast.repositories.working_tree import FOLDER, Blocked, WorkingTree

_REF: Final = "refs/worktree/holdfast/"
_SHOWN: Final = 10
_BATCH: Final = 200
_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "holdfast", "GIT_AUTHOR_EMAIL": "<>", "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "holdfast", "GIT_COMMITTER_EMAIL": "<>", "GIT_COMMITTER_DATE": "@0 +0000",
}  # fmt: skip


_Versions = Mapping[bytes, tuple[Version | None, Version | None]]


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done with one file."""

    path: bytes
    ours: Version | None
    """What is there, and has to be there when the step is carried out."""
    result: Version | None
    stages: tuple[Version | None, Version | None, Version | None] | None = None
    """For a conflict: base, ours and theirs, for the index."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did, or with `check` would do."""

    changed: tuple[bytes, ...]
    conflicts: tuple[bytes, ...]
    """Files with conflict markers, or, if they are binary or deleted on one side, as they were."""
    unchanged: int
    """Files that have their change already."""
    skipped: tuple[bytes, ...] = ()
    """Files that were changed by someone else while the plan was carried out."""
    discarded: tuple[bytes, ...] = ()
    """Files whose change was applied before, and that are now as they were when the thread began."""


@dataclass(frozen=True, slots=True)
class _Note:
    """What was applied before. It is a commit of the repository, whose tree keeps the contents."""

    applied: _Versions
    """By path: the version that the thread began with, and the one that was applied last."""
    pending: tuple[Step, ...] = ()
    following: _Versions | None = None
    """`applied`, as it is when all that is pending has been carried out."""


@dataclass(frozen=True, slots=True)
class _Plan:
    steps: tuple[Step, ...]
    unchanged: int
    """Files that need no step."""
    following: _Versions
    """What will have been applied."""
    discarded: tuple[bytes, ...]


class Apply:
    """The changes of one thread, for one checkout. Its methods block."""

    def __init__(
        self,
        git: Git,
        folder: Path,
        changed: ChangedFiles,
        *,
        again: bool = False,
        before_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`folder` is in the working tree: its top, or the folder that the workspace was copied from.

        `again`: also what was applied before, and discarded since. `before_step` is called before each effect, with its
        name.
        """
        self._git = git.in_checkout(folder)
        self._folder = folder
        self._again = again
        self._before_step = before_step
        self._ref = _REF + changed.thread
        try:
            self._git_dir = Path(self._ask("rev-parse", "--absolute-git-dir"))
            self.prefix = os.fsencode(self._ask("rev-parse", "--show-prefix"))
        except RepositoryFailed as error:
            raise CannotApply(
                f"{folder} is not in the working tree of a git repository: {error.message}",
                hint="go to your checkout, or name it with --dir PATH",
            ) from None
        self.around = FolderOnDisk(Path(self._ask("rev-parse", "--show-toplevel")))
        self._changed = outside_repositories(changed, self.around, self.prefix)
        told = self._git.try_(folder, "config", "--type=bool", "--get", "core.fileMode")
        self._modes = told.stdout.strip() != b"false"
        self._format = self._ask("rev-parse", "--show-object-format")
        self._spare = self._git_dir / "holdfast-apply"
        self._tree = WorkingTree(folder, self._spare, modes=self._modes)
        self._files: dict[str, Path] = {}
        """Contents that are at hand, by hash."""

    @property
    def changed(self) -> ChangedFiles:
        """The changes that go into this folder."""
        return self._changed

    def check(self) -> Applied:
        """Returns what `apply` would do. Raises `CannotApply` like it. Changes no file."""
        with self._opened() as contents:
            note = self._read_note()
            if note.pending:
                return Applied(tuple(step.path for step in note.pending), _conflicts(note.pending), 0)
            plan = self._plan(note, contents)
            changed = tuple(step.path for step in plan.steps if not step.stages)
            return Applied(changed, _conflicts(plan.steps), plan.unchanged, discarded=plan.discarded)

    def apply(self) -> Applied:
        """Carry out the merge. Raises `CannotApply`, and has then changed nothing."""
        with self._opened() as contents:
            note = self._read_note()
            done: tuple[Step, ...] = ()
            skipped: list[bytes] = []
            if note.pending:  # of an apply that was killed
                done = note.pending
                note, skipped = self._carry_out(note)
            plan = self._plan(note, contents)
            if plan.steps or plan.following != note.applied:
                note = _Note(note.applied, plan.steps, plan.following)
                self._before_step("note")
                self._write_note(note)
                skipped += self._carry_out(note)[1]
            steps = {step.path: step for step in (*done, *plan.steps)}.values()
            changed = tuple(step.path for step in steps if not step.stages and step.path not in skipped)
            return Applied(changed, _conflicts(tuple(steps)), plan.unchanged, tuple(skipped), plan.discarded)

    # --- the plan ---

    def _plan(self, note: _Note, contents: Path) -> _Plan:
        """Decide about every file. Raises `CannotApply` if one of them cannot be written without losing something."""
        self._check_commit()
        hashes = self._store(contents)
        again = self._again or self._is_discarded(note)
        bases: dict[bytes, tuple[Version | None, Version | None]] = {}
        following = {path: (begin, begin) for path, (begin, _) in note.applied.items()}
        for file in self._changed.files:
            before, after = (_renamed(version, hashes) for version in (file.before, file.after))
            begin, last = note.applied.get(file.path, (before, before))
            bases[file.path], following[file.path] = (last, after), (begin, after)
        left_out = {each.path for each in self._changed.left_out}
        for path, (begin, last) in note.applied.items():
            if path in left_out:
                following[path] = (begin, last)
            else:
                bases.setdefault(path, (last, begin))  # the agent has undone its change since
        steps, unchanged, blocked, discarded = [], 0, [], []
        removed: set[bytes] = set()
        # Removals come first: a folder can take the place of a file, and a file that of a folder.
        for path in sorted(bases, key=lambda each: (bases[each][1] is not None, each)):
            base, theirs = bases[path]
            try:
                ours = self._ours(path, base)
            except Blocked as error:
                if not any(path.startswith(each + b"/") for each in removed):
                    if base != theirs:
                        blocked.append((path, str(error)))
                    continue
                ours = None
            if ours is not None and ours.mode == FOLDER and self._tree.files_below(path) <= removed:
                ours = None
            begin = note.applied[path][0] if path in note.applied else base
            if again and ours == begin:
                base = begin
            match decide(base, ours, theirs):
                case Action.KEEP:
                    unchanged += 1
                    if ours == begin != theirs:
                        discarded.append(path)
                case Action.TAKE:
                    steps.append(Step(path, ours, theirs))
                    if theirs is None:
                        removed.add(path)
                case Action.MERGE:
                    steps.append(self._merge(path, base, ours, theirs))
                case Action.CONFLICT if ours is not None and ours.mode == FOLDER:
                    blocked.append((path, "a folder is in its place"))
                case Action.CONFLICT:
                    kept = ours if ours is not None else theirs
                    steps.append(Step(path, ours, kept, (base, ours, theirs)))
        if blocked:
            raise CannotApply(
                f"{_listed([path for path, _ in blocked])} cannot be written: {blocked[0][1]}",
                hint="move what is in the way, and apply again; nothing was changed",
            )
        self._check_unmerged({step.path for step in steps})
        self._check_uncommitted([step for step in steps if step.stages])
        self._hashes([self._files[step.ours.hash] for step in steps if step.ours is not None])
        return _Plan(tuple(steps), unchanged, following, tuple(discarded))

    def _is_discarded(self, note: _Note) -> bool:
        """Returns whether nothing is left of what was applied before: each file is as the thread found it."""
        changed = {path: begin for path, (begin, last) in note.applied.items() if begin != last}
        try:
            return bool(changed) and all(self._ours(path, begin) == begin for path, begin in changed.items())
        except Blocked:
            return False

    def _merge(self, path: bytes, base: Version | None, ours: Version | None, theirs: Version | None) -> Step:
        assert ours is not None and theirs is not None  # noqa: PT018
        with tempfile.TemporaryDirectory(dir=self._spare) as folder:
            sides: list[Side] = []
            for name, version in (("yours", ours), ("base", base), (f"thread {self._changed.thread}", theirs)):
                file = Path(folder) / str(len(sides))
                file.write_bytes(b"" if version is None else self._content(version))
                sides.append(Side(name, None if version is None else version.mode, file))
            merged = merge_lines(self._git, self._folder, *sides)
        made = self._keep(merged.content)
        (hash,) = self._hashes([made])
        stages = (base, ours, theirs) if merged.conflicts else None
        return Step(path, ours, Version(merged.mode, hash), stages)

    def _check_commit(self) -> None:
        commit = None if self._changed.source is None else self._changed.source.commit
        if commit is not None and self._git.try_(self._folder, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise CannotApply(
                f"this repository does not have commit {commit[:12]}, with which thread {self._changed.thread} began",
                hint="go to the checkout that the run began with, or fetch the commit",
            )

    def _check_unmerged(self, paths: set[bytes]) -> None:
        unmerged = self._git.run(self._folder, "ls-files", "--unmerged", "-z", "--full-name")
        open_ = {line.partition(b"\t")[2] for line in unmerged.split(b"\0") if line}
        waiting = [path for path in sorted(paths) if self.prefix + path in open_]
        if waiting:
            raise CannotApply(
                f"{_listed(waiting)} still has conflicts of an earlier merge",
                hint="resolve them and git add the files, then apply again",
            )

    def _check_uncommitted(self, conflicts: Sequence[Step]) -> None:
        """Markers go only into files that are committed: there git has the user's version."""
        if conflicts and self._git.try_(self._folder, "rev-parse", "--verify", "--quiet", "HEAD").returncode:
            raise CannotApply(
                f"{_listed([step.path for step in conflicts])} was changed here too, and there is no commit to go back"
                " to",
                hint="move your version away, and apply again; nothing was changed",
            )
        changed: list[bytes] = []
        for begin in range(0, len(conflicts), _BATCH):
            paths = [os.fsdecode(step.path) for step in conflicts[begin : begin + _BATCH]]
            status = ("status", "--porcelain", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames")
            told = self._git.run(self._folder, *status, "--ignore-submodules=all", "--", *paths)
            changed += [line[3:].removeprefix(self.prefix) for line in told.split(b"\0") if line]
        if changed:
            raise CannotApply(
                f"{_listed(changed)} has changes that are not committed, and they conflict with the thread's",
                hint="commit or stash them, and apply again; nothing was changed",
            )

    # --- carrying it out ---

    def _carry_out(self, note: _Note) -> tuple[_Note, list[bytes]]:
        """Complete a plan that is noted. Returns the files that someone else has changed since."""
        skipped = []
        for step in note.pending:
            self._before_step(f"file {step.path!r}")
            try:
                found = self._ours(step.path, step.ours)
                if found == step.result:
                    continue
                if found != step.ours:
                    skipped.append(step.path)
                elif step.result is None:
                    self._tree.remove(step.path)
                else:
                    self._tree.write(step.path, step.result.mode, self._content(step.result))
            except Blocked:
                skipped.append(step.path)
        entries = []
        nothing = "0" * (2 * hashlib.new(self._format).digest_size)
        for step in note.pending:
            if step.stages is not None and step.path not in skipped:
                path = self.prefix + step.path
                entries.append(b"0 %b\t%b\0" % (nothing.encode(), path))
                for number, version in enumerate(step.stages, 1):
                    if version is not None:
                        entries.append(b"%b %b %d\t%b\0" % (version.mode.encode(), version.hash.encode(), number, path))
        if entries:
            self._before_step("index")
            self._git.run(self._folder, "update-index", "-z", "--index-info", stdin=b"".join(entries))
        self._before_step("noted")
        applied = dict(note.applied if note.following is None else note.following)
        for path in skipped:
            applied.pop(path, None)
            if path in note.applied:
                applied[path] = note.applied[path]
        carried_out = _Note(applied)
        self._write_note(carried_out)
        return carried_out, skipped

    # --- contents ---

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Path]:
        """Only one apply at a time in a working tree."""
        with (self._git_dir / "holdfast-apply.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotApply(
                    f"another apply works on {self._folder}", hint="wait for its end, and apply again"
                ) from None
            shutil.rmtree(self._spare, ignore_errors=True)  # of one that was killed
            self._spare.mkdir(mode=0o700)
            try:
                with self._tree:
                    yield self._changed.contents
            finally:
                shutil.rmtree(self._spare, ignore_errors=True)

    def _store(self, contents: Path) -> dict[str, str]:
        """Put all contents into the repository's objects. Returns their hashes there."""
        wanted = sorted(
            {version.hash for file in self._changed.files for version in (file.before, file.after) if version}
        )
        hashes = dict(zip(wanted, self._hashes([contents / each for each in wanted]), strict=True))
        self._files |= {here: contents / there for there, here in hashes.items()}
        return hashes

    def _hashes(self, files: Sequence[Path]) -> list[str]:
        if not files:
            return []
        names = "".join(f"{file}\n" for file in files).encode()
        told = self._git.run(self._folder, "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=names)
        return told.decode("ascii").split()

    def _ours(self, path: bytes, like: Version | None) -> Version | None:
        """Returns what is at a path now. On a file system without modes, a file has the mode of `like`."""
        found = self._tree.find(path)
        if found is None:
            return None
        if found.mode == FOLDER:
            return Version(FOLDER, "")
        kept = self._keep(found.content)
        mode = found.mode
        if not self._modes and mode in FILE_MODES and like is not None and like.mode in FILE_MODES:
            mode = like.mode
        return Version(mode, kept.name)

    def _keep(self, content: bytes) -> Path:
        """Write a content to a file that is named by its hash."""
        hash = hashlib.new(self._format, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        file = self._spare / hash
        file.write_bytes(content)
        self._files[hash] = file
        return file

    def _content(self, version: Version) -> bytes:
        file = self._files.get(version.hash)
        return self._git.run(self._folder, "cat-file", "blob", version.hash) if file is None else file.read_bytes()

    # --- the note ---

    def _read_note(self) -> _Note:
        told = self._git.try_(self._folder, "cat-file", "blob", f"{self._ref}:note.json")
        if told.returncode:
            return _Note({})
        value = json.loads(told.stdout)
        following = value["following"]
        return _Note(
            _read_versions(value["applied"]),
            tuple(
                Step(
                    os.fsencode(step["path"]),
                    _read(step["ours"]),
                    _read(step["result"]),
                    None if step["stages"] is None else tuple(_read(each) for each in step["stages"]),  # type: ignore[arg-type]
                )
                for step in value["pending"]
            ),
            None if following is None else _read_versions(following),
        )

    def _write_note(self, note: _Note) -> None:
        """Write it as a commit, which also keeps all contents that it names from being collected."""
        following = note.following or {}
        versions = {version for pair in (*note.applied.values(), *following.values()) for version in pair}
        for step in note.pending:
            versions |= {step.ours, step.result, *(step.stages or ())}
        value = {
            "applied": _shown_versions(note.applied),
            "following": None if note.following is None else _shown_versions(note.following),
            "pending": [
                {
                    "path": os.fsdecode(step.path),
                    "ours": _shown(step.ours),
                    "result": _shown(step.result),
                    "stages": None if step.stages is None else [_shown(each) for each in step.stages],
                }
                for step in note.pending
            ],
        }
        git, folder = self._git, self._folder
        told = git.run(folder, "hash-object", "-w", "--stdin", stdin=json.dumps(value).encode()).decode().strip()
        hashes = sorted({version.hash for version in versions if version is not None and version.hash})
        inner = b"".join(f"100644 blob {each}\t{each}\0".encode() for each in hashes)
        kept = git.run(folder, "mktree", "-z", stdin=inner).decode().strip()
        top = f"040000 tree {kept}\tcontents\0" + f"100644 blob {told}\tnote.json\0"
        tree = git.run(folder, "mktree", "-z", stdin=top.encode()).decode().strip()
        about = f"What holdfast applied of thread {self._changed.thread}".encode()
        commit = git.run(folder, "commit-tree", tree, stdin=about, more=_IDENTITY).decode().strip()
        git.run(folder, "update-ref", self._ref, commit)

    def _ask(self, *arguments: str) -> str:
        return os.fsdecode(self._git.run(self._folder, *arguments).removesuffix(b"\n"))


def _renamed(version: Version | None, hashes: Mapping[str, str]) -> Version | None:
    return None if version is None else Version(version.mode, hashes[version.hash])


def _shown(version: Version | None) -> Any:
    return None if version is None else [version.mode, version.hash]


def _shown_versions(versions: _Versions) -> dict[str, Any]:
    return {os.fsdecode(path): [_shown(each) for each in pair] for path, pair in versions.items()}


def _read_versions(value: Mapping[str, Any]) -> _Versions:
    return {os.fsencode(path): (_read(begin), _read(last)) for path, (begin, last) in value.items()}


def _read(value: Any) -> Version | None:
    return None if value is None else Version(*value)


def _conflicts(steps: Sequence[Step]) -> tuple[bytes, ...]:
    return tuple(step.path for step in steps if step.stages)


def _listed(paths: Sequence[bytes]) -> str:
    shown = ", ".join(
        "".join(each if each.isprintable() else "�" for each in os.fsdecode(path)) for path in paths[:_SHOWN]
    )
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
