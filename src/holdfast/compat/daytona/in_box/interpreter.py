"""A Python that runs one piece of code after another in the same namespace.

Reads requests from standard input, a line of JSON each: {"id": "...", "code": "...", "envs": {}}
Writes frames to standard output, as `session` does: "run", "out", "err", and "exit" with the error, if there was one.
SIGINT interrupts the code that runs.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

CHUNK = 65536


class Frames:
    """The real standard output. Code that prints gets another one."""

    def __init__(self) -> None:
        self.descriptor = os.dup(1)
        self.lock = threading.Lock()
        self.id = ""

    def write(self, kind: str, data: bytes, **more: Any) -> None:
        head = dict(more, c=self.id, t=kind, n=len(data))
        whole = json.dumps(head).encode() + b"\n" + data
        with self.lock:
            while whole:
                whole = whole[os.write(self.descriptor, whole) :]


class Output(io.TextIOBase):
    """What `print` writes to."""

    def __init__(self, frames: Frames, kind: str, descriptor: int) -> None:
        self.frames = frames
        self.kind = kind
        self.descriptor = descriptor
        self.buffer = os.fdopen(os.dup(descriptor), "wb", 0)

    encoding = "utf-8"
    errors = "replace"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self.descriptor

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        for start in range(0, len(data), CHUNK):
            self.frames.write(self.kind, data[start : start + CHUNK])
        return len(text)


class Pipe:
    """A descriptor of programs that the code starts. A thread forwards what they write."""

    def __init__(self, frames: Frames, kind: str, descriptor: int) -> None:
        self.read, write = os.pipe()
        os.dup2(write, descriptor)
        os.close(write)
        self.frames = frames
        self.kind = kind
        self.idle = threading.Event()
        threading.Thread(target=self.forward, daemon=True).start()

    def forward(self) -> None:
        import select

        while True:
            if not select.select([self.read], [], [], 0)[0]:
                self.idle.set()
                select.select([self.read], [], [])
            self.idle.clear()
            self.frames.write(self.kind, os.read(self.read, CHUNK))

    def drain(self) -> None:
        import fcntl
        import struct
        import termios

        for _ in range(200):
            waiting = struct.unpack("i", fcntl.ioctl(self.read, termios.FIONREAD, b"\0\0\0\0"))[0]
            if not waiting and self.idle.is_set():
                return
            time.sleep(0.002)


def requests(descriptor: int) -> Iterator[dict[str, Any]]:
    pending = b""
    while True:
        data = os.read(descriptor, CHUNK)
        if not data:
            return
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)


def run(code: str, namespace: dict[str, Any]) -> dict[str, str] | None:
    """Returns the error of the code, or None."""
    try:
        exec(compile(code, "<code>", "exec"), namespace)
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return {"name": "SystemExit", "value": str(error.code), "traceback": ""}
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != "<code>":
            frames = frames.tb_next
        shown = "".join(traceback.format_exception(type(error), error, frames))
        return {"name": type(error).__name__, "value": str(error), "traceback": shown}
    return None


def interrupted(number: int, frame: object) -> None:
    if busy:
        raise KeyboardInterrupt


busy = False
signal.signal(signal.SIGINT, interrupted)
channel = os.dup(0)
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
frames = Frames()
pipes = [Pipe(frames, "out", 1), Pipe(frames, "err", 2)]
sys.stdin = open(0)
sys.stdout, sys.stderr = Output(frames, "out", 1), Output(frames, "err", 2)
sys.argv = [""]
sys.path.insert(0, "")
namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "__doc__": None}
for request in requests(channel):
    frames.id = request["id"]
    frames.write("run", b"")
    before = dict(os.environ)
    os.environ.update(request["envs"])
    try:
        busy = True
        problem = run(request["code"], namespace)
        busy = False
    except KeyboardInterrupt:
        busy = False
        problem = {"name": "KeyboardInterrupt", "value": "", "traceback": ""}
    for name in request["envs"]:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
    for pipe in pipes:
        pipe.drain()
    frames.write("exit", b"", error=problem)
