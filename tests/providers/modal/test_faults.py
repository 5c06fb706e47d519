"""Whatever Modal does to us, nothing is left behind and nothing is lost, and the error says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import modal
import pytest
from grpclib import Status
from modal.sandbox import _task_command_router_client
from modal_proto import api_pb2

from holdfast.api.box.box import Liveness, Power
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxNotFound, BoxUnreachable, ProviderRefused
from holdfast.api.ids import now_ms
from holdfast.providers.modal import Credentials, ModalProvider, account
from holdfast.providers.modal import provider as provider_module
from holdfast.testing.modal import FOREVER, Fault, ModalCloud
from holdfast.testing.provider_suite.base import all_of, prints

pytestmark = [pytest.mark.anyio, pytest.mark.box, pytest.mark.sampled]
SPEC = BoxSpec(provider="modal")


async def test_a_create_that_is_unavailable_for_a_moment_is_repeated(
    cloud: ModalCloud, modal_provider: ModalProvider
) -> None:
    cloud.faults.add(Fault("SandboxCreateV2", times=2, status=Status.UNAVAILABLE))
    cloud.faults.add(Fault("TaskExecStart", times=2, status=Status.UNAVAILABLE))
    box = await modal_provider.create(SPEC, id="b-1")
    assert (await box.exec(["true"])).ok
    assert len(cloud.running) == 1


@pytest.mark.parametrize(
    ("fault", "error", "status"),
    [
        (Fault("SandboxCreateV2", FOREVER, Status.UNAVAILABLE), BoxUnreachable, 503),
        (Fault("SandboxCreateV2", FOREVER, Status.RESOURCE_EXHAUSTED), ProviderRefused, 429),
        (Fault("SandboxCreateV2", FOREVER, Status.PERMISSION_DENIED), ProviderRefused, 403),
        # It was made, and the answer was lost.
        (Fault("SandboxCreateV2", FOREVER, Status.UNAVAILABLE, answers_first=True), BoxError, None),
        (Fault("TaskExecStart", FOREVER, Status.FAILED_PRECONDITION), BoxConflict, 409),
    ],
)
async def test_a_create_that_fails_leaves_nothing(
    cloud: ModalCloud, modal_provider: ModalProvider, fault: Fault, error: type[BoxError], status: int | None
) -> None:
    cloud.faults.add(replace(fault))
    with pytest.raises(error) as caught:
        await modal_provider.create(SPEC, id="b-1")
    assert status in (None, caught.value.status)
    assert cloud.running == []
    assert await modal_provider.find() == []
    assert await modal_provider.probe("b-1") is Liveness.GONE
    cloud.faults.clear()
    assert (await (await modal_provider.create(SPEC, id="b-1")).exec(["true"])).ok


async def test_a_rate_limit_with_a_time_to_come_back_is_waited_for(
    cloud: ModalCloud, modal_provider: ModalProvider
) -> None:
    cloud.faults.add(Fault("SandboxCreateV2", status=Status.RESOURCE_EXHAUSTED, retry_after=0.2))
    assert (await (await modal_provider.create(SPEC, id="b-1")).exec(["true"])).ok


async def test_what_could_not_be_ended_is_swept_away_later(cloud: ModalCloud, modal_provider: ModalProvider) -> None:
    cloud.faults.add(Fault("SandboxCreateV2", status=Status.INVALID_ARGUMENT, answers_first=True))
    cloud.faults.add(Fault("SandboxGetFromNameV2", FOREVER, Status.PERMISSION_DENIED))
    with pytest.raises(BoxError):
        await modal_provider.create(SPEC, id="b-1")
    assert len(cloud.running) == 1
    cloud.faults.clear()
    assert [line for line in (await modal_provider.sweep()).removed if "b-1" in line]
    assert cloud.running == []


async def test_a_box_whose_sandbox_has_finished_is_gone_and_cannot_be_stopped(
    cloud: ModalCloud, modal_provider: ModalProvider
) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    await cloud.finish(cloud.running[0])
    for work in (box.stop, box.snapshot, box.fork):
        with pytest.raises(BoxConflict) as caught:
            await work()
        assert caught.value.status == 409
        assert "already finished" in caught.value.message
    with pytest.raises(BoxGone):
        await box.power()
    with pytest.raises(BoxGone):
        await box.exec(["true"])
    with pytest.raises((BoxGone, BoxNotFound)):
        await modal_provider.attach("b-1")
    assert await modal_provider.probe("b-1") is Liveness.GONE
    assert await modal_provider.find() == []
    await modal_provider.remove("b-1")
    assert (await (await modal_provider.create(SPEC, id="b-1")).exec(["true"])).ok


async def test_a_snapshot_that_fails_loses_nothing(cloud: ModalCloud, modal_provider: ModalProvider) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    await box.files.write("file", b"kept")
    cloud.faults.add(Fault("TaskSnapshotFilesystem", times=3, status=Status.DATA_LOSS))
    for work in (box.stop, box.snapshot, box.fork):
        with pytest.raises(BoxUnreachable) as caught:
            await work()
        assert caught.value.status == 503
    assert await box.power() is Power.RUNNING
    assert await box.files.read("file") == b"kept"
    assert await modal_provider.snapshots() == []
    await box.stop()
    assert cloud.running == []
    await box.start()
    assert await box.files.read("file") == b"kept"


async def test_a_start_that_fails_leaves_the_box_stopped_with_its_files(
    cloud: ModalCloud, modal_provider: ModalProvider
) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    await box.files.write("file", b"kept")
    await box.stop()
    cloud.faults.add(Fault("TaskExecStart", times=1, status=Status.FAILED_PRECONDITION))
    with pytest.raises(BoxError):
        await box.start()
    assert await box.power() is Power.STOPPED
    assert cloud.running == []
    await box.start()
    assert await box.files.read("file") == b"kept"


async def test_output_is_whole_although_connections_are_cut(cloud: ModalCloud, modal_provider: ModalProvider) -> None:
    box = await modal_provider.create(SPEC, id="b-1")

    async def cuts() -> None:
        for _ in range(3):
            await asyncio.sleep(0.3)
            cloud.cut()

    script = "i=0; while [ $i -lt 150 ]; do echo $i; i=$((i + 1)); sleep 0.01; done"
    done, _ = await asyncio.gather(box.exec(["sh", "-c", script]), cuts())
    assert done.stdout == b"".join(b"%d\n" % number for number in range(150))
    await box.files.write("file", b"after" * 100_000)
    assert len(await box.files.read("file")) == 500_000


async def test_a_process_goes_on_when_its_stream_is_lost(cloud: ModalCloud, modal_provider: ModalProvider) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    process = await box.spawn(["sh", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 5"])
    await prints(process, b"one\n")
    for each in cloud.running[0].execs.values():
        await each.kill()
    # Whoever uses the stream when it is lost is told so. The next one gets another.
    with contextlib.suppress(BoxUnreachable):
        await box.exec(["true"])
    await box.files.write("go", b"")
    assert await process.wait(240) == 5
    assert await all_of(process) == b"one\ntwo\n"


async def test_a_control_plane_that_is_gone_kills_nothing(
    cloud: ModalCloud, modal_provider: ModalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    for method in ("SandboxWaitV2", "SandboxListV2"):
        cloud.faults.add(Fault(method, FOREVER, Status.UNAVAILABLE))
    assert await modal_provider.probe("b-1") is Liveness.UNKNOWN
    with pytest.raises(BoxUnreachable):
        await modal_provider.find()
    with pytest.raises(BoxUnreachable):
        await modal_provider.sweep()
    assert (await box.exec(["echo", "alive"])).text == "alive\n"
    assert (await (await modal_provider.attach("b-1")).exec(["echo", "again"])).text == "again\n"
    cloud.faults.clear()
    cloud.faults.add(Fault("SandboxWaitV2", seconds=5.0))
    monkeypatch.setattr(account, "CALL_SECONDS", 0.5)
    assert await modal_provider.probe("b-1") is Liveness.UNKNOWN
    monkeypatch.undo()
    assert await modal_provider.probe("b-1") is Liveness.LIVE


async def test_a_list_that_is_out_of_date_hides_no_box(cloud: ModalCloud, modal_provider: ModalProvider) -> None:
    await modal_provider.create(SPEC, id="b-1")
    cloud.freeze_list()
    await modal_provider.create(SPEC, id="b-2")
    assert [info.id for info in await modal_provider.find()] == ["b-1", "b-2"]
    assert (await modal_provider.sweep()).removed == ()
    await modal_provider.remove("b-1")
    assert [info.id for info in await modal_provider.find()] == ["b-2"]
    assert (await modal_provider.sweep()).removed == ()


async def test_a_sandbox_that_somebody_else_ends_between_two_calls_is_gone(
    cloud: ModalCloud, modal_provider: ModalProvider, credentials: Credentials
) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    token = (credentials.token_id, credentials.token_secret)
    async with modal.Client(cloud.url, api_pb2.CLIENT_TYPE_CLIENT, token) as other:
        sandbox = await modal.Sandbox.from_id.aio(cloud.running[0].id, client=other)
        await sandbox.terminate.aio(wait=True)
    with pytest.raises(BoxGone):
        await box.exec(["true"])
    assert await modal_provider.probe(box.id) is Liveness.GONE
    assert (await modal_provider.sweep()).removed == ()
    assert await modal_provider.remove(box.id) == 0


async def test_a_sandbox_that_never_begins_is_not_waited_for_without_end(
    cloud: ModalCloud, modal_provider: ModalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "CALL_SECONDS", 2.0)
    cloud.faults.add(Fault("TaskExecStart", FOREVER, seconds=60.0))
    with pytest.raises(BoxUnreachable) as caught:
        await modal_provider.create(SPEC, id="b-1")
    assert caught.value.status == 503
    assert cloud.running == []
    monkeypatch.undo()
    cloud.faults.clear()
    assert (await (await modal_provider.create(SPEC, id="b-1")).exec(["true"])).ok


@pytest.mark.parametrize("days", [1, -1])
async def test_a_clock_that_is_off_ends_no_box(
    cloud: ModalCloud, modal_provider: ModalProvider, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    box = await modal_provider.create(SPEC, id="b-1")
    monkeypatch.setattr(provider_module, "now_ms", lambda: now_ms() + days * 24 * 3_600_000)
    # By its own clock, the SDK takes the token of the sandbox's commands for expired, or for good for longer.
    monkeypatch.setattr(_task_command_router_client, "time", ShiftedTime(days * 24 * 3600))
    assert (await modal_provider.sweep()).removed == ()
    assert (await box.exec(["true"])).ok
    assert await modal_provider.probe(box.id) is Liveness.LIVE
    await box.stop()
    await box.start()
    assert (await box.exec(["true"])).ok


class ShiftedTime:
    """The module `time`, on a machine whose clock is off."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


async def test_a_restored_box_has_the_secrets_of_its_own_spec_alone(
    cloud: ModalCloud, modal_provider: ModalProvider
) -> None:
    box = await modal_provider.create(BoxSpec(provider="modal", env={"TOKEN": "an-old-secret"}), id="b-1")
    assert (await box.exec(["printenv", "TOKEN"])).text == "an-old-secret\n"
    snapshot = await box.snapshot()
    new = await modal_provider.restore(snapshot.id, BoxSpec(provider="modal", env={"TOKEN": "a-new-one"}), id="b-2")
    assert (await new.exec(["printenv", "TOKEN"])).text == "a-new-one\n"
    places = ["/workspace", "/tmp", "/var/tmp", "/run", "/home", "/root", "/etc"]
    script = 'cat /proc/[0-9]*/environ; grep -rlsF "an-old-secret" "$@"'
    assert b"an-old-secret" not in (await new.exec(["sh", "-c", script, "sh", *places])).stdout
    assert not any("an-old-secret" in str(each.definition) for each in cloud.running)


async def test_a_sandbox_that_no_record_names_is_ended(
    cloud: ModalCloud, modal_provider: ModalProvider, tmp_path: Path
) -> None:
    await modal_provider.create(SPEC, id="b-1")
    (tmp_path / "home" / "boxes" / "b-1.json").unlink()
    assert len((await modal_provider.sweep()).removed) == 1
    assert cloud.running == []


async def test_a_wrong_token_is_refused_by_name_and_not_before_it_is_used(
    tmp_path: Path, credentials: Credentials
) -> None:
    wrong = Credentials(credentials.token_id, "wrong", credentials.server_url)
    async with ModalProvider(tmp_path / "home", wrong) as provider:
        assert [step.ok for step in await provider.diagnose()] == [False]
        with pytest.raises(ProviderRefused) as caught:
            await provider.create(SPEC, id="b-1")
        assert caught.value.hint is not None
        assert "modal token" in caught.value.hint
    assert "wrong" not in repr(wrong)


async def test_a_modal_that_is_not_there_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "CONNECT_SECONDS", 1.0)
    nowhere = Credentials("ak-1", "as-1", "http://127.0.0.1:9")
    async with ModalProvider(tmp_path / "home", nowhere) as provider:
        with pytest.raises(BoxUnreachable):
            await provider.create(SPEC, id="b-1")
        assert await provider.find() == []
