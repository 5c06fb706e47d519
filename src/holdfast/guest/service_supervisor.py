"""Keeps programs running in a box: starts them in order, restarts them with pauses, and writes what became of each.

Standard library only. The host sends the programs over stdin and reads the status file. Pipes and ends of programs wake
this process, and nothing else does once all of them run: a box whose programs are at rest can fall asleep.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WAITING = "waiting"
"""What it needs does not run yet."""
STARTING = "starting"
RUNNING = "running"
RESTARTING = "restarting"
"""It has ended, and is started again after a pause."""
MISSING = "missing"
"""The box does not have the program."""
BLOCKED = "blocked"
"""Another program has its port. It is tried again after a pause."""
FAILED = "failed"
"""It has ended too often."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
MOST_ENDS = 10
"""How often a program may end in a row."""
HEALTHY_SECONDS = 60.0
"""After this time, earlier ends do not count any more."""
READY_SECONDS = 60.0
_MOMENT = 0.2
"""How long a program without a port or socket has to run to count as ready."""
_KEPT = 4096
"""Bytes of output that are kept of each program."""
_OUTPUT_SECONDS = 2.0
"""New output alone is written this often at most."""
_KILL_SECONDS = 2.0


class Program:
    """One program: what it is, and what became of it."""

    def __init__(self, about: "dict[str, Any]", now: int) -> None:
        self.name: str = about["name"]
        self.argv: list[str] = about["argv"]
        self.env: dict[str, str] = about.get("env", {})
        self.port: int | None = about.get("port")
        self.socket: str | None = about.get("socket")
        self.after: list[str] = about.get("after", [])
        self.beside: list[str] = about.get("beside", [])
        self.needs: list[str] = about.get("needs", [])
        self.locks: list[str] = about.get("locks", [])
        self.files: dict[str, str] = about.get("files", {})
        self.state = WAITING
        self.since = now
        self.restarts = 0
        self.ms: int | None = None
        self.detail = ""
        self.output = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe = -1
        self.ends = 0
        self.began = 0.0
        self.pause = 0.0
        self.look_at = 0.0

    def move(self, state: str, detail: str = "") -> None:
        if (state, detail) != (self.state, self.detail):
            self.since = _now()
        self.state, self.detail = state, detail

    def describe(self) -> "dict[str, Any]":
        return {
            "name": self.name,
            "state": self.state,
            "since": self.since,
            "restarts": self.restarts,
            "ms": self.ms,
            "detail": self.detail,
            "output": self.output.decode("utf-8", "replace"),
        }


class Supervisor:
    def __init__(self, configuration: "dict[str, Any]", clock: "Callable[[], float]" = time.monotonic) -> None:
        self._clock = clock
        self._status: str = configuration["status"]
        self._generation: str = configuration["generation"]
        self._clean: list[str] = configuration.get("clean", [])
        self._programs = [Program(each, _now()) for each in configuration["programs"]]
        self._named = {each.name: each for each in self._programs}
        self._poll = select.poll()
        self._by_pipe: dict[int, Program] = {}
        self._written = ""
        self._fresh_output = False
        self._write_at = 0.0
        self._wake, self._wake_in = os.pipe()
        for end in (self._wake, self._wake_in):
            os.set_blocking(end, False)

    def run(self) -> None:
        """Keep the programs running until the box ends."""
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._poll.register(self._wake, select.POLLIN)
        for path in self._clean:
            remove_stale(path)
        while True:
            self.step()

    def step(self) -> None:
        """Do what there is to do now, and wait for the next event."""
        moved = True
        while moved:  # one that runs lets others begin
            before = [each.state for each in self._programs]
            for program in self._programs:
                self._advance(program)
            moved = before != [each.state for each in self._programs]
        self._report()
        self._wait()

    # --- one program ---

    def _advance(self, program: Program) -> None:
        now = self._clock()
        if program.process is not None and program.process.poll() is not None:
            self._ended(program, now)
        elif program.state == WAITING or (program.state in (RESTARTING, BLOCKED) and now >= program.look_at):
            self._begin_if_possible(program, now)
        elif program.state == STARTING and now >= program.look_at:
            self._check(program, now)

    def _begin_if_possible(self, program: Program, now: float) -> None:
        others = [self._named[each] for each in program.after]
        besides = [self._named[each] for each in program.beside]
        lacking = [each for each in (*others, *besides) if each.state == MISSING]
        if lacking:
            program.move(MISSING, "it needs %s, which is missing" % lacking[0].name)
        elif all(each.state == RUNNING for each in others):
            self._begin(program, now)
        else:
            awaited = next(each for each in others if each.state != RUNNING)
            program.move(WAITING, "it waits for %s" % awaited.name)

    def _begin(self, program: Program, now: float) -> None:
        path = program.env.get("PATH", os.environ.get("PATH", os.defpath))
        found = shutil.which(program.argv[0], path=path)
        absent = [program.argv[0]] if found is None else [each for each in program.needs if not os.path.exists(each)]
        if found is None or absent:
            program.move(MISSING, "%s is not in this box" % absent[0])
            return
        for lock in program.locks:
            remove_stale(lock)
        for path, text in program.files.items():
            write_if_absent(path, text)
        if program.port is not None and is_taken(program.port):
            program.look_at = now + self._next_pause(program)
            program.move(BLOCKED, "another program listens on port %d%s" % (program.port, _who(program.port)))
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            program.process = subprocess.Popen(
                [found, *program.argv[1:]],
                env={**os.environ, **program.env},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except OSError as error:
            os.close(reader)
            program.move(RESTARTING, "it cannot be started: %s" % error.strerror)
            self._count_end(program, now)
            return
        finally:
            os.close(writer)
        program.pipe = reader
        self._by_pipe[reader] = program
        self._poll.register(reader, select.POLLIN)
        program.began, program.pause = now, 0.01
        program.look_at = now + (_MOMENT if program.port is None and program.socket is None else program.pause)
        program.move(STARTING)

    def _check(self, program: Program, now: float) -> None:
        assert program.process is not None
        if all(self._named[each].state == RUNNING for each in program.beside) and is_ready(
            program, program.process.pid
        ):
            program.ms = int((now - program.began) * 1000)
            program.move(RUNNING)
        elif now - program.began > READY_SECONDS:
            self._kill(program)
            self._ended(program, now, "it was not ready within %d s" % READY_SECONDS)
        else:
            program.pause = min(program.pause * 1.5, 0.25)
            program.look_at = now + program.pause

    def _ended(self, program: Program, now: float, why: str = "") -> None:
        assert program.process is not None
        code = program.process.poll()
        self._read(program)
        self._close(program)
        _end_session(program.process.pid)
        program.process = None
        if program.state == RUNNING and now - program.began > HEALTHY_SECONDS:
            program.ends = 0
        program.move(RESTARTING, why or _describe_end(code))
        self._count_end(program, now)

    def _count_end(self, program: Program, now: float) -> None:
        program.ends += 1
        program.restarts += 1
        if program.ends >= MOST_ENDS:
            program.restarts -= 1
            program.move(FAILED, program.detail)
        else:
            program.look_at = now + self._next_pause(program)

    def _next_pause(self, program: Program) -> float:
        return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << max(0, program.ends - 1)))

    def _kill(self, program: Program) -> None:
        assert program.process is not None
        _end_session(program.process.pid)
        try:
            program.process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            pass

    # --- output ---

    def _read(self, program: Program) -> None:
        while program.pipe >= 0:
            try:
                piece = os.read(program.pipe, 65536)
            except BlockingIOError:
                return
            if not piece:
                self._close(program)
                return
            program.output = (program.output + piece)[-_KEPT:]
            self._fresh_output = True

    def _close(self, program: Program) -> None:
        if program.pipe >= 0:
            self._poll.unregister(program.pipe)
            del self._by_pipe[program.pipe]
            os.close(program.pipe)
            program.pipe = -1

    # --- waiting and reporting ---

    def _wait(self) -> None:
        now = self._clock()
        times = [each.look_at for each in self._programs if each.state in (STARTING, RESTARTING, BLOCKED)]
        if self._fresh_output:
            times.append(self._write_at)
        timeout = None if not times else max(0.0, min(times) - now) * 1000 + 1
        for descriptor, _ in self._poll.poll(timeout):
            if descriptor == self._wake:
                try:
                    os.read(self._wake, 4096)
                except BlockingIOError:
                    pass
            elif descriptor in self._by_pipe:
                self._read(self._by_pipe[descriptor])

    def _report(self) -> None:
        now = self._clock()
        said = [each.describe() for each in self._programs]
        states = json.dumps([{**each, "output": ""} for each in said])
        if states == self._written and not (self._fresh_output and now >= self._write_at):
            return
        self._written, self._fresh_output, self._write_at = states, False, now + _OUTPUT_SECONDS
        write_status(self._status, {"generation": self._generation, "programs": said})


# --- the box ---


def write_status(path: str, status: "dict[str, Any]") -> None:
    folder = os.path.dirname(path)
    temporary = "%s.%d" % (path, os.getpid())
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(temporary, "w") as file:
            json.dump(status, file)
        os.replace(temporary, path)
    except OSError as error:  # a full disk, for example: the next change is written again
        sys.stderr.write("the status cannot be written: %s\n" % error)


def write_if_absent(path: str, text: str) -> None:
    """Write a file of settings, unless the user of the box has one."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x") as file:
            file.write(text)
    except OSError:
        pass


def remove_stale(path: str) -> None:
    """Remove the lock of a program that does not run any more, as after a restore.

    A lock is a file that begins with a process id, or a link whose target ends with one (`host-123`).
    """
    try:
        text = os.readlink(path).rpartition("-")[2] if os.path.islink(path) else _first_word(path)
        if _is_alive(text):
            return
        os.unlink(path)
    except OSError:
        pass


def _first_word(path: str) -> str:
    with open(path, "rb") as file:
        return (file.read(64).split() or [b""])[0].decode("ascii", "replace")


def _is_alive(pid: str) -> bool:
    """Returns whether this is the program of a lock. In a box that was restored, another one may have its number."""
    if not pid.isdigit() or not 1 < int(pid) < 1 << 22:
        return False
    try:
        with open("/proc/%s/comm" % pid) as file:
            return file.read().strip().lower() in ("xvfb", "xorg", "chromium", "chrome", "node", "code-server")
    except OSError:
        return False


def is_taken(port: int) -> bool:
    """Returns whether another program listens on a port of the box."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def is_ready(program: Program, session: int) -> bool:
    """Returns whether a program is ready: it and nobody else listens on its port, or answers at its socket."""
    if program.port is not None:
        inodes = listening(program.port)
        return bool(inodes) and bool(inodes & sockets_of(session))
    if program.socket is not None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(program.socket)
            except OSError:
                return False
    return True


def listening(port: int) -> "set[str]":
    """Returns the inodes of the sockets that listen on a port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def sockets_of(session: int) -> "set[str]":
    """Returns the inodes of all sockets that processes of a session have open."""
    found = set()
    for pid in _processes_of(session):
        try:
            names = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _processes_of(session: int) -> "list[int]":
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name) as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == session:
            found.append(int(name))
    return found


def _who(port: int) -> str:
    inodes = listening(port)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            links = [os.readlink("/proc/%s/fd/%s" % (name, each)) for each in os.listdir("/proc/%s/fd" % name)]
            if inodes & {each[8:-1] for each in links if each.startswith("socket:[")}:
                with open("/proc/%s/comm" % name) as file:
                    return ": %s, process %s" % (file.read().strip(), name)
        except OSError:
            continue
    return ""


def _end_session(session: int) -> None:
    """Kill what a program leaves behind, which may still have its port."""
    for pid in _processes_of(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _describe_end(code: "int | None") -> str:
    if code is None:
        return "it does not answer"
    return "it was ended by signal %d" % -code if code < 0 else "it ended with exit code %d" % code


def _now() -> int:
    return int(time.time() * 1000)


def main(archive: int, configuration: bytes) -> None:
    os.close(archive)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an ignored signal would be ignored in the programs too
    Supervisor(json.loads(configuration)).run()
