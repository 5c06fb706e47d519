"""Compares two trees of files, from tar archives, in a temporary git repository.

A box wrote one of the trees, so it is never unpacked here: contents and names become git objects. The only files on
this machine are `.gitignore` files, in a separate folder and without links. The repository is new, bare and removed at
the end, with no settings, attributes, filters or hooks but ours. Git runs with limits on its memory, output and time.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import tarfile
import threading
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from holdfast.api.errors.runs import NoFiles
from holdfast.api.run.runs import HowChanged
from holdfast.guest.init import tar
from holdfast.repositories.changes import digest_of
from holdfast.repositories.names import is_git_name

MAX_ARCHIVE: Final = 1024 * 1024 * 1024
MAX_FILES: Final = 500_000
MAX_PATCH: Final = 512 * 1024 * 1024
_HOW: Final[dict[bytes, HowChanged]] = {b"A": "added", b"D": "deleted"}
_MAX_NAMES: Final = 64 * 1024 * 1024
"""Bytes of all names of a tree."""
_MAX_NAME: Final = 4096
_MAX_DEPTH: Final = 256
_MAX_IGNORE_FILE: Final = 256 * 1024
_MAX_IGNORE_FILES: Final = 10_000
_MAX_MEMORY: Final = 2 * 1024 * 1024 * 1024
_MAX_WRITTEN: Final = 3 * MAX_ARCHIVE
_SETTINGS: Final = (
    # Above this, contents are streamed, and shown as binary.
    "-c", "core.bigFileThreshold=16m",
    "-c", "core.quotePath=false",
    "-c", "core.compression=1",
)  # fmt: skip
_ALWAYS_IGNORED: Final = b"__pycache__/\nnode_modules/\n"
"""Ignored unless a `.gitignore` includes them."""
_DIFF: Final = (
    "diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index",
    "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_HEADER: Final = b"diff --git "


@dataclass(frozen=True, slots=True)
class TreeChange:
    """One path that differs."""

    path: bytes
    how: HowChanged
    added: int | None
    """Lines, or None for a file that git considers binary."""
    removed: int | None


@dataclass(slots=True)
class _Tree:
    files: dict[bytes, tuple[bytes, int]]
    """By path: the mode in git, and the mark of the content."""
    refused: list[bytes]
    """Paths that git refuses in patches."""
    ignore_files: dict[tuple[bytes, ...], bytes]
    excluded: bytes = b""
    """`.git/info/exclude`."""

    def leave_out(self, refused: Set[bytes]) -> None:
        """Remove these paths, and what is below them."""
        if refused:
            for path in list(self.files):
                parts = path.split(b"/")
                if any(b"/".join(parts[:count]) in refused for count in range(1, len(parts) + 1)):
                    del self.files[path]


def names_in(archive: IO[bytes]) -> frozenset[bytes]:
    """Returns the paths of the files in an archive. Raises `NoFiles`."""
    reader = tar.Reader(archive.read, _budget())
    try:
        return frozenset(b"/".join(entry.parts) for entry in reader if entry.kind not in (tar.FOLDER, *tar.DEVICES))
    except (tar.BadArchive, EOFError) as error:
        raise _unreadable(error) from None


class GitTrees:
    """Its methods block, so call them on a thread. `stop`, from any thread, makes them raise."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty. The caller removes it."""
        program = shutil.which("git")
        if program is None:
            raise NoFiles("the server needs git to make a patch, and it is not installed", hint="apt install git")
        self._program = program
        self._folder = folder
        self._repository = folder / "repository"
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._lock = threading.Lock()
        self._marks = 0
        self._files = 0
        self.ignored = 0
        """The number of new files that `.gitignore` files of the tree exclude."""
        self.refused: tuple[bytes, ...] = ()
        """Paths that are left out because git would refuse the whole patch."""

    def load(self, before: IO[bytes] | None, after: IO[bytes], tracked: Collection[bytes] | None = None) -> None:
        """Load both trees from archives. Ignored files count only if they are `tracked`: by default, those that the
        first tree has.
        """
        self._run("init", "--bare", "--quiet", "--template=", str(self._repository))
        with self._feed("fast-import", "--quiet", "--done", "--depth=0") as feed:
            old = _Tree({}, [], {}) if before is None else self._read(before, feed)
            new = self._read(after, feed)
            refused = {*old.refused, *new.refused}
            self.refused = tuple(sorted(refused))
            for tree in (old, new):  # a path that is refused in one tree only would be removed or added by the patch
                tree.leave_out(refused)
            self._leave_out_ignored(old, new, old.files.keys() if tracked is None else tracked)
            _commit(feed, b"before", old)
            _commit(feed, b"after", new)
            feed.write(b"done\n")

    def changes(self) -> Iterator[TreeChange]:
        """Yields the changes, sorted by path."""
        with self._ask(*_DIFF, "--raw", "--numstat", "-z", "before", "after") as found:
            fields = iter(found.read().split(b"\0"))
        how: dict[bytes, HowChanged] = {}
        for field in fields:
            if field.startswith(b":"):
                status = field.rpartition(b" ")[2][:1]
                how[next(fields)] = _HOW.get(status, "changed")
            elif field:
                added, removed, path = field.split(b"\t", 2)
                binary = added == b"-"
                yield TreeChange(path, how[path], *((None, None) if binary else (int(added), int(removed))))

    def digest(self) -> str:
        """Returns the digest of all changes, as `repositories.changes` defines it."""
        return digest_of(
            (path, before and " ".join(before), after and " ".join(after)) for path, before, after in self._versions()
        )

    def _versions(self) -> Iterator[tuple[bytes, tuple[str, str] | None, tuple[str, str] | None]]:
        """Yields each changed path, and the mode and hash of its version in each tree."""
        with self._ask(*_DIFF, "--raw", "-z", "before", "after") as found:
            fields = iter(found.read().split(b"\0"))
        for field in fields:
            if field:
                old_mode, new_mode, old, new, _ = field[1:].split(b" ")
                yield next(fields), _version(old_mode, old), _version(new_mode, new)

    def patch(self) -> IO[bytes]:
        """Returns the patch from the first tree to the second. The caller closes it."""
        made = self._ask(*_DIFF, "--binary", "-p", "before", "after")
        with made:
            quoted = self._file("patch")
            try:
                quoted.writelines(_with_quoted_names(line) for line in made)
            except BaseException:
                quoted.close()
                raise
        quoted.seek(0)
        return quoted

    def changed_files(self, about: Mapping[str, Any]) -> IO[bytes]:
        """Returns a tar archive of both versions of every changed file. The caller closes it.

        Its first member is `changes.json`: `about`, and the path and the versions of each file, as mode and hash. The
        others are `blobs/<hash>`, each once. So no name from the box is the name of a member.
        """
        files, hashes = [], dict[bytes, None]()
        for path, before, after in self._versions():
            hashes.update({each[1].encode(): None for each in (before, after) if each is not None})
            files.append({"path": os.fsdecode(path), "before": before, "after": after})
        head = json.dumps({**about, "ignored": self.ignored, "files": files}).encode()
        wanted = self._file("wanted")
        with wanted:
            wanted.writelines(each + b"\n" for each in hashes)
            wanted.seek(0)
            contents = self._ask("cat-file", "--batch", "--buffer", stdin=wanted)
        archive = self._file("changed-files")
        try:
            with contents, tarfile.open(fileobj=archive, mode="w") as into:
                _add(into, "changes.json", len(head), io.BytesIO(head))
                for each in hashes:
                    size = int(contents.readline().split(b" ")[2])
                    _add(into, f"blobs/{each.decode()}", size, contents)
                    contents.read(1)  # the end of the line
        except BaseException:
            archive.close()
            raise
        archive.seek(0)
        return archive

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()

    # --- trees ---

    def _read(self, archive: IO[bytes], feed: IO[bytes]) -> _Tree:
        reader = tar.Reader(archive.read, _budget())
        tree = _Tree({}, [], {})
        names = 0
        try:
            for entry in reader:
                if entry.parts == (b".git", b"info", b"exclude") and entry.kind == tar.FILE:
                    tree.excluded = _start_of(reader, entry)
                if entry.kind in (tar.FOLDER, *tar.DEVICES) or _is_history(entry.parts):
                    continue
                path = b"/".join(entry.parts)
                if is_git_name(entry.parts, entry.kind == tar.LINK):
                    tree.refused.append(path)
                    continue
                names += len(path)
                if len(tree.files) >= MAX_FILES or names > _MAX_NAMES:
                    raise NoFiles(f"the workspace has more than {MAX_FILES:,} files: too many to compare")
                self._add(tree, entry, path, reader, feed)
        except (tar.BadArchive, EOFError) as error:
            raise _unreadable(error) from None
        return tree

    def _add(self, tree: _Tree, entry: tar.Entry, path: bytes, reader: tar.Reader, feed: IO[bytes]) -> None:
        if entry.kind == tar.HARD_LINK:
            if (source := tree.files.get(b"/".join(entry.source))) is not None:
                tree.files[path] = source
            return
        self._marks += 1
        feed.write(b"blob\nmark :%d\n" % self._marks)
        if entry.kind == tar.LINK:
            feed.write(b"data %d\n%b\n" % (len(entry.target), entry.target))
            tree.files[path] = (b"120000", self._marks)
            return
        feed.write(b"data %d\n" % entry.size)
        is_ignore_file = entry.parts[-1] == b".gitignore" and entry.size <= _MAX_IGNORE_FILE
        pieces = []
        while piece := reader.content():
            feed.write(piece)
            if is_ignore_file:
                pieces.append(piece)
        feed.write(b"\n")
        if is_ignore_file and len(tree.ignore_files) < _MAX_IGNORE_FILES:
            tree.ignore_files[entry.parts] = b"".join(pieces)
        tree.files[path] = (b"100755" if entry.mode & 0o100 else b"100644", self._marks)

    def _leave_out_ignored(self, old: _Tree, new: _Tree, tracked: Collection[bytes]) -> None:
        """Remove ignored files that are not tracked, as git does."""
        untracked = (new.files.keys() | old.files.keys()).difference(tracked)
        if not untracked:
            return
        top = self._folder / "ignore-files"
        top.mkdir()
        for parts, content in new.ignore_files.items():
            folder = top.joinpath(*(os.fsdecode(part) for part in parts[:-1]))
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / ".gitignore").write_bytes(content)
            except OSError:  # an impossible tree, such as a file in the place of a folder
                continue
        (self._repository / "info").mkdir(exist_ok=True)
        (self._repository / "info" / "exclude").write_bytes(new.excluded)
        defaults = self._folder / "always-ignored"
        defaults.write_bytes(_ALWAYS_IGNORED)
        listed = self._folder / "added"
        # Without the prefix, git would treat a name that starts with a colon as a pathspec.
        listed.write_bytes(b"".join(b"./%b\0" % path for path in sorted(untracked)))
        settings = ("-c", "core.bare=false", "-c", f"core.excludesFile={defaults}", f"--work-tree={top}")
        with listed.open("rb") as paths:
            found = self._ask(*settings, "check-ignore", "-z", "--stdin", "--no-index", stdin=paths, fine=(0, 1))
        with found:
            for path in found.read().split(b"\0"):
                old.files.pop(path[2:], None)
                if new.files.pop(path[2:], None) is not None:
                    self.ignored += 1

    # --- git ---

    def _ask(self, *arguments: str, stdin: IO[bytes] | None = None, fine: tuple[int, ...] = (0,)) -> IO[bytes]:
        """Returns the output of a command as a file. The caller closes it."""
        output = self._file("output")
        try:
            self._run(*arguments, stdin=stdin, stdout=output, fine=fine)
        except BaseException:
            output.close()
            raise
        output.seek(0)
        return output

    def _run(
        self,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        fine: tuple[int, ...] = (0,),
    ) -> None:
        with self._file("errors") as errors:
            process = self._start(arguments, subprocess.DEVNULL if stdin is None else stdin, stdout, errors)
            self._end(process, errors, fine)

    @contextmanager
    def _feed(self, *arguments: str) -> Iterator[IO[bytes]]:
        """Yields the standard input of a command. After the block, the command has succeeded."""
        with self._file("errors") as errors:
            process = self._start(arguments, subprocess.PIPE, None, errors)
            assert process.stdin is not None
            try:
                with process.stdin as feed:
                    yield feed
            except BrokenPipeError:
                pass  # its exit code says why
            except BaseException:
                process.kill()
                process.wait()
                raise
            self._end(process, errors, (0,))

    def _start(
        self, arguments: tuple[str, ...], stdin: IO[bytes] | int, stdout: IO[bytes] | None, stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        environment = {
            "GIT_DIR": str(self._repository),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": str(self._folder),
            "XDG_CONFIG_HOME": str(self._folder),
            "LC_ALL": "C",
            "PATH": os.defpath,
        }
        with self._lock:
            if self._stopped:
                raise _too_long()
            process = subprocess.Popen(
                [self._program, *_SETTINGS, *arguments],
                stdin=stdin,
                stdout=subprocess.DEVNULL if stdout is None else stdout,
                stderr=stderr,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
            )
            self._running.append(process)
        written = _MAX_WRITTEN if stdout is None else MAX_PATCH
        with suppress(ProcessLookupError):  # it has ended
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (written, written))
        return process

    def _end(self, process: subprocess.Popen[bytes], errors: IO[bytes], fine: tuple[int, ...]) -> None:
        code = process.wait()
        with self._lock:
            self._running.remove(process)
            if self._stopped:
                raise _too_long()
        if code in fine:
            return
        if code == -signal.SIGXFSZ:
            why = f"they take more than {MAX_PATCH >> 20} MB"
        else:
            errors.seek(0)
            why = tar.show(errors.read(4096).strip().rpartition(b"\n")[2]) or f"git ended with {code}"
        raise NoFiles(f"cannot make a patch: {why}", hint="copy the files themselves: holdfast box cp")

    def _file(self, name: str) -> IO[bytes]:
        self._files += 1
        return (self._folder / f"{name}-{self._files}").open("w+b")


def _commit(feed: IO[bytes], name: bytes, tree: _Tree) -> None:
    feed.write(b"commit refs/heads/%b\ncommitter - <-> 0 +0000\ndata 0\n" % name)
    for path in sorted(tree.files):
        mode, mark = tree.files[path]
        quoted = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        feed.write(b'M %b :%d "%b"\n' % (mode, mark, quoted))
    feed.write(b"\n")


def _version(mode: bytes, hash: bytes) -> tuple[str, str] | None:
    return (mode.decode(), hash.decode()) if hash.strip(b"0") else None


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)


def _with_quoted_names(line: bytes) -> bytes:
    """Quote the names in a header line of a patch. Without quotes, git cannot always separate names with spaces."""
    if not line.startswith(_HEADER):  # lines of content start with another character
        return line
    names = line[len(_HEADER) : -1]
    if names.startswith(b'"'):
        return line
    path = names[2 : 2 + (len(names) - len(b"a/ b/")) // 2]
    return b'diff --git "a/%b" "b/%b"\n' % (path, path) if b" " in path else line


def _start_of(reader: tar.Reader, entry: tar.Entry) -> bytes:
    """Returns the content of a file, or nothing if it is large."""
    if entry.size > _MAX_IGNORE_FILE:
        return b""
    pieces = []
    while piece := reader.content():
        pieces.append(piece)
    return b"".join(pieces)


def _is_history(parts: tuple[bytes, ...]) -> bool:
    return b".git" in parts


def _budget() -> tar.Budget:
    return tar.Budget(entries=2 * MAX_FILES, size=MAX_ARCHIVE, name=_MAX_NAME, depth=_MAX_DEPTH, into="workspace")


def _unreadable(error: Exception) -> NoFiles:
    return NoFiles(f"the files cannot be compared: {error}")


def _too_long() -> NoFiles:
    return NoFiles(
        "comparing the files took too long and was stopped", hint="copy the files themselves: holdfast box cp"
    )
