"""The async SDK: every public method of it is called, and returns what its type says."""

from __future__ import annotations

import inspect
import re
import uuid
from pathlib import Path

import daytona
import pytest
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    DaytonaError,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
    Resources,
    SessionExecuteRequest,
)
from daytona._async.code_interpreter import AsyncCodeInterpreter
from daytona._async.filesystem import AsyncFileSystem
from daytona._async.git import AsyncGit
from daytona._async.process import AsyncProcess
from daytona._async.snapshot import AsyncSnapshotService
from daytona._async.volume import AsyncVolumeService
from daytona._sync.code_interpreter import CodeInterpreter
from daytona._sync.filesystem import FileSystem
from daytona._sync.git import Git
from daytona._sync.process import Process
from daytona._sync.snapshot import SnapshotService
from daytona._sync.volume import VolumeService
from daytona.common.pty import PtySize

pytestmark = pytest.mark.anyio


async def test_sandboxes(async_daytona: AsyncDaytona, async_sandbox: AsyncSandbox) -> None:
    sandbox = async_sandbox
    await sandbox.set_labels({"batch": sandbox.id})
    found = [each.id async for each in async_daytona.list(ListSandboxesQuery(labels={"batch": sandbox.id}))]
    assert found == [sandbox.id]
    assert (await async_daytona.get(sandbox.name)).id == sandbox.id
    await sandbox.set_autostop_interval(5)
    await sandbox.set_auto_pause_interval(0)
    await sandbox.set_auto_archive_interval(6)
    await sandbox.set_auto_delete_interval(7)
    await sandbox.set_ttl(100)
    await sandbox.set_public(False)
    await sandbox.refresh_activity()
    await sandbox.refresh_data()
    assert (sandbox.auto_stop_interval, sandbox.auto_archive_interval, sandbox.auto_delete_interval) == (5, 6, 7)
    await sandbox.update_network_settings(network_block_all=True)
    await sandbox.update_env({"A": "1"})
    assert (await sandbox.process.exec("echo $A")).result == "1\n"
    assert await sandbox.get_work_dir() == await sandbox.get_user_home_dir() == "/home/daytona"
    with pytest.warns(DeprecationWarning, match="get_user_home_dir"):
        await sandbox.get_user_root_dir()
    assert (await sandbox.get_metrics_latest()).cpu_count == 1
    assert await sandbox.get_metrics() == []
    assert (await sandbox.get_preview_link(3000)).token
    signed = await sandbox.create_signed_preview_url(3000)
    assert signed.port == 3000
    await sandbox.expire_signed_preview_url(3000, signed.token)
    assert "signature=" in await sandbox.download_url("/tmp/x")
    assert "signature=" in await sandbox.upload_url("/tmp/x")
    await sandbox.rotate_signing_key()


async def test_lifecycle(async_daytona: AsyncDaytona, async_sandbox: AsyncSandbox) -> None:
    sandbox, name = async_sandbox, f"async-{uuid.uuid4()}"
    forked = await sandbox.fork(name=name)
    await sandbox.create_snapshot(name)
    assert (await async_daytona.snapshot.get(name)).state == "active"
    assert (await async_daytona.snapshot.list(limit=1)).total >= 1
    made = await async_daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    await made.delete(wait=True)
    with pytest.raises(Exception, match="already active"):
        await async_daytona.snapshot.activate(name)
    await async_daytona.snapshot.delete(name)
    await async_daytona.stop(forked)
    await forked.wait_for_sandbox_stop()
    await forked.archive()
    await async_daytona.start(forked)
    await forked.wait_for_sandbox_start()
    await forked.pause()
    await forked.start()
    await forked.resize(Resources(cpu=2))
    await forked.wait_for_resize_complete()
    with pytest.raises(DaytonaError):
        await forked.recover()
    await forked.stop()
    await async_daytona.delete(forked)
    volume = await async_daytona.volume.create(name)
    assert (await async_daytona.volume.get(name)).id == volume.id
    assert volume.id in [each.id for each in await async_daytona.volume.list()]
    await async_daytona.volume.delete(volume)


async def test_what_is_not_there_is_refused(async_daytona: AsyncDaytona, async_sandbox: AsyncSandbox) -> None:
    server = async_sandbox.create_lsp_server("typescript", "/tmp")
    for call in (
        async_sandbox.create_ssh_access(),
        async_sandbox.revoke_ssh_access("x"),
        async_sandbox.validate_ssh_access("x"),
        async_sandbox.update_secrets({"A": "b"}),
        server.start(),
        async_sandbox.computer_use.get_status(),
        async_daytona.snapshot.create(daytona.CreateSnapshotParams(name="x", image="debian:latest")),
    ):
        with pytest.raises(DaytonaError):
            await call


async def test_processes(async_sandbox: AsyncSandbox) -> None:
    process = async_sandbox.process
    assert (await process.code_run("print(6 * 7)")).result == "42\n"
    await process.create_session("s")
    request = SessionExecuteRequest(command="read line; echo got $line", run_async=True)
    command = await process.execute_session_command("s", request)
    await process.send_session_command_input("s", command.cmd_id, "it")
    heard: list[str] = []
    await process.get_session_command_logs_async("s", command.cmd_id, heard.append, heard.append)
    assert "got it" in "".join(heard)
    assert "got it" in ((await process.get_session_command_logs("s", command.cmd_id)).output or "")
    assert (await process.get_session_command("s", command.cmd_id)).exit_code == 0
    assert len((await process.get_session("s")).commands) == 1
    assert [each.session_id for each in await process.list_sessions()] == ["s"]
    await process.delete_session("s")
    assert (await process.get_entrypoint_session()).commands == []
    assert (await process.get_entrypoint_logs()).output == ""
    await process.get_entrypoint_logs_async(print, print)
    seen: list[bytes] = []
    handle = await process.create_pty_session("p", seen.append, pty_size=PtySize(rows=20, cols=70))
    await handle.wait_for_connection()
    await process.resize_pty_session("p", PtySize(rows=21, cols=71))
    assert (await process.get_pty_session_info("p")).cols == 71
    assert [each.id for each in await process.list_pty_sessions()] == ["p"]
    again = await process.connect_pty_session("p", seen.append)
    await handle.send_input("exit 3\n")
    assert (await handle.wait()).exit_code == 3
    await again.wait()
    await handle.disconnect()
    await again.disconnect()
    await process.create_pty_session("q", seen.append)
    await process.kill_pty_session("q")


async def test_interpreters(async_sandbox: AsyncSandbox) -> None:
    interpreter = async_sandbox.code_interpreter
    context = await interpreter.create_context()
    assert [each.id for each in await interpreter.list_contexts()] == [context.id]
    assert (await interpreter.run_code("print('x')", context=context)).stdout == "x\n"
    await interpreter.delete_context(context)


async def test_files(async_sandbox: AsyncSandbox) -> None:
    fs = async_sandbox.fs
    await fs.create_folder("f", "755")
    await fs.upload_file(b"one", "f/one")
    await fs.upload_files([FileUpload(b"two", "f/two")])
    await fs.upload_file_stream(b"three", "f/three")
    assert await fs.download_file("f/one") == b"one"
    assert [each.result for each in await fs.download_files([FileDownloadRequest(source="f/two")])] == [b"two"]
    assert b"".join([piece async for piece in await fs.download_file_stream("f/three")]) == b"three"
    assert (await fs.get_file_info("f/one")).size == 3
    assert len(await fs.list_files("f")) == 3
    assert len(await fs.find_files("f", "o")) == 2
    assert len((await fs.search_files("f", "t*")).files) == 2
    assert (await fs.replace_in_files(["f/one"], "one", "uno"))[0].success
    await fs.set_file_permissions("f/one", mode="600")
    await fs.move_files("f/one", "f/uno")
    await fs.delete_file("f", recursive=True)


async def test_git(async_sandbox: AsyncSandbox) -> None:
    git = async_sandbox.git
    await git.init("r", initial_branch="main")
    await git.configure_user("Ann", "ann@example.com")
    await git.set_config("a.b", "c")
    assert await git.get_config("a.b") == "c"
    await async_sandbox.fs.upload_file(b"x", "r/x")
    await git.add("r", ["x"])
    await git.commit("r", "one", "Ann", "ann@example.com")
    await git.create_branch("r", "topic")
    await git.checkout_branch("r", "main")
    await git.delete_branch("r", "topic")
    assert (await git.branches("r")).branches == ["main"]
    await git.init("bare", bare=True)
    await git.remote_add("r", "origin", "/home/daytona/bare")
    assert await git.remote_get("r", "origin") == "/home/daytona/bare"
    assert len((await git.remotes("r")).remotes) == 1
    await git.push("r", set_upstream=True)
    await git.pull("r")
    await git.clone("/home/daytona/r", "copy")
    await git.restore("r", ["x"])
    await git.reset("r", mode="hard")
    assert (await git.status("r")).current_branch == "main"
    await git.dangerously_authenticate("u", "p", "example.com")


@pytest.mark.parametrize(
    ("kind", "is_async"),
    [
        *((kind, False) for kind in (daytona.Daytona, daytona.Sandbox, FileSystem, Git, Process, CodeInterpreter)),
        *((kind, False) for kind in (SnapshotService, VolumeService)),
        *((kind, True) for kind in (AsyncDaytona, AsyncSandbox, AsyncFileSystem, AsyncGit, AsyncProcess)),
        *((kind, True) for kind in (AsyncCodeInterpreter, AsyncSnapshotService, AsyncVolumeService)),
    ],
)
async def test_every_public_method_is_called_by_a_test(kind: type, is_async: bool) -> None:
    here = Path(__file__)
    files = [here] if is_async else [path for path in here.parent.glob("test_*.py") if path != here]
    text = "".join(path.read_text() for path in files)
    own = {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
    missing = sorted(name for name in own if not re.search(rf"\.{name}\(|\.{name}[,)]", text))
    assert not (set(missing) - {"close", "model_post_init", "process_image_context"}), missing
