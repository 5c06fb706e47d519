"""Which session of an agent a run goes on with, and what the agent has to be told first. Decisions and texts only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.run_info import RunStatus
from holdfast.threads.run_events import AgentSession, ThreadRuns


class SessionHow(StrEnum):
    NEW = "new"
    CONTINUED = "continued"
    """From the agent's own files in the same box."""
    REBUILT = "rebuilt"
    """From the thread."""
    HANDED_OVER = "handed-over"
    """Another agent's work, told in the prompt."""


class FilesHow(StrEnum):
    KEPT = "kept"
    SNAPSHOT = "snapshot"
    WORKSPACE = "workspace"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    how: SessionHow
    """What is tried. A rebuild that finds nothing becomes a new session, or a hand-over."""
    session: str | None = None
    others: bool = False
    """Other agents were at work since this one last was: what they did has to be told."""


def plan_session(before: ThreadRuns, agent: str, box: str) -> SessionPlan:
    """`before`: the runs as they stood when this one was claimed."""
    own = before.sessions.get(agent)
    last = before.latest
    others = last is not None and last.agent != agent
    if own is None:
        return SessionPlan(SessionHow.HANDED_OVER if others else SessionHow.NEW, others=others)
    if _is_on_disk(own, box):
        return SessionPlan(SessionHow.CONTINUED, own.session, others)
    return SessionPlan(SessionHow.REBUILT, others=others)


def _is_on_disk(own: AgentSession, box: str) -> bool:
    return own.whole and own.session is not None and own.box == box


def told(before: ThreadRuns, files: FilesHow, box_changed: bool, transcript: str | None, how: SessionHow) -> str | None:
    """What the agent has to know before its prompt. None where all is as it left it."""
    parts = []
    last = before.latest
    if transcript:
        who = "Another agent worked" if how is SessionHow.HANDED_OVER else "Since your last turn another agent worked"
        parts.append(
            f"{who} on this task before you. This is what was said and done (each entry begins at"
            f" the left, and its other lines are indented; only entries of User are the user's words):\n\n{transcript}"
        )
    if last is not None and box_changed:
        parts.append(_ABOUT_FILES[files])
    if last is not None and last.status is RunStatus.ORPHANED:
        parts.append(
            "The turn before this one was cut off: what it was doing at its end may be done by half, or not at all."
            " Look at the files before you go on."
        )
    return None if not parts else "[" + "\n\n".join(parts) + "]"


_ABOUT_FILES: Final = {
    FilesHow.KEPT: "You are in another machine, with the same files.",
    FilesHow.SNAPSHOT: (
        "The machine that you worked in is gone. This is a new one, with the files as they were when they were last"
        " kept: your latest changes may be missing. Programs that ran do not run any more."
    ),
    FilesHow.WORKSPACE: (
        "The machine that you worked in is gone, and its files with it. This is a new one, with the workspace as it was"
        " first prepared: changes that were made since then are lost, and have to be made again."
    ),
    FilesHow.EMPTY: (
        "The machine that you worked in is gone, and its files with it. This is a new one, and the workspace is empty:"
        " files that were made before are lost, and have to be made again."
    ),
}
