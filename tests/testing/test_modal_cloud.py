"""The counterpart of Modal answers the vendor's unmodified SDK as Modal does, over real boxes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import modal
import pytest
from grpclib import Status
from modal import exception
from modal_proto import api_pb2

from holdfast.testing.modal import Fault, ModalCloud, ModalCloudThread

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[ModalCloud]:
    async with ModalCloud(tmp_path) as cloud:
        yield cloud


@pytest.fixture
async def client(cloud: ModalCloud) -> AsyncIterator[modal.Client]:
    async with modal.Client(cloud.url, api_pb2.CLIENT_TYPE_CLIENT, (cloud.token_id, cloud.token_secret)) as client:
        yield client


@pytest.fixture(autouse=True)
async def detached(client: modal.Client) -> AsyncIterator[None]:
    """Leave no connection of a sandbox behind."""
    yield
    while _made:
        sandbox: Any = _made.pop()
        await sandbox.detach.aio()


@pytest.fixture
async def app(client: modal.Client) -> modal.App:
    return await modal.App.lookup.aio("tests", client=client, create_if_missing=True)


async def create(app: modal.App, client: modal.Client, *argv: str, **more: Any) -> modal.Sandbox:
    more.setdefault("image", modal.Image.from_registry("debian:12"))
    return note(await modal.Sandbox.create.aio(*argv, app=app, client=client, **more))


_made: list[modal.Sandbox] = []


def note(sandbox: modal.Sandbox) -> modal.Sandbox:
    """Detach it at the end of the test."""
    _made.append(sandbox)
    return sandbox


async def output(sandbox: modal.Sandbox, *argv: str, **more: Any) -> str:
    process = await sandbox.exec.aio(*argv, **more)
    assert await process.wait.aio() == 0, await process.stderr.read.aio()
    text: str = await process.stdout.read.aio()
    return text


async def test_a_command_has_its_input_output_and_exit_code(app: modal.App, client: modal.Client) -> None:
    sandbox = await create(app, client)
    script = "cat; echo problem >&2; echo $WORD; pwd; exit 7"
    process: Any = await sandbox.exec.aio("sh", "-c", script, env={"WORD": "given"}, workdir="/tmp", text=False)
    process.stdin.write(b"in\n")
    process.stdin.write_eof()
    await process.stdin.drain.aio()
    assert await process.stdout.read.aio() == b"in\ngiven\n/tmp\n"
    assert await process.stderr.read.aio() == b"problem\n"
    assert await process.wait.aio() == 7
    assert await output(sandbox, "sh", "-c", "test -t 1 && echo terminal", pty=True) == "terminal\r\n"


async def test_the_filesystem_api_reads_and_writes(app: modal.App, client: modal.Client) -> None:
    files = (await create(app, client)).filesystem
    await files.write_text.aio("text", "/workspace/folder/file")
    assert await files.read_text.aio("/workspace/folder/file") == "text"
    assert [each.name for each in await files.list_files.aio("/workspace/folder")] == ["file"]
    with pytest.raises(exception.SandboxFilesystemNotFoundError):
        await files.read_text.aio("/workspace/nothing")


async def test_an_image_of_a_snapshot_has_the_files_and_a_registry_knows_its_images(
    app: modal.App, client: modal.Client
) -> None:
    first = await create(app, client)
    await output(first, "sh", "-c", "echo kept > /workspace/file")
    image = await first.snapshot_filesystem.aio()
    assert await first.terminate.aio(wait=True) == 137
    second = await create(app, client, image=modal.Image.from_id(image.object_id, client=client))
    assert await output(second, "cat", "/workspace/file") == "kept\n"
    with pytest.raises(exception.ImageBuildError, match="not found"):
        await create(app, client, image=modal.Image.from_registry("nothing/of-the-kind"))


async def test_sandboxes_are_found_by_id_name_and_tags_while_they_run(app: modal.App, client: modal.Client) -> None:
    made = await create(app, client, name="one", tags={"kind": "a"})
    await create(app, client, name="two", tags={"kind": "b"})
    with pytest.raises(exception.AlreadyExistsError):
        await create(app, client, name="one")
    assert (await modal.Sandbox.from_name.aio("tests", "one", client=client)).object_id == made.object_id
    assert await (await modal.Sandbox.from_id.aio(made.object_id, client=client)).poll.aio() is None

    async def listed() -> list[str]:
        found = modal.Sandbox.list.aio(app_id=app.app_id, tags={"kind": "a"}, client=client)
        return [each.object_id async for each in found]

    assert await listed() == [made.object_id]
    await made.terminate.aio(wait=True)
    assert await listed() == []
    assert await made.poll.aio() == 137
    with pytest.raises(exception.NotFoundError):
        await modal.Sandbox.from_name.aio("tests", "one", client=client)
    with pytest.raises(exception.ConflictError):
        await note(await modal.Sandbox.from_id.aio(made.object_id, client=client)).exec.aio("true")


async def test_a_sandbox_ends_with_its_command_and_with_its_time(app: modal.App, client: modal.Client) -> None:
    done = await create(app, client, "sh", "-c", "echo out; exit 3")
    await done.wait.aio()
    assert done.returncode == 3
    assert await done.stdout.read.aio() == "out\n"
    expired = await create(app, client, timeout=1)
    with pytest.raises(exception.SandboxTimeoutError):
        await expired.wait.aio()
    idle = await create(app, client, idle_timeout=1)
    with pytest.raises(exception.SandboxTerminatedError):
        await idle.wait.aio()


async def test_volumes_are_shared_and_limits_and_networks_are_asked_for(
    cloud: ModalCloud, app: modal.App, client: modal.Client
) -> None:
    volume = modal.Volume.from_name("shared", create_if_missing=True, client=client)
    one = await create(app, client, volumes={"/mnt/shared": volume})
    part = volume.with_mount_options(read_only=True, sub_path="/folder")
    await output(one, "sh", "-c", "mkdir /mnt/shared/folder; echo shared > /mnt/shared/folder/file")
    two = await create(
        app, client, volumes={"/mnt/part": part}, cpu=(0.1, 0.5), memory=(64, 256),
        outbound_domain_allowlist=["*.example.com"],
    )  # fmt: skip
    assert await output(two, "cat", "/mnt/part/file") == "shared\n"
    asked = cloud.state.sandbox(two.object_id)
    assert (asked.box.spec.cpu, asked.box.spec.memory) == (0.5, 256 << 20)
    assert list(asked.network.allowed_domains) == ["*.example.com"]


def run(command: list[str], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(variables or {})}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


async def test_a_tunnel_leads_to_a_port(app: modal.App, client: modal.Client) -> None:
    sandbox = await create(app, client, encrypted_ports=[8000])
    await sandbox.exec.aio("python3", "-m", "http.server", "8000", "--directory", "/workspace")
    tunnel = (await sandbox.tunnels.aio())[8000]
    script = (
        f"curl -ks --retry 20 --retry-all-errors --retry-delay 1 {tunnel.url} | grep -o 'Directory listing' | head -1"
    )
    done = await asyncio.to_thread(run, ["sh", "-c", script])
    assert tunnel.url.startswith("https://")
    assert done.stdout == "Directory listing\n", done.stderr


async def test_a_wrong_token_is_refused(cloud: ModalCloud) -> None:
    with pytest.raises(exception.AuthError):
        await modal.Client.verify.aio(cloud.url, (cloud.token_id, "wrong"))


async def test_it_misbehaves_when_told_to(cloud: ModalCloud, app: modal.App, client: modal.Client) -> None:
    sandbox = await create(app, client)
    # The SDK tries again by itself, up to a point.
    cloud.faults.add(Fault("SandboxWaitV2", status=Status.UNAVAILABLE))
    assert await sandbox.poll.aio() is None
    cloud.faults.add(Fault("SandboxWaitV2", status=Status.RESOURCE_EXHAUSTED))
    with pytest.raises(exception.ResourceExhaustedError):
        await sandbox.poll.aio()
    # A stream that is cut goes on where it was.
    cloud.faults.add(Fault("TaskExecStdioRead", cut_after=1))
    script = "i=0; while [ $i -lt 20 ]; do echo $i; i=$((i + 1)); sleep 0.02; done"
    assert await output(sandbox, "sh", "-c", script) == "".join(f"{number}\n" for number in range(20))
    assert cloud.faults.committed == ["SandboxWaitV2", "SandboxWaitV2", "TaskExecStdioRead"]
    cloud.freeze_list()
    await cloud.finish(cloud.state.sandbox(sandbox.object_id))
    found = modal.Sandbox.list.aio(app_id=app.app_id, client=client)
    assert [each.object_id async for each in found] == [sandbox.object_id]
    assert await sandbox.poll.aio() == 124


_BY_ENVIRONMENT = """
import modal
app = modal.App.lookup("by-environment", create_if_missing=True)
sandbox = modal.Sandbox.create(app=app, image=modal.Image.debian_slim())
process = sandbox.exec("echo", "hello")
print(process.stdout.read(), end="")
sandbox.terminate()
"""


async def test_any_program_uses_it_by_its_environment(tmp_path: Path) -> None:
    with ModalCloudThread(tmp_path) as thread:
        cloud = thread.cloud
        variables = {
            "MODAL_SERVER_URL": cloud.url, "MODAL_TOKEN_ID": cloud.token_id, "MODAL_TOKEN_SECRET": cloud.token_secret,
        }  # fmt: skip
        done = await asyncio.to_thread(run, [sys.executable, "-c", _BY_ENVIRONMENT], variables)
    assert done.stdout == "hello\n", done.stderr
