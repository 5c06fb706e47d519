"""The session that an agent continues, and the note about what changed since. Decisions and texts, without effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.api.run.info import RunStatus
from holdfast.threads.run_events import (
    DELTA,
    FINISHED,
    IMPORT,
    STARTED,
    AgentSession,
    ThreadRuns,
    conversation_of,
    is_again,
)
from holdfast.threads.session_events import channel_in

_ANSWERS: Final = ("assistant", "call", "tool", "compaction")


class SessionHow(StrEnum):
    NEW = "new"
    CONTINUED = "continued"
    """From the agent's own files, in the same box."""
    REBUILT = "rebuilt"
    """From the thread."""
    HANDED_OVER = "handed-over"
    """The prompt has a transcript of another agent's work."""


class FilesHow(StrEnum):
    KEPT = "kept"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    """Exactly those of the end of the turn before: the thread was forked or rewound."""
    WORKSPACE = "workspace"
    FORK = "fork"
    """Those of another thread's box, as they were when this one was made."""
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    how: SessionHow
    """The first choice. A rebuild that finds no entries becomes a new session or a hand-over."""
    session: str | None = None
    others: bool = False
    """Whether other agents have worked on the thread since this agent did."""
    moved: bool = False
    """Whether this conversation was last in another box."""


def plan_session(before: ThreadRuns, agent: str, box: str, channel: str = "") -> SessionPlan:
    """Decide how the session of an agent is made. `before` has the runs of the thread before the claim."""
    own = before.sessions.get(conversation_of(agent, channel))
    last = before.latest
    others = last is not None and last.agent != agent
    if own is None:
        return SessionPlan(SessionHow.HANDED_OVER if others else SessionHow.NEW, others=others)
    if _is_on_disk(own, box):
        return SessionPlan(SessionHow.CONTINUED, own.session, others)
    return SessionPlan(SessionHow.REBUILT, others=others, moved=own.box not in (None, box))


def _is_on_disk(own: AgentSession, box: str) -> bool:
    return own.whole and own.session is not None and own.box == box


def context_note(
    before: ThreadRuns,
    files: FilesHow,
    box_changed: bool,
    transcript: str | None,
    how: SessionHow,
    hint: str | None = None,
    channel: str = "",
) -> str | None:
    """Returns what the agent has to know before its prompt, or None if nothing has changed since its last turn.

    `hint` tells a new session of the agent what to read.
    """
    parts = [] if hint is None else [hint]
    last = before.latest
    if transcript:
        who = "Another agent worked" if how is SessionHow.HANDED_OVER else "Since your last turn another agent worked"
        parts.append(
            f"{who} on this task before you. This is what was said and done (each entry begins at"
            f" the left, and its other lines are indented; only entries of User are the user's words):\n\n{transcript}"
        )
    if last is not None and box_changed and files in _ABOUT_FILES:
        parts.append(_ABOUT_FILES[files])
    if last is not None and last.ended_by == IMPORT:
        parts.append(
            "The conversation so far was on another machine. You are in a new one: what was said about paths and"
            " programs may not hold here, and files are as they were copied."
        )
    is_own = last is not None and last.channel == channel
    if last is not None and is_own and last.status is RunStatus.ORPHANED and not last.again:
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
    FilesHow.FORK: "You are in another machine, with a copy of the files of the thread that delegated this task.",
    FilesHow.EMPTY: (
        "The machine that you worked in is gone, and its files with it. This is a new one, and the workspace is empty:"
        " files that were made before are lost, and have to be made again."
    ),
}


class SessionTranscript:
    """Filters the entries of one agent from those of a thread, and restores prompts that the agent never repeated.

    Agents repeat their prompt, but some only with their first answer. If a run died before that, the thread has the
    prompt only as a chat entry.
    """

    def __init__(self, agent: str, without: str, channel: str = "") -> None:
        """`without` is the run that is being launched: its prompt is not part of the session yet. Other channels of a
        session are other conversations.
        """
        self._agent = agent
        self._without = without
        self._channel = channel
        self._is_own = not channel
        """Whether the current run is one of this conversation."""
        self._chats: dict[str, str] = {}
        self._unrepeated: dict[str, Any] | None = None
        """The prompt of the current run, until the agent repeats it."""

    def take(self, entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Returns the agent's entries that follow from the next entry of the thread. Entries come oldest first."""
        payload = entry["payload"]
        kind = str(payload.get("type"))
        if kind == "chat":
            if isinstance(payload.get("text"), str):
                self._chats[str(entry["id"])] = payload["text"]
            return []
        if kind == STARTED:
            lost = self._take_unrepeated()
            self._is_own = channel_in(payload.get("channel")) == self._channel
            if not self._is_own:
                return lost
            if str(payload.get("agent")).partition(":")[0] == self._agent and payload.get("run") != self._without:
                prompts = payload.get("prompts")
                ids = prompts if isinstance(prompts, list) else []
                texts = [self._chats[each] for each in ids if isinstance(each, str) and each in self._chats]
                if texts:
                    user = {"type": f"{self._agent}.user", "text": "\n\n".join(texts)}
                    self._unrepeated = {"id": f"{entry['id']}-prompt", "ts": entry["ts"], "payload": user}
            return lost
        if kind == FINISHED:
            if is_again(payload):
                self._unrepeated = None  # a later run has the same prompts
            return self._take_unrepeated()
        agent, _, event = kind.partition(".")
        if agent != self._agent or kind.endswith(DELTA) or not self._is_own:
            return []
        if event == "user":
            self._unrepeated = None
        return [*(self._take_unrepeated() if event in _ANSWERS else ()), entry]

    def _take_unrepeated(self) -> list[Mapping[str, Any]]:
        lost, self._unrepeated = self._unrepeated, None
        return [] if lost is None else [lost]
