"""Process 1 of a box: reaps processes, starts them, and opens files and ports for the host. It relays no data.

The host connects to a unix socket that only the host can see. This process inherits it as file descriptor 3. Data never
passes through here; descriptors do. An exec comes with the host's pipes, a spawned process writes to files that the
host opened, and for a port or a file the descriptor is handed out.

It has one thread and one epoll. Slow work is done in a forked child. Only built-in modules are imported, because
imports would be most of a box's start. The wire format is in `codec`. The rest is loaded when it is first needed: file
operations (`files`, `tree`, `search`), terminals, output for nobody (`discard`) and the measuring of activity.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import posix
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.guest.init import codec
    from holdfast.guest.init.terminal import Terminal
else:
    sys.path.insert(0, __file__.rpartition("/")[0])
    import codec

LISTENER = 3
_MAX_DESCRIPTORS = 8
_PIECE = 65536
_FOLDER_CHECK_SECONDS = 5.0
"""How often a guest checks whether the folder of its box still exists."""

_epoll: "select.epoll"
_watched: "dict[int, Callable[[int], None]]" = {}
"""Callbacks for descriptors that are ready."""
_ALL_SIGNALS = frozenset(_signal.valid_signals())
"""What a command starts with by default. A server started with nohup ignores some, and so would everything below it."""
_children: "dict[int, Callable[[int], None]]" = {}
"""Callbacks for children that have exited."""
_helpers: "set[int]" = set()
"""Children that do slow work for us."""
_bridges: "dict[HostConnection, Bridge]" = {}
"""Processes that carry requests to us over a stream, by the connection that each keeps open."""
_last_bridge = 0
_spawned: "dict[str, Spawned]" = {}
_connections: "set[HostConnection]" = set()
_neighbours: "set[int]" = set()
"""Processes that were here before us, in a sandbox whose process 1 is its maker's. They do not belong to the box."""
_probes: "set[int]" = set()
"""Children that only test whether the box works. They do not count as activity."""
_idle_since = 0.0
_created_at = 0
"""When this box was created, or handed over to its owner, in milliseconds; told by the host. 0: not yet known."""
_score = -1
"""A descriptor of our OOM score, which says how likely the kernel kills us when memory runs out. -1: not changeable."""
_own_score = b"0"
_creation_folders: "list[str]" = []
"""Folders whose times show when the box was created: those that came with it."""


class Problem(Exception):
    """A refused request, with an errno and its subject."""

    def __init__(self, number: int, about: str) -> None:
        super().__init__(number, about)
        self.number = number
        self.about = about


# --- the loop ---------------------------------------------------------------------------------------------------------


def watch(descriptor: int, events: int, react: "Callable[[int], None]") -> None:
    if descriptor in _watched:
        _epoll.modify(descriptor, events)
    else:
        _epoll.register(descriptor, events)
    _watched[descriptor] = react


def unwatch(descriptor: int) -> None:
    if _watched.pop(descriptor, None) is not None:
        _epoll.unregister(descriptor)


def monotonic() -> float:
    return posix.times().elapsed


def reap() -> None:
    """Reap all dead children, including orphans, which process 1 inherits."""
    global _idle_since
    while True:
        try:
            pid, status = posix.waitpid(-1, posix.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        react = _children.pop(pid, None)
        _helpers.discard(pid)
        if pid in _probes:
            _probes.discard(pid)
        else:
            _idle_since = monotonic()
        if react is not None:
            react(posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128 + posix.WTERMSIG(status))


def serve() -> None:
    global _epoll, _idle_since
    _epoll = select.epoll()
    _idle_since = monotonic()
    wake_read, wake_write = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    # Python's handler would raise, so that any process in the box could end us. The default does not end process 1.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    listener = _socket.socket(fileno=LISTENER)
    posix.set_inheritable(LISTENER, False)
    # The kernel tells peers the process id of the last caller of listen. This is how the host learns ours.
    listener.listen(512)
    listener.setblocking(False)

    def on_wake(events: int) -> None:
        try:
            posix.read(wake_read, 4096)
        except BlockingIOError:
            pass
        reap()

    def on_connect(events: int) -> None:
        for _ in range(64):
            try:
                descriptor, _address = listener._accept()  # type: ignore[attr-defined]
            except OSError:
                return
            posix.set_inheritable(descriptor, False)
            HostConnection(_socket.socket(fileno=descriptor))

    watch(wake_read, select.EPOLLIN, on_wake)
    watch(LISTENER, select.EPOLLIN, on_connect)
    checked = monotonic()
    while True:
        ready = _epoll.poll(_FOLDER_CHECK_SECONDS)
        if monotonic() - checked >= _FOLDER_CHECK_SECONDS:
            checked = monotonic()
            if data_dir_is_gone():
                send_all(_signal.SIGKILL)
                return
        for descriptor, events in ready:
            react = _watched.get(descriptor)
            if react is not None:
                try:
                    react(events)
                except Exception as error:  # out of memory, for example: the box matters more than one request
                    complain(error)


def data_dir_is_gone() -> bool:
    """Returns whether the folder of this box was deleted. Then the box can never be reached again.

    Standard error is the box's start log, a file in that folder. For a remote guest it is a stream, which keeps its
    name while it is open.
    """
    try:
        return posix.fstat(2).st_nlink == 0
    except OSError:
        return False


def complain(error: BaseException) -> None:
    sys.stderr.write("guest: %r\n" % error)


class HostConnection:
    """One request of the host and its answer. It lives until either side is done. Closing it ends what it started."""

    def __init__(self, socket: "_socket.socket") -> None:
        self.socket = socket
        self.socket.setblocking(False)
        self.descriptor = socket.fileno()
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.offered: list[int] = []
        self.on_message: Callable[[HostConnection, Any], None] = dispatch
        self.on_hangup: Callable[[], None] | None = None
        self.is_probe = True
        """So far it only asked about the state of the box."""
        _connections.add(self)
        watch(self.descriptor, select.EPOLLIN | select.EPOLLRDHUP, self.on_event)

    def on_event(self, events: int) -> None:
        try:
            data, ancillary, _flags, _address = self.socket.recvmsg(_PIECE, _socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                for start in range(0, len(payload) - len(payload) % 4, 4):
                    descriptor = int.from_bytes(payload[start : start + 4], sys.byteorder)
                    posix.set_inheritable(descriptor, False)
                    self.descriptors.append(descriptor)
        if not data:
            self.close()
            return
        self.received += data
        if len(self.received) < 4:
            return
        length = int.from_bytes(self.received[:4], "big")
        if length > codec.LIMIT:
            self.close()
            return
        if len(self.received) < 4 + length:
            return
        message = bytes(self.received[4 : 4 + length])
        del self.received[: 4 + length]
        try:
            self.on_message(self, codec.decode(message))
        except Problem as problem:
            self.refuse(problem.number, problem.about)
        except OSError as error:
            self.refuse(error.errno or errno.EIO, str(error.filename or ""))
        except RecursionError:
            self.refuse(errno.ENAMETOOLONG, "")
        except Exception as error:
            complain(error)
            self.refuse(errno.EPROTO, repr(error))

    def send(self, value: "Any", descriptors: "tuple[int, ...]" = ()) -> None:
        """Send a value. Answers are small and the host reads them, so a send that does not fit at once may block
        briefly.
        """
        data = codec.frame(value)
        rights = b"".join([each.to_bytes(4, sys.byteorder) for each in descriptors])
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            sent = self.socket.sendmsg([data], ancillary)
            if sent < len(data):
                self.socket.settimeout(10.0)
                self.socket.sendall(data[sent:])
        except OSError as error:
            if descriptors and error.errno == errno.ETOOMANYREFS:
                self.offer(value, descriptors)
            else:
                self.close()  # the host is gone

    def offer(self, value: "Any", descriptors: "tuple[int, ...]") -> None:
        """Keep descriptors for the host to take from this process itself, until it disconnects. The kernel limits
        descriptors in flight per user, and another box uses all of them.
        """
        self.offered = [posix.dup(each) for each in descriptors]
        self.send({**value, "take": self.offered})

    def answer(self, value: "Any", descriptors: "tuple[int, ...]" = ()) -> None:
        """Send the final message."""
        self.on_hangup = None
        self.send(value, descriptors)
        if not self.offered:
            self.close()

    def refuse(self, number: int, about: str) -> None:
        self.answer({"error": number, "about": about})

    def do_in_child(self, work: "Callable[[], Any]") -> None:
        """Do slow work in a child. The child answers on the connection, and closing the connection kills it."""
        pid = posix.fork()
        if pid == 0:
            try:
                _signal.set_wakeup_fd(-1)
                _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                self.socket.setblocking(True)
                try:
                    answer = work()
                except OSError as error:
                    answer = {"error": error.errno or errno.EIO, "about": str(error.filename or "")}
                except ValueError as error:
                    answer = {"refused": type(error).__name__, "about": str(error)}
                self.socket.sendall(codec.frame(answer))
            except BaseException as error:
                complain(error)
            finally:
                posix._exit(0)
        _helpers.add(pid)
        self.on_hangup = lambda: kill_child(pid)
        _children[pid] = lambda code: self.answer({"error": errno.EIO, "about": "ended"}) if code else hang_up(self)

    def take_descriptors(self, count: int) -> "list[int]":
        """Returns the descriptors that came with the request. The caller must close them."""
        if len(self.descriptors) != count:
            raise Problem(errno.EPROTO, "descriptors")
        taken, self.descriptors = self.descriptors, []
        return taken

    def close(self) -> None:
        global _idle_since
        if self not in _connections:
            return
        _connections.discard(self)
        unwatch(self.descriptor)
        self.socket.close()
        for each in (*self.descriptors, *self.offered):
            posix.close(each)
        self.descriptors, self.offered = [], []
        if not self.is_probe:
            _idle_since = monotonic()
        if self.on_hangup is not None:
            hangup, self.on_hangup = self.on_hangup, None
            hangup()


def dispatch(connection: HostConnection, request: "Any") -> None:
    connection.is_probe = request["op"] in ("activity", "ping", "python") or bool(request.get("looks"))
    if request.get("born", 0) > _created_at:
        set_created_at(request["born"])
    operation = _OPERATIONS.get(request["op"])
    if operation is None:
        import files  # type: ignore[import-not-found]

        operation = files.OPERATIONS[request["op"]]
    operation(connection, request)


def set_created_at(when: int) -> None:
    """Learn when the box was created. A box created in advance learns it again when it gets an owner. Then the times
    that show its creation are updated, and its idle time starts again.
    """
    global _created_at, _idle_since
    if _created_at:
        import time

        _idle_since = monotonic() - max(0.0, time.time() - when / 1000)
        for path in _creation_folders:
            try:
                posix.utime(path, ns=(when * 1_000_000, when * 1_000_000))
            except OSError:
                pass  # it cannot be changed
    _created_at = when


# --- processes --------------------------------------------------------------------------------------------------------


def find_program(name: str, env: "dict[str, str]") -> str:
    if "/" in name:
        return name
    found = errno.ENOENT
    for folder in env.get("PATH", "").split(":"):
        path = (folder or ".") + "/" + name
        try:
            plain = posix.stat(path).st_mode & 0o170000 == 0o100000
        except OSError:
            continue
        if plain and posix.access(path, posix.X_OK):
            return path
        found = errno.EACCES
    raise Problem(found, name)


def start(request: "Any", actions: "list[tuple[Any, ...]]") -> int:
    """Start a process in its own session. `actions` sets up its descriptors."""
    argv, env = request["argv"], request["env"]
    try:
        posix.chdir(request["cwd"])
    except OSError as error:
        raise Problem(error.errno or errno.EIO, request["cwd"]) from None
    try:
        program = find_program(argv[0], env)
        expose()
        try:
            pid = posix.posix_spawn(
                program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_ALL_SIGNALS,
            )
            wait_for_own_memory(pid)
            return pid
        except OSError as error:
            raise Problem(error.errno or errno.EIO, argv[0]) from None
        finally:
            cover()
    finally:
        posix.chdir("/")


def open_score() -> None:
    """Open the OOM score of this process now. Later the kernel does not allow it any more."""
    global _score, _own_score
    try:
        _score = posix.open("/proc/self/oom_score_adj", posix.O_RDWR | posix.O_CLOEXEC)
        _own_score = posix.read(_score, 16)
    except OSError:
        _score = -1


def expose() -> None:
    """Make the kernel prefer to kill what we start, and not us, when memory runs out. A child inherits our score.
    Setting it on the child later would miss the processes that it has started by then.
    """
    if _score >= 0:
        posix.write(_score, b"1000")


def cover() -> None:
    if _score >= 0:
        posix.write(_score, _own_score)


def wait_for_own_memory(pid: int) -> None:
    """Wait until a spawned process has its own memory. Until it executes, and for a moment after we continue, it shares
    ours, and a score set in that moment applies to both. Until then, its command line is ours too.
    """
    if _score < 0:
        return
    own = command_line(posix.getpid())
    for _ in range(1000):
        if command_line(pid) != own:
            return


def command_line(pid: int) -> bytes:
    try:
        descriptor = posix.open("/proc/%d/cmdline" % pid, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return posix.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        posix.close(descriptor)


def start_supervised(request: "Any", actions: "list[tuple[Any, ...]]") -> "tuple[int, int]":
    """Start a process whose exit ends everything that it started. Returns its pid and that of the child that supervises
    it.
    """
    global _score
    reader, writer = posix.pipe2(posix.O_CLOEXEC)
    expose()
    child = -1
    try:
        child = posix.fork()
    finally:
        if child:
            cover()
    if child == 0:
        _score = -1  # it belongs to our parent; what we start already inherits the right score
        try:
            import supervision  # type: ignore[import-not-found]

            supervision.supervise(lambda: start(request, actions), writer)
        except Problem as problem:
            posix.write(writer, b"!%d %s" % (problem.number, problem.about.encode("utf-8", "surrogateescape")))
        except BaseException as error:
            complain(error)
        finally:
            posix._exit(0)
    posix.close(writer)
    try:
        answer = posix.read(reader, 4096)
    finally:
        posix.close(reader)
    if not answer.isdigit():
        number, _, about = answer[1:].partition(b" ")
        raise Problem(int(number or errno.EIO), about.decode("utf-8", "surrogateescape"))
    if _ISOLATED:  # otherwise only our children tell what is running, so it must count
        _helpers.add(child)
    return int(answer), child


def kill_group(pid: int, number: int) -> None:
    try:
        posix.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def op_exec(connection: HostConnection, request: "Any") -> None:
    """Run a command on the host's pipes. It ends with the connection."""
    descriptors = connection.take_descriptors(3)
    try:
        actions = [(posix.POSIX_SPAWN_DUP2, descriptors[number], number) for number in range(3)]
        pid = start(request, actions)
    finally:
        for each in descriptors:
            posix.close(each)
    if connection.is_probe:
        _probes.add(pid)
    connection.on_hangup = lambda: kill_group(pid, _signal.SIGKILL)
    _children[pid] = lambda code: connection.answer({"code": code})
    if request.get("acknowledge"):
        connection.send({"pid": pid})


def op_discard(connection: HostConnection, request: "Any") -> None:
    """Take over the output of a command that has ended, while what it left in the background may still print."""
    import discard  # type: ignore[import-not-found]

    taken, connection.descriptors = connection.descriptors, []
    discard.take(taken, watch, unwatch)
    connection.answer({})


class Spawned:
    """A process that runs without a connection: its output and exit code go to files that the host opened. `child` is
    our child that exits with it: the process itself, or its supervisor.
    """

    def __init__(
        self, id: str, pid: int, child: int, exit_file: int, stdin: "int | None", terminal: "Terminal | None"
    ) -> None:
        self.id = id
        self.pid = pid
        self.exit_file = exit_file
        self.stdin = stdin
        self.terminal = terminal
        self.waiting: list[HostConnection] = []
        _spawned[id] = self
        _children[child] = self.ended

    def ended(self, code: int) -> None:
        if self.terminal is not None:
            self.terminal.process_ended()
        try:
            posix.write(self.exit_file, b"%d\n" % code)
        except OSError:
            pass  # on a full disk, the host learns of the exit but not of the code
        posix.close(self.exit_file)
        self.close_stdin()
        del _spawned[self.id]
        for connection in self.waiting:
            connection.answer({"code": code})

    def close_stdin(self) -> None:
        if self.stdin is not None:
            posix.close(self.stdin)
            self.stdin = None


def op_spawn(connection: HostConnection, request: "Any") -> None:
    descriptors = connection.take_descriptors(3)
    output, errors, exit_file = descriptors
    kept: list[int] = []

    def begin(actions: "list[tuple[Any, ...]]") -> "tuple[int, int]":
        return start_supervised(request, actions) if request.get("tree") else (start(request, actions),) * 2

    try:
        if request["id"] in _spawned:
            raise Problem(errno.EEXIST, request["id"])
        stdin: int | None = None
        pty: Terminal | None = None
        if request["pty"]:
            import terminal  # type: ignore[import-not-found]

            master, slave = posix.openpty()
            try:
                terminal.set_size(master, *request["pty"])
                path = posix.ttyname(slave)
                # The leader of a new session that opens a terminal gets it as its controlling terminal.
                actions: list[tuple[Any, ...]] = [
                    (posix.POSIX_SPAWN_OPEN, 0, path, posix.O_RDWR, 0),
                    (posix.POSIX_SPAWN_DUP2, 0, 1),
                    (posix.POSIX_SPAWN_DUP2, 0, 2),
                ]
                pid, child = begin(actions)
            except BaseException:
                posix.close(master)
                raise
            finally:
                posix.close(slave)
            pty = terminal.Terminal(master, output, watch, unwatch)
            kept.append(output)
        else:
            if request["stdin"]:
                source, stdin = posix.pipe2(posix.O_CLOEXEC)
            else:
                source = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
            try:
                pid, child = begin(
                    [
                        (posix.POSIX_SPAWN_DUP2, source, 0),
                        (posix.POSIX_SPAWN_DUP2, output, 1),
                        (posix.POSIX_SPAWN_DUP2, errors, 2),
                    ]
                )
            except BaseException:
                if stdin is not None:
                    posix.close(stdin)
                raise
            finally:
                posix.close(source)
        Spawned(request["id"], pid, child, exit_file, stdin, pty)
        kept.append(exit_file)
    finally:
        for each in descriptors:
            if each not in kept:
                posix.close(each)
    connection.answer({"pid": pid})


def find_spawned(request: "Any") -> Spawned:
    spawned = _spawned.get(request["id"])
    if spawned is None:
        raise Problem(errno.ESRCH, str(request["id"]))
    return spawned


def op_wait(connection: HostConnection, request: "Any") -> None:
    spawned = find_spawned(request)
    spawned.waiting.append(connection)
    connection.on_hangup = lambda: spawned.waiting.remove(connection)


def op_signal(connection: HostConnection, request: "Any") -> None:
    kill_group(find_spawned(request).pid, request["number"])
    connection.answer({})


def op_stdin(connection: HostConnection, request: "Any") -> None:
    """Hand out the write end of stdin."""
    spawned = find_spawned(request)
    if spawned.terminal is not None and spawned.terminal.open:
        connection.answer({}, (spawned.terminal.master,))
    elif spawned.stdin is not None:
        connection.answer({}, (spawned.stdin,))
    else:
        raise Problem(errno.EPIPE, request["id"])


def op_close_stdin(connection: HostConnection, request: "Any") -> None:
    spawned = find_spawned(request)
    if spawned.terminal is not None and spawned.terminal.open:
        posix.write(spawned.terminal.master, b"\x04")
    spawned.close_stdin()
    connection.answer({})


def op_resize(connection: HostConnection, request: "Any") -> None:
    spawned = find_spawned(request)
    if spawned.terminal is None or not spawned.terminal.open:
        raise Problem(errno.ENOTTY, request["id"])
    import terminal

    terminal.set_size(spawned.terminal.master, request["rows"], request["columns"])
    connection.answer({})


def list_processes() -> "list[int]":
    """Returns all processes in this box, except this one and its helpers."""
    running = [int(name) for name in posix.listdir("/proc") if name.isdigit()]
    bridges = {each.pid for each in _bridges.values()}
    bridges.update(_neighbours)
    return [pid for pid in running if pid != posix.getpid() and pid not in _helpers and pid not in bridges]


class Bridge:
    """A process that carries requests of one host. A later one has a higher number."""

    def __init__(self, pid: int, number: int) -> None:
        self.pid = pid
        self.number = number
        self.has_egress = False


def op_bridge(connection: HostConnection, request: "Any") -> None:
    """Register the caller as a bridge that carries requests to us while it keeps this connection open. It does not
    count as a process of the box.
    """
    global _last_bridge
    credentials = connection.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    _last_bridge += 1
    _bridges[connection] = Bridge(int.from_bytes(credentials[:4], sys.byteorder), _last_bridge)
    connection.on_hangup = lambda: _bridges.__delitem__(connection)
    connection.send({"number": _last_bridge})


def op_activity(connection: HostConnection, request: "Any") -> None:
    """Report the activity in the box. Must be cheap, because it is called again and again."""
    processes = list_processes() if _ISOLATED else [pid for pid in _children if pid not in _helpers]
    others = len([each for each in _connections if not each.is_probe])
    idle = 0 if processes or others else int((monotonic() - _idle_since) * 1000)
    answer = {"processes": len(processes), "connections": others, "idle": idle}
    if _ISOLATED:  # otherwise other processes than this box's are visible too
        import activity  # type: ignore[import-not-found]

        answer["cpu"] = activity.processor_time(processes)
        answer["listening"] = activity.count_listening(_egress_listeners)
    connection.answer(answer)


def op_kill_all(connection: HostConnection, request: "Any") -> None:
    """Signal all processes except this one."""
    send_all(request["number"])
    connection.answer({})


def send_all(number: int) -> None:
    if _ISOLATED:
        try:
            posix.kill(-1, number)
        except (ProcessLookupError, PermissionError):
            pass
    else:
        for pid in list(_children):
            kill_group(pid, number)


def op_shut_down(connection: HostConnection, request: "Any") -> None:
    """Ask all processes to exit. Answers when they have, or when the grace period is over. Then the host ends us."""
    send_all(_signal.SIGTERM)
    send_all(_signal.SIGCONT)
    deadline = monotonic() + request["grace"] / 1000
    while monotonic() < deadline:
        reap()
        if not (list_processes() if _ISOLATED else _children):
            break
        select.select([], [], [], 0.005)
    connection.answer({})


# --- ports ------------------------------------------------------------------------------------------------------------


def op_connect(connection: HostConnection, request: "Any") -> None:
    """Begin to connect. The receiver of the socket sees the result."""
    family = _socket.AF_INET6 if request["ipv6"] else _socket.AF_INET
    socket = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        number = socket.connect_ex(("::1" if request["ipv6"] else "127.0.0.1", request["port"]))
        if number not in (0, errno.EINPROGRESS):
            raise Problem(number, str(request["port"]))
        connection.answer({}, (socket.fileno(),))
    finally:
        socket.close()


_egress_listeners: "list[_socket.socket]" = []
"""The egress listener. It is kept open so that no process takes its port."""


def op_listen(connection: HostConnection, request: "Any") -> None:
    """Hand out the egress listener, which is created once. The latest bridge takes it over from earlier ones."""
    if not _egress_listeners:
        import egress_listener  # type: ignore[import-not-found]

        _egress_listeners.append(egress_listener.make_listener(request["port"], _ISOLATED and not _neighbours))
    if take_over_egress(request.get("bridge", 0)):
        connection.answer({}, (_egress_listeners[0].fileno(),))
    else:
        connection.answer({"replaced": True})


def take_over_egress(number: int) -> bool:
    """Let one bridge have the egress. Returns False if a later one has it.

    A host sends nothing before its bridge is registered. So the host of the later bridge lived when that of the earlier
    one had asked already, and what an earlier one asks now was delayed. Its host may be long dead.
    """
    having = [(each, bridge) for each, bridge in _bridges.items() if bridge.has_egress]
    if not number:
        return True  # a host without bridges
    if [bridge for _, bridge in having if bridge.number > number]:
        return False
    for each, bridge in having:
        if bridge.number < number:
            bridge.has_egress = False
            each.send({"replaced": True})
    for bridge in _bridges.values():
        if bridge.number == number:
            bridge.has_egress = True
    return True


# --- the root, and this process
# -----------------------------------------------------------------------------------------


def op_hold(connection: HostConnection, request: "Any") -> None:
    """Hand out a descriptor of the box's root. While it is open, the mounts there outlive us."""
    descriptor = posix.open("/", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        connection.answer({}, (descriptor,))
    finally:
        posix.close(descriptor)


def kill_child(pid: int) -> None:
    if pid in _children:
        try:
            posix.kill(pid, _signal.SIGKILL)
        except ProcessLookupError:
            pass


def hang_up(connection: HostConnection) -> None:
    """Close the connection after the child has answered."""
    connection.on_hangup = None
    connection.close()


def is_folder(path: str) -> bool:
    try:
        return posix.stat(path).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def make_workdir(path: "str | None") -> None:
    if path and not is_folder(path):
        import os

        os.makedirs(path, exist_ok=True)
        _creation_folders.append(path)


def op_ping(connection: HostConnection, request: "Any") -> None:
    """Report that we are running. A new box is also told its working directory."""
    make_workdir(request.get("workdir"))
    connection.answer({"python": "%d.%d.%d" % sys.version_info[:3]})


def op_python(connection: HostConnection, request: "Any") -> None:
    """Report how to start an interpreter here: like this one, without its options. A loader may come first."""
    from activity import read_start

    words = [each.decode("utf-8", "surrogateescape") for each in read_start("/proc/self/cmdline", _PIECE).split(b"\0")]
    connection.answer({"command": words[: words.index("-I")] if "-I" in words else [sys.executable]})


_OPERATIONS = {name[3:]: function for name, function in list(globals().items()) if name.startswith("op_")}
_ISOLATED = True


def set_up_process() -> None:
    """Keep other processes in the box from reading our memory or taking our descriptors, although they run as the same
    user.
    """
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(libc, "prctl")
    _ctypes.call_function(prctl, (4, 0, 0, 0, 0))  # PR_SET_DUMPABLE
    if not _ISOLATED or _neighbours:
        _ctypes.call_function(prctl, (36, 1, 0, 0, 0))  # PR_SET_CHILD_SUBREAPER, which process 1 is anyway


def limit_processes(count: int) -> None:
    """Limit the number of processes. Done in the box's own user namespace: outside, other processes of the user would
    count.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_NPROC, (count, count))


def main(arguments: "list[str]") -> None:
    global _ISOLATED
    shared = []
    for each in arguments:
        name, _, value = each.partition("=")
        if name == "unconfined":
            _ISOLATED = False
        elif name == "beside":
            _neighbours.update([int(each) for each in posix.listdir("/proc") if each.isdigit()])
        elif name == "processes":
            limit_processes(int(value))
        elif name == "shared":
            shared.append(value)
        elif name == "workdir":
            try:
                make_workdir(value)
            except OSError:
                pass  # the host asks for it again, and gets the reason
    if shared:
        import landlock  # type: ignore[import-not-found]

        landlock.forbid_sockets_below(shared)
    if _ISOLATED:
        _creation_folders.extend(("/run", "/dev/shm"))
    open_score()
    set_up_process()
    serve()


if __name__ == "__main__":
    main(sys.argv[1:])
