"""Whatever Daytona does to us, nothing is left behind and nothing is lost, and the error says what to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.providers.daytona.conftest import account_of
from tests.providers.daytona.faulty_proxy import FOREVER, Fault, FaultyProxy

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import (
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    ProviderRefused,
    Unsupported,
)
from holdfast.api.ids import now_ms
from holdfast.providers.daytona import Account, DaytonaProvider, api
from holdfast.providers.daytona import provider as provider_module
from holdfast.testing.provider_suite.base import all_of, eventually, prints
from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.sampled]
SPEC = BoxSpec(provider="daytona")
CREATE = r"/daytona/sandbox$"
ONE = r"/daytona/sandbox/[^/]+$"
CONTROL_PLANE = r"/daytona/(sandbox|snapshots|volumes)"


@pytest.fixture
async def daytona(daytona_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody else with the same key, who does not go through the proxy."""
    headers = {"Authorization": f"Bearer {daytona_server.api_key}"}
    url = f"{daytona_server.url}/compat/daytona"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=240, trust_env=False) as client:
        yield client


@pytest.fixture
async def box(provider: DaytonaProvider) -> Box:
    return await provider.create(SPEC, id="b-1")


def in_state(state: str, **more: Any) -> Any:
    return lambda sandbox: {**sandbox, "state": state, **more}


# --- limits and failures that pass ---


async def test_a_limit_of_requests_is_waited_for(provider: DaytonaProvider, proxy: FaultyProxy) -> None:
    faults = [
        proxy.add(Fault("POST", CREATE, 2, 429, {"Retry-After": "0.1"})),
        proxy.add(Fault("POST", "/process/execute", 1, 429)),
        proxy.add(Fault("PUT", "/labels", 1, 429)),
        proxy.add(Fault("WEBSOCKET", "/process/pty", 1, 429)),
    ]
    box = await provider.create(SPEC, id="b-limited")
    assert (await box.exec(["true"])).ok
    assert [fault.seen for fault in faults] == [2, 1, 1, 1]


async def test_a_limit_that_takes_too_long_is_told(provider: DaytonaProvider, proxy: FaultyProxy) -> None:
    proxy.add(Fault("POST", CREATE, 1, 429, {"Retry-After": "3600"}))
    with pytest.raises(ProviderRefused) as caught:
        await provider.create(SPEC, id="b-refused")
    assert (caught.value.status, caught.value.hint) == (429, "try again in 3600 s")
    assert await provider.probe("b-refused") is Liveness.GONE


async def test_a_passing_failure_is_not_noticed(provider: DaytonaProvider, box: Box, proxy: FaultyProxy) -> None:
    proxy.add(Fault("GET", ONE, 2, 500))
    assert await provider.probe(box.id) is Liveness.LIVE
    proxy.add(Fault("GET", ONE, 1, cut=True))
    assert await box.power() is Power.RUNNING
    proxy.add(Fault("GET", ONE, 1, seconds=1.0))
    assert await box.power() is Power.RUNNING
    proxy.add(Fault("GET", CREATE, 1, cut=True))
    assert [info.id for info in await provider.find()] == [box.id]


@pytest.mark.parametrize("fault", [{"status": 502}, {"cut": True}])
async def test_a_sandbox_whose_creation_was_not_answered_is_not_created_twice(
    provider: DaytonaProvider, proxy: FaultyProxy, daytona: httpx.AsyncClient, fault: dict[str, Any]
) -> None:
    lost = proxy.add(Fault("POST", CREATE, passes=True, **fault))
    box = await provider.create(SPEC, id="b-once")
    assert lost.seen == 1
    assert (await box.exec(["true"])).ok
    [sandbox] = (await daytona.get("/sandbox")).json()["items"]
    assert sandbox["name"] == provider.sandbox_name("b-once")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("POST", CREATE, FOREVER, 503), BoxUnreachable),
        (Fault("POST", CREATE, FOREVER, 403), ProviderRefused),
        (Fault("POST", "/process/execute", FOREVER, 500), BoxUnreachable),
        (Fault("WEBSOCKET", "/process/pty", FOREVER, 500), BoxUnreachable),
        (Fault("PUT", "/labels", FOREVER, 500), BoxUnreachable),
    ],
)
async def test_a_creation_that_fails_leaves_nothing(
    provider: DaytonaProvider, proxy: FaultyProxy, daytona: httpx.AsyncClient, fault: Fault, error: type[BoxError]
) -> None:
    proxy.add(fault)
    with pytest.raises(error):
        await provider.create(SPEC, id="b-1")
    assert (await daytona.get("/sandbox")).json()["items"] == []
    proxy.clear()
    assert await provider.probe("b-1") is Liveness.GONE
    assert (await (await provider.create(SPEC, id="b-1")).exec(["true"])).ok


# --- a control plane that is gone ---


async def test_a_box_lives_on_without_its_control_plane(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy
) -> None:
    process = await box.spawn(["sh", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 5"])
    await prints(process, b"one\n")
    proxy.add(Fault(".*", CONTROL_PLANE, FOREVER, 503))
    assert await provider.probe(box.id) is Liveness.UNKNOWN
    for work in (provider.find, provider.sweep, box.power):
        with pytest.raises(BoxUnreachable):
            await work()
    assert (await box.exec(["echo", "alive"])).text == "alive\n"
    assert (await (await provider.attach(box.id)).exec(["echo", "again"])).text == "again\n"
    # Even a new stream is opened, over the toolbox alone.
    assert proxy.cut() == 1
    with contextlib.suppress(BoxUnreachable):  # whoever uses the stream when it is lost is told so
        await box.exec(["true"])
    await box.files.write("go", b"")
    assert await process.wait(240) == 5
    assert await all_of(process) == b"one\ntwo\n"
    proxy.clear()
    assert await provider.probe(box.id) is Liveness.LIVE


async def test_a_daytona_that_is_not_there_stops_no_server(tmp_path: Path) -> None:
    async with DaytonaProvider(tmp_path, Account("key", "http://127.0.0.1:9")) as provider:
        assert await provider.probe("b-1") is Liveness.UNKNOWN
        [step] = await provider.diagnose()
        assert not step.ok
        with pytest.raises(BoxUnreachable):
            await provider.create(SPEC, id="b-1")


async def test_a_wrong_key_is_refused_by_name(tmp_path: Path, daytona_server: ServerProcess) -> None:
    account = account_of(daytona_server)
    async with DaytonaProvider(tmp_path, Account("wrong", account.api_url)) as provider:
        with pytest.raises(ProviderRefused) as caught:
            await provider.create(SPEC, id="b-1")
        assert "--daytona-api-key" in (caught.value.hint or "")


async def test_output_is_whole_although_streams_are_cut(box: Box, proxy: FaultyProxy) -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo $i; i=$((i + 1)); sleep 0.005; done"
    process = await box.spawn(["sh", "-c", script])
    for _ in range(3):
        await asyncio.sleep(0.2)
        proxy.cut()
    assert await process.wait(240) == 0
    assert await all_of(process) == b"".join(b"%d\n" % number for number in range(300))


# --- what others do ---


async def test_a_list_that_is_out_of_date_hides_no_box_and_shows_none_that_is_gone(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy, daytona: httpx.AsyncClient
) -> None:
    stale = (await daytona.get("/sandbox")).json()
    proxy.add(Fault("GET", CREATE, FOREVER, change=lambda fresh: stale))
    await provider.create(SPEC, id="b-2")
    assert [info.id for info in await provider.find()] == ["b-1", "b-2"]
    await provider.remove("b-1")
    assert [info.id for info in await provider.find()] == ["b-2"]
    assert (await provider.sweep()).removed == ()


@pytest.mark.parametrize("days", [1, -1])
async def test_a_clock_that_is_off_and_an_old_list_end_no_box(
    provider: DaytonaProvider,
    proxy: FaultyProxy,
    daytona: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
) -> None:
    proxy.add(Fault("PUT", "/labels", seconds=1.0))  # which says that it is whole
    creation = asyncio.create_task(provider.create(SPEC, id="b-1"))

    async def listed() -> Any:
        found = (await daytona.get("/sandbox")).json()
        return found if found["items"] else None

    stale = await eventually(listed, "the sandbox is not created")
    monkeypatch.setattr(provider_module, "now_ms", lambda: now_ms() + days * 24 * 3_600_000)
    assert (await provider.sweep()).removed == ()
    box = await creation
    proxy.add(Fault("GET", CREATE, FOREVER, change=lambda fresh: stale))
    assert (await provider.sweep()).removed == ()
    assert (await box.exec(["true"])).ok


async def test_a_box_that_somebody_else_deleted_is_gone(
    provider: DaytonaProvider, box: Box, daytona: httpx.AsyncClient
) -> None:
    assert (await daytona.delete(f"/sandbox/{provider.sandbox_name(box.id)}")).is_success
    for work in (box.power, box.stop, box.snapshot, lambda: box.exec(["true"])):
        with pytest.raises(BoxGone):
            await work()
    with pytest.raises(BoxNotFound):
        await provider.attach(box.id)
    assert await provider.probe(box.id) is Liveness.GONE
    assert await provider.find() == []
    assert await provider.remove(box.id) == 0


async def test_a_box_that_somebody_else_stopped_is_stopped_and_starts_with_its_files(
    provider: DaytonaProvider, box: Box, daytona: httpx.AsyncClient
) -> None:
    await box.files.write("file", b"kept")
    assert (await daytona.post(f"/sandbox/{provider.sandbox_name(box.id)}/stop")).is_success
    with pytest.raises((BoxStopped, BoxUnreachable)):  # the stream may not know yet
        await box.exec(["true"])
    with pytest.raises(BoxStopped):
        await box.exec(["true"])
    assert await box.power() is Power.STOPPED
    assert (await daytona.post(f"/sandbox/{provider.sandbox_name(box.id)}/archive")).is_success
    assert await box.power() is Power.STOPPED
    await box.start()
    assert await box.files.read("file") == b"kept"


async def test_a_box_that_somebody_else_stopped_and_started_gets_its_guest_again(
    provider: DaytonaProvider, box: Box, daytona: httpx.AsyncClient
) -> None:
    await box.files.write("file", b"kept")
    for action in ("stop", "start"):
        assert (await daytona.post(f"/sandbox/{provider.sandbox_name(box.id)}/{action}")).is_success
    with contextlib.suppress(BoxUnreachable):
        await box.exec(["true"])
    assert await box.files.read("file") == b"kept"


# --- states ---


async def test_a_state_that_never_comes_is_not_waited_for_without_end(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "START_SECONDS", 1.0)
    proxy.add(Fault("GET", ONE, FOREVER, change=in_state("stopping")))
    with pytest.raises(BoxUnreachable, match="still stopping"):
        await box.start()
    proxy.clear()
    assert (await box.exec(["true"])).ok


@pytest.mark.parametrize("state", ["unknown", "levitating"])
async def test_a_state_that_nobody_knows_is_unknown(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy, state: str
) -> None:
    proxy.add(Fault("GET", ONE, FOREVER, change=in_state(state)))
    assert await provider.probe(box.id) is Liveness.UNKNOWN
    with pytest.raises(BoxUnreachable):
        await box.power()
    assert (await box.exec(["true"])).ok


@pytest.mark.parametrize("state", ["destroying", "destroyed"])
async def test_a_sandbox_that_is_being_destroyed_is_gone(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy, state: str
) -> None:
    proxy.add(Fault("GET", ONE, FOREVER, change=in_state(state)))
    assert await provider.probe(box.id) is Liveness.GONE


async def test_a_box_whose_start_fails_for_good_is_gone(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy
) -> None:
    await box.stop()
    proxy.add(Fault("GET", ONE, FOREVER, change=in_state("error", errorReason="its runner burnt down")))
    proxy.add(Fault("POST", "/start$", FOREVER, 400))
    assert await provider.probe(box.id) is Liveness.LIVE  # starting it may help
    with pytest.raises(BoxGone, match="its runner burnt down"):
        await box.start()
    assert await provider.probe(box.id) is Liveness.GONE
    assert await provider.remove(box.id) == 0


async def test_an_error_that_can_be_recovered_from_loses_no_box(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy
) -> None:
    await box.stop()
    proxy.add(Fault("GET", ONE, FOREVER, change=in_state("error", recoverable=True)))
    failing = proxy.add(Fault("POST", "/recover$", FOREVER, 400))
    with pytest.raises(BoxUnreachable):
        await box.start()
    assert failing.seen == 1
    assert await provider.probe(box.id) is Liveness.LIVE
    proxy.clear()
    await box.start()
    assert (await box.exec(["true"])).ok


# --- features that an installation lacks ---


async def test_a_daytona_without_snapshots_says_so(provider: DaytonaProvider, box: Box, proxy: FaultyProxy) -> None:
    proxy.add(Fault("POST", "/snapshot$", 1, 404))
    with pytest.raises(Unsupported, match="does not have that feature"):
        await box.snapshot()
    proxy.add(Fault("POST", "/snapshot$", 1, 403))
    with pytest.raises(ProviderRefused, match="does not let you take snapshots"):
        await box.snapshot()
    proxy.add(Fault("POST", "/fork$", 1, 404))
    with pytest.raises(Unsupported, match="fork"):
        await box.fork()
    assert await provider.snapshots() == []
    assert (await box.exec(["true"])).ok


async def test_a_snapshot_is_waited_for_until_it_is_active(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy
) -> None:
    pulling = proxy.add(Fault("GET", "/snapshots/", 2, change=lambda found: {**found, "state": "pulling"}))
    snapshot = await box.snapshot()
    assert pulling.seen == 2
    proxy.add(Fault("GET", "/snapshots/", 1, change=lambda found: {**found, "state": "error", "errorReason": "full"}))
    with pytest.raises(BoxUnreachable, match="full"):
        await box.snapshot()
    assert await provider.snapshots() == [snapshot]
    await provider.delete_snapshot(snapshot.id)


async def test_a_snapshot_that_never_becomes_active_is_given_up(
    provider: DaytonaProvider, box: Box, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SNAPSHOT_SECONDS", 2.0)
    proxy.add(Fault("GET", "/snapshots/", FOREVER, change=lambda found: {**found, "state": "pending"}))
    with pytest.raises(BoxUnreachable, match="still pending"):
        await box.snapshot()
    assert await provider.snapshots() == []
