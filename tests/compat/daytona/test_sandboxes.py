"""Sandboxes by the SDK: creating, finding, listing, and their lifecycle."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    ListSandboxesQuery,
    Resources,
    Sandbox,
    SandboxState,
    SessionExecuteRequest,
)

from holdfast.api.errors.boxes import BoxConflict
from holdfast.client import SyncClient
from holdfast.testing.server import ServerProcess


def test_a_new_sandbox_is_started_and_runs_commands(sandbox: Sandbox) -> None:
    assert sandbox.state == SandboxState.STARTED
    assert sandbox.process.exec("echo here").result == "here\n"
    assert sandbox.toolbox_proxy_url.endswith("/compat/daytona/toolbox")
    assert (sandbox.cpu, sandbox.memory, sandbox.disk, sandbox.gpu) == (1, 1, 3, 0)
    assert (sandbox.auto_stop_interval, sandbox.auto_delete_interval) == (15, -1)


def test_a_sandbox_keeps_its_box(sandbox: Sandbox, daytona: Daytona, daytona_server: ServerProcess) -> None:
    """A move would give its files to a box with another id, and the sandbox would be gone."""
    with SyncClient(daytona_server.url, api_key=daytona_server.api_key) as client:
        with pytest.raises(BoxConflict, match=f"box {sandbox.id} is that of sandbox {sandbox.name}") as caught:
            client.boxes.move(sandbox.id, "process")
        assert "copy the files" in (caught.value.hint or "")
    assert daytona.get(sandbox.id).process.exec("echo here").result == "here\n"


def test_a_sandbox_is_what_was_asked_for(daytona: Daytona) -> None:
    name = f"name-{uuid.uuid4()}"
    made = daytona.create(
        CreateSandboxFromSnapshotParams(
            name=name,
            snapshot="daytona-small",
            env_vars={"COLOR": "blue"},
            labels={"team": "a"},
            public=True,
            auto_stop_interval=0,
            auto_archive_interval=60,
            auto_delete_interval=120,
            network_block_all=True,
            language="typescript",
        )
    )
    found = daytona.get(name)
    assert found.id == made.id
    assert found.env == {"COLOR": "blue"}
    assert found.labels["team"] == "a"
    assert found.public
    assert (found.auto_stop_interval, found.auto_archive_interval, found.auto_delete_interval) == (0, 60, 120)
    assert found.network_block_all
    assert found.snapshot == "daytona-small"
    assert found.process.exec("echo $COLOR").result == "blue\n"
    daytona.delete(found, wait=True)
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(name)


def test_a_name_is_taken_once(daytona: Daytona) -> None:
    name = f"twice-{uuid.uuid4()}"
    made = daytona.create(CreateSandboxFromSnapshotParams(name=name))
    with pytest.raises(DaytonaConflictError, match="already exists"):
        daytona.create(CreateSandboxFromSnapshotParams(name=name))
    made.delete()


@pytest.mark.parametrize("name", ["team/box", "/", ".", "..", "two\nlines"])
def test_a_name_that_no_address_can_have_is_refused(daytona: Daytona, shared: Sandbox, name: str) -> None:
    with pytest.raises(DaytonaBadRequestError, match="name"):
        daytona.create(CreateSandboxFromSnapshotParams(name=name))
    with pytest.raises(DaytonaBadRequestError, match="name"):
        shared.fork(name=name)


def test_a_sandbox_that_is_not_there_is_not_found(daytona: Daytona) -> None:
    with pytest.raises(DaytonaNotFoundError) as caught:
        daytona.get("no-such-sandbox")
    assert caught.value.status_code == 404
    assert caught.value.source == "DAYTONA_API"


def test_stop_ends_processes_and_keeps_files(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"kept", "kept.txt")
    daytona.stop(sandbox)
    assert sandbox.state == SandboxState.STOPPED
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.exec("true")
    daytona.start(sandbox)
    sandbox.wait_for_sandbox_start()
    assert sandbox.fs.download_file("kept.txt") == b"kept"
    sandbox.stop(force=True)
    sandbox.wait_for_sandbox_stop()
    sandbox.archive()
    assert daytona.get(sandbox.id).state == SandboxState.ARCHIVED
    sandbox.start()
    sandbox.refresh_data()
    assert daytona.get(sandbox.id).state == SandboxState.STARTED


def test_a_running_sandbox_cannot_be_archived_or_recovered(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.archive()
    with pytest.raises(DaytonaBadRequestError):
        sandbox.recover()


def test_a_paused_sandbox_goes_on_where_it_was(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"kept", "kept.txt")
    sandbox.pause()
    assert sandbox.state == SandboxState.PAUSED
    sandbox.start()
    assert sandbox.fs.download_file("kept.txt") == b"kept"


def test_an_ephemeral_sandbox_is_deleted_when_it_stops(daytona: Daytona) -> None:
    made = daytona.create(CreateSandboxFromSnapshotParams(ephemeral=True))
    made.stop()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(made.id)


def test_labels_select_sandboxes(daytona: Daytona) -> None:
    batch = str(uuid.uuid4())
    made = [daytona.create(CreateSandboxFromSnapshotParams(labels={"batch": batch, "n": str(n)})) for n in range(3)]
    assert made[0].set_labels({"batch": batch, "n": "changed"}) == {"batch": batch, "n": "changed"}
    made[1].stop()

    def ids(**query: Any) -> set[str]:
        return {each.id for each in daytona.list(ListSandboxesQuery(**query))}

    everything = {each.id for each in made}
    assert ids(labels={"batch": batch}) == everything
    assert ids(labels={"batch": batch}, limit=1) == everything, "pages follow each other"
    assert ids(labels={"batch": batch, "n": "changed"}) == {made[0].id}
    assert ids(labels={"batch": batch}, states=[SandboxState.STOPPED]) == {made[1].id}
    assert ids(labels={"batch": batch}, id=made[2].id) == {made[2].id}
    assert ids(labels={"batch": batch}, min_cpu=2) == set()
    assert ids(labels={"batch": batch}, created_at_after=datetime.now(UTC) + timedelta(hours=1)) == set()
    assert ids(labels={"batch": "another"}) == set()
    for each in made:
        each.delete()


def test_settings_of_a_sandbox_change(sandbox: Sandbox) -> None:
    sandbox.set_autostop_interval(7)
    sandbox.set_auto_pause_interval(3)
    sandbox.set_auto_archive_interval(8)
    sandbox.set_auto_delete_interval(-1)
    sandbox.set_ttl(600)
    sandbox.set_public(True)
    sandbox.refresh_data()
    assert (sandbox.auto_stop_interval, sandbox.auto_pause_interval, sandbox.auto_archive_interval) == (7, 3, 8)
    assert sandbox.auto_delete_interval == -1
    assert sandbox.auto_destroy_at is not None
    assert sandbox.public


def test_activity_is_told_at_once(sandbox: Sandbox) -> None:
    before = sandbox.last_activity_at
    assert before is not None
    sandbox.refresh_activity()
    sandbox.refresh_data()
    assert sandbox.last_activity_at is not None
    assert datetime.fromisoformat(sandbox.last_activity_at) > datetime.fromisoformat(before)


def test_network_settings_become_our_policy(daytona_server: ServerProcess, sandbox: Sandbox, api: httpx.Client) -> None:
    def policy() -> dict[str, object]:
        found = api.get(f"{daytona_server.url}/v1/boxes/{sandbox.id}").json()["spec"]["network"]
        return {name: found[name] for name in ("mode", "allow")}

    assert policy() == {"mode": "open", "allow": []}
    sandbox.update_network_settings(domain_allow_list="example.com,*.example.org")
    assert policy() == {"mode": "allow", "allow": ["example.com", "*.example.org"]}
    sandbox.update_network_settings(network_block_all=True)
    assert policy()["mode"] == "none"
    assert sandbox.domain_allow_list is None
    with pytest.raises(DaytonaBadRequestError, match="not a network"):
        sandbox.update_network_settings(network_block_all=False, network_allow_list="203.0.113.0/40")
    sandbox.update_network_settings(network_block_all=False, network_allow_list="203.0.113.7/32,198.51.100.0/24")
    ports = "22,80,443,8080,8443"
    assert policy() == {"mode": "allow", "allow": [f"203.0.113.7:{ports}", f"198.51.100.0/24:{ports}"]}


def test_a_fork_has_the_files_of_its_parent(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"shared", "file.txt")
    forked = sandbox.fork(name=f"fork-{uuid.uuid4()}")
    forked.fs.upload_file(b"changed", "file.txt")
    assert sandbox.fs.download_file("file.txt") == b"shared"
    assert forked.fs.download_file("file.txt") == b"changed"
    forked.delete()


def test_a_sandbox_without_limits_of_its_own_is_resized_as_it_runs(daytona: Daytona, sandbox: Sandbox) -> None:
    process, session = sandbox.process, str(uuid.uuid4())
    process.create_session(session)
    process.execute_session_command(session, SessionExecuteRequest(command="kept=yes"))
    sandbox.resize(Resources(cpu=2, memory=2))
    sandbox.wait_for_resize_complete()
    found = daytona.get(sandbox.id)
    assert (found.cpu, found.memory, found.state) == (2, 2, SandboxState.STARTED)
    assert process.execute_session_command(session, SessionExecuteRequest(command="echo $kept")).output == "yes\n"
    for fewer in (Resources(cpu=1), Resources(memory=1), Resources(cpu=4, memory=1)):
        with pytest.raises(DaytonaBadRequestError, match="cannot be decreased from 2 to 1"):
            sandbox.resize(fewer)
    with pytest.raises(DaytonaBadRequestError, match="stopped"):
        sandbox.resize(Resources(disk=10))
    assert (daytona.get(sandbox.id).cpu, daytona.get(sandbox.id).memory) == (2, 2)


def test_a_paused_sandbox_is_not_resized_and_keeps_its_processes(sandbox: Sandbox) -> None:
    process, session = sandbox.process, str(uuid.uuid4())
    process.create_session(session)
    process.execute_session_command(session, SessionExecuteRequest(command="kept=yes"))
    sandbox.pause()
    with pytest.raises(DaytonaBadRequestError, match="paused"):
        sandbox.resize(Resources(cpu=2, memory=2))
    sandbox.start()
    assert process.execute_session_command(session, SessionExecuteRequest(command="echo $kept")).output == "yes\n"


def test_a_sandbox_with_other_limits_keeps_its_id_and_files(daytona: Daytona, daytona_server: ServerProcess) -> None:
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot="daytona-medium"))
    sandbox.fs.upload_file(b"kept", "kept.txt")
    memory = int(sandbox.memory)
    sandbox.resize(Resources(memory=memory + 1))
    assert daytona.get(sandbox.id).fs.download_file("kept.txt") == b"kept"
    sandbox.stop()
    sandbox.resize(Resources(memory=1))
    sandbox.start()
    found = daytona.get(sandbox.id)
    assert (found.memory, found.fs.download_file("kept.txt")) == (1, b"kept")
    with SyncClient(daytona_server.url, api_key=daytona_server.api_key) as client:
        box = found.process.exec("hostname").result.strip()
        assert client.boxes.get(box).spec.memory == 1 << 30
    sandbox.delete()


def test_what_a_sandbox_uses_is_told(sandbox: Sandbox) -> None:
    latest = sandbox.get_metrics_latest()
    assert latest.cpu_count == 1
    history = sandbox.get_metrics()
    assert history[0].timestamp == latest.timestamp
    assert len(history) == 2, "when it was asked for before, and now"
    assert (history[1].cpu_count, history[1].disk_total, history[1].mem_total) == (1, 3 << 30, 1 << 30)
    assert sandbox.get_metrics(end=latest.timestamp - timedelta(hours=1)) == []


def test_variables_change_for_later_processes(sandbox: Sandbox) -> None:
    sandbox.update_env({"ONE": "1", "TWO": "2"})
    assert sandbox.process.exec("echo $ONE$TWO").result == "12\n"
    sandbox.update_env({}, unset=["TWO"])
    assert sandbox.process.exec("echo $ONE$TWO").result == "1\n"


def test_a_sandbox_knows_its_folders(shared: Sandbox) -> None:
    assert shared.get_work_dir() == "/home/daytona"
    assert shared.get_user_home_dir() == "/home/daytona"
    with pytest.warns(DeprecationWarning, match="get_user_home_dir"):
        assert shared.get_user_root_dir() == "/home/daytona"


def test_what_boxes_cannot_do_is_refused_by_name(daytona: Daytona, shared: Sandbox) -> None:
    refused = (
        lambda: shared.create_ssh_access(10),
        lambda: shared.revoke_ssh_access("token"),
        lambda: shared.validate_ssh_access("token"),
        lambda: daytona.create(CreateSandboxFromImageParams(image="debian:12", resources=Resources(gpu=1))),
    )
    for call in refused:
        with pytest.raises(DaytonaError) as caught:
            call()
        assert caught.value.status_code == 501, caught.value


def test_an_image_that_nobody_has_is_refused(daytona: Daytona) -> None:
    with pytest.raises(DaytonaError, match="could not be pulled"):
        daytona.create(CreateSandboxFromImageParams(image="registry.invalid/no/such:1"))


def test_a_sandbox_has_the_user_that_it_names(daytona: Daytona, tiny_image: str) -> None:
    for wanted, user in ((None, "daytona"), ("alice", "alice"), ("root", "daytona")):
        made = daytona.create(CreateSandboxFromSnapshotParams(os_user=wanted))
        assert made.user == user
        assert made.process.exec("whoami; id -gn; echo $USER $HOME; cd ~; pwd").result.split() == [
            user, user, user, "/home/daytona", "/home/daytona",
        ]  # fmt: skip
        made.stop()
        made.start()
        assert made.process.exec("whoami").result.strip() == user
        made.delete()
    made = daytona.create(CreateSandboxFromImageParams(image=tiny_image))
    assert made.user == made.process.exec("whoami || echo root").result.strip() == "root"
    made.delete()
