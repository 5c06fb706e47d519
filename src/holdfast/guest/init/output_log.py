"""Keeps the output and exit codes of spawned processes inside a box, so that they can be read later.

Each process has a folder below `processes` in the current folder: `process.json` (its description), `stdout`, `stderr`,
and `exit`, to which the guest writes the exit code. For boxes whose host cannot keep these outside. Standard library
only.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "processes"
_OWNER = "box"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_MOST = 10_000
"""How many processes are listed at once."""
_LONGEST = 1 << 20
"""The longest description in bytes."""


def belong_to(box: str) -> None:
    """Forget the processes of another box, if this box's files were copied from it."""
    try:
        with open(_OWNER) as file:
            owner = file.read()
    except FileNotFoundError:
        owner = ""
    if owner != box:
        import shutil

        shutil.rmtree(FOLDER, ignore_errors=True)
        with open(_OWNER, "w") as file:
            file.write(box)
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)


def make(request: "Any") -> "list[int]":
    """Create the folder of a process about to start. Returns descriptors for stdout, stderr and the exit code."""
    import json

    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    folder = _folder(request["id"])
    os.mkdir(folder, 0o700)
    descriptors: list[int] = []
    try:
        for name in ("stdout", "stderr", "exit"):
            descriptors.append(os.open(folder + "/" + name, _FLAGS, 0o600))
        description = {
            "argv": request["argv"],
            "pty": bool(request["pty"]),
            "stdin": bool(request["stdin"]),
            "startedAt": request.pop("startedAt"),
        }
        with open(folder + "/.new", "w", errors="surrogateescape") as file:
            json.dump(description, file)
        os.rename(folder + "/.new", folder + "/process.json")
    except BaseException:
        for each in descriptors:
            os.close(each)
        forget(request["id"])
        raise
    return descriptors


def forget(id: str) -> None:
    """Forget a process that could not be started."""
    import shutil

    shutil.rmtree(_folder(id), ignore_errors=True)


def describe(id: "str | None") -> "list[Any]":
    """Returns one process, or all of them, oldest first. Unreadable ones are left out."""
    import json

    try:
        names = sorted(os.listdir(FOLDER))[-_MOST:] if id is None else [id]
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        folder = _folder(name)
        try:
            with open(folder + "/process.json", errors="surrogateescape") as file:
                description = json.loads(file.read(_LONGEST))
            with open(folder + "/exit", "rb") as file:
                code = file.read(32)
            ended = os.stat(folder + "/exit").st_mtime_ns // 1_000_000
            known = code.endswith(b"\n") and code.strip().isdigit()
            found.append(
                {
                    "id": name,
                    "argv": description["argv"],
                    "pty": description["pty"],
                    "stdin": description["stdin"],
                    "startedAt": description["startedAt"],
                    "code": int(code) if known else None,
                    "endedAt": ended if known else None,
                }
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def open_output(id: str, stream: str) -> int:
    return os.open(_folder(id) + "/" + stream, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _folder(id: str) -> str:
    return FOLDER + "/" + id
