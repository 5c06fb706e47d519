"""Searches, replaces in and removes many files. Runs inside a box, in a separate process that can be killed.

Standard library only, and importable alone. Links are never followed. Results are plain and bounded: an entry is
`(path, kind, size, mode, modified in milliseconds, target)`, a match is `(path, line, text)`. Names that are not UTF-8
are decoded as Python does, with surrogates.
"""

# Much here is relative to an open folder, which pathlib does not support. Imports cost time in a box.

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence

    Entry = tuple[str, str, int, int, int, str | None]
    Found = tuple[str, int, str]
    Matcher = Callable[[str, str], bool]

MAX_LINE = 4096
"""Characters of a line in a result. A longer line is cut around the match."""
MAX_BYTES = 16 << 20
"""Approximate bytes of all results of one call."""
_MAX_SEEN_LINE = 1 << 20
"""Bytes of a line that are searched."""
_MAX_CHANGED = 256 << 20
"""Bytes of a file that can be changed: it is held in memory."""
_BINARY_WITHIN = 8192
_DEEP = 64
"""Folders that are open at once."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# --- looking at folders ---


def describe(path: str) -> Entry:
    """Returns the entry at a path. A link at its end is described, not followed."""
    return _entry(path, None, path)


def list_folder(path: str) -> list[Entry]:
    """Returns the entries of a folder, sorted by name."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [entry for name in sorted(os.listdir(folder)) for entry in _present(_join(path, name), folder, name)]
    finally:
        os.close(folder)


def find(root: str, pattern: str, limit: int) -> list[Entry]:
    """Returns entries below a folder whose name, or path from there, matches a glob: the first `limit`, sorted by path.

    `*` and `?` match within a name, `**` across folders. Skips what cannot be read.
    """
    matches = _matcher(pattern)
    found: list[Entry] = []
    room = MAX_BYTES
    for inner, entry in _below(root):
        if len(found) >= limit or room <= 0:
            break
        if matches(inner.rsplit("/", 1)[-1], inner):
            found.append(entry)
            room -= len(entry[0]) + len(entry[5] or "") + 64
    return found


def _below(root: str) -> Iterator[tuple[str, Entry]]:
    """Yields all entries below a folder, with their paths from there, sorted by these."""
    # The contents of a folder sort like its name with a slash: after `a-b`, before `a0`.
    waiting: list[tuple[str, bool]] = []

    def expand(inner: str) -> None:
        try:
            folder = _open_below(root, inner)
        except OSError:
            if not inner:
                raise
            return  # deleted, or not readable
        try:
            names = os.listdir(folder)
            below = []
            for name in names:
                path = f"{inner}/{name}" if inner else name
                below.append((path, False))
                try:
                    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                        below.append((path + "/", True))
                except OSError:
                    pass
        except OSError:
            return
        finally:
            os.close(folder)
        below.sort(reverse=True)
        waiting.extend(below)

    expand("")
    while waiting:
        path, opens = waiting.pop()
        if opens:
            expand(path[:-1])
            continue
        whole = _join(root, path)
        for entry in _present(whole, None, whole):
            yield path, entry


def _open_below(root: str, inner: str) -> int:
    """Open a folder below a root, passing only through folders."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in inner.split("/") if inner else ():
            at, above = os.open(part, _OPEN_FOLDER, dir_fd=at), at
            os.close(above)
    except BaseException:
        os.close(at)
        raise
    return at


def _present(path: str, folder: int | None, name: str) -> tuple[Entry, ...]:
    try:
        return (_entry(path, folder, name),)
    except OSError:
        return ()  # deleted since it was listed


def _entry(path: str, folder: int | None, name: str) -> Entry:
    about = os.lstat(name, dir_fd=folder)
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(about.st_mode) else None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(about.st_mode), "other")
    return (path, kind, about.st_size, stat.S_IMODE(about.st_mode), about.st_mtime_ns // 1_000_000, target)


def _join(folder: str, name: str) -> str:
    return name if folder in ("", ".") else os.path.join(folder, name)


def _matcher(pattern: str) -> Matcher:
    """Returns a function that tests a name or a path. A glob with a slash is for paths."""
    while pattern.startswith("./"):
        pattern = pattern[2:]
    pattern = pattern.rstrip("/")
    if pattern in ("*", "**", "**/*"):
        return lambda name, path: True
    import re

    expression = re.compile(_expression(pattern), re.DOTALL)
    if "/" in pattern:
        return lambda name, path: expression.fullmatch(path) is not None
    return lambda name, path: expression.fullmatch(name) is not None


def _expression(pattern: str) -> str:
    """Returns a glob as a regular expression: `*` and `?` stay within a name, `**/` is any number of folders."""
    import re

    made = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            made += "(?:.*/)?"
            at += 3
        elif pattern.startswith("**", at):
            made += ".*"
            at += 2
        elif pattern[at] == "*":
            made += "[^/]*"
            at += 1
        elif pattern[at] == "?":
            made += "[^/]"
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            inside = "^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^", 1)
            made += f"(?!/)[{inside}]"
            at = end + 1
        else:
            made += re.escape(pattern[at])
            at += 1
    try:
        re.compile(made)
    except re.error as error:
        raise ValueError(f"the glob {pattern!r} is invalid: {error}") from None
    return made


# --- looking into files ---


def search(root: str, pattern: str, glob: str, regex: bool, limit: int) -> list[Found]:
    """Returns lines with a text (or a regular expression) in the text files below a folder, or in one file: the first
    `limit`.

    Files with a zero byte near their start are not text. Skips what cannot be read.
    """
    matcher = _line_matcher(pattern, regex)
    found: list[Found] = []
    room = MAX_BYTES
    for path in _files(root, glob):
        for line, text in _lines_with(path, matcher):
            if len(found) >= limit or room <= 0:
                return found
            found.append((path, line, text))
            room -= len(path) + len(text) + 32
    return found


def _files(root: str, glob: str) -> Iterator[str]:
    kind = stat.S_IFMT(os.lstat(root).st_mode)
    if kind == stat.S_IFREG:
        yield root
        return
    matches = _matcher(glob)
    for inner, entry in _below(root):
        if entry[1] == "file" and matches(inner.rsplit("/", 1)[-1], inner):
            yield entry[0]


class _LineMatcher:
    """Finds the position of a match in a line. `may` tells quickly whether a larger piece can contain one."""

    def __init__(self, may: Callable[[bytes], bool], at: Callable[[str], int]) -> None:
        self.may = may
        self.at = at


def _line_matcher(pattern: str, regex: bool) -> _LineMatcher:
    if regex:
        expression = _compiled(pattern)

        def at(line: str) -> int:
            match = expression.search(line)
            return -1 if match is None else match.start()

        return _LineMatcher(lambda data: True, at)
    if not pattern:
        raise ValueError("the text to search for is empty")
    wanted = pattern.encode("utf-8", "surrogateescape")
    return _LineMatcher(lambda data: wanted in data, lambda line: line.find(pattern))


def _compiled(pattern: str) -> re.Pattern[str]:
    import re

    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the regular expression {pattern!r} is invalid: {error}") from None


def _lines_with(path: str, matcher: _LineMatcher) -> Iterator[tuple[int, str]]:
    try:
        handle = os.open(path, _OPEN_FILE)
    except OSError:
        return
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return
        try:
            if b"\0" in file.read(_BINARY_WITHIN):
                return
            file.seek(0)
            number = 0
            while True:
                line = file.readline(_MAX_SEEN_LINE)
                if not line:
                    return
                number += 1
                if matcher.may(line):
                    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
                    place = matcher.at(text)
                    if place >= 0:
                        yield number, _cut(text, place)
                while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = file.readline(_MAX_SEEN_LINE)
        except OSError:
            return


def _cut(text: str, place: int) -> str:
    start = 0 if place < MAX_LINE // 2 else place - MAX_LINE // 4
    # Invalid UTF-8 is shown as such: the text is for people, and has to be encoded.
    return text[start : start + MAX_LINE].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# --- changing ---


def replace(paths: Sequence[str], pattern: str, replacement: str, regex: bool) -> list[tuple[str, int]]:
    """Replace a text (or a regular expression) in these files. Returns the files with matches, and how many.

    Each file is replaced atomically and keeps its mode. A link is not followed: it raises `OSError`, like everything
    else that is not a file. Files that are not text stay unchanged.
    """
    if not regex and not pattern:
        raise ValueError("the text to replace is empty")
    expression = _compiled(pattern) if regex else None
    for path in paths:  # check all before the first is changed
        _check_file(path, os.lstat(path))
    done = []
    for path in paths:
        handle = os.open(path, _OPEN_FILE)
        with open(handle, "rb") as file:
            about = os.fstat(handle)
            _check_file(path, about)
            data = file.read()
        if b"\0" in data[:_BINARY_WITHIN]:
            continue
        text = data.decode("utf-8", "surrogateescape")
        if expression is None:
            count = text.count(pattern)
            changed = text.replace(pattern, replacement) if count else text
        else:
            changed, count = _substituted(expression, replacement, text)
        if count:
            _write_whole(path, changed.encode("utf-8", "surrogateescape"), stat.S_IMODE(about.st_mode))
            done.append((path, count))
    return done


def _substituted(expression: re.Pattern[str], replacement: str, text: str) -> tuple[str, int]:
    import re

    try:
        return expression.subn(replacement, text)
    except (re.error, IndexError) as error:
        raise ValueError(f"the replacement {replacement!r} is invalid: {error}") from None


def _check_file(path: str, about: os.stat_result) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(21, "is a directory", path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(22, "not a file", path)
    if about.st_size > _MAX_CHANGED:
        raise ValueError(f"{path}: more than {_MAX_CHANGED >> 20} MB are not changed at once")


def _write_whole(path: str, data: bytes, mode: int) -> None:
    beside = _join(os.path.dirname(path), f".holdfast-{os.urandom(8).hex()}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(handle, mode)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


# --- removing ---


def remove_tree(path: str) -> None:
    """Remove a file, a link, or a folder with its contents, however deep. Never follows links. A missing path raises.

    Folders that their owner may not write to are made writable first.
    """
    Removal().remove(path)


class Removal:
    """Removes trees, and counts the bytes freed on disk. A file with several names counts with its last."""

    def __init__(self, deadline: float | None = None) -> None:
        self.freed = 0
        self._deadline = deadline
        """By `time.monotonic`. After it, `remove` raises `TimeoutError` and leaves the rest."""
        self._raised = 0

    def remove(self, path: str) -> None:
        """Like `remove_tree`."""
        about = os.lstat(path)
        if not stat.S_ISDIR(about.st_mode):
            os.unlink(path)
            self._count(about)
            return
        root = _open_for_removal(None, path)
        try:
            # Folders too deep to keep all their parents open are moved up to the root, and removed next.
            while True:
                names = os.listdir(root)
                if not names:
                    break
                for name in names:
                    self._remove(root, name, root, 1)
        finally:
            os.close(root)
        os.rmdir(path)
        self._count(about)

    def _remove(self, folder: int, name: str, root: int, depth: int) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError(110, "removing takes too long")
        try:
            about = os.lstat(name, dir_fd=folder)
            if not stat.S_ISDIR(about.st_mode):
                os.unlink(name, dir_fd=folder)
                self._count(about)
                return
        except FileNotFoundError:
            return
        try:
            os.rmdir(name, dir_fd=folder)
            self._count(about)
            return
        except OSError:
            pass  # most likely not empty; any other reason shows below
        if depth > _DEEP:
            os.close(_open_for_removal(folder, name))  # a folder has to be writable to be moved
            self._raised += 1
            os.rename(name, f".removed-{self._raised}-{os.urandom(6).hex()}", src_dir_fd=folder, dst_dir_fd=root)
            return
        inner = _open_for_removal(folder, name)
        try:
            for each in os.listdir(inner):
                self._remove(inner, each, root, depth + 1)
        finally:
            os.close(inner)
        try:
            os.rmdir(name, dir_fd=folder)
            self._count(about)
        except FileNotFoundError:
            pass

    def _count(self, about: os.stat_result) -> None:
        if about.st_nlink == 1 or stat.S_ISDIR(about.st_mode):
            self.freed += about.st_blocks * 512


def _open_for_removal(folder: int | None, name: str) -> int:
    try:
        opened = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except PermissionError:
        # Not by its name, which may be a link by now.
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        finally:
            os.close(place)
        opened = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    try:
        about = os.fstat(opened)
        if about.st_mode & 0o700 != 0o700 and about.st_uid == os.geteuid():
            os.fchmod(opened, 0o700)
    except BaseException:
        os.close(opened)
        raise
    return opened
