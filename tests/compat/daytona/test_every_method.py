"""Every public method of both Python SDKs is called with every parameter it has, and returns what its type says.

One tour for both: the async SDK's methods are awaited, those of the sync SDK run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    DaytonaError,
    FileDownloadRequest,
    FileUpload,
    Image,
    ListSandboxesQuery,
    Resources,
    SandboxListSortDirection,
    SandboxListSortField,
    SandboxState,
    SessionExecuteRequest,
    VolumeMount,
)
from daytona.common.computer_use import ScreenshotOptions, ScreenshotRegion
from daytona.common.lsp_server import LspCompletionPosition
from daytona.common.process import CodeRunParams
from daytona.common.pty import PtySize
from daytona.common.secret import CreateSecretParams, UpdateSecretParams
from tests.compat.daytona import terminals
from tests.compat.daytona.conftest import client_of, config_of
from tests.compat.daytona.language_server import SYMBOLS_OF_PYTHON
from tests.compat.daytona.recorder import Recorder

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.box, pytest.mark.slow]

HAS_DESKTOP = all(map(shutil.which, ("Xvfb", "xdotool"))) and Path("/usr/lib/python3/dist-packages/PIL").is_dir()
NOT_PASSED = {
    "AsyncDaytona.close": "called when the client is closed, after the tour",
    "FileSystem.download_file(args)": "an overload: the tour passes what it stands for",
}


async def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of either SDK, with a time limit where it takes one."""
    parameters = inspect.signature(method).parameters
    for name in ("request_timeout", "timeout"):
        if name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY:
            kwargs.setdefault(name, 60)
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    result = await asyncio.to_thread(method, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def everything(found: Any) -> list[Any]:
    return [each async for each in found] if hasattr(found, "__aiter__") else await asyncio.to_thread(list, found)


async def on_desktop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method that needs a desktop. Returns None if this machine has no programs for one."""
    if HAS_DESKTOP:
        return await call(method, *args, **kwargs)
    await refused(call(method, *args, **kwargs), 501, 503)
    return None


async def refused(work: Awaitable[Any], *statuses: int) -> None:
    """This server has none of that, and says so."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - services without a wrapper raise errors of other classes
        await work
    status = getattr(caught.value, "status_code", None) or getattr(caught.value, "status", None)
    wanted = statuses or (501,)
    assert status in wanted or any(str(each) in str(caught.value) for each in wanted), caught.value


async def test_every_method_of_the_sync_sdk(
    daytona_server: ServerProcess, tiny_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder("sync", monkeypatch)
    with client_of(daytona_server) as client:
        await Tour(client, tiny_image, tmp_path).walk()
    assert recorder.mistyped == []
    assert recorder.missing() - NOT_PASSED.keys() == set()


async def test_every_method_of_the_async_sdk(
    daytona_server: ServerProcess, tiny_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder("async", monkeypatch)
    async with AsyncDaytona(config_of(daytona_server)) as client:
        await Tour(client, tiny_image, tmp_path).walk()
    assert recorder.mistyped == []
    assert {each.replace("Async", "") for each in recorder.missing() - NOT_PASSED.keys()} - NOT_PASSED.keys() == set()


class Tour:
    def __init__(self, client: Any, image: str, folder: Path) -> None:
        self.client = client
        self.is_async = isinstance(client, AsyncDaytona)
        self.image = image
        self.folder = folder
        self.mark = uuid.uuid4().hex

    async def walk(self) -> None:
        async with self._sandbox() as sandbox:
            await self.settings(sandbox)
            await self.files(sandbox.fs)
            await self.commands(sandbox.process)
            await self.sessions(sandbox.process)
            await self.terminals(sandbox.process)
            await self.interpreters(sandbox.code_interpreter)
            await self.git(sandbox)
            await self.languages(sandbox)
            await self.ports(sandbox)
            await self.what_is_not_there(sandbox)
            await self.secrets(sandbox)
            await self.desktop(sandbox)
            await self.lifecycle(sandbox)
        await self.snapshots()

    @contextlib.asynccontextmanager
    async def _sandbox(self) -> AsyncIterator[Any]:
        volumes = self.client.volume
        created = await call(volumes.create, f"tour-{self.mark}")
        volume = await call(volumes.get, created.name, create=True)
        assert volume.id in [each.id for each in await call(volumes.list)]
        params = CreateSandboxFromSnapshotParams(
            name=f"tour-{self.mark}",
            language="python",
            os_user="daytona",
            env_vars={"COLOR": "blue"},
            labels={"tour": self.mark},
            public=False,
            auto_stop_interval=30,
            auto_pause_interval=0,
            auto_archive_interval=60,
            auto_delete_interval=-1,
            ttl_minutes=600,
            queue_timeout=5,
            volumes=[VolumeMount(volume_id=volume.id, mount_path="/home/daytona/data", subpath="tour")],
            network_block_all=True,
            target="local",
            snapshot="daytona-small",
        )
        sandbox = await call(self.client.create, params, on_snapshot_create_logs=print)
        yield sandbox
        await call(self.client.delete, sandbox, wait=True)
        await call(volumes.delete, volume)

    async def settings(self, sandbox: Any) -> None:
        client = self.client
        assert (await call(client.get, sandbox.name)).id == sandbox.id
        hour = timedelta(hours=1)
        created = datetime.fromisoformat(sandbox.created_at.replace("Z", "+00:00"))
        query = ListSandboxesQuery(
            limit=1,
            id=sandbox.id,
            name=sandbox.name[:10].upper(),
            labels={"tour": self.mark},
            states=[SandboxState.STARTED],
            snapshots=["daytona-small"],
            targets=["local"],
            min_cpu=1,
            max_cpu=1,
            min_memory_gib=1,
            max_memory_gib=1,
            min_disk_gib=3,
            max_disk_gib=3,
            is_public=False,
            is_recoverable=False,
            created_at_after=created - hour,
            created_at_before=created + hour,
            last_activity_after=created - hour,
            last_activity_before=created + hour,
            auto_destroy_at_after=created + 9 * hour,
            auto_destroy_at_before=created + 11 * hour,
            sort=SandboxListSortField.CREATEDAT,
            order=SandboxListSortDirection.ASC,
        )
        listed = client.list(query, request_timeout=60)
        assert [each.id for each in await everything(listed)] == [sandbox.id]
        assert await call(sandbox.set_labels, {"tour": self.mark, "more": "1"}) == {"tour": self.mark, "more": "1"}
        await call(sandbox.set_auto_archive_interval, 90)
        await call(sandbox.set_auto_delete_interval, 100)
        await call(sandbox.set_ttl, 700)
        await call(sandbox.set_public, True)
        await call(sandbox.set_public, False)
        await call(sandbox.set_autostop_interval, 0)
        await call(sandbox.set_auto_pause_interval, 5)
        await call(sandbox.set_auto_pause_interval, 0)
        await call(sandbox.set_autostop_interval, 20)
        await call(sandbox.refresh_activity)
        await call(sandbox.refresh_data)
        assert (sandbox.auto_stop_interval, sandbox.auto_archive_interval) == (20, 90)
        assert (sandbox.auto_delete_interval, sandbox.public) == (100, False)
        await call(sandbox.update_network_settings, network_block_all=True)
        await call(sandbox.update_network_settings, network_block_all=False, network_allow_list="203.0.113.7/32")
        await call(sandbox.update_network_settings, domain_allow_list="example.com")
        await call(sandbox.update_env, {"ONE": "1", "TWO": "2"}, unset=["COLOR"])
        assert await call(sandbox.get_work_dir) == "/home/daytona"
        assert await call(sandbox.get_user_home_dir) == "/home/daytona"
        with pytest.warns(DeprecationWarning, match="get_user_home_dir"):
            assert await call(sandbox.get_user_root_dir) == "/home/daytona"
        assert (await call(sandbox.get_metrics_latest)).cpu_count == 1
        now = datetime.now(UTC)
        for sample in await call(sandbox.get_metrics, start=now - hour, end=now):
            assert sample.cpu_count == 1

    async def files(self, fs: Any) -> None:
        await call(fs.create_folder, "files/sub", "750")
        await call(fs.upload_file, b"one", "files/one.txt")
        here = self.folder / "two.txt"
        here.write_bytes(b"two\n" * 1000)
        await call(fs.upload_file, str(here), "files/two.txt")
        await call(
            fs.upload_files, [FileUpload(b"three", "files/sub/three.md"), FileUpload(str(here), "files/four.txt")]
        )
        sent: list[int] = []
        source: Any = io.BytesIO(b"streamed" * 50_000)
        event = asyncio.Event() if self.is_async else threading.Event()
        progress = {"on_progress": lambda progress: sent.append(progress.bytes_sent), "cancel_event": event}
        await call(fs.upload_file_stream, source, "files/stream.bin", **progress)
        assert sent[-1] == 400_000
        assert await call(fs.download_file, "files/one.txt") == b"one"
        there = self.folder / "there.txt"
        await call(fs.download_file, "files/two.txt", str(there), 60)
        assert there.read_bytes() == here.read_bytes()
        got: list[tuple[int, int | None]] = []

        def received(progress: Any) -> None:
            got.append((progress.bytes_received, progress.total_bytes))

        pieces = await call(fs.download_file_stream, "files/stream.bin", on_progress=received, cancel_event=event)
        assert b"".join(await everything(pieces)) == b"streamed" * 50_000
        assert got[-1] == (400_000, 400_000)
        requests = [
            FileDownloadRequest(source="files/one.txt"),
            FileDownloadRequest(source="files/two.txt", destination=str(there)),
            FileDownloadRequest(source="files/none"),
        ]
        results = await call(fs.download_files, requests)
        assert [each.result for each in results] == [b"one", str(there), None]
        assert results[2].error
        assert (await call(fs.get_file_info, "files/one.txt")).size == 3
        assert len(await call(fs.list_files, "files", depth=2)) == 6
        await call(fs.set_file_permissions, "files/one.txt", mode="600", owner="daytona", group="daytona")
        assert (await call(fs.get_file_info, "files/one.txt")).permissions == "0600"
        assert [each.line for each in await call(fs.find_files, "files/sub", "three")] == [1]
        assert len((await call(fs.search_files, "files", "*.txt")).files) == 3
        assert (await call(fs.replace_in_files, ["files/one.txt"], "one", "uno"))[0].success
        await call(fs.move_files, "files/one.txt", "files/uno.txt")
        await call(fs.delete_file, "files", recursive=True)

    async def commands(self, process: Any) -> None:
        done = await call(process.exec, "pwd; echo $ONE$A; exit 3", cwd="/tmp", env={"A": "a"})
        assert (done.exit_code, done.result) == (3, "/tmp\n1a\n")
        code = "import sys, os; print(sys.argv[1:], os.environ['A'])"
        ran = await call(process.code_run, code, CodeRunParams(argv=["x"], env={"A": "b"}))
        assert (ran.exit_code, ran.result) == (0, "['x'] b\n")

    async def sessions(self, process: Any) -> None:
        await call(process.create_session, "s")
        request = SessionExecuteRequest(command="read line; echo got $line; echo oops >&2", run_async=True)
        command = await call(process.execute_session_command, "s", request)
        await call(process.send_session_command_input, "s", command.cmd_id, "it")
        out: list[str] = []
        err: list[str] = []
        await process.get_session_command_logs_async("s", command.cmd_id, out.append, err.append)
        assert ("".join(out), "".join(err)) == ("it\ngot it\n", "oops\n")
        quiet = SessionExecuteRequest(command="echo done", suppress_input_echo=True)
        assert (await call(process.execute_session_command, "s", quiet)).stdout == "done\n"
        logs = await call(process.get_session_command_logs, "s", command.cmd_id)
        assert (logs.stdout, logs.stderr) == ("it\ngot it\n", "oops\n")
        assert (await call(process.get_session_command, "s", command.cmd_id)).exit_code == 0
        assert len((await call(process.get_session, "s")).commands) == 2
        assert [each.session_id for each in await call(process.list_sessions)] == ["s"]
        await call(process.delete_session, "s")
        await call(process.get_entrypoint_session)
        await call(process.get_entrypoint_logs)
        await process.get_entrypoint_logs_async(print, print)

    async def terminals(self, process: Any) -> None:
        seen: list[bytes] = []
        # The async SDK gives what a terminal prints to its own callback, the sync one to that of `wait`.
        listen = {"on_data": seen.append} if self.is_async else {}
        hear = {} if self.is_async else {"on_data": seen.append}
        create = process.create_pty_session if self.is_async else partial(terminals.create, process)
        connect = process.connect_pty_session if self.is_async else partial(terminals.connect, process)
        how = {"cwd": "/tmp", "envs": {"A": "b"}, "pty_size": PtySize(rows=20, cols=70)}
        handle = await call(create, id="p", **how, **listen)
        await call(handle.wait_for_connection)
        assert handle.is_connected()
        assert (await call(handle.resize, PtySize(rows=22, cols=72))).rows == 22
        assert (await call(process.resize_pty_session, "p", PtySize(rows=21, cols=71))).cols == 71
        assert (await call(process.get_pty_session_info, "p")).cols == 71
        assert [each.id for each in await call(process.list_pty_sessions)] == ["p"]
        await call(handle.send_input, "pwd; echo =$A=; stty size; exit 3\n")
        assert (await call(handle.wait, **hear)).exit_code == 3
        for wanted in (b"/tmp\r\n", b"=b=", b"21 71"):
            assert wanted in b"".join(seen)
        await call(handle.disconnect)
        first = await call(create, id="q", **listen)
        second = await call(connect, "q", **listen)
        await call(second.wait_for_connection)
        await call(second.kill)
        assert (await call(first.wait, **hear)).exit_code == 137
        for each in (first, second):
            await call(each.disconnect)
        third = await call(create, id="r", **listen)
        await call(process.kill_pty_session, "r")
        await call(third.disconnect)
        assert await call(process.list_pty_sessions) == []

    async def interpreters(self, interpreter: Any) -> None:
        context = await call(interpreter.create_context, cwd="/tmp")
        assert [each.id for each in await call(interpreter.list_contexts)] == [context.id]
        said: list[str] = []
        code = "import os, sys; print(os.getcwd(), os.environ['A']); print('e', file=sys.stderr); 1/0"
        ran = await call(
            interpreter.run_code,
            code,
            context=context,
            on_stdout=lambda message: said.append(message.output),
            on_stderr=lambda message: said.append(message.output),
            on_error=lambda error: said.append(error.name),
            envs={"A": "b"},
        )
        assert (ran.stdout, ran.stderr, ran.error.name) == ("/tmp b\n", "e\n", "ZeroDivisionError")
        assert {"ZeroDivisionError"} < set(said)
        assert (await call(interpreter.run_code, "x = 5; print(x)")).stdout == "5\n"
        await call(interpreter.delete_context, context)

    async def git(self, sandbox: Any) -> None:
        git, fs = sandbox.git, sandbox.fs
        await call(git.init, "bare", bare=True, initial_branch="main")
        await call(git.init, "work", initial_branch="main")
        await call(git.configure_user, "Ann", "ann@example.com", scope="local", path="work")
        await call(git.set_config, "a.b", "c", scope="local", path="work")
        assert await call(git.get_config, "a.b", scope="local", path="work") == "c"
        await call(fs.upload_file, b"one\n", "work/file")
        await call(git.add, "work", ["file"])
        first = await call(git.commit, "work", "first", "Ann", "ann@example.com", allow_empty=False)
        await call(git.create_branch, "work", "topic")
        await call(git.checkout_branch, "work", "main")
        await call(git.delete_branch, "work", "topic")
        assert (await call(git.branches, "work")).branches == ["main"]
        await call(git.remote_add, "work", "origin", "/home/daytona/elsewhere")
        await call(git.remote_add, "work", "origin", "/home/daytona/bare", fetch=True, overwrite=True)
        assert await call(git.remote_get, "work", "origin") == "/home/daytona/bare"
        assert [each.name for each in (await call(git.remotes, "work")).remotes] == ["origin"]
        account = {"username": "u", "password": "p"}
        place = {"remote": "origin", "branch": "main"}
        await call(git.push, "work", **account, **place, set_upstream=True)
        how = {"branch": "main", "commit_id": first.sha, "insecure_skip_tls": True, "depth": 1}
        await call(git.clone, url="file:///home/daytona/bare", path="copy", **account, **how)
        await call(fs.upload_file, b"two\n", "work/file")
        status = await call(git.status, "work")
        assert (status.current_branch, len(status.file_status)) == ("main", 1)
        await call(git.restore, "work", ["file"], staged=True, worktree=True, source="HEAD")
        assert (await call(git.status, "work")).file_status == []
        await call(git.pull, "work", **account, **place)
        await call(git.reset, "work", mode="hard", target="HEAD")
        await call(git.reset, "work", files=["file"])
        await call(git.dangerously_authenticate, "u", "p", host="example.com", protocol="https")

    async def languages(self, sandbox: Any) -> None:
        program = "/home/daytona/.local/bin/pylsp"
        await call(sandbox.fs.upload_file, SYMBOLS_OF_PYTHON.encode(), program)
        await call(sandbox.fs.set_file_permissions, program, mode="755")
        await call(sandbox.fs.upload_file, b"def one():\n    pass\n", "project/code.py")
        server = sandbox.create_lsp_server(language_id="python", path_to_project="project")
        if inspect.isawaitable(server):
            server = await server
        await call(server.start)
        await call(server.did_open, "project/code.py")
        assert [each.name for each in await call(server.document_symbols, "project/code.py")] == ["one"]
        assert await call(server.sandbox_symbols, "x") == []
        with pytest.warns(DeprecationWarning, match="sandbox_symbols"):
            assert await call(server.workspace_symbols, "x") == []
        completed = await call(server.completions, "project/code.py", LspCompletionPosition(0, 0))
        assert completed.items[0].label == "print"
        await call(server.did_close, "project/code.py")
        await call(server.stop)

    async def ports(self, sandbox: Any) -> None:
        link = await call(sandbox.get_preview_link, 3000)
        assert "3000" in link.url
        assert link.token
        signed = await call(sandbox.create_signed_preview_url, 3000, expires_in_seconds=120)
        assert signed.url != link.url
        await call(sandbox.expire_signed_preview_url, 3000, signed.token)
        assert "signature=" in await call(sandbox.download_url, "/tmp/x", ttl_seconds=60)
        assert "signature=" in await call(sandbox.upload_url, "/tmp/x", ttl_seconds=60)
        await call(sandbox.rotate_signing_key)

    async def what_is_not_there(self, sandbox: Any) -> None:
        """What answers 501: SSH and warm pools. docs/daytona-api.md tells what to do instead."""
        await refused(call(sandbox.create_ssh_access, expires_in_minutes=10))
        await refused(call(sandbox.revoke_ssh_access, "token"))
        await refused(call(sandbox.validate_ssh_access, "token"))
        pool = self.client.warm_pool
        await refused(call(pool.list))
        await refused(call(pool.create, "daytona-small", 1, target="local"))
        await refused(call(pool.update, "x", 1))
        await refused(call(pool.delete, "x"))

    async def secrets(self, sandbox: Any) -> None:
        secrets, name = self.client.secret, f"tour-{self.mark}"
        params = CreateSecretParams(name=name, value="x" * 20, description="of a tour", hosts=["api.example.com"])
        made = await call(secrets.create, params)
        more = await call(secrets.create, CreateSecretParams(name=f"{name}-more", value="y"))
        first = await call(secrets.list, limit=1, name=name, sort="name", order="asc")
        second = await call(secrets.list, cursor=first.next_cursor, limit=1, name=name, sort="name", order="asc")
        assert [each.name for each in (*first.items, *second.items)] == [name, f"{name}-more"]
        assert (first.total, second.next_cursor) == (2, None)
        assert (await call(secrets.update, made.id, UpdateSecretParams(description="new"))).description == "new"
        assert (await call(secrets.get, made.id)).hosts == ["api.example.com"]
        await call(sandbox.update_secrets, {"TOKEN": name})
        assert (await call(sandbox.process.exec, "echo $TOKEN")).result == f"{made.placeholder}\n"
        await call(sandbox.update_secrets, {})
        for each in (made, more):
            await call(secrets.delete, each.id)

    async def desktop(self, sandbox: Any) -> None:
        """On a machine without Xvfb, all of it is refused, by name."""
        screen, region = sandbox.computer_use, ScreenshotRegion(x=0, y=0, width=10, height=10)
        started = await on_desktop(screen.start)
        assert started is None or started.status["xvfb"].running
        await call(screen.get_status)
        for method in (screen.get_process_status, screen.get_process_logs, screen.get_process_errors):
            await call(method, "xvfb")
        mouse, keyboard = screen.mouse, screen.keyboard
        await on_desktop(mouse.get_position)
        await on_desktop(mouse.move, 1, 2)
        for method in (mouse.down, mouse.up):
            await on_desktop(method, 1, 2, button="left")
        await on_desktop(mouse.click, 1, 2, button="left", double=False, clicks=1, modifiers=["ctrl"])
        await on_desktop(mouse.drag, 1, 2, 3, 4, button="left", modifiers=["ctrl"])
        await on_desktop(mouse.scroll, 1, 2, "down", amount=1, modifiers=["ctrl"])
        await on_desktop(keyboard.type, "x", delay=1)
        await on_desktop(keyboard.press, "x", modifiers=["ctrl"])
        for method in (keyboard.hotkey, keyboard.down, keyboard.up):
            await on_desktop(method, "x")
        options = ScreenshotOptions(show_cursor=True, fmt="png", quality=50, scale=1)
        await on_desktop(screen.screenshot.take_full_screen, show_cursor=True)
        await on_desktop(screen.screenshot.take_region, region, show_cursor=True)
        await on_desktop(screen.screenshot.take_compressed, options)
        await on_desktop(screen.screenshot.take_compressed_region, region, options)
        await on_desktop(screen.display.get_info)
        await on_desktop(screen.display.get_windows)
        await self.recordings(screen.recording)
        tree = screen.accessibility
        await refused(call(tree.get_tree, scope="all", pid=1, max_depth=1), 501, 503)
        found = {"scope": "all", "pid": 1, "role": "x", "name": "x", "name_match": "exact", "states": ["focused"]}
        await refused(call(tree.find_nodes, limit=1, **found), 501, 503)
        await refused(call(tree.focus_node, "x"), 501, 503)
        await refused(call(tree.invoke_node, "x", action="x"), 501, 503)
        await refused(call(tree.set_node_value, "x", "y"), 501, 503)
        await on_desktop(screen.restart_process, "fluxbox")
        await call(screen.stop)

    async def recordings(self, recording: Any) -> None:
        begun = await on_desktop(recording.start, label="x")
        id = "0" * 16 if begun is None else begun.id
        await call(recording.list)
        if begun is None:
            for method in (recording.stop, recording.get, recording.delete):
                await refused(call(method, id), 404)
            await refused(call(recording.download, id, str(self.folder / "recording")), 404)
            return
        for method in (recording.get, recording.stop):
            assert (await call(method, id)).id == id
        await call(recording.download, id, str(self.folder / "recording"))
        assert (self.folder / "recording").read_bytes().startswith(b"RIFF")
        await call(recording.delete, id)

    async def lifecycle(self, sandbox: Any) -> None:
        client, name = self.client, f"fork-{self.mark}"
        plain = await call(client.create)
        forked = await call(sandbox.fork, name=name)
        await call(client.stop, plain)
        await call(plain.wait_for_sandbox_stop)
        await call(plain.archive)
        await call(client.start, plain)
        await call(plain.wait_for_sandbox_start)
        await call(plain.pause)
        await call(plain.start)
        await call(plain.resize, Resources(cpu=2))
        await call(plain.wait_for_resize_complete)
        with pytest.raises(DaytonaError):
            await call(plain.recover)
        await call(plain.create_snapshot, f"of-{self.mark}")
        await call(plain.stop, force=True)
        await call(plain.delete, wait=True)
        await call(client.delete, forked, wait=True)

    async def snapshots(self) -> None:
        snapshots, name = self.client.snapshot, f"of-{self.mark}"
        found = await call(snapshots.get, name)
        listed = await call(snapshots.list, page=1, limit=10, source_sandbox_id=found.source_sandbox_id)
        assert [each.name for each in listed.items] == [name]
        with pytest.raises(Exception, match="already active"):
            await call(snapshots.activate, name)
        await call(snapshots.delete, found)
        recipe = Image.base(self.image).run_commands(f"echo {self.mark} > /built")
        lines: list[str] = []
        params = CreateSnapshotParams(name=f"built-{self.mark}", image=recipe, resources=Resources(cpu=1))
        made = await call(snapshots.create, params, on_logs=lines.append)
        assert made.state == "active"
        assert lines
        logs: list[str] = []
        from_image = CreateSandboxFromImageParams(image=recipe, resources=Resources(cpu=1))
        sandbox = await call(self.client.create, from_image, on_snapshot_create_logs=logs.append)
        assert (await call(sandbox.process.exec, "cat /built")).result == f"{self.mark}\n"
        await call(sandbox.delete, wait=False)
        await call(snapshots.delete, made.name)
