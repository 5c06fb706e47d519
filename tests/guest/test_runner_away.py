"""The runner and a server that is away, slow, forgetful or says no: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.disks import SmallDisk
from tests.guest.fake_guest_api import FakeGuestApi
from tests.guest.running import appears, start

from holdfast.threads.protocol.messages import Request, Response

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeGuestApi]:
    async with FakeGuestApi(tmp_path) as api:
        yield api


def numbers(count: int, done: Path, size: int = 0) -> str:
    """An agent that says so many things, and then that it has said them."""
    return f"for n in range({count}): say(n=n, x='x' * {size})\nopen({str(done)!r}, 'w').close()"


async def said(api: FakeGuestApi) -> list[int]:
    return [each["record"]["n"] for each in await api.payloads("event")]


def appends(request: Request) -> bool:
    return request.path.startswith("/v1/stream/") or request.path.startswith("threads/")


async def test_a_server_that_is_away_gets_everything_when_it_is_back(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"say(session='up')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
    running = await start(api, script + numbers(3000, tmp_path / "done", 2000), tmp_path / "state", beat=0.1)
    await api.until_posted("session")
    await api.go_away()
    (tmp_path / "go").touch()
    await appears(tmp_path / "done")  # the agent did not have to wait
    assert running.peak_memory() < 40 << 20
    await api.come_back()
    assert await running.wait() == 0
    assert await said(api) == list(range(3000))
    assert (await api.payloads())[-1]["status"] == "completed"
    assert not (tmp_path / "state").exists()


async def test_the_end_waits_for_a_server_that_is_away(api: FakeGuestApi, tmp_path: Path) -> None:
    running = await start(api, f"say(session='up')\nopen('{tmp_path}/done', 'w').close()", tmp_path / "state")
    await api.go_away()
    await appears(tmp_path / "done")
    await api.come_back()
    assert await running.wait() == 0
    assert [each["type"] for each in await api.payloads()] == ["scripted.session", "signal.run.finished"]


async def test_a_server_that_never_comes_back_is_not_waited_for_for_ever(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"say(session='up')\nopen('{tmp_path}/done', 'w').close(); time.sleep(1000)"
    running = await start(api, script, tmp_path / "state", limits={"seconds": 2, "grace": 0.1, "patience": 1})
    await appears(tmp_path / "done")
    await api.go_away()
    assert await running.wait() == 70
    assert not (tmp_path / "state").exists()


async def test_answers_that_are_lost_double_nothing(api: FakeGuestApi, tmp_path: Path) -> None:
    count = 0

    async def lose(request: Request) -> Response | None:
        nonlocal count
        count += 1
        if appends(request) and count % 2:
            raise ConnectionResetError
        return None

    api.after = lose
    assert await (await start(api, numbers(200, tmp_path / "done"), tmp_path / "state", beat=0.02)).wait() == 0
    assert await said(api) == list(range(200))
    ids = [each["id"] for each in await api.entries()]
    assert len(ids) == len(set(ids))


async def test_a_server_that_says_not_now_is_asked_again(api: FakeGuestApi, tmp_path: Path) -> None:
    answers = iter([500, 503, 429, 502, 408])

    async def refuse(request: Request) -> Response | None:
        status = next(answers, None) if appends(request) else None
        return None if status is None else Response(status, [])

    api.fault = refuse
    assert await (await start(api, numbers(10, tmp_path / "done"), tmp_path / "state")).wait() == 0
    assert await said(api) == list(range(10))


async def test_a_token_is_renewed_at_half_its_life(tmp_path: Path) -> None:
    async with FakeGuestApi(tmp_path, token_seconds=2) as api:
        waits = f"say(session='up')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\nsay(n=1)"
        running = await start(api, waits, tmp_path / "state", beat=0.1)

        async def renewed() -> bool:
            return ("/v1/tokens/renew", 200) in api.requests

        await api.until(renewed)
        (tmp_path / "go").touch()
        assert await running.wait() == 0
        assert 401 not in {status for _, status in api.requests}


async def test_a_token_that_the_server_takes_no_more_is_renewed_at_once(api: FakeGuestApi, tmp_path: Path) -> None:
    waits = f"say(session='up')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\nsay(n=1)"
    running = await start(api, waits, tmp_path / "state", beat=1000)
    await api.until_posted("session")
    api.valid.clear()
    (tmp_path / "go").touch()
    assert await running.wait() == 0
    assert await said(api) == [1]
    assert [status for path, status in api.requests if path.endswith("renew")] == [200]


async def test_a_run_whose_token_is_renewed_no_more_is_over(api: FakeGuestApi, tmp_path: Path) -> None:
    async def over(request: Request) -> Response | None:
        return Response(403, []) if request.path.endswith("renew") else None

    api.fault = over
    running = await start(api, "say(session='up'); time.sleep(1000)", tmp_path / "state", beat=0.05)
    await api.until_posted("session")
    api.valid.clear()
    assert await running.wait() == 75


async def test_what_is_too_large_together_is_posted_in_parts_and_what_is_too_large_alone_is_told_of(
    api: FakeGuestApi, tmp_path: Path
) -> None:
    async def small(request: Request) -> Response | None:
        return Response(413, []) if appends(request) and len(request.body) > 3000 else None

    api.fault = small
    script = "for n in range(50): say(n=n, x='x' * 500)\nsay(huge='x' * 5000)\nsay(n=50, x='')"
    assert await (await start(api, script, tmp_path / "state")).wait() == 0
    assert await said(api) == list(range(51))
    (notice,) = await api.payloads("notice")
    assert "413" in notice["text"]
    assert (await api.payloads())[-1]["status"] == "completed"


async def test_an_entry_that_the_server_refuses_holds_up_no_other(api: FakeGuestApi, tmp_path: Path) -> None:
    async def refuse(request: Request) -> Response | None:
        return Response(400, [], b'{"error": {"message": "bad"}}') if b"poison" in request.body else None

    api.fault = refuse
    script = "for n in range(20): say(n=n)\nsay(poison=1)\nfor n in range(20, 40): say(n=n)"
    assert await (await start(api, script, tmp_path / "state")).wait() == 0
    assert await said(api) == list(range(40))
    (notice,) = await api.payloads("notice")
    assert "bad" in notice["text"]


async def test_a_full_disk_makes_the_agent_wait_and_loses_nothing(api: FakeGuestApi, tmp_path: Path) -> None:
    with SmallDisk(1 << 20) as disk:
        state = disk.here / "state"
        script = f"say(session='up')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
        script += numbers(3000, tmp_path / "done", 2000)
        running = await start(api, script, state, limits={"memory": 200_000})
        await api.until_posted("session")
        await api.go_away()
        (tmp_path / "go").touch()
        assert b"the agent is paused" in await running.next_error()
        assert not (tmp_path / "done").exists()
        assert running.peak_memory() < 40 << 20
        await api.come_back()
        assert await running.wait() == 0
        assert await said(api) == list(range(3000))


async def test_a_journal_at_its_limit_makes_the_agent_wait(api: FakeGuestApi, tmp_path: Path) -> None:
    script = f"say(session='up')\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
    limits = {"memory": 100_000, "journal": 1_000_000}
    running = await start(api, script + numbers(3000, tmp_path / "done", 2000), tmp_path / "state", limits=limits)
    await api.until_posted("session")
    await api.go_away()
    (tmp_path / "go").touch()
    assert b"the journal is full" in await running.next_error()
    assert not (tmp_path / "done").exists()
    await api.come_back()
    assert await running.wait() == 0
    assert await said(api) == list(range(3000))


async def test_an_agent_killed_while_the_server_is_away_is_told_of_afterwards(
    api: FakeGuestApi, tmp_path: Path
) -> None:
    script = f"say(session=str(os.getpid()))\nfor n in range(100): say(n=n)\nopen('{tmp_path}/done', 'w').close()\n"
    running = await start(api, script + "time.sleep(1000)", tmp_path / "state")
    await api.until_posted("session")
    await api.go_away()
    await appears(tmp_path / "done")
    (session,) = (each for each in await api.payloads("session"))
    os.kill(int(session["session"]), signal.SIGKILL)
    api.limit = {"code": "memory_limit", "message": "the box ran out of memory", "hint": "give it more"}
    await api.come_back()
    assert await running.wait() == 0
    assert await said(api) == list(range(100))
    end = (await api.payloads())[-1]
    assert (end["exit_code"], end["error"]["code"]) == (137, "memory_limit")


async def test_a_server_that_goes_in_the_middle_of_a_request_gets_it_again(api: FakeGuestApi, tmp_path: Path) -> None:
    gone = False

    async def go(request: Request) -> Response | None:
        nonlocal gone
        if not gone and appends(request):
            gone = True
            await api.go_away()
            await api.come_back()
        return None

    api.fault = go
    assert await (await start(api, numbers(10, tmp_path / "done"), tmp_path / "state")).wait() == 0
    assert await said(api) == list(range(10))
