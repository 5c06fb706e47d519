"""A shell whose commands run one after another, each with output of its own.

Reads requests from standard input, a line of JSON each:
    {"op": "run", "id": "...", "command": "...", "echo": true}
    {"op": "input", "id": "...", "data": "..."}
    {"op": "retire"}    ends the session, unless something that it started is still running
Writes frames to standard output: a line of JSON, and as many bytes as its "n" says:
    {"c": id, "t": "run", "n": 9}      the command itself; it begins
    {"c": id, "t": "out"|"err", "n": 5}
    {"c": id, "t": "exit", "code": 0, "last": false, "n": 0}    "last": the shell ended with it
    {"c": "", "t": "busy", "n": 0}     the session does not retire
    {"c": "", "t": "end", "n": 0}      the shell has ended; the session stays until it is killed
What it wrote tells all about a session, so no server has to remember anything.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from typing import Any

CHUNK = 65536


class Command:
    def __init__(self, id: str, echo: bool) -> None:
        self.id = id
        self.echo = echo
        self.code: int | None = None
        self.stdin: int | None = None
        self.streams: dict[str, tuple[int, int | None]] = {}


class Session:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix=".daytona-session-", dir="/tmp")
        self.selector = selectors.DefaultSelector()
        self.commands: dict[str, Command] = {}
        self.pending = b""
        self.status_read, self.status_write = os.pipe()
        os.set_blocking(self.status_read, False)
        self.statuses = b""
        self.exit_code: int | None = None
        shell = shutil.which("bash") or "/bin/sh"
        status = self.status_write
        self.shell = subprocess.Popen(
            [shell], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(status,)
        )
        os.close(self.status_write)
        self.status = status

    def serve(self) -> None:
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, self.read_requests)
        self.selector.register(self.status_read, selectors.EVENT_READ, self.read_statuses)
        while True:
            for key, _ in self.selector.select():
                key.data()

    # --- requests ---

    def read_requests(self) -> None:
        data = read(0)
        if data is None:
            return
        if not data:
            self.selector.unregister(0)
            return
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            if line:
                request = json.loads(line)
                getattr(self, "on_" + request["op"])(request)

    def on_run(self, request: dict[str, Any]) -> None:
        id, text = request["id"], request["command"]
        if self.exit_code is not None:
            frame(id, "run", text.encode("utf-8", "surrogateescape"))
            frame(id, "exit", b"", code=self.exit_code, last=True)
            return
        command = self.commands[id] = Command(id, request["echo"])
        place = os.path.join(self.folder, id)
        os.mkdir(place)
        with open(os.path.join(place, "command"), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text + "\n")
        for name in ("in", "out", "err"):
            os.mkfifo(os.path.join(place, name))
        # Opened both ways: then neither side waits for the other, and a command sees no end of its input.
        command.stdin = os.open(os.path.join(place, "in"), os.O_RDWR | os.O_NONBLOCK)
        for name in ("out", "err"):
            end = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK)
            keep = os.open(os.path.join(place, name), os.O_WRONLY | os.O_NONBLOCK)
            command.streams[name] = (end, keep)
            self.selector.register(end, selectors.EVENT_READ, lambda name=name: self.forward(command, name))
        frame(id, "run", text.encode("utf-8", "surrogateescape"))
        line = "command . '{0}/command' <'{0}/in' >'{0}/out' 2>'{0}/err' {2}>&-; printf '%s %s\\n' '{1}' \"$?\" >&{2}\n"
        assert self.shell.stdin is not None
        try:
            self.shell.stdin.write(line.format(place, id, self.status).encode())
            self.shell.stdin.flush()
        except BrokenPipeError:
            pass  # the shell has just ended: `end` will finish the command

    def on_input(self, request: dict[str, Any]) -> None:
        command = self.commands.get(request["id"])
        if command is None or command.stdin is None:
            return
        data = request["data"].encode("utf-8", "surrogateescape")
        if not data.endswith(b"\n"):
            data += b"\n"
        if command.echo:
            frame(command.id, "out", data)
        while data:
            try:
                data = data[os.write(command.stdin, data[:4096]) :]
            except BlockingIOError:
                return  # it reads nothing: the rest is dropped, and nobody waits

    def on_retire(self, request: dict[str, Any]) -> None:
        own = {os.getpid(), self.shell.pid}
        if any(each.code is None for each in self.commands.values()) or descendants(os.getppid()) - own:
            frame("", "busy", b"")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise SystemExit

    # --- what commands do ---

    def forward(self, command: Command, name: str) -> bool:
        """Returns whether there was anything."""
        if name not in command.streams:
            return False
        data = read(command.streams[name][0])
        if data:
            frame(command.id, name, data)
            return True
        if data == b"":
            self.close(command, name)
        return False

    def close(self, command: Command, name: str) -> None:
        end, keep = command.streams.pop(name)
        self.selector.unregister(end)
        os.close(end)
        if keep is not None:
            os.close(keep)

    def read_statuses(self) -> None:
        data = read(self.status_read)
        if data is None:
            return
        if not data:
            self.end()
            return
        self.statuses += data
        *lines, self.statuses = self.statuses.split(b"\n")
        for line in lines:
            id, _, code = line.decode().partition(" ")
            if id in self.commands:
                self.finish(self.commands[id], int(code))

    def finish(self, command: Command, code: int) -> None:
        if command.code is not None:
            return
        command.code = code
        for name in list(command.streams):
            while self.forward(command, name):
                pass
            if name in command.streams:
                # What it left running in the background may go on writing. Its end is seen once ours is closed.
                end, keep = command.streams[name]
                if keep is not None:
                    os.close(keep)
                command.streams[name] = (end, None)
        if command.stdin is not None:
            os.close(command.stdin)
            command.stdin = None
        shutil.rmtree(os.path.join(self.folder, command.id), ignore_errors=True)
        frame(command.id, "exit", b"", code=code, last=self.exit_code is not None)

    def end(self) -> None:
        """The shell has ended. Whatever it was doing ends with its code."""
        code = self.shell.wait()
        self.exit_code = code if code >= 0 else 128 - code
        for command in list(self.commands.values()):
            self.finish(command, self.exit_code)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.selector.unregister(self.status_read)
        frame("", "end", b"")


def descendants(root: int) -> set[int]:
    """All processes below a process. The supervisor above this one is the parent of orphans, so none is missed."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
            children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    pending = [root]
    while pending:
        below = children.pop(pending.pop(), [])
        found.update(below)
        pending += below
    return found


def read(descriptor: int) -> bytes | None:
    """Returns the next bytes, none at the end, or None if there are none yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def frame(id: str, kind: str, data: bytes, **more: int) -> None:
    head: dict[str, Any] = {"c": id, "t": kind, "n": len(data), **more}
    whole = json.dumps(head).encode() + b"\n" + data
    while whole:
        whole = whole[os.write(1, whole) :]


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
Session().serve()
