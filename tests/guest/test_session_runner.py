"""The parts of a session's runner: its WebSocket, its outbox, and its link to the hub, which is a real server here."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.utils import accept_key as websockets_accept_key

from holdfast.guest.hub_messages import LONGEST_MESSAGE, from_runner, number_of, to_runner
from holdfast.guest.runner.dialer import connect
from holdfast.guest.session_runner.link import MOST_REFUSALS, REPLACED, Link
from holdfast.guest.session_runner.outbox import Outbox
from holdfast.guest.session_runner.websocket import Closed, Refused, WebSocket, masked
from holdfast.guest.turn_messages import entry_of, message_of

PATIENCE = 240.0
Speak = Callable[[ServerConnection], None]


@contextmanager
def a_hub(speak: Speak) -> Iterator[int]:
    """A server whose connections are handled by `speak`. Yields its port."""

    def handle(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            speak(connection)

    server: Server
    with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.socket.getsockname()[1])
        finally:
            server.shutdown()
            thread.join()


def dial(port: int) -> Any:
    return connect("http", "127.0.0.1", port, {})


class Talk:
    """A link, and what it was told."""

    def __init__(self, folder: Path, port: int, **more: Any) -> None:
        self.messages: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.ended: queue.Queue[str] = queue.Queue()
        self.outbox = Outbox(str(folder), **more)
        self.ahead = 0.0
        """How far its clock is ahead of this machine's."""
        self.dialled = threading.Event()
        """Set when it has connected a second time."""
        self._count = 0
        self.link = Link(
            lambda: self._dial(port),
            "hub",
            "/v1/hub?runner=1",
            "token-of-a-session",
            self.outbox,
            greet=lambda: ("agentStatus", {"status": "idle", "turns": []}),
            on_message=lambda type, fields: self.messages.put((type, fields)),
            on_end=self.ended.put,
            clock=lambda: time.monotonic() + self.ahead,
            first_pause=0.02,
        )

    def _dial(self, port: int) -> Any:
        self._count += 1
        if self._count > 1:
            self.dialled.set()
        return dial(port)

    def __enter__(self) -> Talk:
        self.link.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.outbox.close()
        self.link.stop(PATIENCE)


# --- the WebSocket ---


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=300), more=st.sampled_from([0, 120, 70_000, 300_000]))
def test_masking_is_that_of_the_standard(text: str, more: int) -> None:
    data, mask = text.encode() + b"x" * more, b"\x01\x80\xff\x7f"
    assert masked(data, mask)[:1000] == bytes(each ^ mask[place % 4] for place, each in enumerate(data[:1000]))
    assert masked(masked(data, mask), mask) == data


def test_messages_of_all_sizes_go_both_ways() -> None:
    texts = ["", "ä", "x" * 125, "y" * 126, "z" * 65_536, "☃" * 100_000]

    def echo(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with a_hub(echo) as port:
        websocket = WebSocket(dial(port), LONGEST_MESSAGE)
        websocket.handshake("hub", "/", "t")
        received: list[str] = []
        for text in texts:
            websocket.send(text)
        while len(received) < len(texts):
            received += websocket.receive()
        assert received == texts
        websocket.close()


def test_a_message_in_pieces_and_pings_in_between_are_read() -> None:
    def speak(connection: ServerConnection) -> None:
        connection.send(["a", "b", "c"])
        connection.ping("are you there?")
        connection.send("d")
        connection.recv(PATIENCE)

    with a_hub(speak) as port:
        websocket = WebSocket(dial(port), 100)
        websocket.handshake("hub", "/", "t")
        received: list[str] = []
        while len(received) < 2:
            received += websocket.receive()
        assert received == ["abc", "d"]
        websocket.close()


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x82\x01x", 1002),  # binary
        (b"\x83\x01x", 1002),  # a kind that does not exist
        (b"\xc1\x01x", 1002),  # an extension that was not agreed on
        (b"\x81\x81\0\0\0\0x", 1002),  # masked by a server
        (b"\x80\x01x", 1002),  # the end of a message that did not begin
        (b"\x89\x7e\x01\x00", 1002),  # a ping that is too long
        (b"\x09\x01x", 1002),  # a ping in pieces
        (b"\x81\x02\xff\xfe", 1007),  # not UTF-8
        (b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff", 1009),  # of all the bytes that there are
        (b"\x88\x02\x03\xe8", 1000),
    ],
)
def test_what_a_server_must_not_send_ends_the_connection(frame: bytes, code: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        websocket = WebSocket(ours, 1000)
        theirs.sendall(frame)
        with pytest.raises(Closed) as closed:
            websocket.receive()
        assert closed.value.code == code
        websocket.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 401 Unauthorized\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"x" * 20_000,
    ],
)
def test_a_server_that_speaks_something_else_is_refused(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.sendall(answer)
        websocket = WebSocket(ours, 1000, seconds=5)
        with pytest.raises(Refused):
            websocket.handshake("hub", "/", "t")
        websocket.close()


# --- the link ---


def test_what_was_not_acknowledged_is_said_again_in_order_and_the_status_comes_after_it(tmp_path: Path) -> None:
    heard: list[list[tuple[int | None, str]]] = []

    def speak(connection: ServerConnection) -> None:
        heard.append([])
        for text in connection:
            type, fields = from_runner(str(text))
            number = number_of(str(text))
            heard[-1].append((number, str(fields.get("error", type))))
            if len(heard) == 1 and number == 3:
                connection.send(to_runner("ack", {"seq": 1}))
                connection.close(1011, "try again")
                return
            if number is not None and len(heard) > 1:
                connection.send(to_runner("ack", {"seq": number}))
            if len(heard) == 2 and type == "agentStatus":
                done.set()

    done = threading.Event()
    with a_hub(speak) as port, Talk(tmp_path, port) as talk:
        for each in range(1, 6):
            talk.link.send("error", {"messageId": "m", "error": f"said {each}"})
        assert done.wait(PATIENCE)
    first, second = heard[0], heard[1]
    assert [each for each in first if each[0] is not None][:3] == [(1, "said 1"), (2, "said 2"), (3, "said 3")]
    assert second[:5] == [(2, "said 2"), (3, "said 3"), (4, "said 4"), (5, "said 5"), (None, "agentStatus")]


@pytest.mark.parametrize("seconds", [1.0, 60.0, 600.0, -3600.0])
def test_after_a_cut_of_any_length_each_message_is_taken_once(tmp_path: Path, seconds: float) -> None:
    """The clock of the link jumps while nothing comes through, in either direction."""
    taken: dict[int, str] = {}
    connections: list[int] = []
    cut, done, said = threading.Event(), threading.Event(), 40

    def speak(connection: ServerConnection) -> None:
        connections.append(len(connections))
        for text in connection:
            if connections[-1] == 0 and len(taken) >= 10 and not cut.is_set():
                cut.set()
                back.wait(PATIENCE)
            number = number_of(str(text))
            if number is not None:
                assert taken.setdefault(number, from_runner(str(text))[1]["error"]) == f"said {number}"
                connection.send(to_runner("ack", {"seq": number}))
            if len(taken) == said:
                done.set()

    back = threading.Event()
    with a_hub(speak) as port, Talk(tmp_path, port) as talk:
        for each in range(1, 21):
            talk.link.send("error", {"messageId": "m", "error": f"said {each}"})
        assert cut.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while not talk.outbox.acknowledged >= 10:  # a word that is still on its way would count as heard after the jump
            assert time.monotonic() < until
            time.sleep(0.01)
        talk.ahead += seconds
        for each in range(21, said + 1):
            talk.link.send("error", {"messageId": "m", "error": f"said {each}"})
        if seconds > 75:
            assert talk.dialled.wait(PATIENCE), "a hub that is silent for so long counts as lost"
        back.set()
        assert done.wait(PATIENCE)
        assert talk.ended.empty()
    assert sorted(taken) == list(range(1, said + 1))
    assert (len(connections) > 1) is (seconds > 75)


def test_a_runner_that_was_replaced_ends_and_does_not_come_back(tmp_path: Path) -> None:
    connections: list[object] = []

    def speak(connection: ServerConnection) -> None:
        connections.append(connection)
        connection.close(1000, REPLACED)

    with a_hub(speak) as port, Talk(tmp_path, port) as talk:
        assert talk.ended.get(timeout=PATIENCE) == REPLACED
    assert len(connections) == 1


def accept_key(request: bytes) -> bytes:
    key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
    return websockets_accept_key(key.split(b":", 1)[1].strip().decode()).encode()


@pytest.mark.parametrize("stays", [True, False], ids=["stays open", "is cut"])
def test_a_goodbye_that_comes_with_the_handshake_is_heard(tmp_path: Path, stays: bool) -> None:
    """Also when the connection is lost before the runner reads, or never."""
    reason = b"\x03\xe8" + REPLACED.encode()
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def replace_at_once() -> None:
            connection, _ = listener.accept()
            with connection:
                answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                answer += b"Sec-WebSocket-Accept: " + accept_key(connection.recv(65_536)) + b"\r\n\r\n"
                connection.sendall(answer + bytes((0x88, len(reason))) + reason)
                if stays:
                    ended.wait(PATIENCE)

        thread = threading.Thread(target=replace_at_once)
        thread.start()
        with Talk(tmp_path, listener.getsockname()[1]) as talk:
            assert talk.ended.get(timeout=PATIENCE) == REPLACED
            assert not talk.dialled.is_set()
        ended.set()
        thread.join()


def test_five_refusals_in_a_row_end_the_runner(tmp_path: Path) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            for _ in range(MOST_REFUSALS):
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65_536))
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with Talk(tmp_path, listener.getsockname()[1]) as talk:
            assert "refused 5 times" in talk.ended.get(timeout=PATIENCE)
        thread.join()
    assert all(b"Authorization: Bearer token-of-a-session\r\n" in each for each in asked)


def test_what_is_said_while_the_hub_is_away_is_kept_on_disk_bounded_and_sent_later(tmp_path: Path) -> None:
    outbox = Outbox(str(tmp_path), memory=1000, limit=50_000)
    said = [json.dumps({"type": "error", "n": each, "text": "x" * 200}) for each in range(100)]
    for each in said:
        outbox.add(each)
    assert list(tmp_path.iterdir()) == [], "its files have no name"

    def say_more() -> None:
        for _ in range(200):
            outbox.add("{}" + "y" * 500)

    waits = threading.Thread(target=say_more)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive(), "whoever speaks waits when too much is kept"
    sent: list[str] = []
    while len(sent) < 300:
        text = outbox.next()
        if text is None:
            outbox.acknowledge(number_of(sent[-1]) or 0)
            continue
        sent.append(text)
    waits.join(PATIENCE)
    assert [number_of(each) for each in sent] == list(range(1, 301))
    assert [json.loads(each)["n"] for each in sent[:100]] == list(range(100))
    outbox.close()


# --- turns as messages ---

PAYLOADS = st.sampled_from(
    [
        {"type": "opencode.delta", "message": "m", "text": "Wörter"},
        {"type": "opencode.delta", "message": "m", "thinking": "hm", "text": "x"},
        {"type": "opencode.delta", "message": "m", "thinking": "hm"},
        {"type": "opencode.call", "call": "c", "name": "bash", "arguments": {"command": "ls"}},
        {"type": "opencode.tool", "call": "c", "name": "bash", "status": "ok", "record": {"deep": [{"n": 2**60}]}},
        {"type": "opencode.tool", "call": "c", "name": "bash", "status": "interrupted"},
        {"type": "opencode.assistant", "message": "m", "text": "All.", "record": {"info": {}, "parts": []}},
        {"type": "signal.run.finished", "run": "r-1", "status": "failed", "error": {"message": "no"}},
    ]
)


@settings(max_examples=40, deadline=None)
@given(payload=PAYLOADS, number=st.integers(1, 99))
def test_an_entry_comes_through_the_hub_as_it_was(payload: dict[str, Any], number: int) -> None:
    entry = {"id": f"r-1-2-{number}", "ts": 1_794_000_000_000 + number, "payload": payload}
    type, fields = message_of("r-1", json.dumps(entry, ensure_ascii=False).encode())
    assert fields["turnId"] == "r-1"
    assert json.loads(entry_of("opencode", type, fields) or "") == entry
