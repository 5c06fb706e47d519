"""Sandboxes from images, and images that are built from Dockerfiles."""

from __future__ import annotations

import uuid

import httpx
import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    Image,
    ListSandboxesQuery,
    Resources,
    SandboxState,
)


def test_a_sandbox_begins_with_an_image(daytona: Daytona, tiny_image: str) -> None:
    made = daytona.create(CreateSandboxFromImageParams(image=tiny_image))
    assert made.build_info is not None
    assert made.process.exec("busybox true && echo has busybox").result == "has busybox\n"
    made.fs.upload_file(b"x", "file")
    assert made.fs.download_file("file") == b"x"
    made.delete()


def test_a_dockerfile_is_built_once(daytona: Daytona, tiny_image: str) -> None:
    mark = uuid.uuid4().hex
    recipe = Image.base(tiny_image).run_commands(f"echo {mark} > /built").env({"COLOR": "blue"}).workdir("/srv/app")
    name = f"built-{mark}"
    lines: list[str] = []
    snapshot = daytona.snapshot.create(CreateSnapshotParams(name=name, image=recipe), on_logs=lines.append)
    assert snapshot.state == "active"
    assert any("RUN" in line for line in lines), lines
    made = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert made.process.exec("cat /built; echo $COLOR; pwd").result == f"{mark}\nblue\n/srv/app\n"
    made.delete()
    again = daytona.create(CreateSandboxFromImageParams(image=recipe))
    assert again.process.exec("cat /built").result == f"{mark}\n"
    again.delete()
    daytona.snapshot.delete(name)


def test_a_build_that_fails_tells_which_step(daytona: Daytona, tiny_image: str) -> None:
    recipe = Image.base(tiny_image).run_commands("echo before; exit 3")
    name = f"fails-{uuid.uuid4()}"
    lines: list[str] = []
    with pytest.raises(DaytonaError, match="exited with 3"):
        daytona.create(CreateSandboxFromImageParams(name=name, image=recipe), on_snapshot_create_logs=lines.append)
    assert "before" in "\n".join(lines).splitlines()
    failed = daytona.get(name)
    assert failed.state == SandboxState.BUILD_FAILED
    assert failed.id in [each.id for each in daytona.list(ListSandboxesQuery(states=[SandboxState.BUILD_FAILED]))]
    with pytest.raises(DaytonaBadRequestError, match="build_failed"):
        failed.process.exec("true")
    with pytest.raises(DaytonaConflictError):
        daytona.create(CreateSandboxFromSnapshotParams(name=name))
    failed.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(name)
    lines.clear()
    with pytest.raises(DaytonaError, match="exited with 3"):
        daytona.snapshot.create(CreateSnapshotParams(name=f"fails-{uuid.uuid4()}", image=recipe), on_logs=lines.append)


def test_the_build_of_a_sandbox_is_followed(daytona: Daytona, tiny_image: str) -> None:
    mark = uuid.uuid4().hex
    lines: list[str] = []
    recipe = Image.base(tiny_image).run_commands(f"echo building {mark}; echo {mark} > /built")
    name = f"followed-{mark}"
    params = CreateSandboxFromImageParams(
        name=name, image=recipe, labels={"mark": mark}, env_vars={"A": "b"}, resources=Resources(cpu=2), public=True
    )
    made = daytona.create(params, on_snapshot_create_logs=lines.append)
    assert f"building {mark}" in "\n".join(lines).splitlines()
    assert made.state == SandboxState.STARTED
    assert made.process.exec("cat /built; echo $A").result == f"{mark}\nb\n"
    found = daytona.get(made.id)
    assert (found.name, found.cpu, found.public, found.labels["mark"]) == (name, 2, True, mark)
    assert made.build_info is not None
    made.delete()


def test_a_build_ends_with_its_sandbox(daytona: Daytona, api: httpx.Client, tiny_image: str) -> None:
    body = {"buildInfo": {"dockerfileContent": f"FROM {tiny_image}\nRUN sleep 300"}}
    answer = api.post("/sandbox", json=body)
    assert answer.json()["state"] == "pending_build"
    sandbox = daytona.get(answer.json()["id"])
    assert sandbox.state in (SandboxState.PENDING_BUILD, SandboxState.BUILDING_SNAPSHOT)
    assert api.post(f"/sandbox/{sandbox.id}/stop").status_code == 400
    sandbox.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(sandbox.id)


def test_a_sandbox_that_is_built_has_the_user_that_it_says(daytona: Daytona, tiny_image: str) -> None:
    recipe = Image.base(tiny_image).run_commands(f"echo {uuid.uuid4()}")
    made = daytona.create(CreateSandboxFromImageParams(image=recipe))
    assert made.user == made.process.exec("whoami").result.strip() == daytona.get(made.id).user == "root"
    made.delete()
