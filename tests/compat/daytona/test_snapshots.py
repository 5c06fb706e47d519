"""Snapshots and volumes, by the SDK."""

from __future__ import annotations

import uuid

import pytest
from daytona import (
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    Image,
    Sandbox,
    VolumeMount,
)
from daytona_api_client import SnapshotsApi


def test_a_snapshot_of_a_sandbox_begins_others(daytona: Daytona, sandbox: Sandbox) -> None:
    name = f"snapshot/{uuid.uuid4()}:1"
    sandbox.fs.upload_file(b"as it was", "file.txt")
    sandbox.create_snapshot(name)
    sandbox.fs.upload_file(b"changed", "file.txt")
    found = daytona.snapshot.get(name)
    assert (found.name, found.state, found.source_sandbox_id) == (name, "active", sandbox.id)
    made = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert made.snapshot == name
    assert made.fs.download_file("file.txt") == b"as it was"
    made.delete()
    with pytest.raises(DaytonaConflictError):
        sandbox.create_snapshot(name)
    SnapshotsApi(daytona._api_client).deactivate_snapshot(found.id)
    with pytest.raises(DaytonaBadRequestError, match="inactive"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert daytona.snapshot.activate(found).state == "active"
    assert [each.name for each in daytona.snapshot.list(source_sandbox_id=sandbox.id).items] == [name]
    daytona.snapshot.delete(name)
    with pytest.raises(DaytonaNotFoundError):
        daytona.snapshot.get(name)


def test_everybody_has_some_snapshots(daytona: Daytona) -> None:
    page = daytona.snapshot.list(page=1, limit=2)
    assert page.total >= 3
    assert len(page.items) == 2
    assert daytona.snapshot.get("daytona-small").general
    with pytest.raises(DaytonaError) as caught:
        daytona.snapshot.delete("daytona-small")
    assert caught.value.status_code == 403


def test_an_image_that_cannot_be_pulled_fails_by_name(daytona: Daytona) -> None:
    lines: list[str] = []
    with pytest.raises(DaytonaError, match=r"registry\.invalid"):
        daytona.snapshot.create(
            CreateSnapshotParams(name=f"never-{uuid.uuid4()}", image="registry.invalid/no/such:1"), on_logs=lines.append
        )
    with pytest.raises(DaytonaError, match="could not be pulled"):
        daytona.snapshot.create(
            CreateSnapshotParams(
                name=f"never-{uuid.uuid4()}", image=Image.base("registry.invalid/a:1").run_commands("x")
            ),
            on_logs=lines.append,
        )
    assert lines
    with pytest.raises(DaytonaBadRequestError, match="tag"):
        daytona.snapshot.create(CreateSnapshotParams(name=f"never-{uuid.uuid4()}", image="debian:latest"))


def test_a_volume_outlives_sandboxes(daytona: Daytona) -> None:
    name = f"volume-{uuid.uuid4().hex}"
    with pytest.raises(DaytonaNotFoundError):
        daytona.volume.get(name)
    volume = daytona.volume.get(name, create=True)
    assert volume.state == "ready"
    assert volume.id in [each.id for each in daytona.volume.list()]
    with pytest.raises(DaytonaConflictError):
        daytona.volume.create(name)

    def sandbox(subpath: str | None) -> Sandbox:
        mount = VolumeMount(volume_id=volume.id, mount_path="/home/daytona/data", subpath=subpath)
        return daytona.create(CreateSandboxFromSnapshotParams(volumes=[mount]))

    first = sandbox("users/ann")
    first.fs.upload_file(b"kept", "/home/daytona/data/file.txt")
    with pytest.raises(DaytonaConflictError):
        daytona.volume.delete(volume)
    first.delete()
    second = sandbox(None)
    assert second.fs.download_file("/home/daytona/data/users/ann/file.txt") == b"kept"
    second.delete()
    daytona.volume.delete(volume)
    with pytest.raises(DaytonaNotFoundError):
        daytona.volume.get(name)


def test_warm_pools_are_refused_by_name(daytona: Daytona) -> None:
    for call in (daytona.warm_pool.list, lambda: daytona.warm_pool.create("daytona-small", 1)):
        with pytest.raises(Exception, match="501") as caught:
            call()
        assert "this server" in str(caught.value)
