"""A launch: a run that has claimed its thread, and the box that was prepared for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.runs.launch.plan import Options
from holdfast.runs.launch.sessions import FilesHow
from holdfast.runs.run_log import RunLog
from holdfast.threads.checkpoints import Base
from holdfast.threads.run_events import ThreadRuns

NO_RUN: Final = ""
"""In place of a run: a thread gets its box before it has one."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that has claimed its thread."""

    thread: str
    run: str
    epoch: int
    options: Options
    prompt: str
    before: ThreadRuns
    """The thread's runs before the claim."""
    began: int
    """The time of the claim, in ticks."""
    base: Base | None = None
    """The files that the box has to start from."""
    attachments: tuple[dict[str, Any], ...] = ()
    """Files and images of its prompts."""
    channel: str = ""
    """Of a session: the channel of its prompts, which have a conversation of their own."""

    @property
    def is_fork(self) -> bool:
        """Whether it starts with the files of another box: until the thread has had a box."""
        last = self.before.latest
        return self.options.forks is not None and (last is None or last.box is None)


@dataclass(frozen=True, slots=True)
class LaunchBox:
    """The box of a launch, and what is in it."""

    box: Box
    files: FilesHow
    changed: bool
    """Whether the thread's last run was in another box."""
    home: str
    guest_api: str
    ready: int
    """The time when it was ready, in ticks."""


async def report(log: RunLog, launch: Launch, payload: dict[str, Any]) -> None:
    """Write a step of a launch on its thread."""
    if launch.run == NO_RUN:
        return  # the caller reports
    await log.append(launch.thread, log.entry(payload))
