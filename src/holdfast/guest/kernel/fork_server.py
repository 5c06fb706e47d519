"""The parent process of all contexts of a box: starts them, passes connections to them, signals and reaps them.

It runs no user code, so it always answers. When it ends, all of its contexts end.
"""

import _operator
import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import struct
import sys
import time

from holdfast.guest.init import process_tree
from holdfast.guest.kernel import context as contexts
from holdfast.guest.kernel import json_codec
from holdfast.guest.kernel.protocol import HEAD, InvalidMessage, Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 256
"""The largest number of contexts."""
_REMEMBERED = 1024
_CONNECTIONS = 512
_PACKET = 1 << 16


def run(listener: _socket.socket, configuration: bytes) -> None:
    """Never returns. A host may have connected already."""
    config = json_codec.loads(configuration)
    process_tree.adopt_orphans()
    prepare(config)
    ForkServer(config, listener).serve()


def prepare(config: "dict[str, Any]") -> None:
    """Set up what every context inherits: the paths of the user's Python, which our own imports must not see."""
    import site

    site.main()
    if sys.prefix == sys.base_prefix:
        _add_user_packages(site)
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(":")):
        if folder:
            sys.path.insert(0, folder)
    sys.path.insert(0, "")
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in config.get("forget", ()):  # only this process needed it
        os.environ.pop(name, None)
    if config.get("cwd"):
        try:
            os.chdir(config["cwd"])
        except OSError:
            pass  # it may be created later
    sys.dont_write_bytecode = False


def _add_user_packages(site: "Any") -> None:
    """Add the packages in the home of the user, where pip installs them for users other than root. Python was told to
    leave them out, for our own imports. As usual, they come before those of the system, and need not exist yet."""
    system = [path for path in sys.path if path.endswith("-packages")]
    sys.path[:] = [path for path in sys.path if path not in system]
    site.addsitedir(site.getusersitepackages())
    sys.path += [path for path in system if path not in sys.path]


def has_connections(port: int) -> bool:
    """Returns whether a host is connected to this port. Contexts hold the connections, so Linux is asked."""
    local = ":%04X" % port
    try:
        with open("/proc/self/net/tcp") as connections:
            return any(line.split()[1].endswith(local) and line.split()[3] == "01" for line in connections)
    except OSError:
        return True


class ContextProcess:
    """The process of a context."""

    def __init__(self, id: str, pid: int, control: _socket.socket) -> None:
        self.id = id
        self.pid = pid
        self.control = control


class ForkServer:
    def __init__(self, config: "dict[str, Any]", listener: _socket.socket) -> None:
        self._config = config
        self._token = config["token"].encode()
        self._listener = listener
        self._poll = select.epoll()
        self._living: dict[str, ContextProcess] = {}
        self._by_control: dict[int, ContextProcess] = {}
        self._restore_points: dict[str, ContextProcess] = {}
        """The restore points of contexts, by id."""
        self._ended: dict[str, int] = {}
        """Exit codes of contexts that have ended: 128 + N for signal N."""
        self._connections: dict[int, tuple[_socket.socket, Unpacker]] = {}
        self._wake, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.signal(_signal.SIGINT, lambda number, frame: None)
        _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
        _signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        self._tell = tell
        self._orphan_seconds: float | None = config.get("alone")
        """Seconds without a host after which the kernel ends."""
        self._host_seen = time.monotonic()

    def serve(self) -> None:
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll(None if self._orphan_seconds is None else self._orphan_seconds / 4):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._wake:
                    try:
                        os.read(self._wake, 4096)
                    except BlockingIOError:
                        pass
                    self._reap()
                elif descriptor in self._connections:
                    self._read_request(descriptor)
                elif descriptor in self._by_control:
                    self._read_control(self._by_control[descriptor])
            if self._orphan_seconds is not None and time.monotonic() - self._host_seen > self._orphan_seconds / 4:
                self._end_if_abandoned(self._orphan_seconds)

    def _end_if_abandoned(self, orphan_seconds: float) -> None:
        """End if no host is connected for too long: the host was killed, and the box should become idle."""
        if has_connections(self._listener.getsockname()[1]):
            self._host_seen = time.monotonic()
        elif time.monotonic() - self._host_seen > orphan_seconds:
            os._exit(0)

    # --- connections ---

    def _accept(self) -> None:
        try:
            connection = _socket.socket(fileno=self._listener._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            return
        if len(self._connections) >= _CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self._connections[connection.fileno()] = (connection, Unpacker(0))
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def _read_request(self, descriptor: int) -> None:
        connection, unpacker = self._connections[descriptor]
        try:
            # Read exactly one message, because the context reads what follows: the head, then what it announces.
            data = connection.recv(self._message_size(connection))
            messages = unpacker.take(data)
        except BlockingIOError:
            return
        except (OSError, InvalidMessage):
            data, messages = b"", []
        if not data:
            self._forget(descriptor)
            connection.close()
            return
        if not messages:
            return
        self._forget(descriptor)
        document = messages[0][0]
        token = document.get("token")
        if not isinstance(token, str) or not _operator._compare_digest(token.encode(), self._token):
            connection.close()
            return
        try:
            self._do(document, connection)
        except Exception as error:
            _send(connection, {"t": "refused", "why": "%s: %s" % (type(error).__name__, error)})
        finally:
            connection.close()

    def _message_size(self, connection: _socket.socket) -> int:
        seen = connection.recv(HEAD.size, _socket.MSG_PEEK)
        if len(seen) < HEAD.size:
            return len(seen) or 1
        length, body = HEAD.unpack(seen)
        if length > _PACKET or body:
            raise InvalidMessage("too long")
        return HEAD.size + int(length)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._connections[descriptor]

    def _do(self, document: "dict[str, Any]", connection: _socket.socket) -> None:
        kind = document["t"]
        if kind == "contexts":
            living = [{"id": each.id, "pid": each.pid} for each in self._living.values()]
            _send(connection, {"t": "contexts", "living": living, "ended": self._ended})
            return
        id = document["context"]
        if not isinstance(id, str) or not 0 < len(id) <= 128:
            raise ValueError("a context needs a name")
        if kind == "attach":
            self._orphan_seconds = document.get("alone", self._orphan_seconds)
            self._host_seen = time.monotonic()
            if id not in self._living:
                self._read_controls()
            context = self._living.get(id)
            if context is None and document.get("make"):
                context = self._restore(id, bool(document.get("restore")))
            made = context is None
            if context is None:
                if not document.get("make"):
                    _send(connection, {"t": "refused", "why": "ended", "code": self._ended.get(id)})
                    return
                context = self._make(id, connection)
            encoded = json_codec.dumps({"made": made}).encode()
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, connection.fileno().to_bytes(4, sys.byteorder))]
            context.control.sendmsg([encoded], rights)
        elif kind == "signal":
            context = self._living.get(id)
            if context is not None and document["number"] == _signal.SIGKILL:
                self._kill(context)
            elif context is not None:
                os.kill(context.pid, document["number"])
            _send(connection, {"t": "done", "living": context is not None, "code": self._ended.get(id)})
        else:
            raise ValueError("unknown request %r" % kind)

    def _restore(self, id: str, wanted: bool) -> "ContextProcess | None":
        """Replace an ended context with its restore point, or end the restore point if it is not wanted."""
        restore_point = self._restore_points.pop(id, None)
        if restore_point is None:
            return None
        if wanted:
            return self._register(restore_point)
        _end(restore_point)
        return None

    def _kill(self, context: ContextProcess) -> None:
        """Kill a context and all processes that it started, except for contexts that were forked from it."""
        others = [each.pid for each in (*self._living.values(), *self._restore_points.values()) if each is not context]
        doomed = process_tree.find_descendants(context.pid, others)
        os.kill(context.pid, _signal.SIGKILL)
        process_tree.send_to(doomed, process_tree.SIGKILL)
        self._remove(context.pid, 128 + _signal.SIGKILL)  # no connection may be passed to it any more

    # --- contexts ---

    def _make(self, id: str, connection: _socket.socket) -> ContextProcess:
        if len(self._living) >= MOST:
            raise ValueError("there are %d contexts in this box already" % MOST)
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                connection.close()
                self._close_inherited()
                contexts.run(id, theirs, self._config)
                code = 0
            except BaseException as error:
                os.write(2, b"context: %s\n" % repr(error).encode("utf-8", "replace"))
            finally:
                os._exit(code)
        theirs.close()
        self._ended.pop(id, None)
        return self._register(ContextProcess(id, pid, ours))

    def _close_inherited(self) -> None:
        """Close everything of the fork server, in a child."""
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        self._poll.close()
        self._listener.close()
        for each in (*self._living.values(), *self._restore_points.values()):
            each.control.close()
        for connection, _ in self._connections.values():
            connection.close()
        os.close(self._wake)
        os.close(self._tell)

    def _register(self, process: ContextProcess) -> ContextProcess:
        process.control.setblocking(False)
        self._living[process.id] = process
        self._by_control[process.control.fileno()] = process
        self._poll.register(process.control.fileno(), select.EPOLLIN)
        return process

    def _read_controls(self) -> None:
        """Read all control messages: a request for a fork may arrive before the message about the fork."""
        for context in list(self._by_control.values()):
            while self._read_control(context):
                pass

    def _read_control(self, context: ContextProcess) -> bool:
        """Read a control message of a context, about a fork or its end. Returns whether there was one."""
        try:
            data, ancillary, _, _ = context.control.recvmsg(
                _PACKET, _socket.CMSG_SPACE(4 * 4), _socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            data, ancillary = b"", []
        given: list[int] = []
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                given += struct.unpack("%di" % (len(payload) // 4), payload[: len(payload) // 4 * 4])
        if not data:
            self._poll.unregister(context.control.fileno())  # its end is noticed when its process is reaped
            self._by_control.pop(context.control.fileno(), None)
            return False
        try:
            document = json_codec.loads(data)
            if document["t"] == "born" and len(given) == 1 and len(self._living) < MOST:
                control = _socket.socket(fileno=given.pop())
                if document["id"] in self._living:
                    control.close()
                else:
                    self._ended.pop(document["id"], None)
                    self._register(ContextProcess(document["id"], int(document["pid"]), control))
            elif document["t"] == "point" and len(given) == 1 and document["id"] == context.id:
                old = self._restore_points.pop(context.id, None)
                if old is not None:
                    old.control.close()
                control = _socket.socket(fileno=given.pop())
                self._restore_points[context.id] = ContextProcess(context.id, int(document["pid"]), control)
            elif document["t"] == "ended":
                self._remove(int(document["pid"]), int(document["code"]))
        except (ValueError, KeyError, TypeError, OSError):
            pass  # a context runs user code, so its messages are not trusted
        finally:
            for each in given:
                os.close(each)
        return context.control.fileno() in self._by_control

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._remove(pid, os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))

    def _remove(self, pid: int, code: int) -> None:
        for restore_point in list(self._restore_points.values()):
            if restore_point.pid == pid:
                self._restore_points.pop(restore_point.id).control.close()
        for context in list(self._living.values()):
            if context.pid == pid:
                while context.control.fileno() in self._by_control and self._read_control(context):
                    pass  # its last messages may announce a fork
                if self._living.pop(context.id, None) is not context:
                    continue
                if self._by_control.pop(context.control.fileno(), None) is not None:
                    self._poll.unregister(context.control.fileno())
                context.control.close()
                while len(self._ended) >= _REMEMBERED:
                    del self._ended[next(iter(self._ended))]
                self._ended[context.id] = code


def _end(context: ContextProcess) -> None:
    context.control.close()
    try:
        os.kill(context.pid, _signal.SIGKILL)
    except OSError:
        pass  # it has ended


def _send(connection: _socket.socket, document: "dict[str, Any]") -> None:
    connection.setblocking(True)
    connection.settimeout(5.0)
    try:
        connection.sendall(pack(document))
    except OSError:
        pass
