"""The parts of the runner, each alone: the journal, lines, entries, and HTTP with a server that cannot be trusted."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.guest.runner import journal as journals
from holdfast.guest.runner.agent import Lines
from holdfast.guest.runner.backoff import Backoff
from holdfast.guest.runner.entries import Entries, plain
from holdfast.guest.runner.event_loop import Loop
from holdfast.guest.runner.http_client import Answer, HttpClient
from holdfast.guest.runner.journal import Journal
from holdfast.guest.runner.token import lifetime, token_in

# --- the journal ---


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=300), st.integers(1, 20)), max_size=80), st.integers(0, 400))
def test_a_journal_gives_back_what_it_got_in_order(steps: list[bytes | int], memory: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder, memory=memory, segment=500)
        expected: list[bytes] = []
        got: list[bytes] = []
        for step in steps:
            if isinstance(step, bytes):
                journal.add(step)
                expected.append(step)
            else:
                got += journal.take(1000, step)
        while taken := journal.take(1000, 7):
            got += taken
        assert got == expected
        assert len(journal) == 0
        assert list(Path(folder).iterdir()) == []
        journal.close()


def test_a_batch_has_at_least_one_entry_and_else_keeps_to_its_limits(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    for size in (5000, 10, 10, 990, 10):
        journal.add(b"x" * size)
    assert [len(each) for each in journal.take(1000, 10)] == [5000]
    assert [len(each) for each in journal.take(1000, 10)] == [10, 10]
    assert [len(each) for each in journal.take(1000, 1)] == [990]
    assert [len(each) for each in journal.take(1000, 10)] == [10]
    assert journal.take(1000, 10) == []


def test_a_disk_that_fills_up_in_the_middle_of_an_entry_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 300
    write = os.pwrite

    def limited(descriptor: int, data: bytes, offset: int) -> int:
        left = room - offset
        if left <= 0:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, data[:left], offset)

    monkeypatch.setattr(os, "pwrite", limited)
    journal = Journal(str(tmp_path), memory=100)
    entries = [b"%03d" % number + b"x" * 47 for number in range(20)]
    for entry in entries:
        journal.add(entry)
    assert journal.full
    assert journal.disk_problem == "no space left"
    assert [each for _ in range(20) for each in journal.take(50, 1)] == entries
    assert not journal.full


def forged(entry: bytes) -> bytes:
    """An entry as it would lie in a segment, by one who has to guess its code."""
    return len(entry).to_bytes(4, "big") + b"\0" * 16 + entry


@pytest.mark.parametrize(
    "change",
    {
        "another entry": lambda segment: forged(b"forged"),
        "another entry, and on": lambda segment: forged(b"forged") + segment[26:],
        "two exchanged": lambda segment: segment[25:50] + segment[:25],
        "a length beyond the end": lambda segment: b"\xff\xff\xff\xff" + segment[4:],
        "one byte": lambda segment: segment[:24] + b"X" + segment[25:],
        "nothing": lambda segment: b"",
    }.values(),
)
def test_what_others_write_into_a_segment_is_not_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    opened: list[int] = []
    make = journals.open_nameless

    def noted(folder: str) -> int:
        opened.append(make(folder))
        return opened[-1]

    monkeypatch.setattr(journals, "open_nameless", noted)
    journal = Journal(str(tmp_path), memory=1)
    for entry in (b"first", b"aaaaa", b"bbbbb"):
        journal.add(entry)
    segment = os.pread(opened[0], 1 << 16, 0)
    os.pwrite(opened[0], change(segment), 0)
    if not change(segment):
        os.ftruncate(opened[0], 0)
    assert journal.take(1000, 10) == [b"first"]
    assert journal.lost == 1


def test_a_segment_has_a_name_for_a_moment_only_where_it_cannot_be_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(journals.open_nameless(str(tmp_path)))
    opening = os.open

    def without(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", without)
    journal = Journal(str(tmp_path), memory=1)
    for entry in (b"first", b"second"):
        journal.add(entry)
    assert list(tmp_path.iterdir()) == []
    assert journal.take(1000, 10) == [b"first", b"second"]
    journal.close()


def test_what_the_disk_gives_back_wrong_is_not_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: read(*arguments).replace(b"right", b"wrong"))
    journal = Journal(str(tmp_path), memory=1)
    for entry in (b"first", b"right", b"last"):
        journal.add(entry)
    assert journal.take(1000, 10) == [b"first"]
    assert journal.lost == 1
    assert journal.take(1000, 10) == []


# --- lines ---


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 20))
def test_lines_are_the_same_however_they_come(pieces: list[bytes], limit: int) -> None:
    lines = Lines(limit)
    found = [line for piece in pieces for line in lines.add(piece)] + lines.rest()
    whole = b"".join(pieces).split(b"\n")
    expected = [line if len(line) <= limit else len(line) for line in whole]
    assert [each for each in found if each] == [each for each in expected if each]


# --- entries ---


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def entries_of(clock: Clock) -> tuple[Entries, list[dict[str, Any]]]:
    kept: list[dict[str, Any]] = []
    made = Entries("r-1", 3, "pi", lambda entry: kept.append(json.loads(entry)), clock, lambda: 1_000_000.0)
    return made, kept


def test_words_are_gathered_until_another_message_or_another_kind_comes() -> None:
    clock = Clock()
    entries, kept = entries_of(clock)
    for message, text in (("a", "1"), ("a", "2"), ("b", "3")):
        entries.add({"type": "pi.delta", "message": message, "text": text})
    entries.add({"type": "pi.delta", "message": "b", "thinking": "hm"})
    entries.add({"type": "pi.assistant", "text": "whole"})
    payloads = [each["payload"] for each in kept]
    assert payloads == [
        {"type": "pi.delta", "message": "a", "text": "12"},
        {"type": "pi.delta", "message": "b", "text": "3", "thinking": "hm"},
        {"type": "pi.assistant", "text": "whole"},
    ]
    assert [each["id"] for each in kept] == ["r-1-3-1", "r-1-3-2", "r-1-3-3"]


def test_the_first_word_after_a_silence_does_not_wait() -> None:
    clock = Clock()
    entries, kept = entries_of(clock)
    entries.add({"type": "pi.delta", "message": "a", "text": "1"})
    assert entries.wait() == 0
    entries.flush()
    clock.now += 0.005
    entries.add({"type": "pi.delta", "message": "a", "text": "2"})
    assert entries.wait() == pytest.approx(0.010)
    entries.flush()
    assert [each["payload"]["text"] for each in kept] == ["1", "2"]
    assert entries.wait() is None


def test_times_go_on_by_the_monotonic_clock() -> None:
    clock = Clock()
    entries, kept = entries_of(clock)
    entries.add({"type": "pi.event"})
    clock.now += 2
    entries.finish({"type": "signal.run.finished"})
    assert [each["ts"] for each in kept] == [1_000_000_000, 1_000_002_000]
    assert kept[-1]["id"] == "end-r-1"


def test_what_json_cannot_say_is_said_as_nearly_as_it_can() -> None:
    entries, kept = entries_of(Clock())
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    entries.add(
        {"type": "pi.event", "record": {"nan": float("nan"), "half": "\ud800", 5: {1, 2}.__class__, "deep": deep}}
    )
    record = kept[0]["payload"]["record"]
    assert record["nan"] is None
    assert record["half"] == "?"
    assert plain(float("inf")) is None


# --- the server's side of HTTP ---


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    signal.set_wakeup_fd(-1)


Open = Callable[..., HttpClient]


@pytest.fixture
def open_guest_api(loop: Loop) -> Iterator[Open]:
    opened: list[HttpClient] = []

    def make(url: str, **more: float) -> HttpClient:
        opened.append(HttpClient(loop, url, lambda: "token", **more))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


class Peer:
    """Answers with these bytes, one after the other for each connection or request, and hangs up when told to."""

    def __init__(self, answers: list[tuple[bytes, bool]]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests: list[bytes] = []
        self._answers = answers
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(10)
        self.listener.close()

    def _serve(self) -> None:
        answers = list(self._answers)
        while answers:
            connection, _ = self.listener.accept()
            with connection:
                while answers:
                    data = connection.recv(1 << 20)
                    if not data:
                        break
                    self.requests.append(data)
                    answer, hang_up = answers.pop(0)
                    connection.sendall(answer)
                    if hang_up:
                        break


def ask(loop: Loop, api: HttpClient) -> Answer | None:
    got: list[Answer | None] = []

    def then(answer: Answer | None) -> None:
        got.append(answer)
        loop.stop()

    def fail(error: BaseException) -> None:
        raise error

    loop._stopped = False
    api.post("/x", "", b"{}", then)
    if not got:
        loop.run(fail)
    return got[0]


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.0 500 Bad\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
def test_an_answer_is_read(loop: Loop, open_guest_api: Open, sent: bytes, body: bytes) -> None:
    with Peer([(sent, True)]) as peer:
        answer = ask(loop, open_guest_api(peer.url))
    assert answer is not None
    assert answer.body == body
    assert b"Authorization: Bearer token\r\n" in peer.requests[0]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-nobody\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    ],
)
def test_what_is_no_answer_is_trouble_and_no_more(loop: Loop, open_guest_api: Open, sent: bytes) -> None:
    with Peer([(sent, True)]) as peer:
        api = open_guest_api(peer.url)
        assert ask(loop, api) is None
    assert api.problem


def test_a_connection_is_kept_and_one_that_was_closed_is_made_again(loop: Loop, open_guest_api: Open) -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with Peer([(good, False), (good, True), (good, True)]) as peer:
        api = open_guest_api(peer.url)
        assert [ask(loop, api) is not None for _ in range(3)] == [True, True, True]
    assert len(peer.requests) == 3


def test_a_server_that_does_not_answer_is_given_up(loop: Loop, open_guest_api: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        api = open_guest_api(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.1)
        assert ask(loop, api) is None
        assert "no answer" in api.problem


def test_a_server_that_is_not_there_is_trouble(loop: Loop, open_guest_api: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    api = open_guest_api(f"http://127.0.0.1:{port}")
    assert ask(loop, api) is None
    assert "refused" in api.problem.lower()


# --- small things ---


def test_waits_grow_up_to_their_limit_and_begin_again() -> None:
    backoff = Backoff(0.1, 1.0)
    waits = [backoff.wait() for _ in range(10)]
    assert all(0.05 <= waits[0] <= 0.1 and 0.5 <= each <= 1.0 for each in waits[4:])
    backoff.reset()
    assert backoff.wait() <= 0.1


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "a.!!!.c", "a.e30.c", "a.W10.c", "a.bnVsbA.c"])
def test_a_token_that_does_not_say_how_long_it_lives_is_renewed_in_time(token: str) -> None:
    assert lifetime(token) == 1800


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 5}', b'{"token": "a\\r\\nb: c"}', b"\xff"])
def test_what_is_no_token_is_none(body: bytes) -> None:
    assert token_in(body) is None
