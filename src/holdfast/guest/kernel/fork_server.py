"""Process above the contexts of a box: starts them, hands connections on to them, signals them, and sees them off.

It runs none of the user's code, so it answers whatever that does. Where it ends, all of its contexts do.
"""

import _operator
import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import struct
import sys
import time

from holdfast.guest import process_tree
from holdfast.guest.kernel import context as contexts
from holdfast.guest.kernel import json_codec
from holdfast.guest.kernel.protocol import HEAD, Garbage, Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 256
"""Contexts that live at once."""
_REMEMBERED = 1024
_CONNECTIONS = 512
_PACKET = 1 << 16


def run(listener: _socket.socket, configuration: bytes) -> None:
    """Never returns. Somebody may have connected already."""
    config = json_codec.loads(configuration)
    process_tree.adopt_orphans()
    prepare(config)
    ForkServer(config, listener).serve()


def prepare(config: "dict[str, Any]") -> None:
    """What every context will have: the paths of the user's Python, which are for nobody before it."""
    import site

    site.main()
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(":")):
        if folder:
            sys.path.insert(0, folder)
    sys.path.insert(0, "")
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in config.get("forget", ()):  # was for this process alone
        os.environ.pop(name, None)
    if config.get("cwd"):
        try:
            os.chdir(config["cwd"])
        except OSError:
            pass  # it may be made later
    sys.dont_write_bytecode = False


def has_company(port: int) -> bool:
    """Whether anybody is connected to this port, as the kernel tells: connections are with contexts."""
    local = ":%04X" % port
    try:
        with open("/proc/self/net/tcp") as connections:
            return any(line.split()[1].endswith(local) and line.split()[3] == "01" for line in connections)
    except OSError:
        return True


class Born:
    """A context, as the fork server knows it."""

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
        self._living: dict[str, Born] = {}
        self._by_control: dict[int, Born] = {}
        self._points: dict[str, Born] = {}
        """Forks that wait for the case that the context of that name dies."""
        self._ended: dict[str, int] = {}
        """Codes of those that have ended: 128 + N where signal N ended them."""
        self._heard: dict[int, tuple[_socket.socket, Unpacker]] = {}
        self._wake, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.signal(_signal.SIGINT, lambda number, frame: None)
        _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
        _signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        self._tell = tell
        """Its process and its port."""
        self._alone: float | None = config.get("alone")
        """Seconds without a host after which it ends."""
        self._seen = time.monotonic()

    def serve(self) -> None:
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll(None if self._alone is None else self._alone / 4):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._wake:
                    try:
                        os.read(self._wake, 4096)
                    except BlockingIOError:
                        pass
                    self._reap()
                elif descriptor in self._heard:
                    self._hear(descriptor)
                elif descriptor in self._by_control:
                    self._hear_context(self._by_control[descriptor])
            if self._alone is not None and time.monotonic() - self._seen > self._alone / 4:
                self._look_around(self._alone)

    def _look_around(self, alone: float) -> None:
        """Whose host was killed is nobody's any more: it ends, and its box is idle then."""
        if has_company(self._listener.getsockname()[1]):
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > alone:
            os._exit(0)

    # --- who connects ---

    def _accept(self) -> None:
        try:
            connection = _socket.socket(fileno=self._listener._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            return
        if len(self._heard) >= _CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self._heard[connection.fileno()] = (connection, Unpacker(0))
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def _hear(self, descriptor: int) -> None:
        connection, unpacker = self._heard[descriptor]
        try:
            # One message and no more: what follows is for the context. A head first, then exactly what it announces.
            data = connection.recv(self._wanted(connection))
            messages = unpacker.take(data)
        except BlockingIOError:
            return
        except (OSError, Garbage):
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
            _say(connection, {"t": "refused", "why": "%s: %s" % (type(error).__name__, error)})
        finally:
            connection.close()

    def _wanted(self, connection: _socket.socket) -> int:
        seen = connection.recv(HEAD.size, _socket.MSG_PEEK)
        if len(seen) < HEAD.size:
            return len(seen) or 1
        told, body = HEAD.unpack(seen)
        if told > _PACKET or body:
            raise Garbage("too long")
        return HEAD.size + int(told)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._heard[descriptor]

    def _do(self, document: "dict[str, Any]", connection: _socket.socket) -> None:
        kind = document["t"]
        if kind == "contexts":
            living = [{"id": each.id, "pid": each.pid} for each in self._living.values()]
            _say(connection, {"t": "contexts", "living": living, "ended": self._ended})
            return
        id = document["context"]
        if not isinstance(id, str) or not 0 < len(id) <= 128:
            raise ValueError("a context needs a name")
        if kind == "attach":
            self._alone = document.get("alone", self._alone)
            self._seen = time.monotonic()
            if id not in self._living:
                self._catch_up()
            context = self._living.get(id)
            if context is None and document.get("make"):
                context = self._restore(id, bool(document.get("restore")))
            made = context is None
            if context is None:
                if not document.get("make"):
                    _say(connection, {"t": "refused", "why": "ended", "code": self._ended.get(id)})
                    return
                context = self._make(id, connection)
            told = json_codec.dumps({"made": made}).encode()
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, connection.fileno().to_bytes(4, sys.byteorder))]
            context.control.sendmsg([told], rights)
        elif kind == "signal":
            context = self._living.get(id)
            if context is not None and document["number"] == _signal.SIGKILL:
                self._kill(context)
            elif context is not None:
                os.kill(context.pid, document["number"])
            _say(connection, {"t": "done", "living": context is not None, "code": self._ended.get(id)})
        else:
            raise ValueError("nobody knows %r" % kind)

    def _restore(self, id: str, wanted: bool) -> "Born | None":
        """The point of a context that has died takes its place; where nobody wants it, it ends."""
        point = self._points.pop(id, None)
        if point is None:
            return None
        if wanted:
            return self._enter(point)
        _end(point)
        return None

    def _kill(self, context: Born) -> None:
        """With all that it has started, but for other contexts: those that were forked off it live on."""
        others = [each.pid for each in (*self._living.values(), *self._points.values()) if each is not context]
        doomed = process_tree.find_descendants(context.pid, others)
        os.kill(context.pid, _signal.SIGKILL)
        process_tree.send_to(doomed, process_tree.SIGKILL)
        self._bury(context.pid, 128 + _signal.SIGKILL)  # nobody is to be handed on to it any more

    # --- contexts ---

    def _make(self, id: str, connection: _socket.socket) -> Born:
        if len(self._living) >= MOST:
            raise ValueError("there are %d contexts in this box already" % MOST)
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                connection.close()
                self._let_go()
                contexts.run(id, theirs, self._config)
                code = 0
            except BaseException as error:
                os.write(2, b"context: %s\n" % repr(error).encode("utf-8", "replace"))
            finally:
                os._exit(code)
        theirs.close()
        self._ended.pop(id, None)
        return self._enter(Born(id, pid, ours))

    def _let_go(self) -> None:
        """In a child: nothing of the fork server's stays open."""
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        self._poll.close()
        self._listener.close()
        for each in (*self._living.values(), *self._points.values()):
            each.control.close()
        for connection, _ in self._heard.values():
            connection.close()
        os.close(self._wake)
        os.close(self._tell)

    def _enter(self, born: Born) -> Born:
        born.control.setblocking(False)
        self._living[born.id] = born
        self._by_control[born.control.fileno()] = born
        self._poll.register(born.control.fileno(), select.EPOLLIN)
        return born

    def _catch_up(self) -> None:
        """Who asks for a fork may be heard before it was told that there is one."""
        for context in list(self._by_control.values()):
            while self._hear_context(context):
                pass

    def _hear_context(self, context: Born) -> bool:
        """A context tells of one that was forked off it, or of its end. Says whether there was something to hear."""
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
            self._poll.unregister(context.control.fileno())  # its end is told by its process
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
                    self._enter(Born(document["id"], int(document["pid"]), control))
            elif document["t"] == "point" and len(given) == 1 and document["id"] == context.id:
                old = self._points.pop(context.id, None)
                if old is not None:
                    old.control.close()
                self._points[context.id] = Born(context.id, int(document["pid"]), _socket.socket(fileno=given.pop()))
            elif document["t"] == "ended":
                self._bury(int(document["pid"]), int(document["code"]))
        except (ValueError, KeyError, TypeError, OSError):
            pass  # a context is the user's: it may say anything
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
            self._bury(pid, os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))

    def _bury(self, pid: int, code: int) -> None:
        for point in list(self._points.values()):
            if point.pid == pid:
                self._points.pop(point.id).control.close()
        for context in list(self._living.values()):
            if context.pid == pid:
                while context.control.fileno() in self._by_control and self._hear_context(context):
                    pass  # its last words may be of a fork
                if self._living.pop(context.id, None) is not context:
                    continue
                if self._by_control.pop(context.control.fileno(), None) is not None:
                    self._poll.unregister(context.control.fileno())
                context.control.close()
                while len(self._ended) >= _REMEMBERED:
                    del self._ended[next(iter(self._ended))]
                self._ended[context.id] = code


def _end(context: Born) -> None:
    context.control.close()
    try:
        os.kill(context.pid, _signal.SIGKILL)
    except OSError:
        pass  # it has ended


def _say(connection: _socket.socket, document: "dict[str, Any]") -> None:
    connection.setblocking(True)
    connection.settimeout(5.0)
    try:
        connection.sendall(pack(document))
    except OSError:
        pass
