"""Summarizes its working directory for a move to another box, or prepares it to receive the files of another box.

Runs as a program in a box. Standard library only, and importable alone. The argument is JSON: `{op, mode?, modified?}`.
`locate` returns which folder it is. `summarize` returns a digest of everything below the folder: names, kinds,
permissions, times in seconds, contents, targets of links, and which names are hard links to the same file. Sockets,
pipes and devices are left out, because archives of trees leave them out. `clear` empties the folder. `finish` sets its
own permissions and time, and then summarizes it.

Standard output is a line of JSON: the answer, or `{"problem": …}`.
"""

# Everything here is relative to an open folder, which pathlib does not support. Imports cost time in a box.

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIECE = 1 << 20
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def main() -> None:
    request = json.loads(sys.argv[1])
    try:
        answer = _answer(request)
    except OSError as error:
        where = "" if error.filename is None else "%s: " % os.fsdecode(error.filename)
        answer = {"problem": where + (error.strerror or str(error)).lower()}
    sys.stdout.write(json.dumps(answer) + "\n")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "locate":
        about = os.stat(".")
        return {"path": os.getcwd(), "identity": "%d:%d" % (about.st_dev, about.st_ino)}
    if request["op"] == "clear":
        _clear()
        return {}
    if request["op"] == "finish":
        try:
            os.utime(".", (request["modified"], request["modified"]))
            os.chmod(".", request["mode"])
        except OSError:
            pass  # it belongs to another user: the folder itself is the box's, not part of the tree
    return _summary()


def _clear() -> None:
    import shutil

    with os.scandir(".") as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _summary() -> dict[str, Any]:
    about = os.stat(".")
    summary = _Summary()
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        summary.add_folder(folder, b"")
    finally:
        os.close(folder)
    return {
        "digest": summary.digest.hexdigest(),
        "entries": summary.entries,
        "bytes": summary.bytes,
        "mode": stat.S_IMODE(about.st_mode) & 0o777,
        "modified": int(about.st_mtime // 1),
    }


class _Summary:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.entries = 0
        self.bytes = 0
        self._first: dict[tuple[int, int], bytes] = {}

    def add_folder(self, folder: int, inner: bytes) -> None:
        """Add everything in a folder, by name. Follows no link."""
        for name in sorted(map(os.fsencode, os.listdir(folder))):
            about = os.lstat(name, dir_fd=folder)
            path = inner + b"/" + name
            if stat.S_ISDIR(about.st_mode):
                self._add(path, b"folder", about, b"%o" % (stat.S_IMODE(about.st_mode) & 0o777))
                below = os.open(name, _OPEN_FOLDER, dir_fd=folder)
                try:
                    self.add_folder(below, path)
                finally:
                    os.close(below)
            elif stat.S_ISLNK(about.st_mode):
                self._add(path, b"link", about, os.fsencode(os.readlink(name, dir_fd=folder)))
            elif stat.S_ISREG(about.st_mode):
                self._add_file(folder, name, path, about)

    def _add_file(self, folder: int, name: bytes, path: bytes, about: os.stat_result) -> None:
        first = self._first.get((about.st_dev, about.st_ino))
        if first is not None:
            self._add(path, b"same", about, first)
            return
        if about.st_nlink > 1:
            self._first[(about.st_dev, about.st_ino)] = path
        content = hashlib.sha256()
        file = os.open(name, _OPEN_FILE, dir_fd=folder)
        try:
            while True:
                piece = os.read(file, _PIECE)
                if not piece:
                    break
                self.bytes += len(piece)
                content.update(piece)
        finally:
            os.close(file)
        mode = b"%o" % (stat.S_IMODE(about.st_mode) & 0o777)
        self._add(path, b"file", about, mode + b" " + content.hexdigest().encode())

    def _add(self, path: bytes, kind: bytes, about: os.stat_result, detail: bytes) -> None:
        self.entries += 1
        for field in (path, kind, b"%d" % (about.st_mtime // 1), detail):
            self.digest.update(b"%d:" % len(field) + field)


if __name__ == "__main__":
    main()
