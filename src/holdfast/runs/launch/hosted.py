"""Runs over a server of an agent that stays in the box of a session: how its runner is started, and gets a prompt.

The runner of such a session outlives its runs. It is started with the first prompt, and again when it is gone. The hub
of the sessions has the connections to runners (`holdfast.sessions.hub`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from holdfast.api.box.box import Box
from holdfast.api.box.process import Process
from holdfast.boxes.network_policy import GUEST_API_URL
from holdfast.harnesses.harness import Harness, Task
from holdfast.harnesses.runner_archive import boot_session_argv, pack_session, stdin_of
from holdfast.threads.run_events import ThreadRuns
from holdfast.threads.session_events import WEB
from holdfast.time_limit import time_limit

CONNECT_SECONDS: Final = 60.0
_FEED_SECONDS: Final = 30.0


class HostedRunner(Protocol):
    """The runner of a session, connected to the hub."""

    @property
    def process(self) -> str:
        """The id of its process in the box."""
        ...

    @property
    def sessions(self) -> Mapping[str, str]:
        """The agent's session, by channel."""
        ...

    @property
    def last_turn(self) -> str:
        """The latest run that it worked on."""
        ...


class HostedRunners(Protocol):
    """The runners of sessions, as launches see them: `holdfast.sessions.hub.runners`."""

    def connected(self, thread: str, box: str) -> Any:
        """Returns the `HostedRunner` of a session in a box, or None."""
        ...

    async def wait(self, thread: str, box: str, process: str, seconds: float) -> Any: ...

    def expect(self, run: str) -> None: ...

    def forget(self, run: str) -> None: ...

    async def prompt(self, connection: Any, run: str, fields: dict[str, Any]) -> None: ...


def is_hosted(before: ThreadRuns, harness: Harness, guest_api: str) -> bool:
    """Returns whether a run gets its prompt over the hub: on a session, from an agent with a server, in a box whose
    connections tell which box it is.
    """
    return before.session is not None and harness.hosted and guest_api == GUEST_API_URL


def session_of(runner: HostedRunner | None, before: ThreadRuns, channel: str) -> str | None:
    """Returns the agent's session that the next prompt continues, or None if it has to be looked for.

    If the thread was rewound, the runner knows too much.
    """
    if runner is None or before.latest is None or runner.last_turn != before.latest.run:
        return None
    return runner.sessions.get(channel or WEB)


async def spawn_runner(
    box: Box, python: tuple[str, ...], harness: Harness, task: Task, *, thread: str, url: str, token: str, state: str
) -> Process:
    """Start the runner of a session. It connects to the hub by itself."""
    process = await box.spawn(
        boot_session_argv(python), env={"HOLDFAST_SESSION": thread}, cwd=box.spec.workdir, stdin=True, tree=True
    )
    config = {
        "thread": thread,
        "agent": harness.name,
        "url": url,
        "token": token,
        "process": process.id,
        "state": state,
        "host": harness.host(task),
    }
    async with time_limit(_FEED_SECONDS):
        await process.write(stdin_of(pack_session(harness.name), config))
        await process.close_stdin()
    return process


def prompt_fields(
    *,
    run: str,
    epoch: int,
    thread: str,
    harness: Harness,
    task: Task,
    attachments: Sequence[Mapping[str, Any]],
    channel: str,
    timeout: float | None,
) -> dict[str, Any]:
    """Returns the message with which the runner gets a prompt."""
    turn: dict[str, Any] = {"run": run, "epoch": epoch, "thread": thread, "agent": harness.name}
    if task.session is not None:
        turn["session"] = task.session
    if timeout is not None:
        turn["timeoutMs"] = max(1, int(timeout * 1000))
    kind, _, name = (channel or WEB).partition(":")
    fields = {"messageId": run, "content": task.prompt, "model": harness.model_name(task), "turn": turn}
    fields |= {"channelType": kind, "channelId": name}
    return {**fields, **({"attachments": [_file(each) for each in attachments]} if attachments else {})}


def _file(attachment: Mapping[str, Any]) -> dict[str, str]:
    mime = str(attachment["mime"])
    named = {"filename": str(attachment["filename"])} if attachment.get("filename") else {}
    return {"type": "file", "mime": mime, "url": f"data:{mime};base64,{attachment['data']}", **named}
