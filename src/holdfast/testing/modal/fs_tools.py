"""The program that Modal puts into each sandbox for its filesystem API, as far as the SDK uses it.

The SDK runs it as a command, with one argument. Here that becomes a Python program in the sandbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PATH: Final = "/__modal/.bin/modal-sandbox-fs-tools"
_PROGRAM: Final = r"""
import errno, json, os, shutil, stat, sys
(operation, asked), = json.loads(sys.argv[1]).items()
path = asked["path"]
KINDS = {errno.ENOENT: "NotFound", errno.ENOTDIR: "NotDirectory", errno.EISDIR: "IsDirectory",
         errno.EACCES: "PermissionDenied", errno.EPERM: "PermissionDenied", errno.EROFS: "PermissionDenied",
         errno.ENOTEMPTY: "DirectoryNotEmpty", errno.EEXIST: "PathAlreadyExists"}

def about(path):
    found = os.lstat(path)
    mode = found.st_mode
    kind = "directory" if stat.S_ISDIR(mode) else "symlink" if stat.S_ISLNK(mode) else "file"
    return {"name": os.path.basename(path), "path": path, "type": kind, "size": found.st_size, "mode": mode & 0o7777,
            "permissions": stat.filemode(mode)[1:], "owner": str(found.st_uid), "group": str(found.st_gid),
            "modified_time": found.st_mtime, "symlink_target": os.readlink(path) if kind == "symlink" else None}

try:
    if operation == "ReadFile":
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    elif operation == "WriteFile":
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    elif operation == "ListFiles":
        print(json.dumps([about(os.path.join(path, name)) for name in sorted(os.listdir(path))]))
    elif operation == "Stat":
        print(json.dumps(about(path)))
    elif operation == "MakeDirectory":
        os.makedirs(path, exist_ok=True) if asked["parents"] else os.mkdir(path)
    elif operation == "Remove":
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
        elif asked["recursive"]:
            shutil.rmtree(path)
        else:
            os.rmdir(path)
    else:
        raise OSError(errno.ENOTSUP, "not supported")
except OSError as error:
    kind = KINDS.get(error.errno, "NotSupported" if error.errno == errno.ENOTSUP else "Other")
    if operation == "WriteFile" and kind == "PathAlreadyExists":
        kind = "AlreadyExists"
    sys.stderr.write(json.dumps({"error_kind": kind, "message": error.strerror or "failed"}))
    sys.exit(1)
"""


def command(argv: Sequence[str]) -> list[str]:
    """Returns the command to run in the box for one that the SDK asked for."""
    if len(argv) == 2 and argv[0] == PATH:
        return ["python3", "-I", "-S", "-c", _PROGRAM, argv[1]]
    return list(argv)
