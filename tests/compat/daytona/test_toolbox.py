"""What happens inside a sandbox, by the SDK: commands, sessions, terminals, interpreters, files, ports."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import httpx
import pytest
from daytona import (
    DaytonaBadRequestError,
    DaytonaConnectionError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    FileDownloadRequest,
    FileUpload,
    Sandbox,
    SessionExecuteRequest,
)
from daytona.common.errors import (
    DaytonaCommandAlreadyCompletedError,
    DaytonaConflictError,
    DaytonaFileAccessDeniedError,
    DaytonaFileNotFoundError,
    DaytonaLspServerNotInitializedError,
    DaytonaProcessExecutionTimeoutError,
    DaytonaSessionEndedError,
)
from daytona.common.lsp_server import LspCompletionPosition
from daytona.common.process import CodeRunParams
from daytona.common.pty import PtySize
from tests.compat.daytona import terminals
from tests.compat.daytona.language_server import SYMBOLS_OF_PYTHON

# --- commands and code ---


def test_a_command_has_an_exit_code_and_both_streams_in_order(shared: Sandbox) -> None:
    done = shared.process.exec("echo one; echo two >&2; echo three; exit 4")
    assert (done.exit_code, done.result) == (4, "one\ntwo\nthree\n")
    assert done.artifacts is not None
    assert done.artifacts.stdout == done.result


def test_a_command_gets_its_folder_and_variables(shared: Sandbox) -> None:
    assert shared.process.exec("pwd; echo $A", cwd="/tmp", env={"A": "b"}).result == "/tmp\nb\n"


def test_a_command_that_takes_too_long_is_killed(shared: Sandbox) -> None:
    with pytest.raises(DaytonaProcessExecutionTimeoutError):
        shared.process.exec("sleep 30", timeout=1)


def test_code_runs(shared: Sandbox) -> None:
    done = shared.process.code_run(
        "import os, sys; print(sys.argv[1], os.environ['A'])", CodeRunParams(argv=["x"], env={"A": "b"})
    )
    assert (done.exit_code, done.result) == (0, "x b\n")
    failed = shared.process.code_run("1/0")
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.result


# --- sessions ---


def _run(sandbox: Sandbox, session: str, command: str, *, in_background: bool = False) -> tuple[str, str, int | None]:
    request = SessionExecuteRequest(command=command, run_async=in_background)
    done = sandbox.process.execute_session_command(session, request)
    return done.cmd_id, done.stdout or "", done.exit_code


@pytest.fixture
def session(shared: Sandbox) -> str:
    name = f"session-{uuid.uuid4()}"
    shared.process.create_session(name)
    return name


def test_a_session_remembers_its_folder_and_variables(shared: Sandbox, session: str) -> None:
    _run(shared, session, "cd /tmp; export A=1; b=2")
    assert _run(shared, session, "pwd; echo $A$b")[1:] == ("/tmp\n12\n", 0)
    assert _run(shared, session, "echo 'not closed")[2] == 2, "a mistake does not break the session"
    id, _, code = _run(shared, session, "false")
    assert code == 1
    found = shared.process.get_session_command(session, id)
    assert (found.command, found.exit_code) == ("false", 1)
    assert len(shared.process.get_session(session).commands) == 4


def test_output_of_a_command_is_followed(shared: Sandbox, session: str) -> None:
    script = "for n in 1 2 3; do echo out$n; echo err$n >&2; sleep 0.1; done"
    id, _, _ = _run(shared, session, script, in_background=True)
    out: list[str] = []
    err: list[str] = []
    asyncio.run(shared.process.get_session_command_logs_async(session, id, out.append, err.append))
    assert "".join(out) == "out1\nout2\nout3\n"
    assert "".join(err) == "err1\nerr2\nerr3\n"
    logs = shared.process.get_session_command_logs(session, id)
    assert (logs.stdout, logs.stderr) == ("".join(out), "".join(err))
    assert logs.output is not None
    assert len(logs.output) == 30


def test_a_command_gets_input(shared: Sandbox, session: str) -> None:
    id, _, _ = _run(shared, session, "read name; echo hello $name", in_background=True)
    shared.process.send_session_command_input(session, id, "bob\n")
    out: list[str] = []
    asyncio.run(shared.process.get_session_command_logs_async(session, id, out.append, out.append))
    assert "hello bob\n" in "".join(out)
    with pytest.raises(DaytonaCommandAlreadyCompletedError):
        shared.process.send_session_command_input(session, id, "more\n")


def test_a_session_lives_until_it_is_deleted(shared: Sandbox, session: str) -> None:
    assert session in [each.session_id for each in shared.process.list_sessions()]
    with pytest.raises(DaytonaConflictError):
        shared.process.create_session(session)
    assert _run(shared, session, "exit 3")[2] == 3
    with pytest.raises(DaytonaSessionEndedError):
        _run(shared, session, "true")
    shared.process.delete_session(session)
    with pytest.raises(DaytonaNotFoundError):
        shared.process.get_session(session)


def test_there_is_no_entrypoint(shared: Sandbox) -> None:
    assert shared.process.get_entrypoint_session().commands == []
    assert shared.process.get_entrypoint_logs().output == ""
    asyncio.run(shared.process.get_entrypoint_logs_async(print, print))


# --- terminals ---


def test_a_terminal_runs_a_shell(shared: Sandbox) -> None:
    name = f"pty-{uuid.uuid4()}"
    handle = terminals.create(shared.process, name, cwd="/tmp", envs={"A": "b"}, pty_size=PtySize(rows=30, cols=100))
    handle.send_input("pwd; echo =$A=; stty size; exit 5\n")
    seen: list[bytes] = []
    done = handle.wait(on_data=seen.append, timeout=240)
    assert done.exit_code == 5
    text = b"".join(seen)
    for wanted in (b"/tmp\r\n", b"=b=", b"30 100"):
        assert wanted in text
    handle.disconnect()


def test_a_terminal_is_left_and_found_again(shared: Sandbox) -> None:
    name = f"pty-{uuid.uuid4()}"
    terminals.create(shared.process, name).disconnect()
    assert name in [each.id for each in shared.process.list_pty_sessions()]
    handle = terminals.connect(shared.process, name)
    assert handle.resize(PtySize(rows=40, cols=120)).cols == 120
    assert shared.process.resize_pty_session(name, PtySize(rows=41, cols=121)).rows == 41
    info = shared.process.get_pty_session_info(name)
    assert (info.active, info.cols, info.rows, info.cwd) == (True, 121, 41, "/home/daytona")
    with pytest.raises(DaytonaConflictError):
        shared.process.create_pty_session(name)
    handle.kill()
    assert handle.wait(timeout=240).exit_code == 137
    handle.disconnect()
    with pytest.raises(DaytonaNotFoundError):
        shared.process.kill_pty_session(name)


# --- interpreters ---


def test_an_interpreter_keeps_its_variables(shared: Sandbox) -> None:
    run = shared.code_interpreter.run_code
    assert run("x = 20").error is None
    heard: list[str] = []
    done = run(
        "import sys; print(x + 1); print('oops', file=sys.stderr); import os; os.system('echo from a program')",
        on_stdout=lambda message: heard.append(message.output),
    )
    assert done.stdout == "21\nfrom a program\n" == "".join(heard)
    assert done.stderr == "oops\n"
    failed = run("1/0")
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 1" in failed.error.traceback


def test_contexts_are_apart(shared: Sandbox) -> None:
    interpreter = shared.code_interpreter
    context = interpreter.create_context(cwd="/tmp")
    assert context.id in [each.id for each in interpreter.list_contexts()]
    done = interpreter.run_code(
        "import os; y = 1; print(os.getcwd(), os.environ['A'])", context=context, envs={"A": "b"}
    )
    assert done.stdout == "/tmp b\n"
    with pytest.raises(DaytonaTimeoutError):
        interpreter.run_code("import time; time.sleep(60)", context=context, timeout=1)
    assert interpreter.run_code("print(y, os.environ.get('A'))", context=context).stdout == "1 None\n"
    interpreter.delete_context(context)
    with pytest.raises(DaytonaConnectionError):
        interpreter.run_code("1", context=context)
    with pytest.raises(DaytonaBadRequestError):
        interpreter.create_context(cwd="/no/such/folder")


# --- files ---


def test_a_link_is_what_it_leads_to(shared: Sandbox) -> None:
    shared.process.exec(
        "mkdir -p links/folder; printf hello > links/file; cd links; ln -s folder to-folder; ln -s file to-file; "
        "ln -s nothing to-nothing; ln -s round round"
    )
    found = {each.name: (each.is_dir, each.size) for each in shared.fs.list_files("links") if not each.is_dir}
    assert found == {"file": (False, 5), "to-file": (False, 5)}
    folders = [each.name for each in shared.fs.list_files("links") if each.is_dir]
    assert sorted(folders) == ["folder", "to-folder"]
    info = shared.fs.get_file_info("links/to-folder")
    assert (info.name, info.is_dir) == ("to-folder", True)
    with pytest.raises(DaytonaFileNotFoundError):
        shared.fs.get_file_info("links/to-nothing")
    with pytest.raises(DaytonaBadRequestError, match="too many levels of symbolic links"):
        shared.fs.get_file_info("links/round")


def test_files_go_up_and_come_down(shared: Sandbox, tmp_path: Path) -> None:
    fs = shared.fs
    folder = f"files-{uuid.uuid4()}"
    fs.upload_file(b"one", f"{folder}/one.txt")
    here = tmp_path / "here.bin"
    here.write_bytes(bytes(range(256)) * 8192)
    fs.upload_files([FileUpload(str(here), f"{folder}/two.bin"), FileUpload(b"", f'{folder}/ünï "q".txt')])
    fs.upload_file_stream(b"stream", f"{folder}/three.txt")
    assert fs.download_file(f"{folder}/one.txt") == b"one"
    there = tmp_path / "there.bin"
    fs.download_file(f"{folder}/two.bin", str(there))
    assert there.read_bytes() == here.read_bytes()
    assert b"".join(fs.download_file_stream(f"{folder}/three.txt")) == b"stream"
    names = [f"{folder}/one.txt", f"{folder}/missing", f'{folder}/ünï "q".txt', folder]
    results = fs.download_files([FileDownloadRequest(source=name) for name in names])
    assert [each.result for each in results] == [b"one", None, b"", None]
    details = results[1].error_details
    assert details is not None
    assert (details.status_code, details.code) == (404, "FILE_NOT_FOUND")
    with pytest.raises(DaytonaFileNotFoundError):
        fs.download_file(f"{folder}/missing")


def test_folders_are_made_listed_moved_and_deleted(shared: Sandbox) -> None:
    fs = shared.fs
    folder = f"folder-{uuid.uuid4()}"
    fs.create_folder(f"{folder}/sub", "700")
    fs.upload_file(b"12345", f"{folder}/sub/file.txt")
    info = fs.get_file_info(f"{folder}/sub/file.txt")
    assert (info.name, info.size, info.is_dir, info.permissions) == ("file.txt", 5, False, "0644")
    assert fs.get_file_info(f"{folder}/sub").mode == "drwx------"
    assert [each.name for each in fs.list_files(folder)] == ["sub"]
    assert [each.name for each in fs.list_files(folder, depth=2)] == ["sub", "file.txt"]
    assert folder in [each.name for each in fs.list_files("")], "the working folder"
    fs.set_file_permissions(f"{folder}/sub/file.txt", mode="600")
    assert fs.get_file_info(f"{folder}/sub/file.txt").permissions == "0600"
    fs.move_files(f"{folder}/sub/file.txt", f"{folder}/moved.txt")
    assert [each.name for each in fs.list_files(f"{folder}/sub")] == []
    with pytest.raises(DaytonaBadRequestError):
        fs.delete_file(folder)
    fs.delete_file(f"{folder}/moved.txt")
    fs.delete_file(folder, recursive=True)
    with pytest.raises(DaytonaFileNotFoundError):
        fs.get_file_info(folder)
    with pytest.raises(DaytonaFileNotFoundError):
        fs.list_files(folder)
    with pytest.raises(DaytonaFileAccessDeniedError):
        fs.create_folder("/usr/not-here", "755")


def test_text_is_found_and_replaced(shared: Sandbox) -> None:
    fs = shared.fs
    folder = f"/tmp/text-{uuid.uuid4()}"
    fs.upload_file(b"alpha\nbeta\n", f"{folder}/a.txt")
    fs.upload_file(b"beta\n", f"{folder}/b.md")
    found = fs.find_files(folder, "beta")
    assert sorted((each.file, each.line, each.content) for each in found) == [
        (f"{folder}/a.txt", 2, "beta"),
        (f"{folder}/b.md", 1, "beta"),
    ]
    assert fs.search_files(folder, "*.txt").files == [f"{folder}/a.txt"]
    results = fs.replace_in_files([f"{folder}/a.txt", f"{folder}/none"], "beta", "gamma")
    assert [each.success for each in results] == [True, False]
    assert fs.download_file(f"{folder}/a.txt") == b"alpha\ngamma\n"


def test_signed_urls_need_no_key(shared: Sandbox) -> None:
    path = f"/tmp/signed-{uuid.uuid4()}"
    up, down = shared.upload_url(path), shared.download_url(path, ttl_seconds=60)
    with httpx.Client(trust_env=False) as anybody:
        assert anybody.post(up, files={"file": ("name", b"by url")}).status_code == 200
        assert anybody.get(down).content == b"by url"
        assert anybody.get(down.replace("signed-", "other-")).status_code == 401
        assert anybody.post(down.replace("files/download", "files/upload-v2")).status_code == 401
        shared.rotate_signing_key()
        assert anybody.get(down).status_code == 401


# --- ports ---


def test_a_port_is_reached_by_its_preview(shared: Sandbox) -> None:
    name = f"web-{uuid.uuid4()}"
    shared.process.create_session(name)
    folder = f"/tmp/{name}"
    shared.fs.upload_file(b"a page", f"{folder}/page.txt")
    _run(shared, name, f"cd {folder} && python3 -m http.server 8765", in_background=True)
    link = shared.get_preview_link(8765)
    signed = shared.create_signed_preview_url(8765, expires_in_seconds=60)
    with httpx.Client(trust_env=False) as anybody:
        deadline = time.monotonic() + 240
        headers = {"x-daytona-preview-token": link.token}
        while anybody.get(f"{link.url}/page.txt", headers=headers).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert anybody.get(f"{link.url}/page.txt", headers=headers).text == "a page"
        assert anybody.get(f"{link.url}/page.txt").status_code == 401
        assert anybody.get(signed.url).status_code == 200
        shared.expire_signed_preview_url(8765, signed.token)
        assert anybody.get(signed.url).status_code == 401
        shared.set_public(True)
        assert anybody.get(f"{link.url}/page.txt").text == "a page"
        shared.set_public(False)
        assert anybody.get(f"{link.url}/page.txt").status_code == 401
    shared.process.delete_session(name)


# --- what is not there ---


def test_missing_language_servers_are_refused_by_name(shared: Sandbox) -> None:
    server = shared.create_lsp_server("typescript", "/home/daytona")
    with pytest.raises(DaytonaError) as caught:
        server.start()
    assert caught.value.status_code == 501


def test_a_language_server_of_the_sandbox_is_asked(sandbox: Sandbox) -> None:
    """A small server under the name of the usual one: it knows functions."""
    sandbox.fs.upload_file(SYMBOLS_OF_PYTHON.encode(), "/home/daytona/.local/bin/pylsp")
    sandbox.fs.set_file_permissions("/home/daytona/.local/bin/pylsp", mode="755")
    sandbox.fs.upload_file(b"def one():\n    pass\ndef two():\n    pass\n", "project/code.py")
    server = sandbox.create_lsp_server("python", "project")
    with pytest.raises(DaytonaLspServerNotInitializedError):
        server.document_symbols("project/code.py")
    server.start()
    server.start()
    server.did_open("project/code.py")
    found = server.document_symbols("project/code.py")
    assert [(each.name, each.location.range.start.line) for each in found] == [("one", 0), ("two", 2)]
    assert server.sandbox_symbols("x") == []
    assert server.completions("project/code.py", LspCompletionPosition(0, 0)).items[0].label == "print"
    server.did_close("project/code.py")
    server.stop()
    with pytest.raises(DaytonaLspServerNotInitializedError):
        server.did_open("project/code.py")
