"""Keeps connections to contexts for a host that can only ask and be answered, never be called.

Each request is a short connection: one message, one answer. What a context says waits here until its host takes it
(`leases`); what the host says is numbered, so that one that is sent again is not said again. One host at a time holds
a context: the next one that opens it takes it over.
"""

import _operator
import os
import socket
import struct
import threading
import time

from holdfast.guest.kernel.outbox import Outbox
from holdfast.guest.kernel.protocol import PIECE, Garbage, Unpacker, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_REQUESTS = 64
"""That are under way at once."""
_REQUEST_SECONDS = 30.0
_LONGEST_WAIT = 60.0
_LONGEST_LEASE = 600.0
_ROOM = 4 << 20
"""Bytes of one answer, but for a single message that is larger."""
_KEPT = 8 << 20
"""Bytes that wait for the host before no more are read: the context waits, as it would for a slow connection."""
_LONGEST_BODY = 128 << 20
_MOST_RENEWED = 512
_SEND_TIME = struct.pack("ll", 20, 0)


class Refused(Exception):
    pass


def run(listener: socket.socket, fork_server: int, token: str) -> None:
    """In a process of its own. Never returns."""
    Broker(fork_server, token).serve(listener)


class Broker:
    def __init__(self, fork_server: int, token: str) -> None:
        self._fork_server = fork_server
        self._token = token
        self._held: dict[str, Held] = {}
        self._opening = threading.Lock()
        self._room = threading.Semaphore(_MOST_REQUESTS)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                time.sleep(0.05)  # too many files are open: some will be closed
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_REQUEST_SECONDS)
            request = _read(connection, _LONGEST_BODY)
            if request is None or not _same(request[0].get("token"), self._token):
                return
            try:
                answer, body = getattr(self, "_do_" + request[0]["t"])(*request)
            except (Refused, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
                answer, body = {"t": "refused", "why": str(error)[:1000]}, b""
            connection.sendall(pack(answer, body))
        except (OSError, Garbage):
            pass  # who asked is gone, and asks again
        finally:
            connection.close()
            self._room.release()

    # --- what can be asked ---

    def _do_open(self, document: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
        """Hold a context. Who held it before holds it no more."""
        id = str(document["context"])
        lease = min(float(document["lease"]), _LONGEST_LEASE)
        connection = socket.create_connection(("127.0.0.1", self._fork_server), _REQUEST_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            pack({"t": "attach", "context": id, "make": bool(document.get("make")), "token": self._token})
        )
        connection.settimeout(None)
        # A context that does not read keeps nobody waiting for ever.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIME)
        held = Held(connection, lease)
        with self._opening:
            old = self._held.get(id)
            if old is not None:
                old.close()
                held.inherit(old)
            for each in [name for name, other in self._held.items() if other.is_over]:
                del self._held[each]
            self._held[id] = held
        threading.Thread(target=held.read, daemon=True).start()
        return {"t": "opened", "holder": held.holder}, b""

    def _do_take(self, document: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
        renewed = document.get("renew", [])[:_MOST_RENEWED]
        held = self._of(document)
        wait = min(float(document.get("wait", 0)), _LONGEST_WAIT)
        return held.take(str(document.get("done", "")), [(str(call), str(claim)) for call, claim in renewed], wait)

    def _do_put(self, document: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
        held = self._of(document)
        parts = [(int(length), str(call), str(claim)) for length, call, claim in document["parts"]]
        return {"t": "took", "stale": held.put(int(document["number"]), parts, body)}, b""

    def _do_leave(self, document: "dict[str, Any]", body: bytes) -> "tuple[dict[str, Any], bytes]":
        held = self._of(document)
        held.close()
        with self._opening:
            if self._held.get(document["context"]) is held:
                del self._held[document["context"]]
        return {"t": "left"}, b""

    def _of(self, document: "dict[str, Any]") -> "Held":
        held = self._held.get(document["context"])
        if held is None or not _same(document.get("holder"), held.holder):
            raise Refused("another host holds this context")
        return held


class Held:
    """The connection to one context, and what came over it."""

    def __init__(self, connection: socket.socket, lease: float) -> None:
        self.holder = os.urandom(16).hex()
        self._connection = connection
        self._leases = Outbox(lease, lambda: os.urandom(8).hex())
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._has_ended = False
        self._is_closed = False
        self._last = 0

    def inherit(self, old: "Held") -> None:
        """Output that the last host did not take. Calls and results are said again by the context itself."""
        with old._changed:
            for said in old._leases.printed():
                self._leases.add({"t": "out"}, said.message)

    @property
    def is_over(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        try:
            self._connection.shutdown(socket.SHUT_RDWR)  # who reads it learns of it, and closes it
        except OSError:
            pass

    def read(self) -> None:
        """A thread of its own."""
        unpacker = Unpacker(_LONGEST_BODY)
        try:
            while True:
                data = self._connection.recv(PIECE)
                if not data:
                    break
                for document, body in unpacker.take(data):
                    self._hear(document, body)
        except (OSError, Garbage, Refused):
            pass
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._connection.close()

    def _hear(self, document: "dict[str, Any]", body: bytes) -> None:
        with self._changed:
            while self._leases.size > _KEPT and not self._is_closed:
                self._changed.wait()
            refused = self._leases.add(document, pack(document, body))
            self._changed.notify_all()
        if refused == "full":
            why = {"ok": False, "kind": "RuntimeError", "message": "too many calls at once: wait for some of them"}
            with self._sending:
                self._send(pack({"t": "answer", "call": document["id"], **why}))

    def take(self, confirmed: str, renewed: "list[tuple[str, str]]", wait: float) -> "tuple[dict[str, Any], bytes]":
        deadline = time.monotonic() + wait
        with self._changed:
            now = time.monotonic()
            for call, claim in renewed:
                self._leases.renew(call, claim, now)
            self._leases.confirm(confirmed, now)
            self._changed.notify_all()  # there may be room again
            while True:
                if self._is_closed:
                    raise Refused("another host holds this context")
                now = time.monotonic()
                taken = self._leases.take(now, _ROOM)
                if taken is not None:
                    claim, messages = taken
                    return {"t": "said", "claim": claim}, b"".join(messages)
                if self._has_ended and self._leases.is_empty:
                    return {"t": "said", "ended": True}, b""
                if now >= deadline:
                    return {"t": "said"}, b""
                until = self._leases.next_end()
                self._changed.wait(max(0.001, min(deadline, deadline if until is None else until) - now))

    def put(self, number: int, parts: "list[tuple[int, str, str]]", body: bytes) -> "list[str]":
        """Say messages, once: for each its length, and the call that it answers with its claim. Returns those of the
        calls whose claims had run out, and whose answers were not said."""
        with self._sending:
            if number <= self._last:
                return []  # it was said; only the answer to that was lost
            if number != self._last + 1:
                raise Refused("what comes before number %d is missing" % number)
            said, stale, start = [], [], 0
            with self._changed:
                now = time.monotonic()
                self._leases.expire(now)
                for length, call, claim in parts:
                    if call and not self._leases.answer(call, claim, now):
                        stale.append(call)
                    else:
                        said.append(body[start : start + length])
                    start += length
                self._changed.notify_all()
            self._send(b"".join(said))
            self._last = number
            return stale

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError:
            self.close()  # it does not read, or is gone; and half of a message was said, perhaps
            raise Refused("the context hung up") from None


def _read(connection: socket.socket, longest: int) -> "tuple[dict[str, Any], bytes] | None":
    unpacker = Unpacker(longest)
    while True:
        data = connection.recv(PIECE)
        if not data:
            return None
        for message in unpacker.take(data):
            return message


def _same(given: "Any", wanted: str) -> bool:
    return isinstance(given, str) and _operator._compare_digest(given.encode("utf-8", "replace"), wanted.encode())
