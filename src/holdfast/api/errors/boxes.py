"""Errors of boxes, and of their files, processes, snapshots, volumes and images.

Gone is not unreachable, unreachable is not refused, refused is not unsupported: callers decide by these.
"""

from __future__ import annotations

import errno as codes
import os
from typing import Final

from holdfast.api.errors import DiskFull, Headers, HoldfastError


class BoxError(HoldfastError):
    """The base class of errors of providers, boxes and the box service."""

    status: int = 500
    code = "box_error"


class InvalidSpec(BoxError):
    """The request is invalid: a bad path, limit, name or argument."""

    status = 422
    code = "invalid_spec"


class Unsupported(BoxError):
    """The provider cannot do this. Nothing was created."""

    status = 422
    code = "unsupported"


class ProviderRefused(BoxError):
    """The provider supports this, but refused: a quota, a permission, a limit."""

    status = 403
    code = "refused"


class CannotIsolate(BoxError):
    """This machine does not allow sandboxes. The hint says what to change."""

    status = 503
    code = "cannot_isolate"


class BoxNotFound(BoxError):
    """No box has this id."""

    status = 404
    code = "box_not_found"


class BoxGone(BoxError):
    """The box existed. It is gone for good."""

    status = 410
    code = "box_gone"


class BoxUnreachable(BoxError):
    """The box did not answer. It may be alive or dead: ask again, or probe it."""

    status = 503
    code = "box_unreachable"


class BoxStopped(BoxError):
    """The box is stopped; its files are kept. Start it first."""

    status = 409
    code = "box_stopped"


class BoxConflict(BoxError):
    """The state of the box does not allow this, or another caller is changing it."""

    status = 409
    code = "box_conflict"


class BoxDiffers(BoxConflict):
    """The key has a box with another spec, and the caller did not want it replaced."""

    code = "box_differs"


class BoxNotStill(BoxConflict):
    """The files of the box changed while they were copied, although its processes were frozen. Nothing was kept."""

    code = "box_not_still"


class CreateFailed(BoxError):
    """The box could not be created. Nothing of it is left."""

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
    """The snapshot is of another provider, or of a kind that this one does not accept."""

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
    """The process ended together with its box or guest, so its exit code is unknown."""

    status = 410
    code = "process_lost"


class CannotExecute(BoxError):
    """The command could not be started: no such program, not executable, no such folder."""

    status = 422
    code = "cannot_execute"


class CommandNotFound(CannotExecute):
    """The box has no such program."""

    code = "command_not_found"


class ExecTimeout(BoxError):
    """The command did not end in time and was killed. The error contains its output."""

    status = 504
    code = "exec_timeout"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        headers: Headers = (),
        request_id: str | None = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(message, status=status, code=code, hint=hint, headers=headers, request_id=request_id)
        self.stdout = stdout
        self.stderr = stderr


class OutputTooLarge(BoxError):
    """There is more output than the caller accepts. Stream it instead."""

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
    """A folder where a file was expected, or the other way round, or neither of them."""

    code = "wrong_file_kind"


DISK_HINT: Final = "free some space on the server's disk and try again: boxes and threads can be deleted meanwhile"
"""The hint if the machine is out of space."""


class NoSpace(DiskFull, FileProblem):
    """The disk of the box or of its machine is full."""

    code = "no_space"


class HostileArchive(FileProblem):
    """The archive names a path outside of its target, or contains a kind of file that is not allowed."""

    status = 422
    code = "hostile_archive"


class BadArchive(FileProblem):
    """The archive cannot be read: it is damaged, truncated or of an unknown format."""

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
    """Returns the error for the errno of an operation on a path in a box."""
    return _BY_ERRNO.get(number, FileProblem)(f"{path}: {os.strerror(number).lower()}")
