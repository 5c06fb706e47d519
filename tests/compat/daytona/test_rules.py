"""What the Daytona API decides without a server: Dockerfiles, networks, intervals, multipart bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.box.network import Network
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.rows import BoxRow
from holdfast.compat.daytona.http.errors import ApiError
from holdfast.compat.daytona.http.multipart import parts_of
from holdfast.compat.daytona.intervals import Due, due
from holdfast.compat.daytona.network import policy_of
from holdfast.compat.daytona.pending import Pending
from holdfast.compat.daytona.records import Record
from holdfast.compat.daytona.sandbox_record import KIND, Sandbox, SandboxDetails
from holdfast.compat.daytona.snapshot.dockerfile import read_dockerfile

MINUTE = 60_000


def test_a_dockerfile_becomes_steps() -> None:
    plan = read_dockerfile(
        """# a comment
ARG TAG=12
FROM debian:$TAG AS base
ENV A=1 B="two words"
WORKDIR /app
RUN echo one && \\
    echo two
RUN ["echo", "three"]
USER app
CMD ["sleep", "infinity"]
"""
    )
    assert plan.image == "debian:12"
    assert plan.env == {"A": "1", "B": "two words"}
    assert plan.workdir == "/app"
    assert [step.argv[-1] for step in plan.steps] == ["/app", "echo one &&      echo two", "three"]
    assert plan.steps[-1].workdir == "/app"
    assert read_dockerfile("FROM alpine:3").is_plain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RUN x",
        "FROM a\nFROM b",
        "FROM a\nCOPY x y",
        "FROM a\nADD http://x y",
        "FROM",
        "FROM a\nX",
    ],
)
def test_a_dockerfile_that_a_box_cannot_follow_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_dockerfile(text)
    assert caught.value.status == 400


_TEXT = "x" * 1024


@pytest.mark.parametrize(
    "text",
    [
        f"FROM a\nENV A={_TEXT}\n" + "ENV A=$A$A\n" * 7,
        f"FROM a\nENV A={_TEXT}\n" + "ENV A=$A B=$A\n" * 64,
        f"FROM a\nENV A={_TEXT}\nWORKDIR /" + "$A" * 128,
        f"ARG A={_TEXT}\nFROM " + "$A" * 128,
        "FROM a\nENV A=" + "x" * 131_072,
        "FROM a\n" + "ENV A=1\n" * 20_000,
        "FROM a\n" + "RUN x\n" * 201,
        "FROM a\n" + "WORKDIR x\n" * 201,
    ],
    ids=["doubled", "repeated", "folder", "image", "long", "instructions", "steps", "folders"],
)
def test_a_dockerfile_that_grows_while_it_is_read_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="at most") as caught:
        read_dockerfile(text)
    assert caught.value.status == 400


def test_a_command_that_is_no_list_of_words_is_one_for_the_shell() -> None:
    deep = "[" * 100_000
    assert read_dockerfile(f"FROM a\nRUN {deep}").steps[0].argv == ("/bin/sh", "-c", deep)
    assert read_dockerfile("FROM a\nENTRYPOINT [1]").entrypoint == ("/bin/sh", "-c", "[1]")


def test_network_settings_are_mapped() -> None:
    assert policy_of(False, None, None).mode is Network.OPEN
    assert policy_of(True, None, None).mode is Network.NONE
    allowed = policy_of(False, "203.0.113.7/32,198.51.100.9/24, 2606:4700::/32", "example.com, *.example.org")
    ports = "22,80,443,8080,8443"
    assert allowed.allow == (
        f"203.0.113.7:{ports}", f"198.51.100.0/24:{ports}", f"[2606:4700::/32]:{ports}", "example.com", "*.example.org",
    )  # fmt: skip
    allowed.check()
    for refused in ((True, None, "a.b"), (False, "10.0.0.0/33", None), (False, "x", None), (False, None, "a.b:80")):
        with pytest.raises(ApiError):
            policy_of(*refused)


def _sandbox(state: BoxState, **details: Any) -> Sandbox:
    row = BoxRow(
        id="b-1", tenant="default", node="n", provider="p", key=None, spec=BoxSpec(), labels={}, state=state,
        created_at=0, changed_at=0, last_active_at=0,
    )  # fmt: skip
    document = SandboxDetails(box="b-1", target="p", **details).to_document()
    return Sandbox(Record(KIND, "b-1", "b-1", document, 0, 0), row)


@pytest.mark.parametrize(
    ("state", "details", "minutes", "wanted"),
    [
        (BoxState.RUNNING, {}, 14, None),
        (BoxState.RUNNING, {}, 15, Due.STOP),
        (BoxState.RUNNING, {"auto_stop": 0}, 10_000, None),
        (BoxState.RUNNING, {"auto_stop": 0, "auto_pause": 5}, 5, Due.PAUSE),
        (BoxState.RUNNING, {"ttl_minutes": 3}, 3, Due.END),
        (BoxState.STOPPED, {}, 7 * 24 * 60, Due.ARCHIVE),
        (BoxState.STOPPED, {"archived": True}, 7 * 24 * 60, None),
        (BoxState.STOPPED, {"auto_delete": 30}, 29, None),
        (BoxState.STOPPED, {"auto_delete": 30}, 30, Due.DELETE),
        (BoxState.STOPPED, {"auto_delete": 0}, 0, Due.DELETE),
        (BoxState.CREATING, {}, 10_000, None),
    ],
)
def test_intervals_decide(state: BoxState, details: dict[str, Any], minutes: int, wanted: Due | None) -> None:
    assert due(_sandbox(state, **details), minutes * MINUTE, in_use=False) is wanted


def test_a_sandbox_in_use_is_not_stopped() -> None:
    assert due(_sandbox(BoxState.RUNNING), 60 * MINUTE, in_use=True) is None


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_multipart_bodies_are_read_however_they_are_cut(size: int) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\none\r\n'
        b'--B\r\nContent-Disposition: form-data; name="b"; filename="x \\"y\\".txt"\r\n\r\n'
        b"two\r\n--not the end\r\n\r\n--B--\r\nafter"
    )

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    found = []
    async for part in parts_of(pieces(), "multipart/form-data; boundary=B"):
        found.append((part.name, part.filename, b"".join([piece async for piece in part.data])))
    assert found == [("a", None, b"one"), ("b", 'x "y".txt', b"two\r\n--not the end\r\n")]


@pytest.mark.anyio
async def test_builds_are_bounded_and_end_with_their_owner() -> None:
    told: list[str] = []
    pending = Pending(lambda sandbox: told.append(sandbox.state))
    ended: list[str] = []

    async def forever(log: Callable[[str], None]) -> None:
        try:
            log("begun")
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def failing(log: Callable[[str], None]) -> None:
        raise ApiError(400, "no such image")

    for number in range(20):
        pending.begin(_named(f"n-{number}"), forever)
    with pytest.raises(ApiError) as caught:
        pending.begin(_named("one-too-many"), forever)
    assert caught.value.status == 429
    with pytest.raises(ApiError) as caught:
        pending.begin(_named("n-3"), forever)
    assert caught.value.status == 409
    await asyncio.sleep(0)
    await pending.remove("n-3")
    assert pending.find("n-3") is None
    pending.begin(_named("fails"), failing)
    log = pending.log_of("fails")
    assert log is not None
    assert [line async for line in log.lines(follow=True)] == [b"no such image\n"]
    failed = pending.find("fails")
    assert failed is not None
    assert (failed.state, failed.problem) == ("build_failed", "no such image")
    assert "build_failed" not in told, "an event would bring the state without the reason"
    await pending.close()
    assert len(ended) == 20
    assert pending.all() == []


def _named(name: str) -> Sandbox:
    sandbox = _sandbox(BoxState.CREATING)
    return replace(sandbox, record=replace(sandbox.record, id=name, name=name))
