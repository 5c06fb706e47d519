"""Connects one byte stream, its stdin and stdout, to the guest of a box: for boxes that no descriptor can be passed
into.

The guest (init) passes descriptors and relays nothing. This program runs beside it, sends it requests of the host, and
carries the data of the descriptors over the stream, many at once, none ahead of the reader's credit. It stores nothing:
when the stream is lost it ends, and so does every command that was run over it. Spawned processes continue. Their
output is in files of the box, where the next bridge finds it. `frames` has the format of the stream, `pumps` the parts
of its calls, `output_log` the spawned processes.

One thread. With `start` it becomes the guest instead, after creating the folder where bridges find it.
"""

import collections
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from holdfast.guest.init import codec, frames, output_log, process_tree
    from holdfast.guest.init.pumps import (
        SOCKET,
        Call,
        Changes,
        Follow,
        GuestRequest,
        Lost,
        Source,
        close_all,
        tell_guest,
    )
else:
    sys.path.insert(0, __file__.rpartition("/")[0])
    import codec
    import frames
    import output_log
    import process_tree
    from pumps import SOCKET, Call, Changes, Follow, GuestRequest, Lost, Source, close_all, tell_guest

_LISTENER = 3
"""Where the guest expects its listener."""
_INPUT = 1 << 18
_CHOKED = 1 << 20
"""Bytes waiting for the host above which no more is read for it."""
_FULL = 8 << 20
"""Bytes waiting for the host above which its requests wait, too."""
_BUFFERS = 64
_MAX_OWN = 256
"""Connections to the egress at once."""
_TICK = 1.0
_POLL = 0.02
_UP_SECONDS = 10.0


class StreamServer:
    """One stream and its calls."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.epoll = select.epoll()
        self.sources_epoll = select.epoll()
        """A separate epoll, which is ignored as a whole while the host does not keep up."""
        self.watched: dict[int, Callable[[int], None]] = {}
        self.watched_sources: dict[int, Callable[[], None]] = {}
        self.steady: set[Source] = set()
        self.calls: dict[int, Call] = {}
        self.number = 0
        """Among the bridges of the guest, by the time of their start. 0: a guest of an older version."""
        self.listening: Call | None = None
        self.own = 0
        self.last_own = frames.FIRST_OWN
        self.unsent: collections.deque[Any] = collections.deque()
        self.unsent_size = 0
        self.blocked = False
        self.choked = False
        self.full = False
        self.received = b""
        self.received_at = time.monotonic()
        self.idle_since = time.monotonic()
        self.changes = Changes(self)
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)
        self.watch(self.sources_epoll.fileno(), select.EPOLLIN, self.on_sources)
        self.watch(incoming, select.EPOLLIN, self.on_input)

    # --- the loop ---

    def watch(self, descriptor: int, events: int, react: "Callable[[int], None]") -> None:
        if descriptor in self.watched:
            self.epoll.modify(descriptor, events)
        else:
            self.epoll.register(descriptor, events)
        self.watched[descriptor] = react

    def unwatch(self, descriptor: int) -> None:
        if self.watched.pop(descriptor, None) is not None:
            self.epoll.unregister(descriptor)

    def watch_source(self, descriptor: int, react: "Callable[[], None]") -> None:
        self.watched_sources[descriptor] = react
        self.sources_epoll.register(descriptor, select.EPOLLIN)

    def unwatch_source(self, descriptor: int) -> None:
        del self.watched_sources[descriptor]
        self.sources_epoll.unregister(descriptor)

    def on_sources(self, events: int) -> None:
        for descriptor, _ in self.sources_epoll.poll(0, 64):
            react = self.watched_sources.get(descriptor)
            if react is not None:
                react()

    def run(self) -> None:
        """Returns when the host has disconnected."""
        register = GuestRequest(self, {"op": "bridge", "looks": True}, (), self.on_guest, self.without_guest)
        next_tick = time.monotonic() + _TICK
        try:
            while True:
                busy = self.steady and not self.choked
                wait = 0.0 if busy else _POLL if self.changes.polls else _TICK
                for descriptor, events in self.epoll.poll(wait):
                    react = self.watched.get(descriptor)
                    if react is not None:
                        react(events)
                for source in list(self.steady):
                    if self.choked:
                        break
                    source.pump()
                self.flush()
                self.changes.poll()
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + _TICK
                    self.on_tick(now)
        except Lost:
            pass
        finally:
            register.close()

    def on_guest(self, message: bytes, descriptors: "list[int]") -> None:
        """The guest has registered this bridge, or has passed the egress to a later one."""
        close_all(descriptors)
        answer = codec.decode(message)
        if "replaced" in answer:
            self.replaced()
        self.number = answer.get("number", 0)
        # Not earlier: bridges are numbered in the order in which their hosts begin to send.
        self.put(frames.GREETING)

    def replaced(self) -> None:
        """Another bridge serves the egress now. The host of this one is told so, if it lives."""
        if self.listening is not None:
            self.listening.answer({"replaced": True})
        self.flush()
        raise Lost("a later bridge serves the egress")

    def without_guest(self) -> None:
        raise Lost("the guest has gone")

    def on_tick(self, now: float) -> None:
        if now - self.received_at > frames.SILENCE_SECONDS:
            raise Lost("silence")
        for call in list(self.calls.values()):
            if call.deadline and now > call.deadline:
                call.drop()
            elif call.abandoned:
                call.answer({"unreachable": "the guest hung up"})

    # --- to the host ---

    def put(self, data: bytes) -> None:
        self.unsent.append(data)
        self.unsent_size += len(data)
        if self.unsent_size >= _CHOKED and not self.choked:
            self.flush()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.put(frames.HEAD.pack(kind, number, len(payload)))
        if payload:
            self.put(payload)

    def send_message(self, call: int, message: bytes) -> None:
        self.put(frames.message_frames(call, message))

    def flush(self) -> None:
        """Write what can be written. The rest waits, and so do its sources."""
        blocked = False
        while self.unsent:
            buffers = [self.unsent[index] for index in range(min(len(self.unsent), _BUFFERS))]
            try:
                written = os.writev(self.outgoing, buffers)
            except BlockingIOError:
                blocked = True
                break
            except OSError:
                raise Lost("the host has gone") from None
            self.unsent_size -= written
            while written:
                size = len(self.unsent[0])
                if written < size:
                    self.unsent[0] = memoryview(self.unsent[0])[written:]
                    break
                self.unsent.popleft()
                written -= size
        if blocked != self.blocked:
            self.blocked = blocked
            if blocked:
                self.watch(self.outgoing, select.EPOLLOUT, lambda events: self.flush())
            else:
                self.unwatch(self.outgoing)
        choked = self.unsent_size >= _CHOKED
        if choked != self.choked:
            self.choked = choked
            self.watch(self.sources_epoll.fileno(), 0 if choked else select.EPOLLIN, self.on_sources)
        full = self.unsent_size >= _FULL
        if full != self.full:
            self.full = full
            self.watch(self.incoming, 0 if full else select.EPOLLIN, self.on_input)

    # --- from the host ---

    def on_input(self, events: int) -> None:
        try:
            data = os.read(self.incoming, _INPUT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise Lost("the host has hung up")
        self.received_at = time.monotonic()
        data = self.received + data if self.received else data
        head, size = frames.HEAD, frames.HEAD.size
        start = 0
        while len(data) - start >= size:
            kind, number, length = head.unpack_from(data, start)
            if length > frames.LONGEST:
                raise Lost("a frame of %d bytes" % length)
            if len(data) - start - size < length:
                break
            self.on_frame(kind, number, data[start + size : start + size + length])
            start += size + length
        self.received = data[start:]

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind in (frames.DATA, frames.END, frames.CREDIT, frames.STOP):
            call = self.calls.get(number // frames.STREAMS)
            if call is not None:
                self.on_stream(call, kind, number % frames.STREAMS, payload)
        elif kind in (frames.PART, frames.MESSAGE):
            call = self.calls.get(number) or (Call(self, number) if number < frames.FIRST_OWN else None)
            if call is not None:
                call.parts += payload
                if len(call.parts) > codec.LIMIT:
                    raise Lost("a request of more than %d bytes" % codec.LIMIT)
                if kind == frames.MESSAGE:
                    message, call.parts = codec.decode(bytes(call.parts)), bytearray()
                    self.begin(call, message)
        elif kind == frames.CLOSE:
            call = self.calls.get(number)
            if call is not None:
                call.hang_up()
        elif kind == frames.PING:
            self.send(frames.PONG, number)
        else:
            raise Lost("a frame of kind %d" % kind)

    def on_stream(self, call: Call, kind: int, stream: int, payload: bytes) -> None:
        if kind in (frames.DATA, frames.END):
            sink = call.sinks.get(stream)
            if sink is None:
                return
            if kind == frames.DATA:
                sink.take(payload)
            else:
                sink.complete_now()
        else:
            source = call.sources.get(stream)
            if source is None:
                return
            if kind == frames.CREDIT:
                source.granted(int.from_bytes(payload, "big"))
            else:
                source.end(0)

    # --- what is asked for ---

    def begin(self, call: Call, request: "Any") -> None:
        if call.begun:
            raise Lost("one request too many")
        call.begun = True
        operation = _OPERATIONS.get(request["op"])
        try:
            if operation is None:
                call.ask(request)
            else:
                operation(self, call, request)
        except OSError as error:
            call.refuse(error.errno or errno.EIO, str(error.filename or ""))

    def pipe(self, ours: int) -> "tuple[int, int]":
        """Create a pipe as large as an ordinary user gets. Our end, 0 or 1, does not block."""
        ends = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ends[ours], False)
        widen(ends[0])
        return ends

    def exec(self, call: Call, request: "Any") -> None:
        """Run a command to its end, or (`acknowledge`) as a channel until either side disconnects."""
        talk = bool(request.get("acknowledge"))
        theirs: list[int] = []
        try:
            theirs.append((ends := self.pipe(1))[0])
            call.sink(0).attach(ends[1])
            for stream in (1, 2):
                theirs.append((ends := self.pipe(0))[1])
                call.source(stream, ends[0])

            def on_message(message: bytes, descriptors: "list[int]") -> None:
                close_all(descriptors)
                if talk and b"3:pids" in message[:16]:
                    self.send_message(call.number, message)
                    return
                call.asked()
                if talk:  # processes that it left behind may print until the host disconnects
                    self.after(call, (2,), lambda: self.send_message(call.number, message))
                else:
                    for stream in (1, 2):
                        call.sources[stream].keeper = self.leave_to_guest
                    self.after(call, (1, 2), lambda: call.answer_raw(message, []))

            call.ask(request, theirs, on_message)
        finally:
            close_all(theirs)

    def leave_to_guest(self, output: int) -> None:
        """Let the guest read output of a command that has ended. The guest outlives this bridge."""
        try:
            tell_guest({"op": "discard", "looks": True}, (output,))
        except OSError:
            pass  # the guest has gone, and everything in the box with it, or it is overloaded

    def after(self, call: Call, streams: "Sequence[int]", then: "Callable[[], None]") -> None:
        """Call `then` after everything that these streams hold now has been sent to the host."""
        waiting = [call.sources[stream] for stream in streams if not call.sources[stream].ended]

        def one_ended(number: int) -> None:
            if all(source.ended for source in waiting):
                then()

        if not waiting:
            then()
        for source in waiting:
            source.on_end = one_ended
        for source in waiting:
            source.cut_off()

    def pack(self, call: Call, request: "Any") -> None:
        ours, theirs = self.pipe(0)

        def on_message(message: bytes, descriptors: "list[int]") -> None:
            close_all(descriptors)
            call.asked()
            self.after(call, (0,), lambda: call.answer_raw(message, []))

        try:
            call.source(0, ours)
            call.ask(request, (theirs,), on_message)
        finally:
            os.close(theirs)

    def unpack(self, call: Call, request: "Any") -> None:
        theirs, ours = self.pipe(1)
        try:
            call.sink(0).attach(ours)
            call.ask(request, (theirs,))
        finally:
            os.close(theirs)

    # --- files ---

    def open(self, call: Call, request: "Any") -> None:
        """Send a file, or the part from `offset` on, at most `length` bytes."""

        def on_file(descriptor: int, message: bytes) -> None:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                call.refuse(errno.EINVAL, request["path"])
                return
            call.asked()
            os.lseek(descriptor, request["offset"], os.SEEK_SET)
            self.send_message(call.number, message)
            self.stream_file(call, descriptor, request["length"])
            if request.get("looks"):
                call.counts = False  # a request that only inspects the box does not keep it awake

        self.ask_for_one(call, request, on_file)

    def stream_file(self, call: Call, descriptor: int, length: "int | None", follow: bool = False) -> Source:
        """Send a file to the host. The final message tells the result."""

        def on_end(number: int) -> None:
            call.answer({"error": number, "about": ""} if number else {})

        call.counts = True
        source = call.source(0, descriptor, on_end, follow)
        source.left = length
        if length == 0:
            source.end(0)
        return source

    def write(self, call: Call, request: "Any") -> None:
        """Write a new file, which replaces the old one at the end of the stream."""

        def on_end(number: int) -> None:
            if number:
                call.refuse(number, request["path"])
            elif call.guest_request is not None:
                call.guest_request.on_message = call.answer_raw
                call.guest_request.send({"op": "commit"})

        sink = call.sink(0, on_end)
        self.ask_for_one(call, request, lambda descriptor, message: sink.attach(descriptor))

    def stdin(self, call: Call, request: "Any") -> None:
        """Write to stdin of a spawned process."""

        def on_end(number: int) -> None:
            if number:
                call.refuse(errno.EPIPE, request["id"])
            else:
                call.answer({})

        def on_input(descriptor: int, message: bytes) -> None:
            call.asked()
            os.set_blocking(descriptor, False)
            sink.attach(descriptor)

        call.counts = True
        sink = call.sink(0, on_end)
        self.ask_for_one(call, request, on_input)

    def ask_for_one(self, call: Call, request: "Any", then: "Callable[[int, bytes], None]") -> None:
        """Request a descriptor from the guest."""
        call.ask(request, (), self.one_descriptor(call, then))

    def one_descriptor(self, call: Call, then: "Callable[[int, bytes], None]") -> "Callable[[bytes, list[int]], None]":
        """Returns what receives an answer with one descriptor."""

        def on_message(message: bytes, descriptors: "list[int]") -> None:
            answer = codec.decode(message)
            if "error" in answer or "unreachable" in answer:
                call.answer_raw(message, descriptors)
            elif len(descriptors) != 1:  # too many descriptors are in flight in this kernel: the guest cannot pass it
                close_all(descriptors)
                call.refuse(errno.ETOOMANYREFS, "")
            else:
                then(descriptors[0], message)

        return on_message

    # --- ports ---

    def connect(self, call: Call, request: "Any") -> None:
        """Connect to a port in the box, over IPv6 if nothing listens on IPv4."""

        def on_socket(descriptor: int, message: bytes) -> None:
            call.asked()
            connection = socket.socket(fileno=descriptor)
            call.on_close = lambda: self.close_socket(connection)
            self.watch(descriptor, select.EPOLLOUT, lambda events: connected(connection))

        def connected(connection: socket.socket) -> None:
            self.unwatch(connection.fileno())
            number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number == 0:
                call.send({})
                self.relay(call, connection)
            elif request["ipv6"]:
                call.refuse(number, "")
            else:
                connection.close()
                call.on_close = None
                request["ipv6"] = True
                self.ask_for_one(call, request, on_socket)

        request["ipv6"] = False
        call.sink(0)
        self.ask_for_one(call, request, on_socket)

    def close_socket(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self.unwatch(connection.fileno())
            connection.close()

    def relay(self, call: Call, connection: socket.socket) -> None:
        """Copy in both directions until the host disconnects."""
        connection.setblocking(False)
        call.on_close = lambda: self.close_socket(connection)
        call.counts = True
        sink = call.sinks.get(0) or call.sink(0)
        call.source(0, os.dup(connection.fileno()))
        sink.attach(os.dup(connection.fileno()), connection)

    def listen(self, call: Call, request: "Any") -> None:
        """Serve connections to the egress, with a separate call for each."""

        def on_message(message: bytes, descriptors: "list[int]") -> None:
            self.listening = call
            if "replaced" in codec.decode(message):
                self.replaced()
            on_one(message, descriptors)

        def on_listener(descriptor: int, message: bytes) -> None:
            call.asked()
            listener = socket.socket(fileno=descriptor)
            listener.setblocking(False)
            call.on_close = lambda: self.close_socket(listener)
            call.send({"port": listener.getsockname()[1]})
            self.watch(listener.fileno(), select.EPOLLIN, lambda events: self.accept(listener))

        on_one = self.one_descriptor(call, on_listener)
        call.ask({**request, "bridge": self.number}, (), on_message)

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        self.own += 1
        if self.own >= _MAX_OWN:
            self.watch(listener.fileno(), 0, lambda events: None)
        self.last_own = frames.FIRST_OWN + (self.last_own + 1 - frames.FIRST_OWN) % (frames.LAST - frames.FIRST_OWN)
        call = Call(self, self.last_own)
        call.begun = True
        self.send(frames.OPEN, call.number)
        self.relay(call, connection)

        def closed() -> None:
            self.close_socket(connection)
            self.own -= 1
            if self.own < _MAX_OWN and listener.fileno() >= 0:
                self.watch(listener.fileno(), select.EPOLLIN, lambda events: self.accept(listener))

        call.on_close = closed

    # --- processes that go on by themselves ---

    def spawn(self, call: Call, request: "Any") -> None:
        files = output_log.make(request)

        def on_message(message: bytes, descriptors: "list[int]") -> None:
            if "error" in codec.decode(message):
                output_log.forget(request["id"])
            call.answer_raw(message, descriptors)

        try:
            call.ask(request, files, on_message)
        finally:
            close_all(files)

    def kept(self, call: Call, request: "Any") -> None:
        """Report one spawned process, or all."""
        call.answer({"processes": output_log.describe(request["id"])})

    def output(self, call: Call, request: "Any") -> None:
        """Send the output of a process, from `offset` on. With `follow`, until it has ended and all was sent."""
        descriptor = output_log.open_output(request["id"], request["stream"])
        os.lseek(descriptor, request["offset"], os.SEEK_SET)
        source = self.stream_file(call, descriptor, request["length"], request["follow"])
        if isinstance(source, Follow) and not source.ended:
            # The guest answers when the process has ended, or at once if it does not know it. Either way, that was all.
            completed = source.completed
            call.guest_request = GuestRequest(
                self,
                {"op": "wait", "id": request["id"], "looks": True},
                (),
                lambda message, descriptors: completed(),
                completed,
            )

    # --- looking at it ---

    def activity(self, call: Call, request: "Any") -> None:
        """Report the activity in the box, including what this bridge has open for the host."""

        def on_message(message: bytes, descriptors: "list[int]") -> None:
            close_all(descriptors)
            answer = codec.decode(message)
            held = sum([each.counts for each in self.calls.values()])
            if "idle" in answer:
                answer["connections"] += held
                since = 0 if held else int((time.monotonic() - self.idle_since) * 1000)
                answer["idle"] = min(answer["idle"], since)
            call.answer(answer)

        call.ask(request, (), on_message)


_OPERATIONS = {
    "exec": StreamServer.exec,
    "pack": StreamServer.pack,
    "unpack": StreamServer.unpack,
    "open": StreamServer.open,
    "write": StreamServer.write,
    "stdin": StreamServer.stdin,
    "connect": StreamServer.connect,
    "listen": StreamServer.listen,
    "spawn": StreamServer.spawn,
    "kept": StreamServer.kept,
    "output": StreamServer.output,
    "activity": StreamServer.activity,
}


def widen(pipe: int) -> None:
    """A larger pipe needs fewer turns for the same data."""
    try:
        fcntl.fcntl(pipe, 1031, 1 << 18)  # F_SETPIPE_SZ
    except OSError:
        pass  # not a pipe, or the user's pipe memory is used up: that only costs speed


def join(run: str) -> None:
    """Run the bridge."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # stopping a box signals all its processes, but its answer passes through this one
        signal.signal(number, signal.SIG_IGN)
    wait_for_guest(run)
    incoming, outgoing = os.dup(0), os.dup(1)
    widen(incoming)
    widen(outgoing)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # so that nothing printed by mistake becomes a frame
    os.close(nothing)
    StreamServer(incoming, outgoing).run()


def wait_for_guest(run: str) -> None:
    """Find the guest, which may be starting."""
    deadline = time.monotonic() + _UP_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.chdir(run)  # so that the path of the socket is short
            connection.connect(SOCKET)
            return
        except OSError as error:
            gone = select.select([0], [], [], 0.01)[0]  # the host sends nothing before the greeting
            if gone or time.monotonic() > deadline:
                sys.exit("bridge: there is no guest: %s" % error.strerror)
        finally:
            connection.close()


def end_leftovers(run: str, box: str) -> None:
    """End what an earlier guest of this box has started in the same folder, if that guest was killed.

    In a box of its own, all would have ended with it. Some of these processes have its sockets, and who connects to
    them would wait without end.
    """
    meant = {b"start", f"run={run}".encode(), f"box={box}".encode()}

    def is_guest(words: "list[bytes]") -> bool:
        # A command that starts a guest has its words too, after its own code.
        return meant <= set(words) and b"-c" not in words

    process_tree.end_others(is_guest)


def start(run: str, box: str, options: "list[str]") -> None:
    """Run the guest: process 1."""
    if "unconfined" in options:
        end_leftovers(run, box)
    output_log.belong_to(box)
    try:
        os.unlink(SOCKET)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    os.chmod(SOCKET, 0o600)
    if listener.fileno() != _LISTENER:
        os.dup2(listener.fileno(), _LISTENER)
        listener.close()
    else:
        listener.detach()
    os.chdir("/")
    import init  # type: ignore[import-not-found]

    init.main(options)


def main(arguments: "list[str]") -> None:
    mode, *rest = arguments
    options = dict([each.partition("=")[::2] for each in rest])
    run = options.pop("run")
    if mode == "start":
        os.makedirs(run, mode=0o700, exist_ok=True)
        os.chdir(run)
        box = options.pop("box")
        start(run, box, [name + "=" + value if value else name for name, value in options.items()])
    else:
        join(run)


if __name__ == "__main__":
    main(sys.argv[1:])
