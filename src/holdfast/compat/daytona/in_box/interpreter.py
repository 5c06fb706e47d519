"""A Python that runs one piece of code after another in the same namespace.

Two processes. A worker has the namespace and runs the code. Its supervisor, which is what the server started, gives it
one piece after another, interrupts it, and starts another when it has ended: the context stays, its variables are lost.

The supervisor reads requests from standard input, a line of JSON each:
  {"id": "...", "code": "...", "envs": {}}    run this after what came before
  {"interrupt": "..."}                        end the code with this id, or do not begin with it
It writes frames to standard output, as `session` does: "run", "out", "err", and "exit" with the error of the code.
"""

from __future__ import annotations

import builtins
import io
import json
import linecache
import os
import selectors
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

CHUNK = 65536
GRACE = 3.0
"""How many seconds code has to end after it was interrupted. Then its worker is killed."""
MOST_SOURCES = 1000


class Frames:
    """Where a worker writes to its supervisor. Code that prints gets another output."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = threading.Lock()
        self.id = ""

    def write(self, kind: str, data: bytes, **more: Any) -> None:
        with self.lock:
            write(self.descriptor, framed(self.id, kind, data, **more))


def framed(id: str, kind: str, data: bytes, **more: Any) -> bytes:
    return json.dumps(dict(more, c=id, t=kind, n=len(data))).encode() + b"\n" + data


def write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Output(io.TextIOBase):
    """What `print` writes to."""

    def __init__(self, frames: Frames, kind: str, descriptor: int) -> None:
        self.frames = frames
        self.kind = kind
        self.descriptor = descriptor
        self.buffer = os.fdopen(os.dup(descriptor), "wb", 0)
        self.process = os.getpid()

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
        if os.getpid() != self.process:  # a fork of the worker: frames of two writers would get mixed up
            write(self.descriptor, data)
            return len(text)
        for start in range(0, len(data), CHUNK):
            self.frames.write(self.kind, data[start : start + CHUNK])
        return len(text)


class Pipe:
    """A descriptor of programs that the code starts. A thread forwards what they write."""

    def __init__(self, frames: Frames, kind: str, descriptor: int) -> None:
        self.read, end = os.pipe()
        os.dup2(end, descriptor)
        os.close(end)
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
    while data := os.read(descriptor, CHUNK):
        pending += data
        *lines, pending = pending.split(b"\n")
        yield from (json.loads(line) for line in lines if line)


# --- the worker ---


class Worker:
    """Runs code. `__main__` is the namespace, so that pickle and inspect find what the code defines."""

    def __init__(self, channel: int, frames: Frames) -> None:
        self.channel = channel
        self.frames = frames
        self.pipes = [Pipe(frames, "out", 1), Pipe(frames, "err", 2)]
        self.busy = False
        self.sources: list[str] = []
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__

    def serve(self) -> None:
        for request in requests(self.channel):
            self.frames.id = request["id"]
            self.frames.write("run", b"")
            before = dict(os.environ)
            os.environ.update(request["envs"])
            signal.signal(signal.SIGINT, self.interrupted)  # earlier code may have set another handler
            try:
                self.busy = True
                problem = self.run(request["code"])
                self.busy = False
            except KeyboardInterrupt:
                self.busy = False
                problem = {"name": "KeyboardInterrupt", "value": "", "traceback": ""}
            for name in request["envs"]:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)
            for pipe in self.pipes:
                pipe.drain()
            self.frames.write("exit", b"", error=problem)

    def interrupted(self, number: int, frame: object) -> None:
        if self.busy:
            raise KeyboardInterrupt

    def run(self, code: str) -> dict[str, str] | None:
        """Returns the error of the code, or None."""
        try:
            # Without the `__future__` of this file: the code has its own.
            exec(compile(code, self.remembered(code), "exec", dont_inherit=True), self.namespace)
        except SystemExit as error:
            if error.code in (None, 0):
                return None
            return {"name": "SystemExit", "value": text_of(error.code), "traceback": ""}
        except BaseException as error:
            return {"name": type(error).__name__, "value": text_of(error), "traceback": trace_of(error)}
        return None

    def remembered(self, code: str) -> str:
        """Returns a file name of its own for the code, by which a traceback finds its lines."""
        name = f"<code-{len(self.sources) + 1}>"
        self.sources.append(name)
        linecache.cache[name] = (len(code), None, (code + "\n").splitlines(True), name)
        if len(self.sources) > MOST_SOURCES:
            linecache.cache.pop(self.sources[-MOST_SOURCES - 1], None)
        return name


def text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return ""


def trace_of(error: BaseException) -> str:
    """The traceback, without the frames of this program."""
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    left: list[Any] = [shown]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.stack[:] = [frame for frame in each.stack if frame.filename != Worker.run.__code__.co_filename]
        left += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
    return "".join(shown.format())


def work(channel: int, frames: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    worker = Worker(channel, Frames(frames))
    sys.stdin = open(0)
    sys.stdout, sys.stderr = Output(worker.frames, "out", 1), Output(worker.frames, "err", 2)
    sys.argv = [""]
    sys.path.insert(0, "")
    worker.serve()


# --- the supervisor ---


class Supervisor:
    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.waiting: list[dict[str, Any]] = []
        self.running: str | None = None
        self.kill_at: float | None = None
        """When the worker is killed, if its code does not end before."""
        self.pending = b""
        self.from_worker = b""
        ended, end = os.pipe()
        for each in (ended, end):
            os.set_blocking(each, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        self.ended = ended
        self.selector.register(0, selectors.EVENT_READ, self.read_requests)
        self.selector.register(ended, selectors.EVENT_READ, self.reap)
        self.start()

    def start(self) -> None:
        channel, self.channel = os.pipe()
        self.frames, frames = os.pipe()
        self.worker = os.fork()
        if not self.worker:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for each in (self.ended, self.channel, self.frames):
                os.close(each)
            try:
                work(channel, frames)
            finally:
                os._exit(0)
        os.close(channel)
        os.close(frames)
        os.set_blocking(self.frames, False)
        self.from_worker = b""
        self.selector.register(self.frames, selectors.EVENT_READ, self.forward)

    def serve(self) -> None:
        while True:
            timeout = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            for key, _ in self.selector.select(timeout):
                key.data()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill_at = None
                os.kill(self.worker, signal.SIGKILL)

    def read_requests(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            os.kill(self.worker, signal.SIGKILL)
            os._exit(0)
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in filter(None, lines):
            request = json.loads(line)
            if "interrupt" in request:
                self.interrupt(request["interrupt"])
            else:
                self.waiting.append(request)
        self.next()

    def next(self) -> None:
        if self.running is None and self.waiting:
            request = self.waiting.pop(0)
            self.running = request["id"]
            try:
                write(self.channel, json.dumps(request).encode() + b"\n")
            except BrokenPipeError:
                pass  # it has just ended: `reap` notices

    def interrupt(self, id: str) -> None:
        if id == self.running:
            if self.kill_at is None:
                self.kill_at = time.monotonic() + GRACE
            os.kill(self.worker, signal.SIGINT)
        elif any(each["id"] == id for each in self.waiting):
            self.waiting = [each for each in self.waiting if each["id"] != id]
            self.finish(id, "KeyboardInterrupt", "")

    def forward(self) -> None:
        """Pass on the whole frames of the worker: one that dies may leave half of one."""
        try:
            data = os.read(self.frames, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(self.frames)
            return
        self.from_worker += data
        at = 0
        while (line := self.from_worker.find(b"\n", at)) >= 0:
            try:
                head = json.loads(self.from_worker[at:line])
                end, id, kind = line + 1 + int(head["n"]), head["c"], head["t"]
            except (ValueError, LookupError, TypeError):
                end, id, kind = line + 2 * CHUNK, None, None
            if end - line > CHUNK + 1:
                os.kill(self.worker, signal.SIGKILL)  # the code has written here
                return
            if len(self.from_worker) < end:
                break
            write(1, self.from_worker[at:end])
            at = end
            if kind == "exit" and id == self.running:
                self.running, self.kill_at = None, None
                self.next()
        self.from_worker = self.from_worker[at:]

    def reap(self) -> None:
        try:
            os.read(self.ended, CHUNK)
        except BlockingIOError:
            pass
        worker, status = os.waitpid(self.worker, os.WNOHANG)
        if not worker:
            return
        while self.frames in self.selector.get_map():  # what it wrote last
            before = len(self.from_worker), self.running
            self.forward()
            if (len(self.from_worker), self.running) == before:
                break
        if self.frames in self.selector.get_map():
            self.selector.unregister(self.frames)
        os.close(self.frames)
        os.close(self.channel)
        id, self.running, self.kill_at = self.running, None, None
        self.start()
        if id is not None:
            signaled = os.WIFSIGNALED(status)
            how = f"signal {os.WTERMSIG(status)}" if signaled else f"exit code {os.WEXITSTATUS(status)}"
            self.finish(id, "InterpreterExited", f"the interpreter ended with {how}. Its variables are lost")
        self.next()

    def finish(self, id: str, name: str, value: str) -> None:
        write(1, framed(id, "run", b""))
        error = {"name": name, "value": value, "traceback": ""}
        write(1, framed(id, "exit", b"", error=error))


signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
Supervisor().serve()
