"""Sandboxes from images, and images that are built from Dockerfiles."""

from __future__ import annotations

import uuid

import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaError,
    Image,
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
    with pytest.raises(DaytonaBadRequestError, match="exited with 3"):
        daytona.create(CreateSandboxFromImageParams(image=recipe))
    lines: list[str] = []
    with pytest.raises(DaytonaError, match="exited with 3"):
        daytona.snapshot.create(CreateSnapshotParams(name=f"fails-{uuid.uuid4()}", image=recipe), on_logs=lines.append)
