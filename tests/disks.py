"""A disk that is small enough to fill: a file system in memory, in a mount namespace of its own.

Mounted as root, or as anybody inside a user namespace, where the machine lets one do that. Nobody outside sees the
mount, and it goes with the process that holds it. Linux only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.testing.server import ServerProcess

_HOLD: Final = """
mount -t tmpfs -o "size=$2,mode=0700" holdfast "$1" || exit 1
echo mounted
exec cat
"""
_BALLAST: Final = "ballast"
_WAYS: Final = (
    ("as root", ("--mount",), ("--mount",)),
    (
        "in a user namespace",
        ("--mount", "--user", "--map-root-user"),
        ("--mount", "--user", "--preserve-credentials"),
    ),
)


class CannotMount(Exception):
    """This machine does not let us mount a small disk. The message says what was tried."""


class SmallDisk:
    """A mounted disk of so many bytes. A context manager: at its end the disk and everything on it are gone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._mount_point = Path()
        self._holder: subprocess.Popen[bytes] | None = None
        self._enter: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._mount_point = Path(tempfile.mkdtemp(prefix="holdfast-disk-"))
        try:
            self._mount()
        except BaseException:
            self._mount_point.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._holder is not None:
            self._end(self._holder)
            self._holder = None
        self._mount_point.rmdir()

    @property
    def here(self) -> Path:
        """The disk's root, as seen from outside."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self._mount_point}")

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """A command that sees the disk at `there`."""
        return subprocess.run([*self._enter, *argv], capture_output=True, text=True, timeout=240, check=False)

    @property
    def there(self) -> Path:
        """Where the disk is for whoever runs in its namespace."""
        return self._mount_point

    @property
    def command(self) -> tuple[str, ...]:
        """What goes before a command that is to see the disk."""
        return self._enter

    def server(self, *, log: Path) -> ServerProcess:
        """A server with its home on this disk. The log is elsewhere: it is to be read when the disk is full."""
        return ServerProcess(self._mount_point / "home", command=self._enter, home_here=self.here / "home", log=log)

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.here).free

    def put_ballast(self, size: int) -> None:
        """Take up space that `drop_ballast` frees again."""
        (self.here / _BALLAST).write_bytes(bytes(size))

    def drop_ballast(self) -> None:
        (self.here / _BALLAST).unlink()

    def enlarge(self, size: int) -> None:
        """Make the disk this large, under the feet of whoever uses it."""
        # With the source named, mount does not repeat the old options, which a user namespace may refuse.
        remount = ["mount", "-o", f"remount,size={size}", "holdfast", str(self._mount_point)]
        subprocess.run([*self._enter, *remount], check=True, timeout=240)

    def _mount(self) -> None:
        tried = []
        for name, unshare, nsenter in _WAYS:
            reason = self._try(unshare, nsenter)
            if reason is None:
                return
            tried.append(f"{name}: {reason}")
        raise CannotMount("a small disk cannot be mounted here (" + "; ".join(tried) + ")")

    def _try(self, unshare: tuple[str, ...], nsenter: tuple[str, ...]) -> str | None:
        """Mount in one way; why not, where that fails."""
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            return "unshare and nsenter (util-linux) are not installed"
        if "--user" not in unshare and os.geteuid() != 0:
            return "not root"
        command = ["unshare", *unshare, "sh", "-c", _HOLD, "sh", str(self._mount_point), str(self._size)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() == b"mounted\n":
            self._holder = holder
            self._enter = ("nsenter", "--target", str(holder.pid), *nsenter)
            return None
        reason = holder.stderr.read().decode(errors="replace").strip().replace("\n", ", ")
        self._end(holder)
        return reason or "no reason given"

    @staticmethod
    def _end(holder: subprocess.Popen[bytes]) -> None:
        """The mount goes with the last process in its namespace."""
        holder.kill()
        holder.wait()
        for pipe in (holder.stdin, holder.stdout, holder.stderr):
            assert pipe is not None
            pipe.close()
