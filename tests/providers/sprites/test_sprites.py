"""The sprites provider against a cloud that misbehaves, and what it decides without one."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores import open_records

from holdfast.api.box.box import Box, Liveness, Power
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import ProcessState
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, BoxGone, BoxNotFound, BoxUnreachable, ProviderRefused, Unsupported
from holdfast.api.ids import now_ms
from holdfast.egress import EgressProxy
from holdfast.providers.accounts import choose
from holdfast.providers.check_result import CheckStatus
from holdfast.providers.retries import pause_before, read_retry_after
from holdfast.providers.sprites import Account, SpritesProvider, account, api, checks, guest_setup, network
from holdfast.providers.sprites import provider as provider_module
from holdfast.providers.sprites.api import read_frames
from holdfast.providers.sprites.descriptor import SPRITES
from holdfast.providers.sprites.records import BoxRecord
from holdfast.providers.sprites.retries import may_repeat
from holdfast.providers.stream import guest_client
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite.base import all_of, appears, eventually, prints
from holdfast.testing.provider_suite.networks import ask
from holdfast.testing.sprites import SpritesCounterpart

pytestmark = pytest.mark.anyio
NAMESPACE = secrets.token_hex(4)
SPEC = BoxSpec(provider="sprites")


@pytest.fixture
async def provider(counterpart: SpritesCounterpart, tmp_path: Path) -> AsyncIterator[SpritesProvider]:
    counterpart.faults.clear()
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        SpritesProvider(
            Account(counterpart.token, counterpart.url), namespace=NAMESPACE, folder=tmp_path / "sprites", egress=egress
        ) as provider,
    ):
        yield provider
        counterpart.faults.clear()
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.fixture
async def box(provider: SpritesProvider) -> Box:
    return await provider.create(SPEC, id=f"b-{secrets.token_hex(4)}")


# --- what a cloud can do to us ---


async def test_a_limit_of_requests_is_waited_for(provider: SpritesProvider, counterpart: SpritesCounterpart) -> None:
    counterpart.faults.refuse(429, retry_after="0.1", method="POST", path="/v1/sprites", times=2)
    counterpart.faults.refuse(429, method="PUT", path="/services")
    counterpart.faults.refuse(429, method="WEBSOCKET", path="/exec")
    box = await provider.create(SPEC, id="b-limited")
    assert (await box.exec(["true"])).ok


async def test_a_limit_that_takes_too_long_is_told(provider: SpritesProvider, counterpart: SpritesCounterpart) -> None:
    counterpart.faults.refuse(429, retry_after="3600", method="POST", path="/v1/sprites")
    with pytest.raises(ProviderRefused) as caught:
        await provider.create(SPEC, id="b-refused")
    assert caught.value.hint == "try again in 3600 s"
    assert await provider.probe("b-refused") is Liveness.GONE


async def test_a_passing_failure_is_not_noticed(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    counterpart.faults.refuse(500, method="GET", times=2)
    assert await provider.probe(box.id) is Liveness.LIVE
    counterpart.faults.delay(1.0, method="GET")
    assert await box.power() is Power.RUNNING


async def test_an_unreachable_control_plane_kills_nothing(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    process = await box.spawn(["sh", "-c", "until [ -e go ]; do sleep 0.02; done; echo on"])
    counterpart.faults.refuse(500, method="GET", times=1000)
    assert await provider.probe(box.id) is Liveness.UNKNOWN
    with pytest.raises(BoxUnreachable):
        await provider.find()
    # The stream is not the control plane.
    assert (await box.exec(["echo", "still"])).text == "still\n"
    assert (await (await provider.attach(box.id)).exec(["echo", "again"])).text == "again\n"
    counterpart.faults.clear()
    await box.files.write("go", b"")
    assert await process.wait(240) == 0


async def test_a_create_whose_answer_is_lost_makes_one_sprite(
    provider: SpritesProvider, counterpart: SpritesCounterpart
) -> None:
    counterpart.faults.refuse(502, method="POST", path="/v1/sprites", after=True)
    box = await provider.create(SPEC, id="b-lost")
    assert (await box.exec(["true"])).ok
    assert [name for name in counterpart.names if name.endswith("b-lost")] == [provider.sprite_name("b-lost")]


async def test_a_setup_that_is_cut_goes_on(provider: SpritesProvider, counterpart: SpritesCounterpart) -> None:
    for after in (50, 250, 400):
        counterpart.faults.cut(after)
        box = await provider.create(SPEC, id=f"b-cut-{after}")
        assert (await box.exec(["true"])).ok


async def test_a_stream_that_is_cut_in_mid_frame_loses_nothing_that_was_spawned(
    box: Box, counterpart: SpritesCounterpart
) -> None:
    process = await box.spawn(["sh", "-c", "echo begun; until [ -e go ]; do sleep 0.02; done; seq 1000; exit 5"])
    seen = await prints(process, b"begun\n")
    counterpart.faults.cut()
    with pytest.raises(BoxUnreachable):
        await box.exec(["sh", "-c", "head -c 1000000 /dev/zero; sleep 5"])
    await box.files.write("go", b"")
    assert await process.wait(240) == 5
    assert await all_of(process, offset=len(seen)) == b"".join(b"%d\n" % number for number in range(1, 1001))


async def test_a_stale_list_shows_what_is_gone_and_harms_nothing(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    await provider.find()
    counterpart.faults.stale_list = True
    await provider.find()
    await provider.remove(box.id)
    assert box.id in [each.id for each in await provider.find()]
    assert await provider.probe(box.id) is Liveness.GONE
    with pytest.raises(BoxNotFound):
        await provider.attach(box.id)
    await provider.sweep(keep=())
    assert await provider.remove(box.id) == 0


async def test_a_stale_list_hides_no_box_from_those_who_know_it(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    await provider.find()
    counterpart.faults.stale_list = True
    new = await provider.create(SPEC, id="b-hidden")
    assert await provider.probe(new.id) is Liveness.LIVE
    assert (await (await provider.attach(new.id)).exec(["true"])).ok
    assert (await provider.sweep()).removed == ()
    counterpart.faults.clear()
    assert {each.id for each in await provider.find()} == {box.id, new.id}


@pytest.mark.parametrize("days", [1, -1])
async def test_a_clock_that_is_off_and_an_old_list_end_no_box(
    provider: SpritesProvider, counterpart: SpritesCounterpart, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    counterpart.faults.delay(1.0, method="PUT", path="/services")
    creation = asyncio.create_task(provider.create(SPEC, id="b-young"))
    while not counterpart.names:  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0.02)
    await provider.find()
    counterpart.faults.stale_list = True
    monkeypatch.setattr(provider_module, "now_ms", lambda: now_ms() + days * 24 * 3_600_000)
    assert (await provider.sweep()).removed == ()
    box = await creation
    assert (await provider.sweep()).removed == ()
    assert (await box.exec(["true"])).ok


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("POST", "/v1/sprites", 503, BoxUnreachable),
        ("POST", "/v1/sprites", 403, ProviderRefused),
        ("POST", "/policy", 500, BoxUnreachable),
        ("PUT", "/services", 500, BoxUnreachable),
        ("WEBSOCKET", "/exec", 500, BoxUnreachable),
    ],
)
async def test_a_creation_that_fails_leaves_nothing(
    provider: SpritesProvider,
    counterpart: SpritesCounterpart,
    method: str,
    path: str,
    status: int,
    error: type[BoxError],
) -> None:
    counterpart.faults.refuse(status, method=method, path=path, times=1000)
    with pytest.raises(error):
        await provider.create(SPEC, id="b-1")
    assert counterpart.names == []
    counterpart.faults.clear()
    assert await provider.probe("b-1") is Liveness.GONE
    assert (await (await provider.create(SPEC, id="b-1")).exec(["true"])).ok


async def test_a_guest_that_never_answers_is_not_waited_for_without_end(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.files.write("file", b"kept")
    await box.stop()
    monkeypatch.setattr(guest_client, "_GREET_SECONDS", 1.0)
    monkeypatch.setattr(guest_setup, "join_command", lambda record: ["sleep", "60"])
    with pytest.raises(BoxUnreachable):
        await box.start()
    monkeypatch.undo()
    await box.start()
    assert await box.files.read("file") == b"kept"


async def test_a_checkpoint_that_is_never_finished_is_given_up(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_CHECKPOINT_SECONDS", 1.0)
    counterpart.faults.delay(20.0, method="POST", path="/checkpoint")
    with pytest.raises(BoxUnreachable):
        await box.snapshot()
    assert await provider.snapshots() == []
    assert (await box.exec(["true"])).ok


async def test_a_sprite_that_died_between_two_calls_goes_on_with_its_files(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    process = await box.spawn(["sleep", "1000"])
    await box.files.write("file", b"kept")
    await asyncio.to_thread(counterpart.sleep, provider.sprite_name(box.id))
    assert await eventually(lambda: _read(box), "the sprite did not come back") == b"kept"
    assert (await (await box.process(process.id)).info()).state is ProcessState.LOST


async def test_a_sprite_that_another_client_deletes_is_gone(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    running = asyncio.create_task(box.exec(["sh", "-c", "echo 1 > begun; exec sleep 1000"]))
    await appears(box, "begun")
    await asyncio.to_thread(counterpart.delete, provider.sprite_name(box.id))
    with pytest.raises(BoxGone):
        await running
    with pytest.raises(BoxGone):
        await box.exec(["true"])
    assert await provider.probe(box.id) is Liveness.GONE


async def test_a_sprite_that_slept_comes_back_with_its_guest_and_files(
    provider: SpritesProvider, box: Box, counterpart: SpritesCounterpart
) -> None:
    await box.files.write("file", b"kept")
    await asyncio.to_thread(counterpart.sleep, provider.sprite_name(box.id))
    assert await provider.probe(box.id) is Liveness.LIVE
    assert await eventually(lambda: _read(box), "the sprite did not wake") == b"kept"


async def test_a_stream_on_which_nothing_happens_is_closed_and_comes_back_with_the_next_call(
    counterpart: SpritesCounterpart, tmp_path: Path
) -> None:
    counterpart.faults.clear()
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        SpritesProvider(
            Account(counterpart.token, counterpart.url),
            namespace=NAMESPACE,
            folder=tmp_path / "sprites",
            egress=egress,
            idle_seconds=0.4,
        ) as provider,
    ):
        policy = NetworkPolicy(Network.ALLOW, ("somewhere.invalid",))
        box = await provider.create(BoxSpec(provider="sprites", network=policy), id="b-quiet")
        process = await box.spawn(["sleep", "1000"])
        await asyncio.sleep(1.5)
        assert provider.guest(box.id).alive, "something runs"
        await process.kill()
        await eventually(lambda: _closed(provider, box), "the stream stays open")
        seen = await box.activity()
        assert (seen.processes, seen.idle_seconds >= 0.4) == (0, True)
        assert (await provider.attach(box.id)).spec.network == policy
        assert await _closed(provider, box), "looking at a box does not wake it"
        assert b"403" in await ask(box)
        await provider.remove(box.id)


async def _closed(provider: SpritesProvider, box: Box) -> bool:
    return not provider.guest(box.id).alive


_HIDES = """
import os, time
os.fork() and os._exit(0)
os.setsid()
open("pid", "w").write(str(os.getpid()))
time.sleep(1000)
"""


async def test_a_stop_also_ends_what_hides(box: Box) -> None:
    await box.exec(["sh", "-c", 'env -i python3 -c "$1" > /dev/null 2>&1', "sh", _HIDES], timeout=20)
    await box.exec(["sh", "-c", "until [ -s pid ]; do sleep 0.02; done"], timeout=20)
    assert (await box.exec(["sh", "-c", "test -d /proc/$(cat pid)"])).ok
    await box.stop()
    await box.start()
    assert not (await box.exec(["sh", "-c", "test -d /proc/$(cat pid)"])).ok


async def _read(box: Box) -> bytes | None:
    try:
        return await box.files.read("file")
    except BoxUnreachable:
        return None


async def test_labels_that_the_api_refuses_are_kept_in_the_home(
    provider: SpritesProvider, counterpart: SpritesCounterpart
) -> None:
    counterpart.faults.refuse(422, method="POST", path="/v1/sprites")
    box = await provider.create(SPEC, id="b-unlabelled", labels={"a": "b"})
    assert (await box.exec(["true"])).ok
    assert [each.id for each in await provider.find({"a": "b"})] == ["b-unlabelled"]
    await box.stop()
    assert await (await provider.attach("b-unlabelled")).power() is Power.STOPPED


# --- health ---


async def test_a_token_that_is_not_accepted_is_told(counterpart: SpritesCounterpart, tmp_path: Path) -> None:
    async with SpritesProvider(
        Account("wrong", counterpart.url), namespace=NAMESPACE, folder=tmp_path / "sprites"
    ) as provider:
        with pytest.raises(ProviderRefused, match="does not accept the token"):
            await provider.create(SPEC, id="b-any")
        (step,) = await provider.diagnose()
        assert (step.ok, step.detail.partition(":")[0]) == (False, "probe-failed")
        assert "holdfast provider list" in (step.next_step or "")


async def test_an_api_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with SpritesProvider(
        Account("any", "http://127.0.0.1:9"), namespace=NAMESPACE, folder=tmp_path / "sprites"
    ) as provider:
        assert await provider.probe("b-any") is Liveness.UNKNOWN
        (step,) = await provider.diagnose()
        assert (step.ok, step.detail.partition(":")[0]) == (False, "unreachable")


async def test_the_way_in_is_checked_in_two_steps(
    counterpart: SpritesCounterpart, provider: SpritesProvider, tmp_path: Path
) -> None:
    assert [(step.name, step.ok) for step in await provider.check_access()] == [("reach", True), ("authorize", True)]
    async with SpritesProvider(
        Account("wrong", counterpart.url), namespace=NAMESPACE, folder=tmp_path / "sprites"
    ) as wrong:
        wrong.name = "work"
        reach, authorize = await wrong.check_access()
        assert (reach.ok, authorize.ok) == (True, False)
        assert authorize.next_step == "give another credential: holdfast provider add work"
    async with SpritesProvider(
        Account("any", "http://127.0.0.1:9"), namespace=NAMESPACE, folder=tmp_path / "sprites"
    ) as away:
        (step,) = await away.check_access()
        assert (step.name, step.ok) == ("reach", False)
        assert step.next_step


async def test_a_sprite_without_its_guest_is_told(provider: SpritesProvider, box: Box) -> None:
    assert all(step.ok for step in await provider.diagnose(box.id))
    await provider._api.sprite(provider.sprite_name(box.id)).delete_service("holdfast")
    await provider.guest(box.id).close()
    step = (await provider.diagnose(box.id))[-1]
    assert (step.ok, step.detail.partition(":")[0]) == (False, "agent-missing")
    assert "stop and start" in (step.next_step or "")
    await box.stop()
    await box.start()
    assert all(step.ok for step in await provider.diagnose(box.id))


@pytest.mark.parametrize(
    ("installed", "found", "answer", "status", "detail"),
    [
        (True, None, None, CheckStatus.MISSING, "no token"),
        (False, Account("t"), None, CheckStatus.LIMITED, "a token, but the SDK is not installed"),
        (True, Account("t"), 200, CheckStatus.OK, "ok: https://api.sprites.dev accepts the token"),
        (True, Account("t"), 401, CheckStatus.LIMITED, "probe-failed: https://api.sprites.dev answers with status 401"),
        (
            True,
            Account("t"),
            "off",
            CheckStatus.LIMITED,
            "unreachable: https://api.sprites.dev does not answer: off",
        ),
    ],
)
def test_the_doctor_says_what_is_there(
    installed: bool, found: Account | None, answer: int | str | None, status: CheckStatus, detail: str
) -> None:
    finding = checks.judge(installed, found, answer)
    assert (finding.status, finding.detail) == (status, detail)
    assert (finding.next_step is None) == (status is CheckStatus.OK)


# --- the network ---


async def test_a_sprite_applies_the_policy_itself_with_direct_networking(
    counterpart: SpritesCounterpart, tmp_path: Path
) -> None:
    counterpart.faults.clear()
    here = Account(counterpart.token, counterpart.url)
    async with SpritesProvider(here, namespace=NAMESPACE, folder=tmp_path / "sprites", direct=True) as provider:
        with pytest.raises(Unsupported, match="a rule with ports"):
            await provider.create(BoxSpec(network=NetworkPolicy(Network.ALLOW, ("a.invalid:22",))), id="b-ports")
        assert await provider.probe("b-ports") is Liveness.GONE
        policy = NetworkPolicy(Network.ALLOW, ("allowed.invalid",))
        box = await provider.create(BoxSpec(provider="sprites", network=policy), id="b-direct")
        sprite = provider._api.sprite(provider.sprite_name(box.id))
        rules = [(each.domain, each.action) for each in (await sprite.get_network_policy()).rules]
        assert rules == [("allowed.invalid", "allow"), ("*", "deny")]
        await box.set_network(NetworkPolicy(Network.OPEN))
        assert [each.domain for each in (await sprite.get_network_policy()).rules] == ["*"]
        await provider.remove(box.id)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (NetworkPolicy(Network.ALLOW, ("GET a.invalid",)), "a rule with methods"),
        (NetworkPolicy(Network.ALLOW, ("10.0.0.1",)), "a rule for an address"),
        (NetworkPolicy(Network.ALLOW, ("10.0.0.0/8",)), "a rule for an address"),
        (NetworkPolicy(Network.ALLOW, ("default",)), "the default list"),
        (NetworkPolicy(Network.ALLOW), "the default list"),
        (NetworkPolicy(Network.OPEN, bandwidth=2048), "a limit of bandwidth"),
        (NetworkPolicy(Network.OPEN, connections=3), "a limit of connections"),
    ],
)
def test_what_a_sprite_cannot_filter_is_refused_by_name(policy: NetworkPolicy, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        network.direct(policy)


# --- decisions ---


def test_pauses_grow_and_have_a_limit() -> None:
    assert [pause_before(attempt, None, 1.0) for attempt in range(3)] == [0.25, 0.5, 1.0]
    assert pause_before(50, None, 1.0) == 20.0
    assert pause_before(0, 3.0, 0.0) == 3.0
    assert pause_before(0, 21.0, 0.0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("7", 7.0), ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0), ("soon", None), ("-3", 0.0)],
)
def test_a_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert read_retry_after(text, 10.0) == seconds


@pytest.mark.parametrize(
    ("method", "path", "status", "repeated"),
    [
        ("GET", "/v1/sprites/a", 500, True),
        ("POST", "/v1/sprites", 500, True),
        ("POST", "/v1/sprites/a/exec", 429, True),
        ("POST", "/v1/sprites/a/exec", 500, False),
        ("POST", "/v1/sprites/a/checkpoint", None, False),
        ("DELETE", "/v1/sprites/a", None, True),
        ("GET", "/v1/sprites/a", 404, False),
    ],
)
def test_only_what_does_the_same_twice_is_repeated(method: str, path: str, status: int | None, repeated: bool) -> None:
    assert may_repeat(method, path, status) is repeated


def test_a_record_comes_back_from_its_labels() -> None:
    spec = BoxSpec(provider="sprites", env={"A": "ü" * 500})
    record = BoxRecord("b-1", spec, {"k": "v"}, 5, ready=True, environment={"PATH": "/bin"})
    labels = record.to_labels()
    assert max(map(len, labels)) <= 255
    assert BoxRecord.from_labels([*reversed(labels), "other"]) == record
    assert BoxRecord.from_labels(["other"]) is None
    assert BoxRecord.from_labels(["hf1.000.nonsense"]) is None


def test_framed_output_is_told_apart() -> None:
    done = read_frames(b"\x01out\n\x02err\x01 more\x03\x07")
    assert (done.exit_code, done.stdout, done.stderr) == (7, "out\n more", "err")


def test_a_token_is_that_of_a_flag_an_account_the_environment_or_the_vendors_file(tmp_path: Path) -> None:
    file = tmp_path / account.CONFIG
    file.parent.mkdir()
    file.write_text(json.dumps({"token": "of the file"}))
    places: dict[str, Any] = {"flags": {"sprites_token": "of a flag"}, "stored": {"sprites_token": "sealed"},
                              "environment": {"sprites_token": "of a variable"}}  # fmt: skip
    found = []
    for gone in ("", "flags", "stored", "environment"):
        if gone:
            places[gone] = {}
        values = choose(SPRITES, **places).values
        found.append(account.find_account(values.get("sprites_token"), None, tmp_path))
    assert [each and each.token for each in found] == ["of a flag", "sealed", "of a variable", "of the file"]


def test_a_token_is_taken_from_the_settings_and_then_from_the_vendors_file(tmp_path: Path) -> None:
    assert account.find_account(None, None, tmp_path) is None
    file = tmp_path / account.CONFIG
    file.parent.mkdir()
    organizations = {"one": {"api_token": "t-one"}, "two": {"api_token": "t-two"}}
    told = {
        "current_selection": {"url": "https://api.sprites.dev", "org": "two"},
        "urls": {"https://api.sprites.dev": {"orgs": organizations}},
    }
    file.write_text(json.dumps(told))
    assert account.find_account("given", None, tmp_path) == Account("given")
    assert account.find_account(None, None, tmp_path) == Account("t-two", source=str(file))
    file.write_text("nonsense")
    assert account.find_account(None, None, tmp_path) is None
