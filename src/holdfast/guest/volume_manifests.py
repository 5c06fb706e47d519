"""Reads and writes manifests on a volume. A write succeeds only for the newest revision. Runs as a program inside a
box.

Standard library only, and importable alone. Other boxes write to the same volume, so it is untrusted: every folder is
opened from its parent and never through a link, and only plain files count.

Standard input is a line of JSON (`{op, root, folders, name, revision}`), followed by the content to write. Standard
output is a line of JSON, followed by the requested file.
"""

# Everything here is relative to an open folder, which pathlib does not support. Imports cost time in a box.

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 8 << 20
"""Of a manifest."""
MAX_NAMES = 10_000
_LOCK_SECONDS = 15.0
_LOCK_PAUSE = 0.01
_LARGEST_HEAD = 64 << 10
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK = ".lock"


class Damaged(Exception):
    """The file is not a manifest."""


def main() -> None:
    source = sys.stdin.buffer
    request = json.loads(source.readline(_LARGEST_HEAD))
    data = b""
    try:
        answer, data = _answer(request, source.read(MAX_BYTES + 1))
    except Damaged as error:
        answer = {"status": "damaged", "message": str(error)}
    except TimeoutError:
        answer = {"status": "locked"}
    except OSError as error:
        answer = {"status": "failed", "message": (error.strerror or str(error)).lower()}
    out = sys.stdout.buffer
    out.write(json.dumps(answer).encode() + b"\n" + data)
    out.flush()


def _answer(request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    operation, name = request["op"], request["name"]
    try:
        folder = _open(request["root"], request["folders"], make=operation == "write")
    except FileNotFoundError:
        return {"status": "missing", "names": []}, b""
    try:
        if operation == "list":
            return {"status": "found", "names": _names(folder)}, b""
        if operation == "read":
            found = _read(folder, name)
            return ({"status": "missing"}, b"") if found is None else ({"status": "found"}, found)
        lock = _lock(folder)
        try:
            return _write(folder, name, request["revision"], content), b""
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _open(root: str, folders: list[str], *, make: bool) -> int:
    try:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError("there is no %s" % root) from None
    for name in folders:
        try:
            if make:
                try:
                    os.mkdir(name, 0o755, dir_fd=at)
                except FileExistsError:
                    pass
            try:
                below = os.open(name, _OPEN_FOLDER, dir_fd=at)
            except NotADirectoryError:
                raise Damaged("%s is not a folder" % name) from None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise Damaged("%s is a link, not a folder" % name) from None
                raise
        finally:
            os.close(at)
        at = below
    return at


def _lock(folder: int) -> int:
    """Held until it is closed. A process that never closes it keeps others from writing, but they do not wait for
    ever."""
    file = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(file)
                raise TimeoutError from None
            time.sleep(_LOCK_PAUSE)


def _write(folder: int, name: str, based_on: int, content: bytes) -> dict[str, Any]:
    there = _read(folder, name)
    newest = 0 if there is None else _revision(there)
    if newest > based_on:
        return {"status": "conflict", "revision": newest}
    revision = based_on + 1
    half = ".%s.%s" % (name, os.urandom(6).hex())
    file = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(b'{"revision": %d, ' % revision + content.lstrip()[1:])
            out.flush()
            os.fsync(out.fileno())
        os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(half, dir_fd=folder)
        except OSError:
            pass
        raise
    os.fsync(folder)
    return {"status": "written", "revision": revision}


def _read(folder: int, name: str) -> bytes | None:
    try:
        file = os.open(name, _OPEN_FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged("%s: %s" % (name, (error.strerror or "").lower())) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Damaged("%s is not a file" % name)
    with os.fdopen(file, "rb") as source:
        data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Damaged("%s has more than %d bytes" % (name, MAX_BYTES))
    return data


def _revision(data: bytes) -> int:
    try:
        revision = json.loads(data)["revision"]
    except (ValueError, TypeError, KeyError, RecursionError):
        revision = None
    if type(revision) is not int or not 0 < revision < 1 << 53:
        raise Damaged("the manifest on the volume has no revision")
    return revision


def _names(folder: int) -> list[str]:
    names = []
    for name in os.listdir(folder):
        if name.startswith("session-") and name.endswith(".json"):
            names.append(name)
            if len(names) > MAX_NAMES:
                raise Damaged("there are more than %d manifests" % MAX_NAMES)
    return sorted(names)


if __name__ == "__main__":
    main()
