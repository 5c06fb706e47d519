"""Programs that do much at once by the async SDK, and what two clients of one sandbox see of each other."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    ListSandboxesQuery,
    SessionExecuteRequest,
)

pytestmark = pytest.mark.anyio


async def test_ten_programs_at_once_do_not_meet(async_daytona: AsyncDaytona) -> None:
    run = {"run": str(uuid.uuid4())}

    async def program(number: int) -> str:
        sandbox = await async_daytona.create(CreateSandboxFromSnapshotParams(labels=run))
        await sandbox.fs.upload_file(str(number).encode(), "number")
        outputs = await asyncio.gather(
            sandbox.process.exec(f"echo {number}"),
            sandbox.process.exec("cat number"),
            sandbox.process.code_run(f"print({number})"),
        )
        assert [each.result.strip() for each in outputs] == [str(number)] * 3
        assert (await sandbox.code_interpreter.run_code(f"print({number})")).stdout == f"{number}\n"
        await sandbox.delete()
        return sandbox.id

    assert len(set(await asyncio.gather(*map(program, range(10))))) == 10
    assert [each async for each in async_daytona.list(ListSandboxesQuery(labels=run))] == []


async def test_what_one_client_changes_another_one_sees(
    async_daytona: AsyncDaytona, async_sandbox: AsyncSandbox
) -> None:
    other = await async_daytona.get(async_sandbox.name)
    waiting = asyncio.create_task(other.wait_for_sandbox_stop(timeout=0))
    await async_sandbox.fs.upload_file(b"kept", "kept.txt")
    await async_sandbox.stop()
    await asyncio.wait_for(waiting, 240)
    assert other.state is not None
    assert other.state.value == "stopped"
    await other.start()
    await async_sandbox.wait_for_sandbox_start(timeout=240)
    assert await async_sandbox.fs.download_file("kept.txt") == b"kept"


async def test_sessions_at_once_keep_their_variables_apart(async_sandbox: AsyncSandbox) -> None:
    process = async_sandbox.process

    async def session(number: int) -> str:
        name = f"session-{number}"
        await process.create_session(name)
        for command in (f"mine={number}", 'cat > "/tmp/$mine" <<END\nnumber $mine\nEND'):
            answer = await process.execute_session_command(name, SessionExecuteRequest(command=command))
            assert answer.exit_code == 0, answer
        answer = await process.execute_session_command(name, SessionExecuteRequest(command='cat "/tmp/$mine" >&2'))
        assert answer.stderr == f"number {number}\n"
        return str(answer.output)

    assert await asyncio.gather(*map(session, range(10))) == [f"number {number}\n" for number in range(10)]
    assert {each.session_id for each in await process.list_sessions()} >= {f"session-{number}" for number in range(10)}


async def test_two_clients_of_a_terminal_hear_the_same(async_sandbox: AsyncSandbox) -> None:
    heard: tuple[list[bytes], list[bytes]] = ([], [])
    first = await async_sandbox.process.create_pty_session("both", on_data=heard[0].append)
    await first.wait_for_connection()
    second = await async_sandbox.process.connect_pty_session("both", on_data=heard[1].append)
    await second.wait_for_connection()
    await second.send_input("echo from-the-$((1 + 1))nd; exit 5\n")
    ends = [await handle.wait() for handle in (first, second)]
    assert [end.exit_code for end in ends] == [5, 5]
    assert all(b"from-the-2nd" in b"".join(each) for each in heard)
