"""File operations of process 1 of a box for the host. Loaded on the first request for a file.

Uses only the connection of process 1 that a request came on, because that module runs under another name than its own.
"""

import errno
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.guest.init.init import HostConnection

_OPEN_FLAGS = posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY


def absolute(request: "Any", name: str = "path") -> str:
    import os.path

    path: str = request[name]
    if not path.startswith("/"):
        path = request["cwd"] + "/" + path
    # With `..`, only the kernel knows where the path leads, because it may pass through a link.
    return path if ".." in path.split("/") else os.path.normpath(path)


def describe(path: str, status: posix.stat_result) -> "list[Any]":
    kinds = {0o100000: "file", 0o040000: "folder", 0o120000: "link"}
    kind = kinds.get(status.st_mode & 0o170000, "other")
    target = posix.readlink(path) if kind == "link" else None
    return [path, kind, status.st_size, status.st_mode & 0o7777, status.st_mtime_ns // 1_000_000, target]


def op_open(connection: "HostConnection", request: "Any") -> None:
    """Open a file for reading without blocking, for example on a pipe with no writer."""
    path = absolute(request)
    descriptor = posix.open(path, posix.O_RDONLY | _OPEN_FLAGS)
    try:
        connection.answer({"file": describe(path, posix.fstat(descriptor))}, (descriptor,))
    finally:
        posix.close(descriptor)


def op_write(connection: "HostConnection", request: "Any") -> None:
    """Hand out a new file. When the host reports that it is complete, it replaces the old one."""
    import os

    path = absolute(request)
    # Follow links, as any other writer would: replace the target file, not the link.
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, "", path)
    temporary = folder + "/.holdfast-" + posix.urandom(6).hex()
    try:
        descriptor = posix.open(temporary, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | _OPEN_FLAGS, 0o600)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, "", path) from None

    def commit(_connection: "HostConnection", message: "Any") -> None:
        try:
            posix.chmod(temporary, request["mode"])
            posix.replace(temporary, path)
        except OSError as error:
            discard()
            raise OSError(error.errno or errno.EIO, "", path) from None
        _connection.answer({})

    def discard() -> None:
        try:
            posix.unlink(temporary)
        except OSError:
            pass

    connection.on_hangup = discard
    connection.on_message = commit
    try:
        connection.send({}, (descriptor,))
    finally:
        posix.close(descriptor)


def op_stat(connection: "HostConnection", request: "Any") -> None:
    path = absolute(request)
    connection.answer({"file": describe(path, posix.lstat(path))})


def op_mkdir(connection: "HostConnection", request: "Any") -> None:
    import os

    os.makedirs(absolute(request), exist_ok=True)
    connection.answer({})


def op_move(connection: "HostConnection", request: "Any") -> None:
    import os

    source, target = absolute(request), absolute(request, "target")
    posix.lstat(source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(target) and not os.path.islink(target):
        raise OSError(errno.EEXIST, "", target)
    try:
        posix.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        move_across(connection, source, target)
        return
    connection.answer({})


def move_across(connection: "HostConnection", source: str, target: str) -> None:
    """Move a file to or from a volume by copying and deleting it, which is slow."""

    def move() -> "Any":
        import shutil

        shutil.move(source, target)
        return {}

    connection.do_in_child(move)


def op_chmod(connection: "HostConnection", request: "Any") -> None:
    posix.chmod(absolute(request), request["mode"])
    connection.answer({})


def op_touch(connection: "HostConnection", request: "Any") -> None:
    """Set the time of folders to now, in a box that was created in advance. Skips what cannot be changed."""
    for path in request["paths"]:
        try:
            posix.utime(path)
        except OSError:
            pass
    connection.answer({})


def op_delete(connection: "HostConnection", request: "Any") -> None:
    path = absolute(request)
    status = posix.lstat(path)
    if status.st_mode & 0o170000 != 0o040000:
        posix.unlink(path)
    elif not request["recursive"]:
        posix.rmdir(path)
    else:
        connection.do_in_child(lambda: remove_tree(path))
        return
    connection.answer({})


def remove_tree(path: str) -> "Any":
    import search  # type: ignore[import-not-found]

    search.remove_tree(path)
    return {}


def op_list(connection: "HostConnection", request: "Any") -> None:
    path = absolute(request)

    def work() -> "Any":
        import search

        return {"files": search.list_folder(path)}

    connection.do_in_child(work)


def op_find(connection: "HostConnection", request: "Any") -> None:
    path = absolute(request)

    def work() -> "Any":
        import search

        return {"files": search.find(path, request["pattern"], request["limit"])}

    connection.do_in_child(work)


def op_search(connection: "HostConnection", request: "Any") -> None:
    path = absolute(request)

    def work() -> "Any":
        import search

        found = search.search(path, request["pattern"], request["glob"], request["regex"], request["limit"])
        return {"matches": found}

    connection.do_in_child(work)


def op_replace(connection: "HostConnection", request: "Any") -> None:
    paths = [each if each.startswith("/") else request["cwd"] + "/" + each for each in request["paths"]]

    def work() -> "Any":
        import search

        return {"replaced": search.replace(paths, request["pattern"], request["replacement"], request["regex"])}

    connection.do_in_child(work)


def op_pack(connection: "HostConnection", request: "Any") -> None:
    """Pack a tree as an archive into the host's pipe."""
    (pipe,) = connection.take_descriptors(1)
    path = absolute(request)

    def work() -> "Any":
        import tree  # type: ignore[import-not-found]

        with open(pipe, "wb", buffering=1 << 18) as out:
            tree.pack(path, out)
        return {}

    try:
        posix.lstat(path)
        connection.do_in_child(work)
    finally:
        posix.close(pipe)


def op_unpack(connection: "HostConnection", request: "Any") -> None:
    """Unpack an archive from the host's pipe into a folder."""
    (pipe,) = connection.take_descriptors(1)
    path = absolute(request)

    def work() -> "Any":
        import os

        import tree

        os.makedirs(path, exist_ok=True)
        with open(pipe, "rb", buffering=1 << 18) as archive:
            tree.unpack(archive, path, links="anywhere")
        return {}

    try:
        connection.do_in_child(work)
    finally:
        posix.close(pipe)


OPERATIONS = {name[3:]: function for name, function in list(globals().items()) if name.startswith("op_")}
