"""The hub: has the connections of the runners of all sessions, writes what they say, and tells them what is wanted.

A prompt over the hub is a run like any other: claimed on its thread, with an epoch, and with one end. The hub keeps no
state that the thread and the runners cannot give it again. A runner outlives the server, connects to the next one, and
says again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from holdfast.api.errors import HoldfastError, NotFound, Unavailable
from holdfast.api.errors.runs import RunNotFound, RunOver
from holdfast.api.errors.sessions import AgentAway, AgentRefused
from holdfast.api.ids import new_id
from holdfast.api.run.info import RunStatus
from holdfast.api.session.sessions import AgentSettings
from holdfast.guest.hub_messages import EXPIRED, REQUESTS, InvalidMessage
from holdfast.guest.session_runner.link import REPLACED
from holdfast.guest.turn_messages import TURN_MESSAGES, entry_of
from holdfast.runs.reconcile.rules import End
from holdfast.runs.run_log import RunLog
from holdfast.sessions.hub.connection import NORMAL, Message, Receive, RunnerConnection, Send
from holdfast.sessions.hub.requests import ROUTES, answer_of, call_of
from holdfast.sessions.hub.settings import agent_config, plugin_content, settings_entry
from holdfast.sessions.hub.turn_writer import TurnOver, TurnWriter
from holdfast.threads.run_events import Run
from holdfast.threads.sealed_records import SealedRecords
from holdfast.threads.session_events import SESSION_PREFIX
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 5.0
QUESTION_SECONDS: Final = 600.0
"""How long a question waits for somebody."""
IDLE_SECONDS: Final = 300.0
"""How long a runner stays without a prompt. Its server listens, so its box would never be idle."""
_STOP_SECONDS: Final = 10.0
_REMEMBERED: Final = 10_000
_MOST_RECORDED: Final = 64 * 1024
_MOST_QUESTIONS: Final = 100
_LONGEST_QUESTION: Final = 64 * 1024
_LONGEST_MODELS: Final = 1024 * 1024
_LONGEST_ID: Final = 256
_MOST_REQUESTS: Final = 32
"""Requests of one session that are not answered yet."""
_MOST_REQUESTED: Final = 32 * 1024 * 1024
_RECORDED: Final = frozenset(
    (
        "runner-health",
        "git-state",
        "files-changed",
        "model-switched",
        "usage-report",
        "audio-transcript",
        "screenshot",
        "tunnels",
        "repo:clone-complete",
        "workflow-chat-message",
        "workflow-execution-result",
        "wait-subscription",
    )
)
"""Messages that are written on the thread as they are, if they are not too large."""
_ANSWERS: Final = {
    "diff": "requestId",
    "review-result": "requestId",
    "command-result": "requestId",
    "session-reset": "requestId",
    "error": "messageId",
}
"""Messages that answer a request of ours, and the field that names it."""


class Beats(Protocol):
    """What the hub asks of the service of runs."""

    async def beat(self, run: str, epoch: int) -> str | None: ...


class Ends(Protocol):
    async def post(self, thread: str, run: str, end: End, *, by: str) -> bool: ...


class InternalApi(Protocol):
    """What code in a box may ask for (`holdfast.gateway.internal_api`)."""

    async def respond(self, box: str, method: str, path: str, query: bytes, body: bytes) -> tuple[int, bytes]: ...


@dataclass(slots=True)
class Question:
    """A question of an agent that waits for somebody."""

    id: str
    text: str
    options: tuple[str, ...]
    kind: str
    run: str
    asked_at: int
    expires_at: int
    expires: asyncio.TimerHandle | None = field(default=None, repr=False)


class Hub:
    """Owns the connections while `serve` runs for each."""

    def __init__(
        self,
        run_log: RunLog,
        writer: TurnWriter,
        runs: Beats,
        ends: Ends,
        *,
        clock: Callable[[], int],
        internal_api: Callable[[], Awaitable[InternalApi]] | None = None,
        on_terminate: Callable[[str], Awaitable[object]] | None = None,
        settings: SealedRecords[AgentSettings] | None = None,
        question_seconds: float = QUESTION_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._log = run_log
        self._writer = writer
        self._runs = runs
        self._ends = ends
        self._clock = clock
        self._internal_api = internal_api
        self._on_terminate = on_terminate
        self._settings = settings
        self._question_seconds = question_seconds
        self._beat_seconds = beat_seconds
        self._idle_seconds = idle_seconds
        self._connections: dict[str, RunnerConnection] = {}
        """By session."""
        self._arrivals: dict[str, asyncio.Event] = {}
        self._seen: OrderedDict[str, int] = OrderedDict()
        """The number of the last message that was taken, by runner."""
        self._prompts: dict[str, dict[str, Any] | None] = {}
        """Prompts that this hub has sent, or is about to, by run, until their runner reports them."""
        self._answers: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        """Requests to runners, by session and id."""
        self._questions: dict[str, dict[str, Question]] = {}
        """By session and id."""
        self._requests: dict[str, list[int]] = {}
        """The sizes of requests of runners that are not answered yet, by session."""
        self._asking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Runners stay, and connect to the next server."""
        for each in list(self._asking):
            each.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for questions in self._questions.values():
            for question in questions.values():
                if question.expires is not None:
                    question.expires.cancel()

    # --- for the launch of runs ---

    def connected(self, thread: str, box: str) -> RunnerConnection | None:
        """Returns the runner of a session in this box, if it is connected and has told its status."""
        found = self._connections.get(thread)
        if found is None or found.box != box or not found.is_open or not found.greeted.is_set():
            return None
        _use(found)
        return found

    async def wait(self, thread: str, box: str, process: str, seconds: float) -> RunnerConnection:
        """Wait until a runner that was just started is connected. Raises `AgentAway`."""
        try:
            async with time_limit(seconds):
                while True:
                    arrived = self._arrivals.setdefault(thread, asyncio.Event())
                    found = self.connected(thread, box)
                    if found is not None and found.process == process:
                        return found
                    arrived.clear()
                    await arrived.wait()
        except TimeoutError:
            raise AgentAway(
                f"the runner of session {thread} did not connect within {seconds:g} s",
                hint=f"see its output: holdfast session diagnose {thread}",
            ) from None

    def expect(self, run: str) -> None:
        """A prompt is about to be sent for this run: that its runner does not know it yet means nothing."""
        self._prompts[run] = None
        while len(self._prompts) > _REMEMBERED:
            del self._prompts[next(iter(self._prompts))]

    def forget(self, run: str) -> None:
        self._prompts.pop(run, None)

    async def prompt(self, connection: RunnerConnection, run: str, fields: dict[str, Any]) -> None:
        """Send a prompt. If the connection is lost, it is sent again on the next one."""
        self._prompts[run] = fields
        connection.last_turn = run
        _use(connection)
        await connection.send("prompt", fields)

    # --- connections ---

    async def serve(self, thread: str, box: str, runner: str, process: str, receive: Receive, send: Send) -> None:
        """Serve a runner that has proved whose it is, until its connection ends. Accepts it, or closes it."""
        event = await receive()
        if event["type"] != "websocket.connect":
            return
        connection = RunnerConnection(thread, box, runner, process, receive, send)
        await send({"type": "websocket.accept"})
        if not await self._is_current(connection):
            await connection.close(NORMAL, REPLACED)
            return
        old = self._connections.get(thread)
        self._connections[thread] = connection
        if old is not None:
            connection.add_sessions(old.sessions if old.runner == runner else {})
            if old.runner == runner:
                connection.models, connection.last_turn = old.models, old.last_turn
            await old.close(NORMAL, REPLACED)
        await connection.send("init", {})
        work = asyncio.create_task(self._work(connection), name=f"hub of session {thread}")
        beats = asyncio.create_task(self._keep_beating(connection), name=f"beats of session {thread}")
        try:
            await connection.receive(lambda why: self._refuse(connection, why))
        finally:
            work.cancel()
            beats.cancel()
            await asyncio.gather(work, beats, return_exceptions=True)
            if self._connections.get(thread) is connection:
                del self._connections[thread]
            connection.ended.set()
            await connection.close(NORMAL, "")

    async def _is_current(self, connection: RunnerConnection) -> bool:
        """Returns whether this runner is the latest of its session. An earlier one may come back after a long cut."""
        live = await self._live(connection.thread)
        if live is not None and live.process is not None and live.process != connection.process:
            return False
        now = self._connections.get(connection.thread)
        return now is None or now.runner == connection.runner or now.process != connection.process

    async def stop(self, thread: str) -> bool:
        """Have the runner of a session end, with its agent, and wait for that. Returns whether there was one."""
        connection = self._connections.get(thread)
        if connection is None:
            return False
        await connection.send("stop", {})
        with suppress(TimeoutError):  # then it ends with its box
            async with time_limit(_STOP_SECONDS):
                await connection.ended.wait()
        return True

    async def _live(self, thread: str) -> Run | None:
        try:
            live = (await self._log.runs(thread)).live
        except NotFound:
            return None
        return live if live is not None and live.is_ours else None

    # --- what runners say ---

    async def _work(self, connection: RunnerConnection) -> None:
        try:
            while True:
                await self._take(connection, await connection.messages())
        except asyncio.CancelledError:
            raise
        except Exception:
            # What was not acknowledged comes again on the next connection.
            log.exception("messages of session %s could not be taken", connection.thread)
            await connection.close(1011, "try again")

    async def _take(self, connection: RunnerConnection, messages: Sequence[Message]) -> None:
        seen = before = self._seen.get(connection.runner, 0)
        fresh: list[Message] = []
        for each in messages:
            if each.number is None:
                fresh.append(each)
            elif each.number > seen:
                seen = each.number
                fresh.append(each)
        batch: list[Message] = []
        for each in fresh:
            if each.type in TURN_MESSAGES and (not batch or batch[-1].fields["turnId"] == each.fields["turnId"]):
                batch.append(each)
                continue
            await self._write(connection, batch)
            batch = [each] if each.type in TURN_MESSAGES else []
            if not batch:
                await self._handle(connection, each)
        await self._write(connection, batch)
        if seen != before or any(each.number is not None for each in messages):
            self._seen[connection.runner] = seen
            self._seen.move_to_end(connection.runner)
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            await connection.send("ack", {"seq": max(seen, 0)})

    async def _write(self, connection: RunnerConnection, batch: Sequence[Message]) -> None:
        if not batch:
            return
        turn = str(batch[0].fields["turnId"])
        self._prompts.pop(turn, None)
        connection.last_turn = turn
        run = await self._live(connection.thread)
        if run is None or run.run != turn:
            log.info("run %s of session %s is over: %d messages are dropped", turn, connection.thread, len(batch))
            if turn in connection.turns:
                await connection.send("abort", {})
            return
        entries = [entry_of(run.harness, each.type, each.fields) for each in batch]
        try:
            await self._writer.write(connection.thread, run, [each for each in entries if each is not None])
        except TurnOver as over:
            log.info("run %s of session %s was taken over: %s", turn, connection.thread, over)
            await connection.send("abort", {})

    async def _handle(self, connection: RunnerConnection, message: Message) -> None:
        type, fields, thread = message.type, message.fields, connection.thread
        if type == "agentStatus":
            connection.status = fields["status"]
            connection.turns = tuple(fields.get("turns", ()))
            connection.last_turn = fields.get("lastTurn", connection.last_turn)
            connection.add_sessions(fields.get("sessions", {}))
            for run in connection.turns:
                self._prompts.pop(run, None)
            if not connection.greeted.is_set():
                await self._send_settings(connection)  # before its first prompt
            connection.greeted.set()
            if (arrived := self._arrivals.get(thread)) is not None:
                arrived.set()
            await self._look(connection)
        elif type == "channel-session-created":
            connection.add_sessions({fields["channelKey"]: fields["opencodeSessionId"]})
        elif type == "session-reset":
            connection.sessions.pop(f"{fields['channelType']}:{fields['channelId']}", None)
            self._answered(thread, str(fields["requestId"]), fields)
        elif type == "models":
            if message.size <= _LONGEST_MODELS:
                connection.models = fields["models"]
        elif type == "question":
            await self._ask(connection, message)
        elif type == "question-closed":
            self._close_question(thread, fields["questionId"])
        elif type in _ANSWERS:
            self._answered(thread, str(fields[_ANSWERS[type]]), {"type": type, **fields})
        elif type == "reverted":
            for id in fields["messageIds"]:
                self._answered(thread, id, fields)
        elif type == "aborted":
            self._answered(thread, "abort", fields)
        elif type == "opencode-config-applied":
            self._answered(thread, "opencode-config", fields)
        elif type in REQUESTS:
            await self._begin_request(connection, message)
        elif type == "self-terminate" and self._on_terminate is not None:
            await self._on_terminate(thread)
        elif type in _RECORDED:
            await self._record(connection, message)

    async def _record(self, connection: RunnerConnection, message: Message) -> None:
        """Write a message on the thread. Its id is that of the message, so that it is there once."""
        name = message.type.replace("-", "_").replace(":", "_")
        payload = {"type": f"{SESSION_PREFIX}{name}", **message.fields}
        if len(orjson.dumps(payload)) > _MOST_RECORDED:
            payload = {"type": f"{SESSION_PREFIX}{name}", "truncated": True}
        entry = self._log.entry(payload, id=f"hub-{connection.runner}-{message.number}")
        await self._log.append(connection.thread, entry)

    async def _refuse(self, connection: RunnerConnection, why: str) -> None:
        log.warning("a message of the runner of session %s is refused: %s", connection.thread, why)
        if connection.refused == 1:
            payload = {"type": f"{SESSION_PREFIX}message_refused", "why": why[:500]}
            await self._log.append(connection.thread, self._log.entry(payload))

    # --- turns ---

    async def _keep_beating(self, connection: RunnerConnection) -> None:
        """A turn of a runner that is connected is alive."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            try:
                await self._look(connection)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("a beat of session %s failed: %r", connection.thread, error)

    async def _look(self, connection: RunnerConnection) -> None:
        live = await self._live(connection.thread)
        if live is not None or connection.turns:
            _use(connection)
        elif asyncio.get_running_loop().time() - connection.used_at >= self._idle_seconds:
            await connection.send("stop", {})
        if live is None or live.process != connection.process:
            return
        if live.run in connection.turns:
            try:
                cancel = await self._runs.beat(live.run, live.epoch)
            except (RunNotFound, RunOver):
                cancel = "over"
            if cancel is not None:
                await connection.send("abort", {})
        elif live.run in self._prompts:
            fields = self._prompts[live.run]
            if fields is not None:
                await connection.send("prompt", fields)
        else:
            # The server that launched it died before it sent the prompt, or the runner has lost it.
            end = End(RunStatus.ORPHANED, "prompt_lost", "the prompt did not reach the agent")
            await self._ends.post(connection.thread, live.run, end, by="hub")

    # --- what runners ask for ---

    async def _begin_request(self, connection: RunnerConnection, message: Message) -> None:
        """Answer a request in the background, unless too much is asked already."""
        thread, size = connection.thread, message.size
        pending = self._requests.setdefault(thread, [])
        if len(pending) >= _MOST_REQUESTS or (pending and sum(pending) + size > _MOST_REQUESTED):
            answer = {"requestId": str(message.fields["requestId"])[:_LONGEST_ID], "error": "too much is asked at once"}
            await connection.send(f"{message.type}-result", answer)
            return
        pending.append(size)

        def done(task: asyncio.Task[None]) -> None:
            self._asking.discard(task)
            pending.remove(size)
            if not pending:
                self._requests.pop(thread, None)

        work = self._answer_request(connection, message.type, message.fields)
        task = asyncio.create_task(work, name=f"{message.type} of {thread}")
        self._asking.add(task)
        task.add_done_callback(done)

    async def _answer_request(self, connection: RunnerConnection, type: str, fields: Mapping[str, Any]) -> None:
        request = str(fields["requestId"])
        try:
            answer = await self._call(connection.box, type, fields)
            await connection.send(f"{type}-result", {"requestId": request, **answer})
        except (HoldfastError, InvalidMessage) as error:
            text = error.message if isinstance(error, HoldfastError) else str(error)
            await connection.send(f"{type}-result", {"requestId": request, "error": text[:2000]})

    async def _call(self, box: str, type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        route = ROUTES.get(type)
        if route is None or self._internal_api is None:
            raise NotFound(f"this server does not answer {type}")
        api = await self._internal_api()
        method, path, query, body = call_of(route, fields)
        status, answer = await api.respond(box, method, path, query, orjson.dumps(body) if body else b"")
        found = orjson.loads(answer)
        if status != 200:
            raise Unavailable(str(found.get("error", status)))
        return answer_of(route, REQUESTS[type][1], found)

    # --- what people ask for ---

    async def ask(
        self, thread: str, type: str, fields: Mapping[str, Any], answer: str | None = None, seconds: float = 15.0
    ) -> dict[str, Any]:
        """Ask the runner of a session, and return its answer. `answer` is what names it, if not a request id.

        Raises `AgentAway` if it is not connected or does not answer, and `AgentRefused`.
        """
        connection = self._connected(thread)
        id = answer or new_id("q")
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[(thread, id)] = future
        try:
            await connection.send(type, dict(fields) if answer is not None else {**fields, "requestId": id})
            async with time_limit(seconds):
                found = await future
        except TimeoutError:
            raise AgentAway(f"the agent of session {thread} did not answer within {seconds:g} s") from None
        finally:
            if self._answers.get((thread, id)) is future:
                del self._answers[(thread, id)]
        if found.get("error"):
            raise AgentRefused(str(found["error"]))
        return found

    def _connected(self, thread: str) -> RunnerConnection:
        connection = self._connections.get(thread)
        if connection is None:
            raise AgentAway(
                f"the agent of session {thread} is not connected",
                hint=f"a prompt starts it: holdfast session prompt {thread} PROMPT",
            )
        return connection

    def _answered(self, thread: str, id: str, fields: dict[str, Any]) -> None:
        future = self._answers.get((thread, id))
        if future is not None and not future.done():
            future.set_result(fields)

    def models(self, thread: str) -> list[dict[str, Any]]:
        """Returns the models that the agent of a session knows, as it told last. Raises `AgentAway`."""
        return self._connected(thread).models

    async def settings(self, thread: str) -> AgentSettings:
        """Returns what the server of a session's agent gets beside its model."""
        row = await self._log.row(thread)
        if self._settings is None or row.runs.session is None or not row.runs.session.configured:
            return AgentSettings()
        return await self._settings.read(thread)

    async def configure(self, thread: str, settings: AgentSettings) -> None:
        """Keep other settings. A runner that is connected gets them now, and others when they connect."""
        if self._settings is None:
            raise Unavailable("this server keeps no settings of agents")
        await self._settings.change(thread, lambda before: settings_entry(settings))
        connection = self._connections.get(thread)
        if connection is not None and connection.greeted.is_set():
            await self._send_settings(connection)

    async def _send_settings(self, connection: RunnerConnection) -> None:
        row = await self._log.row(connection.thread)
        if self._settings is None or row.runs.session is None or not row.runs.session.configured:
            return
        settings = await self._settings.read(connection.thread)
        await connection.send("plugin-content", plugin_content(settings))
        await connection.send("opencode-config", agent_config(settings))

    # --- questions ---

    def questions(self, thread: str) -> list[Question]:
        return list(self._questions.get(thread, {}).values())

    async def answer(self, thread: str, question: str, answer: Any) -> None:
        """Answer a question of the agent. Raises `NotFound` if it does not wait any more."""
        if question not in self._questions.get(thread, {}):
            raise NotFound(
                f"no question {question} waits in session {thread}",
                hint=f"list them: holdfast session questions {thread}",
            )
        await self._connected(thread).send("answer", {"questionId": question, "answer": answer})
        self._close_question(thread, question)

    async def _ask(self, connection: RunnerConnection, message: Message) -> None:
        fields = message.fields
        thread, id = connection.thread, str(fields["questionId"])
        waiting = self._questions.get(thread, {})
        if id in waiting:
            return
        if len(waiting) >= _MOST_QUESTIONS or message.size > _LONGEST_QUESTION or len(id) > _LONGEST_ID:
            # The agent goes on at once, as if nobody had answered.
            await connection.send("answer", {"questionId": id[:_LONGEST_ID], "answer": EXPIRED})
            return
        waiting = self._questions.setdefault(thread, {})
        loop = asyncio.get_running_loop()
        waiting[id] = Question(
            id,
            fields["text"],
            tuple(fields.get("options", ())),
            fields.get("kind", "question"),
            fields.get("turnId", ""),
            self._clock(),
            self._clock() + int(self._question_seconds * 1000),
            loop.call_later(self._question_seconds, self._expire, thread, id),
        )

    def _expire(self, thread: str, question: str) -> None:
        async def tell() -> None:
            with suppress(HoldfastError):
                await self.answer(thread, question, EXPIRED)

        task = asyncio.create_task(tell(), name=f"expiry of a question of {thread}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _close_question(self, thread: str, id: str) -> None:
        found = self._questions.get(thread, {}).pop(id, None)
        if found is not None and found.expires is not None:
            found.expires.cancel()
        if not self._questions.get(thread):
            self._questions.pop(thread, None)


def _use(connection: RunnerConnection) -> None:
    connection.used_at = asyncio.get_running_loop().time()
