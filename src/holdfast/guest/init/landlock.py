"""Forbids sockets in folders that a box shares with others, because boxes could pass descriptors through them.

Runs once in process 1, before any user code, and applies to everything that it starts. Landlock can grant rights below
a folder, but cannot take them away again below a subfolder. So it grants them for every folder without a shared folder
in it, as of the start of the box.
"""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System call numbers, the same on every machine."""
_VERSION = 1
_PATH_BENEATH = 1
_MAKE_SOCKET = 1 << 9
_REFER = 1 << 13
"""The right to move files between folders. Before version 2, a process under Landlock could not do that at all."""
_OLDEST = 2
_MOST = 1024
"""How many folders are granted. There may be many beside a shared folder; the rest get no sockets."""


def forbid_sockets_below(shared: "list[str]") -> None:
    """Raises `OSError` if the kernel supports Landlock but refuses it. Does nothing if it does not."""
    if _call(_CREATE, 0, 0, _VERSION) < _OLDEST:
        return
    rules = _checked(_call(_CREATE, (_MAKE_SOCKET | _REFER).to_bytes(8, "little"), 8, 0))
    try:
        _grant(rules, "/", _REFER)
        for path in beside(shared, _folders)[:_MOST]:
            _grant(rules, path, _MAKE_SOCKET)
        _checked(_call(_RESTRICT, rules, 0))
    finally:
        posix.close(rules)


def beside(shared: "list[str]", folders_in: "Callable[[str], list[str]]") -> "list[str]":
    """Returns the largest folders that are not shared and do not contain a shared folder."""
    above = {"/"}
    for path in shared:
        while path.rfind("/") > 0:
            path = path[: path.rfind("/")]
            above.add(path)
    found = []
    for folder in sorted(above - set(shared)):
        for name in sorted(folders_in(folder)):
            path = "/" + name if folder == "/" else folder + "/" + name
            if path not in above and path not in shared:
                found.append(path)
    return [path for path in found if not any(path.startswith(each + "/") for each in shared)]


def _folders(folder: str) -> "list[str]":
    try:
        return posix.listdir(folder)
    except OSError:
        return []


def _grant(rules: int, path: str, access: int) -> None:
    try:
        place = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
    except OSError:
        return  # a file, or a link
    try:
        beneath = access.to_bytes(8, "little") + place.to_bytes(4, "little")
        _checked(_call(_ADD, rules, _PATH_BENEATH, beneath, 0))
    finally:
        posix.close(place)


def _call(*arguments: "int | bytes") -> int:
    import _ctypes

    syscall = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
    return int(_ctypes.call_function(syscall, arguments))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError("Landlock refuses a rule")
    return result
