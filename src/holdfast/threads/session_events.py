"""Sessions on threads: their states and signals, their queue of prompts, and the fold that turns entries into both.

Only data and pure functions. `holdfast.sessions` acts on sessions. All these entries are sealed: the state of a session
and the prompts in its queue are what the server itself has written. A prompt has no end of its own: it ends with its
run, or with its session, so that it ends exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.run.info import RunStatus
from holdfast.api.session.sessions import MOST_PROMPTS, PromptMode, PromptStatus, SessionState

SESSION_PRODUCER: Final = "session"
"""The idempotent producer of changes of a session. Its epoch is the number of the change."""
SESSION_PREFIX: Final = "signal.session."
QUESTION: Final = "opencode.question"
"""A runner writes it, and it is sealed when it arrives."""
CREATED: Final = "signal.session.created"
RELEASED: Final = "signal.session.released"
WORKSPACE_DELETED: Final = "signal.session.workspace_deleted"
CHILD_TERMINATED: Final = "signal.session.child_terminated"
SLOW: Final = "signal.session.slow"
AGENT_SETTINGS: Final = "signal.session.agent_settings"
BOOTED: Final = "signal.session.booted"
WORK: Final = "signal.session.work"
MOST_FILES: Final = 50
"""Changed files of a session that its thread names after each run."""
PROMPT: Final = "prompt"
"""The field of a chat that is a prompt of a session: `{mode, priority, channel?}`."""
CHANNEL: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}:[!-~]{1,100}")
"""A channel, such as `telegram:-1001`. Each has a conversation of its own with the agent."""
WEB: Final = "web:default"
"""The channel of prompts that name none. It is not written on the thread."""
ATTACHMENTS: Final = "attachments"
"""The field of a prompt with its files and images: `[{mime, data, filename?}]`."""

TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = {
    SessionState.INITIALIZING: frozenset({SessionState.RUNNING, SessionState.ERROR}),
    SessionState.RUNNING: frozenset({SessionState.HIBERNATING, SessionState.TERMINATED, SessionState.ERROR}),
    SessionState.HIBERNATING: frozenset({SessionState.HIBERNATED, SessionState.TERMINATED, SessionState.ERROR}),
    SessionState.HIBERNATED: frozenset({SessionState.RESTORING, SessionState.TERMINATED}),
    SessionState.RESTORING: frozenset({SessionState.RUNNING, SessionState.ERROR}),
    SessionState.ERROR: frozenset({SessionState.TERMINATED}),
    SessionState.TERMINATED: frozenset(),
}
OVER: Final = frozenset({SessionState.TERMINATED, SessionState.ERROR})
"""A session in one of these states takes no prompts."""
AWAKE: Final = frozenset(
    {SessionState.INITIALIZING, SessionState.RUNNING, SessionState.HIBERNATING, SessionState.RESTORING}
)
"""A session in one of these states has a box that runs, or is about to."""
MOST_ATTEMPTS: Final = 3
"""Runs that are started for one prompt, if each is lost with its box or its server."""
MOST_ENDED: Final = 50
_MAX_TEXT: Final = 4096
_MAX_OPTIONS: Final = 64 * 1024
_MOST_STEPS: Final = 32
_BY_SIGNAL: Final = {f"{SESSION_PREFIX}{state}": state for state in SessionState}
SESSION_STATES: Final = frozenset(_BY_SIGNAL)
"""The types of entries that change the state of a session."""
_MODES: Final = frozenset(mode.value for mode in PromptMode)
_NOT_BEGUN: Final = frozenset({"server_stopped", "launch_lost"})
"""Errors of runs that ended before their agent got the prompt."""


@dataclass(frozen=True, slots=True)
class QueuedPrompt:
    """A prompt that has not ended."""

    id: str
    """Of its chat entry."""
    mode: PromptMode
    priority: int
    created_at: int
    since: int = field(default=0, compare=False)
    """A position on the thread shortly before the entry."""
    run: str | None = None
    """The run that works on it. None while it waits."""
    attempts: int = 0
    channel: str = ""
    """Empty for `WEB`."""

    @property
    def is_processing(self) -> bool:
        return self.run is not None


@dataclass(frozen=True, slots=True)
class EndedPrompt:
    id: str
    mode: PromptMode
    priority: int
    created_at: int
    status: PromptStatus
    run: str | None = None
    attempts: int = 0
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """The state of a session, according to its thread."""

    state: SessionState
    version: int
    """The number of its last change of state, from 1."""
    changed_at: int
    agent: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    """How its runs are carried out: `runs.launch.plan.Options`."""
    parent: str | None = None
    """The session that this one belongs to."""
    parent_run: str | None = None
    """The run of that session that created this one. What this one uses counts for its budget, too."""
    queue: tuple[QueuedPrompt, ...] = ()
    """In the order of their entries."""
    ended: tuple[EndedPrompt, ...] = ()
    """The latest ones."""
    ended_count: int = 0
    why: str | None = None
    by: str | None = None
    """Who asked for its last change of state, if anybody did."""
    error: dict[str, str] | None = None
    """code, message and, if known, hint."""
    released: bool = False
    """Terminated, and nothing but its files is left."""
    workspace: bool = True
    """Whether its files were not deleted."""
    configured: bool = False
    """Whether the server of its agent got settings (`holdfast.sessions.hub.settings`)."""
    work: dict[str, Any] = field(default_factory=dict)
    """What its workspace was like after its latest run: `{run, branch?, commits, files, more}`."""
    boot: dict[str, Any] = field(default_factory=dict)
    """What its last start came to: `{version, ms, steps: [[name, state, ms], …]}`."""

    @property
    def queued(self) -> tuple[QueuedPrompt, ...]:
        return tuple(each for each in self.queue if not each.is_processing)

    @property
    def processing(self) -> tuple[QueuedPrompt, ...]:
        return tuple(each for each in self.queue if each.is_processing)

    @property
    def reason(self) -> str | None:
        """Why it came into its state, if that was not asked for."""
        return (self.error or {}).get("message") if self.state is SessionState.ERROR else self.why

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_due(self) -> bool:
        """Whether the server may have to do something about it."""
        if self.state is SessionState.TERMINATED:
            return not self.released
        return self.state in AWAKE or bool(self.queue)

    def find(self, prompt: str) -> QueuedPrompt | EndedPrompt | None:
        prompts: tuple[QueuedPrompt | EndedPrompt, ...] = (*self.queue, *self.ended)
        return next((each for each in prompts if each.id == prompt), None)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in Session.__slots__},
            "queue": [[getattr(each, name) for name in QueuedPrompt.__slots__] for each in self.queue],
            "ended": [[getattr(each, name) for name in EndedPrompt.__slots__] for each in self.ended],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Session:
        queue = tuple(QueuedPrompt(id, PromptMode(mode), *rest) for id, mode, *rest in value["queue"])
        ended = tuple(
            EndedPrompt(id, PromptMode(mode), priority, created, PromptStatus(status), *rest)
            for id, mode, priority, created, status, *rest in value["ended"]
        )
        return cls(**{**value, "state": SessionState(value["state"]), "queue": queue, "ended": ended})


def is_prompt(payload: Mapping[str, Any]) -> bool:
    """Returns whether a chat is a prompt of a session, if the server wrote it."""
    return payload.get(PROMPT) is not None


def channel_in(value: object) -> str:
    """Returns a channel as it is kept: empty for `WEB`, and for what is none."""
    is_one = isinstance(value, str) and value != WEB and CHANNEL.fullmatch(value) is not None
    return str(value) if is_one else ""


# --- the fold. All entries are the server's, for this thread ---


def fold_session(session: Session | None, entry: Mapping[str, Any], since: int) -> Session | None:
    """Returns the session after a signal of it, or a prompt. Ignores malformed ones, and changes that the table does
    not allow. Never raises.
    """
    payload = entry["payload"]
    kind: str = payload["type"]
    if session is None:
        return _created(entry, payload) if kind == CREATED else None
    if kind == "chat":
        return _queued(session, entry, payload, since)
    if kind == RELEASED and session.state is SessionState.TERMINATED:
        return replace(session, released=True)
    if kind == WORKSPACE_DELETED and session.state is SessionState.TERMINATED:
        return replace(session, workspace=False)
    if kind == AGENT_SETTINGS:
        return replace(session, configured=True)
    if kind == WORK:
        return replace(session, work=_work(payload) or session.work)
    if kind == BOOTED:
        return replace(session, boot=_boot(payload) or session.boot)
    to = _BY_SIGNAL.get(kind)
    if to is None or to not in TRANSITIONS[session.state] or payload.get("version") != session.version + 1:
        return session
    changed = replace(
        session,
        state=to,
        version=session.version + 1,
        changed_at=entry["ts"],
        why=_text(payload.get("why")),
        by=_text(payload.get("by")),
        error=_error(payload.get("error")) if to is SessionState.ERROR else session.error,
    )
    if changed.is_over:
        status = PromptStatus.CANCELLED if to is SessionState.TERMINATED else PromptStatus.FAILED
        for each in changed.queued:
            changed = _ended(changed, each, status)
    return changed


def fold_started(session: Session, run: str, prompts: tuple[str, ...]) -> Session:
    """Returns the session after a run has begun with these prompts."""
    if not any(each.id in prompts and not each.is_processing for each in session.queue):
        return session
    return replace(
        session,
        queue=tuple(
            replace(each, run=run, attempts=each.attempts + 1)
            if each.id in prompts and not each.is_processing
            else each
            for each in session.queue
        ),
    )


def fold_finished(session: Session, run: str, status: RunStatus, error: Mapping[str, Any] | None) -> Session:
    """Returns the session after the end of a run. Prompts of a run that was lost wait again."""
    lost = status is RunStatus.ORPHANED or (error or {}).get("code") in _NOT_BEGUN
    for each in session.queue:
        if each.run != run:
            continue
        if lost and each.attempts < MOST_ATTEMPTS and not session.is_over:
            waiting = replace(each, run=None)
            session = replace(
                session, queue=tuple(waiting if other.id == each.id else other for other in session.queue)
            )
        else:
            session = _ended(session, each, _STATUS[status])
    return session


def fold_rewound(session: Session, then: Session | None) -> Session:
    """Returns the session after its conversation went back, or forward, to where the session was `then`.

    Only prompts that a run has worked on are part of a conversation.
    """
    known = {each.id: each for each in then.ended} if then is not None else {}
    ended = tuple(
        known.get(each.id) or (replace(each, status=PromptStatus.REVERTED) if each.run is not None else each)
        for each in session.ended
    )
    return replace(session, ended=ended)


_STATUS: Final = {
    RunStatus.COMPLETED: PromptStatus.COMPLETED,
    RunStatus.FAILED: PromptStatus.FAILED,
    RunStatus.ORPHANED: PromptStatus.FAILED,
    RunStatus.CANCELLED: PromptStatus.CANCELLED,
}


def _ended(session: Session, prompt: QueuedPrompt, status: PromptStatus) -> Session:
    ended = EndedPrompt(
        prompt.id,
        prompt.mode,
        prompt.priority,
        prompt.created_at,
        status,
        prompt.run,
        prompt.attempts,
        prompt.channel,
    )
    return replace(
        session,
        queue=tuple(each for each in session.queue if each.id != prompt.id),
        ended=(*session.ended, ended)[-MOST_ENDED:],
        ended_count=session.ended_count + 1,
    )


def _queued(session: Session, entry: Mapping[str, Any], payload: Mapping[str, Any], since: int) -> Session:
    about = payload.get(PROMPT)
    if not isinstance(about, dict) or not isinstance(payload.get("text"), str) or session.find(entry["id"]) is not None:
        return session
    mode, priority = about.get("mode"), about.get("priority")
    if not isinstance(mode, str) or mode not in _MODES or type(priority) is not int:
        return session
    prompt = QueuedPrompt(
        entry["id"], PromptMode(mode), priority, entry["ts"], since, channel=channel_in(about.get("channel"))
    )
    if session.is_over or len(session.queue) >= MOST_PROMPTS:
        # It came at the same moment as the end, or as many others. It ends here, rather than nowhere.
        return _ended(session, prompt, PromptStatus.CANCELLED if session.is_over else PromptStatus.FAILED)
    return replace(session, queue=(*session.queue, prompt))


def _created(entry: Mapping[str, Any], payload: Mapping[str, Any]) -> Session | None:
    agent, model, options, parent = (payload.get(name) for name in ("agent", "model", "options", "parent"))
    if not isinstance(agent, str) or not isinstance(model, str) or not isinstance(options, dict):
        return None
    if len(repr(options)) > _MAX_OPTIONS or payload.get("version") != 1:
        return None
    if not isinstance(parent, str):
        parent = None
    run = payload.get("parentRun")
    return Session(
        SessionState.INITIALIZING,
        1,
        entry["ts"],
        agent,
        model,
        options,
        parent,
        run if parent is not None and isinstance(run, str) else None,
    )


def _work(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    run, commits, files = payload.get("run"), payload.get("commits"), payload.get("files")
    if not isinstance(run, str) or type(commits) is not int or not isinstance(files, list):
        return None
    known = [
        {name: each[name] for name in ("path", "status", "additions", "deletions") if name in each}
        for each in files[:MOST_FILES]
        if isinstance(each, dict) and isinstance(each.get("path"), str) and isinstance(each.get("status"), str)
    ]
    branch, more = _text(payload.get("branch")), payload.get("more") is True
    return {"run": run, "branch": branch, "commits": commits, "files": known, "more": more}


def _boot(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    version, ms, steps = payload.get("version"), payload.get("ms"), payload.get("steps")
    if type(version) is not int or type(ms) is not int or not isinstance(steps, list):
        return None
    known = [
        [each["name"], each["state"], each.get("ms")]
        for each in steps[:_MOST_STEPS]
        if isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("state"), str)
    ]
    return {"version": version, "ms": ms, "steps": known}


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def _error(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    texts = {name: _text(value.get(name)) for name in ("code", "message", "hint")}
    return {name: text for name, text in texts.items() if text is not None} or None


# --- writing payloads ---


def change_id(version: int) -> str:
    """The id of the entry with a change of state: only one of each number."""
    return f"session-change-{version}"


def released_id() -> str:
    return "session-change-released"


def workspace_deleted_id() -> str:
    return "session-change-workspace-deleted"


def child_terminated_id(child: str) -> str:
    return f"session-change-child-{child}"


def child_end_chat_id(child: str) -> str:
    """The id of the message that tells the agent of a session about the end of a session below it."""
    return f"session-child-{child}"


def slow_id(run: str) -> str:
    return f"session-change-slow-{run}"


def work_id(run: str) -> str:
    """The id of the entry about the workspace after a run: only one of each."""
    return f"session-change-work-{run}"


def booted_id(version: int) -> str:
    """The id of the entry about the start that followed a change of state: only one of each."""
    return f"session-change-booted-{version}"


def created(
    *,
    agent: str,
    model: str,
    options: dict[str, Any],
    parent: str | None,
    by: str | None,
    parent_run: str | None = None,
) -> dict[str, Any]:
    payload: dict[str, Any] = {"type": CREATED, "version": 1, "agent": agent, "model": model, "options": options}
    return {
        **payload,
        **({} if parent is None else {"parent": parent}),
        **({} if parent_run is None else {"parentRun": parent_run}),
        **({} if by is None else {"by": by}),
    }


def changed(
    to: SessionState,
    version: int,
    *,
    before: SessionState,
    why: str | None = None,
    by: str | None = None,
    box: str | None = None,
    ms: int | None = None,
    error: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    payload: dict[str, Any] = {"type": f"{SESSION_PREFIX}{to}", "version": version, "from": before.value}
    known = {"why": why, "by": by, "box": box, "ms": ms, "error": None if error is None else dict(error)}
    return {**payload, **{name: value for name, value in known.items() if value is not None}}


def prompted(
    text: str,
    mode: PromptMode,
    priority: int,
    attachments: Sequence[Mapping[str, Any]] = (),
    channel: str | None = None,
) -> dict[str, Any]:
    named = {"channel": channel} if channel_in(channel) else {}
    about = {"mode": mode.value, "priority": priority, **named}
    payload = {"type": "chat", "role": "user", "text": text, PROMPT: about}
    return {**payload, **({ATTACHMENTS: [dict(each) for each in attachments]} if attachments else {})}


def released(*, children: int, tasks: int, box: str | None) -> dict[str, Any]:
    known = {} if box is None else {"box": box}
    return {"type": RELEASED, "children": children, "tasks": tasks, **known}


def workspace_deleted(freed: int) -> dict[str, Any]:
    return {"type": WORKSPACE_DELETED, "freed": freed}


def child_terminated(child: str, why: str) -> dict[str, Any]:
    return {"type": CHILD_TERMINATED, "child": child, "why": why}


def child_ended(child: str, text: str) -> dict[str, Any]:
    """A prompt that the server gives to the agent of a session, because a session below it has ended."""
    return {"type": "chat", "role": "user", "text": text, "queued": True, "child": child}


def slow(run: str, stage: str, ms: int) -> dict[str, Any]:
    """Reports that a run has not reached its agent for long."""
    return {"type": SLOW, "run": run, "stage": stage, "ms": ms}


def work_done(run: str, work: Mapping[str, Any]) -> dict[str, Any]:
    """Reports the branch, the commits and the changed files of a workspace after a run."""
    return {"type": WORK, "run": run, **work}


def booted(version: int, box: str, ms: int, steps: Sequence[tuple[str, str, int | None]]) -> dict[str, Any]:
    """Reports what the start of a session came to, after the change of state with this number."""
    told = [{"name": name, "state": state, **({} if took is None else {"ms": took})} for name, state, took in steps]
    return {"type": BOOTED, "version": version, "box": box, "ms": ms, "steps": told}
