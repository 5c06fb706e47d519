"""Run signals on a thread: their names, their payloads, and the fold that turns them into the state of a run.

Only data and pure functions. `holdfast.runs` acts on runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.run.info import RUN_FINISHED, CancelKind, RunStatus, Stage
from holdfast.threads.access.seals import Origin
from holdfast.threads.checkpoints import Checkpoint
from holdfast.threads.delegation import (
    CHILD_READ,
    DELEGATION_SIGNALS,
    Delegation,
    child_result_id,
    fold_delegation,
)
from holdfast.threads.session_events import (
    CREATED,
    SESSION_PREFIX,
    Session,
    channel_in,
    fold_finished,
    fold_session,
    fold_started,
    is_prompt,
)

PRODUCER: Final = "run"
"""The idempotent producer that all runs of a thread write as, each with its own epoch."""
PREFIX: Final = "signal.run."
STARTED: Final = "signal.run.started"
BOX: Final = "signal.run.box"
INSTALLING: Final = "signal.run.installing"
ENVIRONMENT: Final = "signal.run.environment"
SETUP: Final = "signal.run.setup"
SERVICES: Final = "signal.run.services"
MODEL_TROUBLE: Final = "signal.run.model_trouble"
PROVISIONED: Final = "signal.run.provisioned"
RUNNER: Final = "signal.run.runner"
HEARTBEAT: Final = "signal.run.heartbeat"
CANCEL_REQUESTED: Final = "signal.run.cancel_requested"
FINISHED: Final = RUN_FINISHED
IMPORT: Final = "import"
"""What ended a run that stands for a session of another machine."""
DELTA: Final = ".delta"
"""The suffix of streamed text entries. The complete message that follows repeats all of their text."""

MAX_WAITING: Final = 100
"""How many prompts may be queued on a thread."""
_MAX_CONVERSATIONS: Final = 256
_MAX_TEXT: Final = 4096
_MAX_OPTIONS: Final = 32 * 1024
_FOLD: Final = 2
"""Version of the saved fold. Earlier versions believed entries no matter who wrote them."""
_MAX_EPOCH_STEP: Final = 1_000
"""A larger step is not from one of our runs: the store knows the true epoch."""


ENDED: Final = frozenset(RunStatus) - {RunStatus.RUNNING}


_READ_ITS_PROMPT: Final = frozenset(("user", "delta", "assistant", "call", "tool", "compaction"))
_ORDER: Final = {stage: number for number, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True)
class Run:
    """The state of one run, according to its thread."""

    run: str
    epoch: int
    """The epoch of its claim, or of its latest runner."""
    agent: str
    model: str
    provider: str
    started_at: int
    """UTC milliseconds."""
    origin: Origin = Origin.UNPROVEN
    """The origin of its claim. A run that this server did not claim for this thread is shown but not acted on."""
    since: int = field(default=0, compare=False)
    """A position on the thread shortly before its first entry. The exact value depends on how the thread was read."""
    prompts: tuple[str, ...] = ()
    """Ids of the chat entries that it answers."""
    asked: int = field(default=0, compare=False)
    """A position on the thread shortly before the first of them."""
    resumes: str | None = None
    """The run that this one continues."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options it was launched with, enough to launch the next run the same way."""
    version: str | None = None
    box: str | None = None
    box_how: str | None = None
    files: str | None = None
    isolation: str | None = None
    session: str | None = None
    """new, continued, rebuilt or handed-over."""
    process: str | None = None
    """Process id of its runner in the box."""
    stage: Stage = Stage.CLAIM
    signs: int = 0
    """How many signs of life it has given. Their times are only for display, because the writer chooses them."""
    last_sign: int = 0
    notice: str | None = None
    """The agent's latest message if it was a notice, for example what it is waiting for."""
    cancel: CancelKind | None = None
    cancel_at: int = 0
    status: RunStatus = RunStatus.RUNNING
    ended_at: int | None = None
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    """code, message and, if known, hint."""
    usage: dict[str, Any] | None = None
    ended_by: str | None = None
    turn: int = 0
    """Its number on the thread, from 1. Numbers are never used again, not even after a rewind."""
    channel: str = ""
    """Of a session: the channel whose prompts it answers. Empty for the usual one."""
    until: int = field(default=0, compare=False)
    """A position on the thread shortly before its end."""
    checkpoint: Checkpoint | None = None
    """The files of its box at its end."""
    again: bool = False
    """It ended before its agent was started, and its prompts wait for another run."""
    repeats: bool = False
    """It has the prompts of such a run."""

    @property
    def conversation(self) -> str:
        return conversation_of(self.agent, self.channel)

    @property
    def harness(self) -> str:
        """The prefix of its entry types. An agent given by command is `<harness>:<command>`."""
        return self.agent.partition(":")[0]

    @property
    def live(self) -> bool:
        return self.status is RunStatus.RUNNING

    @property
    def is_ours(self) -> bool:
        """Whether this server launched the run on this thread, so that it may touch its box and processes."""
        return self.origin is Origin.HERE

    @property
    def is_proven(self) -> bool:
        """Whether this server launched the run, on this thread or on the one it was forked from. Then its options are
        trusted.
        """
        return self.origin is not Origin.UNPROVEN

    def reached(self, stage: Stage) -> bool:
        return _ORDER[self.stage] >= _ORDER[stage]

    def to_json(self) -> dict[str, Any]:
        checkpoint = None if self.checkpoint is None else self.checkpoint.to_json()
        return {**{name: getattr(self, name) for name in Run.__slots__}, "checkpoint": checkpoint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        cancel = value["cancel"]
        return cls(
            **{
                **value,
                "origin": Origin(value.get("origin", Origin.UNPROVEN)),
                "prompts": tuple(value["prompts"]),
                "stage": Stage(value["stage"]),
                "status": RunStatus(value["status"]),
                "cancel": None if cancel is None else CancelKind(cancel),
                "checkpoint": Checkpoint.from_json(value["checkpoint"]) if value.get("checkpoint") else None,
            }
        )


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The latest session of one agent on a thread."""

    run: str
    """The last run of that agent."""
    session: str | None = None
    """The agent's own session id, if it reported one."""
    box: str | None = None
    """The box that has its files."""
    whole: bool = False
    """Whether its last run completed and its runner reported that. Then the session on disk matches the thread."""


def conversation_of(agent: str, channel: str) -> str:
    """Returns the name of a conversation of an agent: that of the agent, or with the channel."""
    return f"{agent} {channel}" if channel else agent


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prompt that is queued until the current run ends."""

    chat: str
    interrupt: bool = False
    since: int = field(default=0, compare=False)
    """A position on the thread shortly before the prompt."""
    quiet: bool = False
    """Starts no run by itself: the next run gets it before its prompt."""


@dataclass(frozen=True, slots=True)
class ThreadRuns:
    """The state of a thread's runs, according to its entries."""

    epoch: int = 0
    """The highest epoch seen. The store may know a higher one, from a process that fenced the thread and then died."""
    count: int = 0
    latest: Run | None = None
    waiting: tuple[Waiting, ...] = ()
    sessions: Mapping[str, AgentSession] = field(default_factory=dict)
    """By agent and channel (`conversation_of`), in the order of their latest runs."""
    workspace: str | None = None
    """Digest of the files that the thread's first box started with."""
    dropped: tuple[tuple[int, int], ...] = ()
    """Parts of the thread, from one position to another, that were rewound: no agent is told about them."""
    delegation: Delegation | None = None
    """What makes the thread a task of another thread."""
    source: Mapping[str, Any] | None = None
    """The repository that these files came from."""
    session: Session | None = None
    """What makes the thread a session. Then only its queue starts runs."""

    @property
    def is_unsettled(self) -> bool:
        """Whether something is left to do: a run, a prompt that starts one, or the report of a task's end."""
        is_open = self.delegation is not None and self.delegation.is_open
        return self.live is not None or is_open or not all(each.quiet for each in self.waiting)

    @property
    def is_session_due(self) -> bool:
        """Whether the thread is a session that the server may have to do something about."""
        if self.session is None:
            return False
        return self.session.is_due or not (self.session.is_over or all(each.quiet for each in self.waiting))

    @property
    def live(self) -> Run | None:
        return self.latest if self.latest is not None and self.latest.live else None

    @property
    def is_empty(self) -> bool:
        return self == _NOTHING

    def to_json(self) -> dict[str, Any]:
        return {
            "fold": _FOLD,
            "epoch": self.epoch,
            "count": self.count,
            "latest": None if self.latest is None else self.latest.to_json(),
            "waiting": [[each.chat, each.interrupt, each.since, each.quiet] for each in self.waiting],
            "sessions": {
                agent: [each.run, each.session, each.box, each.whole] for agent, each in self.sessions.items()
            },
            "workspace": self.workspace,
            "source": self.source,
            "dropped": self.dropped,
            **({} if self.delegation is None else {"delegation": self.delegation.to_json()}),
            **({} if self.session is None else {"session": self.session.to_json()}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ThreadRuns:
        believed = value.get("fold") == _FOLD
        sessions = {agent: AgentSession(*each) for agent, each in value["sessions"].items()}
        return cls(
            value["epoch"],
            value["count"],
            None if value["latest"] is None else Run.from_json(value["latest"]),
            tuple(Waiting(*each) for each in value["waiting"]) if believed else (),
            sessions if believed else {agent: replace(each, whole=False) for agent, each in sessions.items()},
            value["workspace"] if believed else None,
            tuple((begin, end) for begin, end in value.get("dropped", ())),
            delegation=Delegation.from_json(value["delegation"]) if value.get("delegation") else None,
            source=value.get("source") if believed else None,
            session=Session.from_json(value["session"]) if value.get("session") else None,
        )


_NOTHING: Final = ThreadRuns()


def concerns_runs(kind: str, payload: Mapping[str, Any], runs: ThreadRuns) -> bool:
    """Whether an entry of this type can change the state of a thread's runs. Must be fast: it is called for every
    entry.
    """
    if kind.startswith((PREFIX, SESSION_PREFIX)) or kind in DELEGATION_SIGNALS:
        return True
    if kind == "chat":
        return payload.get("queued") is True or is_prompt(payload)
    latest = runs.latest
    return latest is not None and kind.startswith(latest.harness) and kind[len(latest.harness) :].startswith(".")


def is_control(payload: Mapping[str, Any]) -> bool:
    """Returns whether the server acts on entries with this payload. It seals such entries when it writes them."""
    kind: str = payload["type"]
    if kind == "chat":
        return payload.get("queued") is True or is_prompt(payload)
    return kind.startswith((PREFIX, SESSION_PREFIX)) or kind in DELEGATION_SIGNALS


def fold_run(runs: ThreadRuns, entry: Mapping[str, Any], origin: Origin, since: int = 0) -> ThreadRuns:
    """Returns the runs after one more entry, which begins at `since` or later. `origin` matters only for control
    entries.

    Ignores malformed entries, and entries about our runs that others may have written. Never raises.
    """
    payload = entry["payload"]
    kind: str = payload["type"]
    if kind.startswith(SESSION_PREFIX) or (kind == "chat" and is_prompt(payload)):
        return _session(runs, entry, payload, since, origin)
    if kind == "chat":
        return _queued(runs, entry, payload, since) if origin is Origin.HERE else runs
    if kind in DELEGATION_SIGNALS:
        return _delegation(runs, payload) if origin is Origin.HERE else runs
    if kind == STARTED:
        return _started(runs, entry, payload, origin, since)
    run = runs.latest
    if run is None:
        return runs
    if not kind.startswith(PREFIX):
        return _event(runs, run, kind, payload)
    if payload.get("run") != run.run or not run.live or origin not in (Origin.HERE, run.origin):
        return runs
    ts: int = entry["ts"]
    match kind:
        case "signal.run.box":
            changed = replace(
                _sign(run, ts),
                stage=_further(run, Stage.BOX),
                box=_text(payload.get("box")),
                provider=_text(payload.get("provider")) or run.provider,
                box_how=_text(payload.get("how")),
                files=_text(payload.get("files")),
                isolation=_text(payload.get("isolation")),
            )
        case "signal.run.provisioned":
            changed = replace(
                _sign(run, ts),
                stage=_further(run, Stage.PROVISION),
                version=_text(payload.get("version")) or run.version,
                session=_text(payload.get("session")),
            )
        case "signal.run.runner":
            epoch = _epoch(payload.get("epoch"), runs.epoch)
            runs = replace(runs, epoch=max(runs.epoch, epoch))
            changed = replace(
                _sign(run, ts),
                stage=_further(run, Stage.RUNNER),
                epoch=max(run.epoch, epoch),
                process=_text(payload.get("process")),
            )
        case "signal.run.heartbeat":
            changed = replace(_sign(run, ts), stage=_further(run, Stage.AGENT))
        case "signal.run.cancel_requested":
            cancel = CancelKind.INTERRUPT if payload.get("interrupt") is True else CancelKind.CANCEL
            # A cancellation overrides an interruption.
            kept = run.cancel is CancelKind.CANCEL
            changed = replace(run, cancel=run.cancel if kept else cancel, cancel_at=run.cancel_at or ts)
        case "signal.run.finished":
            return _finished(runs, run, entry, payload, since)
        case _:
            return runs
    return replace(runs, latest=changed)


def _started(
    runs: ThreadRuns, entry: Mapping[str, Any], payload: Mapping[str, Any], origin: Origin, since: int
) -> ThreadRuns:
    run, agent = _text(payload.get("run")), _text(payload.get("agent"))
    if runs.live is not None or not run or not agent or entry["id"] != start_id(run):
        return runs  # a run can only be claimed on an idle thread
    epoch = _epoch(payload.get("epoch"), runs.epoch)
    prompts = _texts(payload.get("prompts"))
    options = _options(payload.get("options"))
    last = runs.latest
    channel = channel_in(payload.get("channel"))
    conversation = conversation_of(agent, channel)
    session = runs.sessions.get(conversation)
    sessions = {name: each for name, each in runs.sessions.items() if name != conversation}
    # Not whole until the runner reports how the run ended.
    sessions[conversation] = AgentSession(run) if session is None else replace(session, run=run, whole=False)
    while len(sessions) > _MAX_CONVERSATIONS:
        del sessions[next(iter(sessions))]
    return replace(
        runs,
        epoch=max(runs.epoch, epoch),
        count=runs.count + 1,
        latest=Run(
            run=run,
            epoch=max(runs.epoch, epoch),
            agent=agent,
            model=_text(payload.get("model")) or "",
            provider=_text(payload.get("provider")) or "",
            started_at=entry["ts"],
            origin=origin,
            since=since,
            prompts=prompts,
            asked=min((each.since for each in runs.waiting if each.chat in prompts), default=since),
            resumes=_text(payload.get("resumes")),
            options=options,
            version=_text(payload.get("version")),
            last_sign=entry["ts"],
            turn=runs.count + 1,
            channel=channel,
            repeats=last is not None and last.again and set(last.prompts) <= set(prompts),
        ),
        waiting=tuple(each for each in runs.waiting if each.chat not in prompts),
        sessions=sessions,
        workspace=runs.workspace or (_text(options.get("workspace")) if origin is not Origin.UNPROVEN else None),
        source=runs.source or (_dict(options.get("source")) if origin is not Origin.UNPROVEN else None),
        session=fold_started(runs.session, run, prompts)
        if runs.session is not None and origin is Origin.HERE
        else runs.session,
    )


def _finished(
    runs: ThreadRuns, run: Run, entry: Mapping[str, Any], payload: Mapping[str, Any], since: int
) -> ThreadRuns:
    status = payload.get("status")
    if not isinstance(status, str) or status not in _ENDINGS or entry["id"] != end_id(run.run):
        return runs
    ended_by = _text(payload.get("by"))
    again = is_again(payload) and run.is_ours
    ended = replace(
        run,
        status=RunStatus(status),
        ended_at=entry["ts"],
        exit_code=_integer(payload.get("exit_code")),
        error=_error(payload.get("error")),
        usage=_numbers(payload.get("usage")),
        ended_by=ended_by,
        until=since,
        again=again,
    )
    sessions = dict(runs.sessions)
    session = sessions.get(run.conversation)
    if session is not None and session.run == run.run:
        # An agent that was killed, cancelled or failed may not have saved all its output, so its session must be
        # rebuilt.
        whole = run.is_ours and ended_by == "runner" and ended.status is RunStatus.COMPLETED
        sessions[run.conversation] = replace(session, whole=whole)
    return replace(
        runs,
        latest=ended,
        waiting=(*(Waiting(each, since=run.asked) for each in run.prompts), *runs.waiting) if again else runs.waiting,
        sessions=sessions,
        epoch=max(runs.epoch, _epoch(payload.get("epoch"), runs.epoch)),
        session=None if runs.session is None else fold_finished(runs.session, run.run, ended.status, ended.error),
    )


def is_again(end: Mapping[str, Any]) -> bool:
    """Returns whether the end of a run says that its prompts wait for another run. A runner cannot say so."""
    return end.get("again") is True and end.get("by") != "runner"


def _event(runs: ThreadRuns, run: Run, kind: str, payload: Mapping[str, Any]) -> ThreadRuns:
    """Apply an event that the runner posted."""
    if not run.live:
        return runs
    event = kind[len(run.harness) + 1 :]
    if event == "session":
        session = _text(payload.get("session"))
        sessions = dict(runs.sessions)
        known = sessions.get(run.conversation)
        if session and known is not None and known.run == run.run:
            sessions[run.conversation] = replace(known, session=session, box=run.box)
            runs = replace(runs, sessions=sessions)
    reached = Stage.EVENT if event in _READ_ITS_PROMPT else Stage.AGENT
    notice = _text(payload.get("text")) if event == "notice" else None
    return replace(runs, latest=replace(run, signs=run.signs + 1, stage=_further(run, reached), notice=notice))


def _queued(runs: ThreadRuns, entry: Mapping[str, Any], payload: Mapping[str, Any], since: int) -> ThreadRuns:
    if payload.get("queued") is not True or not isinstance(payload.get("text"), str):
        return runs
    if len(runs.waiting) >= MAX_WAITING:
        return runs
    interrupt, quiet = payload.get("interrupt") is True, payload.get("quiet") is True
    return replace(runs, waiting=(*runs.waiting, Waiting(entry["id"], interrupt, since, quiet)))


def _delegation(runs: ThreadRuns, payload: Mapping[str, Any]) -> ThreadRuns:
    if payload["type"] == CHILD_READ:
        read = child_result_id(str(payload.get("run")))
        return replace(runs, waiting=tuple(each for each in runs.waiting if each.chat != read))
    delegation = fold_delegation(runs.delegation, payload)
    return runs if delegation is runs.delegation else replace(runs, delegation=delegation)


def _session(
    runs: ThreadRuns, entry: Mapping[str, Any], payload: Mapping[str, Any], since: int, origin: Origin
) -> ThreadRuns:
    """Returns the runs after an entry of a session. A fork of a session is none, and has its files."""
    is_here = origin is Origin.HERE
    if not is_here and (origin is Origin.UNPROVEN or payload["type"] != CREATED):
        return runs
    session = fold_session(runs.session if is_here else None, entry, since)
    if session is None or session is runs.session:
        return runs
    if payload["type"] != CREATED:
        return replace(runs, session=session)
    options = session.options
    return replace(
        runs,
        session=session if is_here else runs.session,
        workspace=_text(options.get("workspace")) or runs.workspace,
        source=_dict(options.get("source")) or runs.source,
    )


def _sign(run: Run, ts: int) -> Run:
    return replace(run, signs=run.signs + 1, last_sign=max(run.last_sign, ts))


def _further(run: Run, stage: Stage) -> Stage:
    return run.stage if run.reached(stage) else stage


# --- reading untrusted values ---

_ENDINGS: Final = frozenset(status.value for status in ENDED)


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(each[:_MAX_TEXT] for each in value[: 2 * MAX_WAITING] if isinstance(each, str))


def _integer(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 31 else None


def _epoch(value: object, known: int) -> int:
    if type(value) is not int or not 0 <= value <= known + _MAX_EPOCH_STEP:
        return 0
    return value


def _options(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(repr(value)) > _MAX_OPTIONS:
        return {}
    return value


def _dict(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _error(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    texts = {name: _text(value.get(name)) for name in ("code", "message", "hint")}
    return {name: text for name, text in texts.items() if text is not None} or None


def _numbers(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    names = ("input", "output", "cacheRead", "cacheWrite", "cost")
    return {
        name: value[name] for name in names if type(value.get(name)) in (int, float) and 0 <= value[name] < 1 << 53
    } or None


# --- writing payloads ---


def start_id(run: str) -> str:
    return f"start-{run}"


def end_id(run: str) -> str:
    return f"end-{run}"


def started(
    *,
    run: str,
    epoch: int,
    agent: str,
    model: str,
    provider: str,
    prompts: tuple[str, ...],
    resumes: str | None,
    options: dict[str, Any],
    version: str | None = None,
    channel: str = "",
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "type": STARTED,
        "run": run,
        "epoch": epoch,
        "agent": agent,
        "model": model,
        "provider": provider,
        "prompts": list(prompts),
        "options": options,
    }
    if version is not None:
        payload["version"] = version
    if resumes is not None:
        payload["resumes"] = resumes
    if channel:
        payload["channel"] = channel
    return payload


def box_found(
    *, run: str, box: str, provider: str, how: str, files: str, ms: int, why: str = "", isolation: str | None = None
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "type": BOX, "run": run, "box": box, "provider": provider, "how": how, "files": files, "ms": ms
    }  # fmt: skip
    if why:
        payload["why"] = why
    if isolation is not None:
        payload["isolation"] = isolation
    return payload


def installing(*, run: str, what: str, ms: int | None) -> dict[str, Any]:
    """Reports that the server is installing something this machine lacks, or, with `ms`, that it has finished."""
    return {"type": INSTALLING, "run": run, "what": what, **({} if ms is None else {"ms": ms})}


def environment_used(*, run: str, environment: str, digest: str, warnings: tuple[str, ...]) -> dict[str, Any]:
    """Reports the environment of a run, and what it lacks but does not require."""
    told = {"warnings": list(warnings)} if warnings else {}
    return {"type": ENVIRONMENT, "run": run, "environment": environment, "digest": digest, **told}


def setup_run(*, run: str, environment: str, ms: int | None, built: bool = True) -> dict[str, Any]:
    """Reports that the setup of an environment is being built, or, with `ms`, that the box starts from it."""
    done = {} if ms is None else {"ms": ms, "built": built}
    return {"type": SETUP, "run": run, "environment": environment, **done}


def services_ready(*, run: str, services: Mapping[str, str], ms: int) -> dict[str, Any]:
    """Reports that the services of an environment are ready, by name, with the processes that they are."""
    return {"type": SERVICES, "run": run, "services": dict(services), "ms": ms}


def provisioned(*, run: str, agent: str, version: str | None, ms: int, session: str) -> dict[str, Any]:
    known = {} if version is None else {"version": version}
    return {"type": PROVISIONED, "run": run, "agent": agent, **known, "ms": ms, "session": session}


def runner_started(*, run: str, epoch: int, process: str) -> dict[str, Any]:
    return {"type": RUNNER, "run": run, "epoch": epoch, "process": process}


def model_trouble(*, run: str, message: str) -> dict[str, Any]:
    """Reports that the model's host cannot be reached or drops connections. The message is Holdfast's, not the
    provider's.
    """
    return {"type": MODEL_TROUBLE, "run": run, "message": message}


def heartbeat(run: str) -> dict[str, Any]:
    return {"type": HEARTBEAT, "run": run}


def cancel_requested(run: str, kind: CancelKind, by: str | None) -> dict[str, Any]:
    author = {} if by is None else {"by": by}
    return {"type": CANCEL_REQUESTED, "run": run, "interrupt": kind is CancelKind.INTERRUPT, **author}


def finished(
    *,
    run: str,
    epoch: int,
    status: RunStatus,
    ms: int,
    by: str,
    error: dict[str, str] | None = None,
    exit_code: int | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """`again` puts the prompts of a run whose agent was never started back into the queue."""
    payload: dict[str, Any] = {"type": FINISHED, "run": run, "epoch": epoch, "status": status.value}
    if exit_code is not None:
        payload["exit_code"] = exit_code
    if error is not None:
        payload["error"] = error
    if again:
        payload["again"] = True
    return {**payload, "ms": ms, "by": by}
