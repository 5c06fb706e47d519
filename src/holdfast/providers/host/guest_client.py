"""The host's side of the guest's socket. A box may have taken its guest over, so answers are untrusted and bounded.

Each request has its own connection. Descriptors are passed in both directions, so data never passes through the guest.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from holdfast.api.box.box import Wake
from holdfast.api.errors.boxes import BoxError, BoxGone, BoxStopped, BoxUnreachable, file_problem
from holdfast.guest.init import codec
from holdfast.providers.guest_protocol import ArchiveRefused, GuestRefused, check_refused, read_answer
from holdfast.providers.host.gates import Gates
from holdfast.providers.pipes import readable
from holdfast.time_limit import time_limit

_ANSWER_LIMIT: Final = codec.LIMIT
_PIECE: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 4
DEFAULT_SECONDS: Final = 30.0
_PIDFD_GETFD: Final = 438
"""The same number on every architecture."""
_SO_PEERPIDFD: Final = 77
_STAT: Final = 4096
_FLAGS: Final = 6
"""Index in /proc/PID/stat, counted from the state, which follows the name of the program."""
_PENDING: Final = 28
_PF_EXITING: Final = 0x4
_PF_SIGNALED: Final = 0x400
_SIGKILL_BIT: Final = 1 << (signal.SIGKILL - 1)
_KILL_SECONDS: Final = 10.0
PAUSED: Final = "paused"
"""In the folder of a paused box: its processes are frozen until it is started, not only while it is copied."""


class Call:
    """One request in progress. Closing it before the answer ends the command that it started."""

    def __init__(self, connection: socket.socket, box: str) -> None:
        self._socket = connection
        self.box = box
        self._received = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    async def answer(self) -> tuple[dict[str, Any], list[int]]:
        """Returns the next message, and the descriptors that came with it. The caller closes these."""
        while (message := self._next_message()) is None:
            await readable(self._socket.fileno())
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    async def done(self) -> dict[str, Any]:
        """Returns the next message, and closes any descriptors that came with it."""
        while (message := self.done_now()) is None:
            await readable(self._socket.fileno())
        return message

    def done_now(self) -> dict[str, Any] | None:
        """Like `done` without waiting: returns None if no message has arrived."""
        message = self._next_message()
        if message is not None:
            self._drop_descriptors()
        return message

    def _next_message(self) -> dict[str, Any] | None:
        while (message := self._parse()) is None:
            if not self._receive():
                return None
        return message

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(codec.frame(message))

    def _receive(self) -> bool:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _PIECE, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError as error:
            raise BoxUnreachable(f"box {self.box} closed the connection ({error.strerror})") from None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._descriptors += received
        if len(self._descriptors) > _MAX_DESCRIPTORS:
            raise BoxUnreachable(f"box {self.box} sent data without a request")
        if not data:
            raise BoxUnreachable(f"box {self.box} closed the connection")
        self._received += data
        return True

    def _parse(self) -> dict[str, Any] | None:
        if len(self._received) < 4:
            return None
        length = int.from_bytes(self._received[:4], "big")
        if length > _ANSWER_LIMIT:
            raise BoxUnreachable(f"box {self.box} sent an answer of {length} bytes, which is too large")
        if len(self._received) < 4 + length:
            return None
        data = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        message = read_answer(data, self.box)
        if "take" in message:
            self._descriptors += self._copy_descriptors(message["take"])
        check_refused(message)
        return message

    def _copy_descriptors(self, numbers: object) -> list[int]:
        """Returns descriptors that the guest could not send: they are copied out of its process, which the kernel
        identifies."""
        if not isinstance(numbers, list) or len(numbers) > _MAX_DESCRIPTORS:
            raise BoxUnreachable(f"box {self.box} sent an invalid message")
        taken: list[int] = []
        process = os.pidfd_open(peer_of(self._socket))
        try:
            for number in numbers:
                if not isinstance(number, int) or not 0 <= number < 1 << 30:
                    raise BoxUnreachable(f"box {self.box} sent an invalid message")
                taken.append(get_descriptor(process, number))
        except (BoxUnreachable, OSError) as error:
            for each in taken:
                os.close(each)
            raise BoxUnreachable(f"box {self.box} cannot pass a descriptor: {error}") from None
        finally:
            os.close(process)
        return taken

    def close(self) -> None:
        self._socket.close()
        self._drop_descriptors()

    def _drop_descriptors(self) -> None:
        for each in self._descriptors:
            os.close(each)
        self._descriptors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GuestClient:
    """Sends requests to the guest of one box."""

    def __init__(
        self,
        box: str,
        folder: Path,
        born: int | None = None,
        wake: Wake | None = None,
        gates: Gates | None = None,
    ) -> None:
        """`born` is when the box was created or handed over. Requests tell the guest, which sets file times by it.

        `wake` is called once before an operation fails because the box is stopped or paused. Requests wait at the gate
        of the box. Without `gates`, they do not: whoever restarts the guest has to talk to it.
        """
        self._gates = gates
        self.box = box
        self._born = born
        self._wake = wake
        self._folder = folder
        self._place = str(folder)

    @property
    def paused(self) -> bool:
        """Whether its processes are frozen, including the guest, so that it cannot answer."""
        return os.access(f"{self._place}/{PAUSED}", os.F_OK)

    def connect(self) -> socket.socket:
        """Raises `BoxStopped` if no guest listens or it was killed, `BoxUnreachable` if it is overloaded."""
        connection = self._reach()
        if _peer_is_over(connection):
            connection.close()
            raise self._stopped()
        return connection

    def _reach(self) -> socket.socket:
        """Like `connect`, but accepts a guest that was killed and has not ended yet."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._connect(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if not self._folder.exists():
                raise BoxGone(f"box {self.box} is gone") from None
            raise self._stopped() from None
        except BlockingIOError:
            connection.close()
            raise BoxUnreachable(f"box {self.box} has too many pending requests") from None
        except OSError as error:
            connection.close()
            raise BoxUnreachable(f"box {self.box} cannot be reached: {error.strerror}") from None
        return connection

    def _stopped(self) -> BoxStopped:
        return BoxStopped(f"box {self.box} is stopped", hint=f"start it: holdfast box start {self.box}")

    def _connect(self, connection: socket.socket) -> None:
        path = f"{self._place}/guest.sock"
        if len(os.fsencode(path)) <= 107:
            connection.connect(path)
            return
        place = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{place}/guest.sock")
        finally:
            os.close(place)

    async def call(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> Call:
        """Send a request. The caller closes it. Waits only if the request is larger than the buffer of the socket."""
        if self._gates is not None and self._gates.is_closed(self.box):
            await self._gates.passed(self.box)
        connection = await self._awake()
        try:
            data = codec.frame(message if self._born is None else {**message, "born": self._born})
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            sent = connection.sendmsg([data], rights)
            if sent < len(data):
                async with time_limit(DEFAULT_SECONDS):
                    await asyncio.get_running_loop().sock_sendall(connection, data[sent:])
        except TimeoutError:
            connection.close()
            raise BoxUnreachable(f"box {self.box} does not accept requests") from None
        except OSError as error:
            connection.close()
            raise BoxUnreachable(f"box {self.box} closed the connection ({error.strerror})") from None
        except BaseException:
            connection.close()
            raise
        return Call(connection, self.box)

    def tell(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Send a small request whose answer does not matter. A box that does not run is not woken: nothing is sent."""
        try:
            with self._connect_to_runner() as connection:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                connection.sendmsg([codec.frame(message)], rights)
        except (BoxError, OSError):
            return

    async def _awake(self) -> socket.socket:
        try:
            return self._connect_to_runner()
        except BoxStopped:
            if self._wake is None or not await self._wake():
                raise
        return self._connect_to_runner()

    def _connect_to_runner(self) -> socket.socket:
        if self.paused:
            raise BoxStopped(f"box {self.box} is paused", hint=f"resume it: holdfast box start {self.box}")
        return self.connect()

    async def ask(
        self, message: dict[str, Any], descriptors: Sequence[int] = (), *, seconds: float | None = DEFAULT_SECONDS
    ) -> dict[str, Any]:
        """Send a request whose answer has no descriptors, and return the answer."""
        answer, received = await self.ask_descriptors(message, descriptors, seconds=seconds)
        for each in received:
            os.close(each)
        return answer

    async def ask_descriptors(
        self, message: dict[str, Any], descriptors: Sequence[int] = (), *, seconds: float | None = DEFAULT_SECONDS
    ) -> tuple[dict[str, Any], list[int]]:
        with await self.call(message, descriptors) as call:
            try:
                async with time_limit(seconds):
                    return await call.answer()
            except TimeoutError:
                raise BoxUnreachable(
                    f"box {self.box} did not answer in {seconds:.0f} s",
                    hint=f"see what it is busy with: holdfast box diagnose {self.box}",
                ) from None

    async def ask_path(self, message: dict[str, Any], path: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Send a request about a path. A refusal raises the matching file error."""
        try:
            return await self.ask(message, seconds=seconds)
        except ArchiveRefused:
            raise
        except GuestRefused as refused:
            raise file_problem(refused.number, refused.about or path) from None

    # --- life and death: by what the kernel says, never by what the guest says ---

    def pid(self) -> int | None:
        """Returns the guest's process as the kernel reports it, or None if there is no guest or it was killed."""
        try:
            connection = self.connect()
        except (BoxStopped, BoxGone):
            return None
        with connection:
            return peer_of(connection)

    def alive(self) -> bool:
        try:
            self.connect().close()
        except (BoxStopped, BoxGone):
            return False
        except BoxError:
            return True
        return True

    def is_socket_open(self) -> bool:
        """Whether any process has the guest's socket: the guest, even if it was killed, or the process that starts
        it."""
        try:
            self._reach().close()
        except (BoxStopped, BoxGone):
            return False
        except BoxError:
            return True
        return True

    async def kill(self) -> None:
        """End the box and everything in it. Returns when none of its processes runs."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _KILL_SECONDS
        while loop.time() < deadline:
            try:
                pid = self._pid_until_ended()
            except BoxUnreachable:
                pid = await asyncio.to_thread(self._pid_waiting)
            if pid is None:
                return
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                await asyncio.sleep(0.001)
                continue
            try:
                # The process id was the guest's when we asked. It still is while the socket answers.
                if self.alive():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                await readable(handle)
            except ProcessLookupError:
                pass
            finally:
                os.close(handle)
        raise BoxUnreachable(f"box {self.box} does not end", hint="the kernel holds its processes: see ps")

    def _pid_until_ended(self) -> int | None:
        try:
            connection = self._reach()
        except (BoxStopped, BoxGone):
            return None
        with connection:
            return None if _peer_has_ended(connection) else peer_of(connection)

    def _pid_waiting(self) -> int | None:
        """Like `pid` for a guest whose queue is full: waits for a free place in the queue of its socket."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.settimeout(1.0)
            try:
                self._connect(connection)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except OSError as error:
                raise BoxUnreachable(f"box {self.box} cannot be reached: {error}") from None
            return peer_of(connection)


def peer_of(connection: socket.socket) -> int:
    """Returns the process that listens at the other end, as the kernel reports it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def monitor_name(box: str) -> str:
    """Returns the name of a box's sandbox in process lists. That process starts the guest and outlives it."""
    return f"holdfast-box {box}"


def is_guest(pid: int) -> bool:
    """Returns whether the process that listens for a box is its guest, and not the one that starts it."""
    command = Path("/proc", str(pid), "cmdline").read_bytes()
    if not command:  # it is between two programs, or exiting
        return False
    return not command.startswith(monitor_name("").encode()) and b"launcher.py" not in command


def peer_handle(connection: socket.socket) -> int:
    """Returns a process descriptor of the listener at the other end, which stays valid if the pid is reused.

    Needs Linux 6.5. Some kernels raise `ProcessLookupError` if that process has ended.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
        raise


def has_ended(handle: int) -> bool:
    """Returns whether the process of a descriptor has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def is_ending(pid: int) -> bool:
    """Returns whether a process was killed or exits. It does nothing more, although it may take long to end.

    The kernel records a SIGKILL before the sender continues, so the answer is never too early.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fields = os.read(descriptor, _STAT).rpartition(b")")[2].split()
    except OSError:  # it has just ended
        return True
    finally:
        os.close(descriptor)
    return bool(int(fields[_FLAGS]) & (_PF_EXITING | _PF_SIGNALED) or int(fields[_PENDING]) & _SIGKILL_BIT)


def _peer_is_over(connection: socket.socket) -> bool:
    # In this order: the process id cannot be reused before the process has ended.
    return is_ending(peer_of(connection)) or _peer_has_ended(connection)


def _peer_has_ended(connection: socket.socket) -> bool:
    """Whether the listener has ended. Its socket may live longer, because the process that starts a box has it open
    too."""
    try:
        handle = peer_handle(connection)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return has_ended(handle)
    finally:
        os.close(handle)


def get_descriptor(process: int, number: int) -> int:
    """Returns a copy of another process's descriptor: pidfd_getfd, which the standard library lacks."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.syscall(_PIDFD_GETFD, process, number, 0))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor  # the kernel has set close-on-exec
