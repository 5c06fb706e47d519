"""The server's side of the launcher. Starts the launcher on first use, and again if it has died."""

from __future__ import annotations

import array
import asyncio
import collections
import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.api.errors.boxes import CannotIsolate, CreateFailed
from holdfast.providers.pipes import Pipe
from holdfast.time_limit import time_limit

_SECONDS: Final = 30.0
_PACKET: Final = 1 << 16
SCRIPT: Final = Path(__file__).with_name("launcher.py")
_AT_ONCE: Final = 4
"""Requests in flight. The launcher handles one at a time, and its socket has a limited buffer."""


class Launcher:
    """Owned by the provider, on its event loop. Answers come in the order of the requests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self.maps = False
        """Whether files of one owner can appear as another user's in each box. Known once the launcher has started."""
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: collections.deque[asyncio.Future[dict[str, Any]]] = collections.deque()
        self._starting = asyncio.Lock()
        self._under_way = asyncio.Semaphore(_AT_ONCE)

    async def start(self) -> None:
        async with self._starting:
            if self._control is not None:
                return
            self.close()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            script = SCRIPT
            try:
                self._process = subprocess.Popen(  # noqa: ASYNC220 - a moment, once
                    [sys.executable, "-I", "-S", script, str(theirs.fileno()), json.dumps(self._settings)],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._control = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._on_answer)
            answer = await self._answer()
        if "error" in answer:
            self.close()
            raise CannotIsolate(answer["error"], hint="run the server as an ordinary user, or as a root that may mount")
        self.maps = bool(answer.get("maps"))

    async def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Start a box. Returns its first process. Its socket exists then, and shows whether the box comes up."""
        async with self._under_way:
            answer = await self._ask({"op": "launch", **request}, descriptors)
        if "error" in answer:
            raise CreateFailed(f"cannot start the box: {answer['error']}")
        return int(answer["pid"])

    async def copy(self, source: int, target: int) -> dict[str, Any]:
        """Copy one folder into an empty one. Returns `names` (how many), `changed`, or an `error`."""
        return await self._ask_child("copy", source, target)

    async def seal(self, namespace: int) -> int:
        """Make the root of a mount namespace read-only for good. Returns an errno: 0, or EBUSY while a file is open for
        writing."""
        answer = await self._ask_child("seal", namespace)
        return int(answer.get("error", 0))

    async def _ask_child(self, operation: str, *descriptors: int) -> dict[str, Any]:
        """Send a request that takes long: a child of the launcher performs it and returns the result through a pipe."""
        read, write = os.pipe2(os.O_CLOEXEC)
        result = Pipe(read)
        try:
            try:
                async with self._under_way:
                    begun = await self._ask({"op": operation}, [*descriptors, write])
            finally:
                os.close(write)
            if "error" in begun:
                return {"error": errno.EIO, "about": begun["error"]}
            output = b""
            while data := await result.read():
                output += data
            return dict(json.loads(output)) if output else {"error": errno.ECHILD, "about": "it was ended"}
        finally:
            result.close()

    async def _ask(self, request: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        for tries_left in (1, 0):
            await self.start()
            assert self._control is not None
            try:
                self._control.sendmsg([json.dumps(request).encode()], rights)
                break
            except OSError as error:  # it was killed before it received the request: the next launcher gets it
                self.close()
                if not tries_left:
                    raise CreateFailed(f"the launcher of boxes has ended ({error}): try again") from None
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        """Waits even when cancelled: before a caller undoes a step, it must know whether it happened."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        async with time_limit(_SECONDS):
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await asyncio.wait([future], timeout=_SECONDS)
                raise

    def _on_answer(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(json.loads(data))

    def close(self) -> None:
        """Close the socket, on which the launcher ends. The boxes that it started keep running."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result({"error": "the launcher of boxes is gone: try again"})
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def stage_for(data_dir: Path) -> str:
    """Returns where the launcher of a root server mounts the data directory for boxes.

    The path exists only in the launcher's mount namespace. It differs by home, so that process lists show the home.
    """
    return f"/run/holdfast/{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
