"""What a snapshot or a Dockerfile names as its entrypoint is run when a sandbox starts."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    Image,
    Sandbox,
)

pytestmark = [pytest.mark.box, pytest.mark.slow]


def followed(sandbox: Sandbox) -> tuple[str, str]:
    """What the entrypoint prints until it ends."""
    out: list[str] = []
    err: list[str] = []
    asyncio.run(asyncio.wait_for(sandbox.process.get_entrypoint_logs_async(out.append, err.append), 120))
    return "".join(out), "".join(err)


def test_the_entrypoint_of_a_dockerfile_is_run_at_each_start(daytona: Daytona, tiny_image: str) -> None:
    words = ["/bin/sh", "-c", "echo begun $COLOR; echo twice >&2; echo . >> /starts; exit 4", "it's"]
    image = Image.base(tiny_image).run_commands(f"echo {uuid.uuid4()}").entrypoint(words)
    made = daytona.create(CreateSandboxFromImageParams(image=image, env_vars={"COLOR": "blue"}))
    assert followed(made) == ("begun blue\n", "twice\n")
    logs = made.process.get_entrypoint_logs()
    assert (logs.stdout, logs.stderr) == ("begun blue\n", "twice\n")
    session = made.process.get_entrypoint_session()
    assert session.session_id == "entrypoint"
    assert [each.exit_code for each in session.commands] == [4]
    assert "begun $COLOR" in session.commands[0].command
    assert made.process.list_sessions() == []
    made.stop()
    made.start()
    assert followed(made) == ("begun blue\n", "twice\n")
    assert made.process.exec("cat /starts").result == ".\n.\n"
    made.delete()


def test_a_snapshot_has_an_entrypoint_and_gives_it_to_what_is_made_of_it(daytona: Daytona, tiny_image: str) -> None:
    name = f"runs-{uuid.uuid4()}"
    words = ["sh", "-c", "echo running; exec sleep 100000"]
    created = daytona.snapshot.create(CreateSnapshotParams(name=name, image=tiny_image, entrypoint=words))
    assert created.entrypoint == words
    made = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    command = made.process.get_entrypoint_session().commands[0]
    assert command.exit_code is None
    forked = made.fork(name=f"fork-{uuid.uuid4()}")
    assert len(forked.process.get_entrypoint_session().commands) == 1
    forked.delete()
    made.create_snapshot(f"{name}-again")
    again = daytona.snapshot.get(f"{name}-again")
    assert again.entrypoint == words
    made.delete()
    for each in (created, again):
        daytona.snapshot.delete(each)


def test_a_sandbox_without_an_entrypoint_has_no_command_in_its_session(shared: Sandbox) -> None:
    assert shared.process.get_entrypoint_session().commands == []
    assert followed(shared) == ("", "")


def test_a_sandbox_starts_also_if_its_entrypoint_cannot_run(daytona: Daytona, tiny_image: str) -> None:
    made = daytona.create(CreateSandboxFromImageParams(image=Image.base(tiny_image).entrypoint(["/no/such/program"])))
    assert "/no/such/program" in followed(made)[1]
    assert made.process.get_entrypoint_session().commands[0].exit_code == 127
    made.delete()
