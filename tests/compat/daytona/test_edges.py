"""What programs written for Daytona rely on at the edges: classes of errors, time limits, empty and strange values.

Worked out from the SDK's own types, docstrings and error classes.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    FileDownloadRequest,
    FileUpload,
    Image,
    ListSandboxesQuery,
    Sandbox,
    SandboxState,
    SessionExecuteRequest,
)
from daytona.common.errors import (
    DaytonaBadRequestError,
    DaytonaFileNotFoundError,
    DaytonaGitBranchExistsError,
    DaytonaGitBranchNotFoundError,
    DaytonaInvalidFilePathError,
    DaytonaProcessExecutionTimeoutError,
    DaytonaTimeoutError,
)
from daytona.common.process import CodeRunParams
from daytona.common.pty import PtySize
from daytona_toolbox_api_client.exceptions import ApiException

from holdfast.testing.server import ServerProcess

pytestmark = [pytest.mark.box, pytest.mark.slow]

Work = Callable[[Sandbox], Any]

NO_SUCH = "no-such-thing"


def ask(command: str, **more: Any) -> SessionExecuteRequest:
    return SessionExecuteRequest(command=command, **more)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda s: s.fs.download_file("/tmp/none"), DaytonaFileNotFoundError),
        (lambda s: s.fs.get_file_info("/tmp/none"), DaytonaFileNotFoundError),
        (lambda s: s.fs.list_files("/tmp/none"), DaytonaFileNotFoundError),
        (lambda s: s.fs.list_files("/etc/hostname"), DaytonaError),
        (lambda s: s.fs.delete_file("/tmp/none"), DaytonaFileNotFoundError),
        (lambda s: s.fs.delete_file("/tmp"), DaytonaError),
        (lambda s: s.fs.move_files("/tmp/none", "/tmp/there"), DaytonaFileNotFoundError),
        (lambda s: s.fs.set_file_permissions("/tmp/none", mode="644"), DaytonaFileNotFoundError),
        (lambda s: s.fs.find_files("/tmp/none", "x"), DaytonaFileNotFoundError),
        (lambda s: s.fs.search_files("/tmp/none", "*"), DaytonaFileNotFoundError),
        (lambda s: s.fs.create_folder("/tmp/folder", "999"), DaytonaBadRequestError),
        (lambda s: s.fs.upload_file(b"", "/etc/passwd/x"), DaytonaError),
        (lambda s: s.fs.download_file("/tmp"), DaytonaInvalidFilePathError),
        (lambda s: s.process.exec("sleep 20", timeout=1), DaytonaProcessExecutionTimeoutError),
        (lambda s: s.process.get_session(NO_SUCH), DaytonaNotFoundError),
        (lambda s: s.process.delete_session(NO_SUCH), DaytonaNotFoundError),
        (lambda s: s.process.execute_session_command(NO_SUCH, ask("true")), DaytonaNotFoundError),
        (lambda s: s.process.get_session_command(NO_SUCH, "x"), DaytonaNotFoundError),
        (lambda s: s.process.get_session_command_logs(NO_SUCH, "x"), DaytonaNotFoundError),
        (lambda s: s.process.get_pty_session_info(NO_SUCH), DaytonaNotFoundError),
        (lambda s: s.process.kill_pty_session(NO_SUCH), DaytonaNotFoundError),
        (lambda s: s.process.resize_pty_session(NO_SUCH, PtySize(rows=24, cols=80)), DaytonaNotFoundError),
        (lambda s: s.process.connect_pty_session(NO_SUCH), DaytonaError),
        (lambda s: s.git.status("/tmp"), DaytonaError),
        (lambda s: s.git.branches("/tmp/none"), DaytonaError),
        (lambda s: s.git.clone("/tmp/none.git", "/tmp/clone"), DaytonaError),
        (lambda s: s.set_autostop_interval(-1), DaytonaError),
        (lambda s: s.set_auto_archive_interval(-1), DaytonaError),
        (lambda s: s.archive(), DaytonaError),
        (lambda s: s.get_preview_link(0), DaytonaError),
        (lambda s: s.create_signed_preview_url(80, expires_in_seconds=10**6), DaytonaError),
    ],
)
def test_each_failure_is_of_its_class(shared: Sandbox, work: Work, error: type[DaytonaError]) -> None:
    with pytest.raises(error) as caught:
        work(shared)
    assert str(caught.value)


def test_failures_of_the_control_plane_are_of_their_class(daytona: Daytona, daytona_server: ServerProcess) -> None:
    for missing in (
        lambda: daytona.get(NO_SUCH),
        lambda: daytona.snapshot.get(NO_SUCH),
        lambda: daytona.volume.get(NO_SUCH),
    ):
        with pytest.raises(DaytonaNotFoundError):
            missing()
    with pytest.raises(DaytonaNotFoundError):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=NO_SUCH))
    with pytest.raises(DaytonaError):
        daytona.create(CreateSandboxFromSnapshotParams(), timeout=-1)
    with pytest.raises(DaytonaError):
        daytona.create(CreateSandboxFromSnapshotParams(auto_stop_interval=-1))
    with pytest.raises(DaytonaError):
        daytona.snapshot.create(CreateSnapshotParams(name="no-tag", image="alpine"))
    with pytest.raises(DaytonaError):
        daytona.get("")
    stranger = Daytona(DaytonaConfig(api_key="wrong", api_url=f"{daytona_server.url}/compat/daytona", target="local"))
    with pytest.raises(DaytonaAuthenticationError):
        stranger.get(NO_SUCH)
    name = f"volume-{uuid.uuid4()}"
    volume = daytona.volume.create(name)
    with pytest.raises(DaytonaConflictError):
        daytona.volume.create(name)
    daytona.volume.delete(volume)
    with pytest.raises(DaytonaNotFoundError):
        daytona.volume.get(name)


def test_commands_and_their_results(shared: Sandbox) -> None:
    process = shared.process
    assert process.exec("true").result == ""
    assert process.exec("exit 42").exit_code == 42
    assert process.exec("kill -9 $$").exit_code in (137, -1)
    assert process.exec(NO_SUCH).exit_code == 127
    assert process.exec("echo 'a \"b\" $HOME' | cat").result == 'a "b" $HOME\n'
    assert process.exec("printf 'öß\\n'; echo two").result == "öß\ntwo\n"
    assert process.exec("echo out; echo err >&2").result == "out\nerr\n"
    assert process.exec("seq 1 100000 | tail -1").result.strip() == "100000"
    assert len(process.exec("head -c 2000000 /dev/zero | tr '\\0' x").result) == 2_000_000
    assert process.exec("echo $A", env={"A": "x y'\"$"}).result == "x y'\"$\n"
    assert process.exec("pwd", cwd="/usr").result == "/usr\n"
    artifacts = process.exec("pwd").artifacts
    assert artifacts is not None
    assert artifacts.stdout == "/home/daytona\n"
    assert process.exec("sleep 30 & echo started").result == "started\n"
    assert process.exec("cat", timeout=10).exit_code == 0  # its input is empty


def test_code_and_its_results(shared: Sandbox) -> None:
    run = shared.process.code_run
    assert run("print(1 + 1)").result == "2\n"
    failed = run("raise ValueError('no')")
    assert failed.exit_code == 1
    assert "ValueError: no" in failed.result
    assert run("import sys; print(sys.argv[1:])", CodeRunParams(argv=["a b", "c"])).result == "['a b', 'c']\n"
    assert run("import os; print(os.environ['A'])", CodeRunParams(env={"A": "1"})).result == "1\n"
    assert run("import sys; sys.exit(3)").exit_code == 3
    assert run("print('''it's \"quoted\"''')").result == 'it\'s "quoted"\n'
    with pytest.raises(ApiException, match="408"):  # the SDK gives this call's errors no class of its own
        run("import time; time.sleep(20)", timeout=1)
    assert run("if True:\n    print('ä')").result == "ä\n"


def test_sessions_at_their_edges(shared: Sandbox) -> None:
    process, name = shared.process, f"edge-{uuid.uuid4()}"
    process.create_session(name)
    with pytest.raises(DaytonaConflictError):
        process.create_session(name)
    assert name in [each.session_id for each in process.list_sessions()]
    assert process.get_session(name).commands == []
    done = process.execute_session_command(name, ask("cd /tmp; export A=1; echo out; echo err >&2; (exit 7)"))
    assert (done.exit_code, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert done.output == "out\nerr\n" or done.output
    assert process.execute_session_command(name, ask("echo $A $PWD")).stdout == "1 /tmp\n"
    begun = process.execute_session_command(name, ask("echo begin; sleep 1; echo end", run_async=True))
    assert begun.exit_code is None
    assert begun.cmd_id
    assert process.get_session_command(name, begun.cmd_id).exit_code is None
    heard: list[str] = []
    asyncio.run(process.get_session_command_logs_async(name, begun.cmd_id, heard.append, heard.append))
    assert "".join(heard) == "begin\nend\n"
    deadline = time.monotonic() + 240
    while (seen := process.get_session_command(name, begun.cmd_id)).exit_code is None:
        assert time.monotonic() < deadline
    assert (seen.exit_code, seen.command) == (0, "echo begin; sleep 1; echo end")
    assert process.get_session_command_logs(name, begun.cmd_id).stdout == "begin\nend\n"
    assert [each.id for each in process.get_session(name).commands][-1] == begun.cmd_id
    with pytest.raises(DaytonaNotFoundError):
        process.get_session_command(name, NO_SUCH)
    with pytest.raises(DaytonaTimeoutError):
        process.execute_session_command(name, ask("sleep 30"), timeout=1)
    process.delete_session(name)
    with pytest.raises(DaytonaNotFoundError):
        process.get_session(name)


def test_a_command_that_reads_gets_what_is_sent(shared: Sandbox) -> None:
    process, name = shared.process, f"input-{uuid.uuid4()}"
    process.create_session(name)
    begun = process.execute_session_command(name, ask("read a; read b; echo got $a $b", run_async=True))
    assert begun.cmd_id
    process.send_session_command_input(name, begun.cmd_id, "one\n")
    process.send_session_command_input(name, begun.cmd_id, "two\n")
    heard: list[str] = []
    asyncio.run(process.get_session_command_logs_async(name, begun.cmd_id, heard.append, heard.append))
    assert "got one two" in "".join(heard)
    with pytest.raises(DaytonaError):
        process.send_session_command_input(name, begun.cmd_id, "late\n")
    process.delete_session(name)


def test_terminals_at_their_edges(shared: Sandbox) -> None:
    process, name = shared.process, f"pty-{uuid.uuid4()}"
    handle = process.create_pty_session(name, cwd="/tmp", envs={"A": "b"}, pty_size=PtySize(rows=30, cols=100))
    handle.wait_for_connection()
    with pytest.raises(DaytonaError):
        process.create_pty_session(name)
    info = process.get_pty_session_info(name)
    assert (info.id, info.cwd, info.cols, info.rows, info.active) == (name, "/tmp", 100, 30, True)
    assert name in [each.id for each in process.list_pty_sessions()]
    assert (handle.resize(PtySize(rows=40, cols=120)).cols, process.get_pty_session_info(name).rows) == (120, 40)
    handle.send_input("stty size; echo $A $PWD; exit 5\n")
    output = bytearray()
    result = handle.wait(on_data=output.extend, timeout=240)
    assert b"40 120" in output
    assert b"b /tmp" in output
    assert result.exit_code == 5
    handle.disconnect()
    killed = process.create_pty_session(f"{name}-2")
    killed.wait_for_connection()
    killed.kill()
    assert killed.wait(timeout=240).exit_code != 0
    killed.disconnect()
    with pytest.raises(DaytonaNotFoundError):
        process.get_pty_session_info(f"{name}-2")


def test_files_at_their_edges(shared: Sandbox) -> None:
    fs, folder = shared.fs, f"/tmp/edge-{uuid.uuid4()}"
    fs.create_folder(folder, "755")
    fs.create_folder(f"{folder}/deep/er", "700")
    fs.create_folder(folder, "755")  # it is there
    assert fs.get_file_info(f"{folder}/deep/er").permissions == "0700"
    fs.upload_file(b"", f"{folder}/empty")
    assert fs.download_file(f"{folder}/empty") == b""
    odd = f"{folder}/a b'ü\"&%2F#?.txt"
    fs.upload_file(b"odd", odd)
    assert fs.download_file(odd) == b"odd"
    fs.upload_file(b"second", odd)
    assert fs.download_file(odd) == b"second"
    fs.upload_file(b"made", f"{folder}/new/parents/file")
    data = bytes(range(256)) * 8192
    fs.upload_file(data, f"{folder}/binary")
    assert fs.download_file(f"{folder}/binary") == data
    info = fs.get_file_info(f"{folder}/binary")
    assert (info.name, info.is_dir, info.size) == ("binary", False, len(data))
    assert info.mod_time
    assert (info.owner, info.group) == ("daytona", "daytona")
    assert info.mode.startswith("-rw")
    assert fs.get_file_info(folder).is_dir
    assert sorted(each.name for each in fs.list_files(folder)) == sorted(
        ["deep", "empty", odd.rpartition("/")[2], "new", "binary"]
    )
    fs.set_file_permissions(f"{folder}/binary", mode="755")
    assert fs.get_file_info(f"{folder}/binary").permissions == "0755"
    fs.upload_file(b"hello one\nhello two\n", f"{folder}/text")
    found = fs.find_files(folder, "hello")
    assert [(each.file, each.line, each.content) for each in found] == [
        (f"{folder}/text", 1, "hello one"), (f"{folder}/text", 2, "hello two"),
    ]  # fmt: skip
    replaced = fs.replace_in_files([f"{folder}/text", f"{folder}/none"], "hello", "bye")
    assert [(each.file, bool(each.success)) for each in replaced] == [
        (f"{folder}/text", True),
        (f"{folder}/none", False),
    ]
    assert replaced[1].error
    assert fs.download_file(f"{folder}/text") == b"bye one\nbye two\n"
    assert sorted(fs.search_files(folder, "*ext").files) == [f"{folder}/text"]
    assert list(fs.search_files(folder, "*.none").files) == []
    fs.move_files(f"{folder}/text", f"{folder}/deep/moved")
    assert fs.download_file(f"{folder}/deep/moved") == b"bye one\nbye two\n"
    with pytest.raises(DaytonaError):
        fs.delete_file(f"{folder}/deep")
    fs.delete_file(f"{folder}/deep", recursive=True)
    results = fs.download_files([FileDownloadRequest(source=f"{folder}/empty"), FileDownloadRequest(source="/none")])
    assert (results[0].result, bool(results[1].error)) == (b"", True)
    fs.upload_files([FileUpload(b"1", f"{folder}/1"), FileUpload(b"2", f"{folder}/2")])
    fs.upload_file(b"relative", "relative.txt")
    assert shared.process.exec("cat /home/daytona/relative.txt").result == "relative"
    fs.delete_file(folder, recursive=True)


def test_git_at_its_edges(shared: Sandbox) -> None:
    git, repo = shared.git, f"/tmp/repo-{uuid.uuid4()}"
    shared.process.exec(
        f"git init -q -b main {repo} && cd {repo} && git config user.email a@b && git config user.name a"
    )
    shared.fs.upload_file(b"one\n", f"{repo}/one.txt")
    before = git.status(repo)
    assert before.current_branch == "main"
    assert not before.branch_published
    assert [(each.name, each.worktree.value) for each in before.file_status] == [("one.txt", "Untracked")]
    git.add(repo, ["one.txt"])
    assert git.status(repo).file_status[0].staging.value == "Added"
    made = git.commit(repo, "first", "Ann", "ann@example.com")
    assert len(made.sha) == 40
    after = git.status(repo)
    assert after.file_status == []
    assert (after.ahead, after.behind) == (0, 0)
    shared.fs.upload_file(b"two\n", f"{repo}/one.txt")
    assert git.status(repo).file_status[0].worktree.value == "Modified"
    git.add(repo, ["."])
    git.commit(repo, "empty after this", "Ann", "ann@example.com")
    assert len(git.commit(repo, "empty", "Ann", "ann@example.com", allow_empty=True).sha) == 40
    with pytest.raises(DaytonaError):
        git.commit(repo, "nothing", "Ann", "ann@example.com")
    git.create_branch(repo, "feature")
    with pytest.raises(DaytonaGitBranchExistsError):
        git.create_branch(repo, "feature")
    git.checkout_branch(repo, "feature")
    assert git.status(repo).current_branch == "feature"
    with pytest.raises(DaytonaGitBranchNotFoundError):
        git.checkout_branch(repo, NO_SUCH)
    git.checkout_branch(repo, "main")
    assert sorted(git.branches(repo).branches) == ["feature", "main"]
    git.delete_branch(repo, "feature")
    assert git.branches(repo).branches == ["main"]
    with pytest.raises(DaytonaError):
        git.push(repo)
    git.clone(repo, f"{repo}-clone", branch="main")
    assert git.status(f"{repo}-clone").branch_published
    with pytest.raises(DaytonaError):
        git.clone(repo, f"{repo}-clone")
    git.clone(repo, f"{repo}-commit", commit_id=made.sha)
    assert shared.process.exec("git rev-parse HEAD", cwd=f"{repo}-commit").result.strip() == made.sha


def test_interpreters_at_their_edges(shared: Sandbox) -> None:
    code = shared.code_interpreter
    out: list[str] = []
    err: list[str] = []
    errors: list[Any] = []
    result = code.run_code(
        "import sys; print('a'); print('b', file=sys.stderr); 1/0",
        on_stdout=lambda message: out.append(message.output),
        on_stderr=lambda message: err.append(message.output),
        on_error=errors.append,
    )
    assert ("".join(out), "".join(err)) == ("a\n", "b\n")
    assert (result.stdout, result.stderr) == ("a\n", "b\n")
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in result.error.traceback
    assert errors[0].name == "ZeroDivisionError"
    assert code.run_code("def f():\n    return 3\nprint(f())").stdout == "3\n"
    assert code.run_code("f()").error is None
    wrong = code.run_code("def")
    assert wrong.error is not None
    assert wrong.error.name == "SyntaxError"
    context = code.create_context(cwd="/tmp")
    assert code.run_code("import os; print(os.getcwd())", context=context).stdout == "/tmp\n"
    assert code.run_code("print(f())", context=context).error is not None
    assert context.id in [each.id for each in code.list_contexts()]
    assert code.run_code("import os; print(os.environ['A'])", context=context, envs={"A": "1"}).stdout == "1\n"
    with pytest.raises(DaytonaTimeoutError):
        code.run_code("import time; time.sleep(30)", context=context, timeout=1)
    code.delete_context(context)
    assert context.id not in [each.id for each in code.list_contexts()]
    with pytest.raises(DaytonaError):
        code.delete_context(context)


def test_a_sandbox_through_its_life(daytona: Daytona) -> None:
    mark = uuid.uuid4().hex
    made = daytona.create(
        CreateSandboxFromSnapshotParams(name=f"life-{mark}", labels={"life": mark}, env_vars={"A": "1"}), timeout=60
    )
    assert (made.state, made.name, made.labels["life"]) == (SandboxState.STARTED, f"life-{mark}", mark)
    assert made.labels.keys() >= {"life"}
    assert (made.auto_stop_interval, made.auto_archive_interval, made.auto_delete_interval) == (15, 7 * 24 * 60, -1)
    assert [each.id for each in daytona.list(ListSandboxesQuery(labels={"life": mark}))] == [made.id]
    assert daytona.get(made.id).name == made.name
    made.start()  # it is started
    made.stop()
    assert made.state == SandboxState.STOPPED
    with pytest.raises(DaytonaError):
        made.process.exec("true")
    with pytest.raises(DaytonaError):
        made.fs.list_files(".")
    assert [each.state for each in daytona.list(ListSandboxesQuery(labels={"life": mark}))] == [SandboxState.STOPPED]
    made.archive()
    assert daytona.get(made.id).state == SandboxState.ARCHIVED
    made.start()
    assert daytona.get(made.id).state == SandboxState.STARTED
    assert made.process.exec("echo $A").result == "1\n"
    assert made.set_labels({"only": "this"})["only"] == "this"
    assert list(daytona.list(ListSandboxesQuery(labels={"life": mark}))) == []
    made.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(made.id)
    with pytest.raises(DaytonaNotFoundError):
        made.process.exec("true")
    with pytest.raises(DaytonaNotFoundError):
        made.refresh_data()
    again = daytona.create(CreateSandboxFromSnapshotParams(name=f"life-{mark}", auto_delete_interval=0))
    again.stop()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(again.id)


def test_snapshots_are_made_listed_by_page_and_deleted(daytona: Daytona, tiny_image: str) -> None:
    names = [f"snap-{number}-{uuid.uuid4()}" for number in range(3)]
    logs: list[str] = []
    for name in names:
        image = Image.base(tiny_image).env({"FROM_IMAGE": name}).workdir("/srv")
        assert daytona.snapshot.create(CreateSnapshotParams(name=name, image=image), on_logs=logs.append).name == name
    first, second = daytona.snapshot.list(page=1, limit=2), daytona.snapshot.list(page=2, limit=2)
    assert (len(first.items), first.page) == (2, 1)
    assert first.total == second.total >= 3
    assert {each.name for each in first.items}.isdisjoint(each.name for each in second.items)
    found = daytona.snapshot.get(names[0])
    assert (found.name, found.state) == (names[0], "active")
    made = daytona.create(CreateSandboxFromSnapshotParams(snapshot=names[0]))
    assert made.snapshot == names[0]
    assert made.process.exec("echo $FROM_IMAGE; pwd").result.split() == [names[0], "/srv"]
    made.delete()
    with pytest.raises(DaytonaConflictError):
        daytona.snapshot.create(CreateSnapshotParams(name=names[0], image=Image.base(tiny_image)))
    for name in names:
        daytona.snapshot.delete(daytona.snapshot.get(name))
        with pytest.raises(DaytonaNotFoundError):
            daytona.snapshot.get(name)


def test_a_sandbox_from_a_declared_image(daytona: Daytona, tiny_image: str) -> None:
    image = Image.base(tiny_image).run_commands("echo built > /made").env({"A": "b"}).workdir("/tmp").cmd(["true"])
    logs: list[str] = []
    made = daytona.create(CreateSandboxFromImageParams(image=image), timeout=120, on_snapshot_create_logs=logs.append)
    assert made.process.exec("cat /made; echo $A; pwd").result.split() == ["built", "b", "/tmp"]
    made.delete()
    failing = Image.base(tiny_image).run_commands("echo to fail; exit 3")
    with pytest.raises(DaytonaError, match="3"):
        daytona.create(CreateSandboxFromImageParams(image=failing), timeout=120, on_snapshot_create_logs=logs.append)


def test_hundreds_of_files_go_up_and_down_in_one_call(shared: Sandbox) -> None:
    small = {f"many/{number}.txt": b"old %d" % number for number in range(300)}
    large = {f"many/large-{number}": bytes([number]) * 700_000 for number in range(2)}
    files = {**small, **large}
    shared.fs.upload_files([FileUpload(data, path) for path, data in files.items()])
    shared.fs.upload_files([FileUpload(b"%d" % number, "many/same.txt") for number in range(30)])
    assert shared.fs.download_file("many/same.txt") == b"29"
    assert len(shared.fs.list_files("many")) == 303
    down = shared.fs.download_files([FileDownloadRequest(source=path) for path in [*files, "many/none"]])
    assert {each.source: each.result for each in down[:-1]} == files
    assert down[-1].error
    changed = shared.fs.replace_in_files([*small, "many/none", "many"], "old", "new")
    assert [(each.file, each.success) for each in changed] == [
        *((path, True) for path in small),
        ("many/none", False),
        ("many", False),
    ]
    assert shared.fs.download_file("many/7.txt") == b"new 7"
    assert all(each.success for each in shared.fs.replace_in_files(list(small), "new", "newer"))
    assert shared.fs.download_file("many/299.txt") == b"newer 299"


def test_an_upload_names_the_files_that_could_not_be_written(shared: Sandbox) -> None:
    shared.fs.create_folder("is-a-folder", "755")
    with pytest.raises(DaytonaError, match="is-a-folder"):
        shared.fs.upload_files([FileUpload(b"1", "written"), FileUpload(b"2", "is-a-folder")])
    assert shared.fs.download_file("written") == b"1"
