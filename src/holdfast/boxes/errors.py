"""What can go wrong with a box. One class per cause, with its HTTP status and code: it crosses the wire as itself.

Gone is not unreachable, unreachable is not refused, refused is not unsupported: callers decide by these.
"""

from __future__ import annotations

import errno as codes
import os
from typing import ClassVar, Final


class BoxError(Exception):
    """Base of everything that a provider, a box or the box service refuses or fails to do."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "box_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """What to do next, where that is not plain from the message."""


class InvalidSpec(BoxError):
    """The request itself makes no sense: a bad path, limit, name or argument."""

    status = 422
    code = "invalid_spec"


class Unsupported(BoxError):
    """The provider says that it cannot do this. Nothing was created."""

    status = 422
    code = "unsupported"


class Refused(BoxError):
    """The provider could do this, and says no: a quota, a permission, a limit."""

    status = 403
    code = "refused"


class CannotIsolate(BoxError):
    """This machine does not let us build a sandbox. The hint says what to change."""

    status = 503
    code = "cannot_isolate"


class BoxNotFound(BoxError):
    """No box has this id."""

    status = 404
    code = "box_not_found"


class BoxGone(BoxError):
    """There was such a box. It is no more, and will not come back."""

    status = 410
    code = "box_gone"


class BoxUnreachable(BoxError):
    """The box may be there, but did not answer. Says nothing about its life: ask again, or probe."""

    status = 503
    code = "box_unreachable"


class BoxStopped(BoxError):
    """The box is stopped; its files are kept. Start it first."""

    status = 409
    code = "box_stopped"


class BoxConflict(BoxError):
    """The box is in a state that does not allow this, or somebody else is at it."""

    status = 409
    code = "box_conflict"


class BoxDiffers(BoxConflict):
    """The box of a key is another machine than the one that is wanted, and was not to be replaced."""

    code = "box_differs"


class BoxNotStill(BoxConflict):
    """The files of a box changed while they were copied, although its processes were held. Nothing was kept of them."""

    code = "box_not_still"


class CreateFailed(BoxError):
    """The box could not be made. Nothing of it is left."""

    status = 500
    code = "create_failed"


class SnapshotNotFound(BoxError):
    status = 404
    code = "snapshot_not_found"


class ImageNotFound(BoxError):
    status = 404
    code = "image_not_found"


class PolicyNotFound(BoxError):
    """The environment has no network policy of its own."""

    status = 404
    code = "policy_not_found"


class SnapshotInUse(BoxError):
    """A box or another snapshot still needs it."""

    status = 409
    code = "snapshot_in_use"


class WrongSnapshot(BoxError):
    """A snapshot of another provider, or of a kind that this one does not take."""

    status = 409
    code = "wrong_snapshot"


class VolumeNotFound(BoxError):
    status = 404
    code = "volume_not_found"


class VolumeExists(BoxError):
    status = 409
    code = "volume_exists"


class VolumeInUse(BoxError):
    """A box still mounts it."""

    status = 409
    code = "volume_in_use"


class ProcessNotFound(BoxError):
    """No process that was spawned in this box has this id."""

    status = 404
    code = "process_not_found"


class ProcessLost(BoxError):
    """The process ended with its box, or with the guest: nobody saw its exit code."""

    status = 410
    code = "process_lost"


class CannotExecute(BoxError):
    """The command could not be started: no such program, not executable, no such folder."""

    status = 422
    code = "cannot_execute"


class ExecTimeout(BoxError):
    """The command did not end in time and was killed. What it had printed is kept here."""

    status = 504
    code = "exec_timeout"

    def __init__(self, message: str, *, stdout: bytes = b"", stderr: bytes = b"", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stdout = stdout
        self.stderr = stderr


class OutputTooLarge(BoxError):
    """More than the caller said it would take at once. Stream it instead."""

    status = 413
    code = "output_too_large"


class ConnectRefused(BoxError):
    """Nothing listens on that port in the box."""

    status = 502
    code = "connect_refused"


class FileProblem(BoxError):
    """A path in the box could not be read or changed."""

    status = 409
    code = "file_problem"


class FileMissing(FileProblem):
    status = 404
    code = "file_not_found"


class FileExists(FileProblem):
    code = "file_exists"


class FileDenied(FileProblem):
    status = 403
    code = "file_denied"


class WrongFileKind(FileProblem):
    """A folder where a file was meant, or the other way round, or a thing that is neither."""

    code = "wrong_file_kind"


DISK_HINT: Final = "free some space on the server's disk and try again: boxes and threads can be deleted meanwhile"
"""Where it is the machine that has no room left."""


class NoSpace(FileProblem):
    """The box, or the machine it is on, has no room left."""

    status = 507
    code = "no_space"


class HostileArchive(FileProblem):
    """An archive names a place outside of where it goes, or a thing that has no place in one."""

    status = 422
    code = "hostile_archive"


class BadArchive(FileProblem):
    """No archive that could be read: damaged, cut short, or of a form that we do not know."""

    status = 422
    code = "bad_archive"


_BY_ERRNO: dict[int, type[FileProblem]] = {
    codes.ENOENT: FileMissing,
    codes.EEXIST: FileExists,
    codes.ENOTEMPTY: FileExists,
    codes.EACCES: FileDenied,
    codes.EPERM: FileDenied,
    codes.EROFS: FileDenied,
    codes.EISDIR: WrongFileKind,
    codes.ENOTDIR: WrongFileKind,
    codes.ENXIO: WrongFileKind,
    codes.EINVAL: WrongFileKind,
    codes.ELOOP: WrongFileKind,
    codes.ENAMETOOLONG: WrongFileKind,
    codes.ENOSPC: NoSpace,
    codes.EDQUOT: NoSpace,
    codes.EFBIG: NoSpace,
}


def file_problem(number: int, path: str) -> FileProblem:
    """The error for an errno that came of a path in a box."""
    return _BY_ERRNO.get(number, FileProblem)(f"{path}: {os.strerror(number).lower()}")


def error_codes() -> dict[str, type[BoxError]]:
    """Every error by its code, for whoever reads them off a wire."""
    known: dict[str, type[BoxError]] = {}
    waiting: list[type[BoxError]] = [BoxError]
    while waiting:
        each = waiting.pop()
        known[each.code] = each
        waiting += each.__subclasses__()
    return known
