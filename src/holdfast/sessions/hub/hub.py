"""The hub: has the connections of the runners of all sessions, writes what they say, and tells them what is wanted.

A prompt over the hub is a run like any other: claimed on its thread, with an epoch, and with one end. The hub keeps no
state that the thread and the runners cannot give it again. A runner outlives the server, connects to the next one, and
says again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from holdfast.api.errors import HoldfastError, NotFound, Unavailable
from holdfast.api.errors.runs import RunNotFound, RunOver
from holdfast.api.errors.sessions import AgentAway, AgentRefused
from holdfast.api.ids import new_id
from holdfast.api.run.info import RunStatus
from holdfast.guest.hub_messages import REQUESTS, InvalidMessage
from holdfast.guest.session_runner.link import REPLACED
from holdfast.guest.turn_messages import TURN_MESSAGES, entry_of
from holdfast.runs.reconcile.rules import End
from holdfast.runs.run_log import RunLog
from holdfast.sessions.hub.connection import NORMAL, Message, Receive, RunnerConnection, Send
from holdfast.sessions.hub.questions import Questions
from holdfast.sessions.hub.requests import ROUTES, answer_of, call_of
from holdfast.sessions.hub.runners import Runners
from holdfast.sessions.hub.settings import ServerSettings
from holdfast.sessions.hub.turn_writer import TurnOver, TurnWriter
from holdfast.threads.run_events import Run
from holdfast.threads.session_events import SESSION_PREFIX
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 300.0
"""How long a runner stays without a prompt. Its server listens, so its box would never be idle."""
_REMEMBERED: Final = 10_000
_MOST_RECORDED: Final = 64 * 1024
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


class Hub:
    """Owns the connections while `serve` runs for each."""

    def __init__(
        self,
        run_log: RunLog,
        writer: TurnWriter,
        runs: Beats,
        ends: Ends,
        runners: Runners,
        questions: Questions,
        *,
        internal_api: Callable[[], Awaitable[InternalApi]] | None = None,
        on_terminate: Callable[[str], Awaitable[object]] | None = None,
        on_question: Callable[[str], Awaitable[object]] | None = None,
        settings: ServerSettings | None = None,
        beat_seconds: float = BEAT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`on_question` is called with a session whose agent asks something, in the background."""
        self._log = run_log
        self._writer = writer
        self._runs = runs
        self._ends = ends
        self._runners = runners
        self._questions = questions
        self._internal_api = internal_api
        self._on_terminate = on_terminate
        self._on_question = on_question
        self._settings = settings
        self._beat_seconds = beat_seconds
        self._idle_seconds = idle_seconds
        self._seen: OrderedDict[str, int] = OrderedDict()
        """The number of the last message that was taken, by runner."""
        self._answers: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        """Requests to runners, by session and id."""
        self._requests: dict[str, list[int]] = {}
        """The sizes of requests of runners that are not answered yet, by session."""
        self._asking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Runners stay, and connect to the next server."""
        for each in list(self._asking):
            each.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

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
        old = self._runners.add(connection)
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
            self._runners.remove(connection)
            connection.ended.set()
            await connection.close(NORMAL, "")

    async def _is_current(self, connection: RunnerConnection) -> bool:
        """Returns whether this runner is the latest of its session. An earlier one may come back after a long cut."""
        live = await self._live(connection.thread)
        if live is not None and live.process is not None and live.process != connection.process:
            return False
        now = self._runners.find(connection.thread)
        return now is None or now.runner == connection.runner or now.process != connection.process

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
        self._runners.forget(turn)
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
                self._runners.forget(run)
            if self._settings is not None and not connection.greeted.is_set():
                await self._settings.send(connection)  # before its first prompt
            self._runners.greet(connection)
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
            await self._questions.ask(connection, message)
            if self._on_question is not None:
                self._begin(self._tell_question(self._on_question, thread), f"question of {thread}")
        elif type == "question-closed":
            self._questions.close_one(thread, fields["questionId"])
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

    async def _tell_question(self, tell: Callable[[str], Awaitable[object]], thread: str) -> None:
        try:
            await tell(thread)
        except HoldfastError as error:
            log.warning("nobody was told of a question of session %s: %s", thread, error)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

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
            connection.use()
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
        elif self._runners.expects(live.run):
            await self._runners.repeat_prompt(connection, live.run)
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
            pending.remove(size)
            if not pending:
                self._requests.pop(thread, None)

        work = self._answer_request(connection, message.type, message.fields)
        self._begin(work, f"{message.type} of {thread}").add_done_callback(done)

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

    # --- what the server asks for ---

    async def ask(
        self, thread: str, type: str, fields: Mapping[str, Any], answer: str | None = None, seconds: float = 15.0
    ) -> dict[str, Any]:
        """Ask the runner of a session, and return its answer. `answer` is what names it, if not a request id.

        Raises `AgentAway` if it is not connected or does not answer, and `AgentRefused`.
        """
        connection = self._runners.get(thread)
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

    def _answered(self, thread: str, id: str, fields: dict[str, Any]) -> None:
        future = self._answers.get((thread, id))
        if future is not None and not future.done():
            future.set_result(fields)
