"""Interpreters that live in the server: created over HTTP, and opened again from their threads and boxes on first use.

None of their state is only here. The settings are an entry on the thread, and the memory is in the box, which outlives
the server. An execution continues when its client leaves; a request with the same id follows it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.access.keys import Caller
from holdfast.api.box.process import Stream
from holdfast.api.errors import NotFound
from holdfast.api.errors.interpreters import (
    ExecutionKnown,
    InterpreterDeleted,
    InterpreterElsewhere,
    InterpreterNotFound,
    InterpreterWithoutBox,
    RecordUnwritten,
    TooManyInterpreters,
)
from holdfast.api.ids import new_entry_id, new_id, now_ms
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.api.thread.entries import Entry
from holdfast.boxes.rows import BoxFilter
from holdfast.interpreter.bridge.budget import Limits
from holdfast.interpreter.execution import Execution, OutputCallback
from holdfast.interpreter.interpreter import EXECUTION_SECONDS, Interpreter
from holdfast.interpreter.record import ALL, EXECUTION, SETTINGS, THREAD_LABEL
from holdfast.interpreter.replay import Replay, ReplayedExecution, replay
from holdfast.interpreter.validation import Restore
from holdfast.interpreter.workspace.workspace import Transition
from holdfast.server.interpreter.host import ServerHost
from holdfast.threads.access.credentials import DEFAULT_USER
from holdfast.threads.access.seals import Origin, Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.store import AppendRequest
from holdfast.trace_context import continued_trace

if TYPE_CHECKING:
    from holdfast.api.box.spec import BoxSpec
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.threads.service import ThreadPage, Threads
    from holdfast.threads.store import StreamStore

log = logging.getLogger(__name__)

_MOST_LIVE: Final = 256
_HELD_BYTES: Final = 4 << 20
"""Most output of an execution to hold for its followers."""
_HELD_CHUNKS: Final = 4096
_KEPT_EXECUTIONS: Final = 16
KEY_PREFIX: Final = "interpreter/"
"""The prefix of the keys of their boxes; the id follows."""
_MOST_KNOWN: Final = 10_000
_MOST_RESUMED: Final = _KEPT_EXECUTIONS
_LONGEST_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The settings of an interpreter, as on its thread, except for the box, which is parsed with care."""

    document: Mapping[str, Any]
    """The form that is written to the thread."""
    spec: BoxSpec
    template: str | None = None
    model: str | None = None
    repo_url: str | None = None
    ref: str | None = None
    volume: str | None = None
    workspace: str | None = None
    output_fields: list[dict[str, str]] | None = None
    timeout: float = EXECUTION_SECONDS
    output_limit: int = OUTPUT_LIMIT
    memory: int | None = None
    restore: Restore | None = None
    limits: Limits = field(default_factory=Limits)


ReadMade = Callable[[Mapping[str, Any]], Made]
"""Parse the settings on a thread. Raises ValueError."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Stands for output that was dropped because a follower was slow or came late."""

    chunks: int


class Underway:
    """One execution, and its output for followers."""

    def __init__(self, id: str, run: Callable[[OutputCallback], Coroutine[Any, Any, Execution]]) -> None:
        """Begins the execution: `run` is called with what takes its output."""
        self.id = id
        self._chunks: deque[tuple[Stream, bytes]] = deque()
        self._first = 0
        self._held = 0
        self._moved = asyncio.Event()
        self.task: asyncio.Task[Execution] = asyncio.create_task(run(self._add_output), name=f"execution {id}")
        self.task.add_done_callback(self._ended)

    def _add_output(self, stream: Stream, data: bytes) -> None:
        self._chunks.append((stream, data))
        self._held += len(data)
        while self._held > _HELD_BYTES or len(self._chunks) > _HELD_CHUNKS:
            self._held -= len(self._chunks.popleft()[1])
            self._first += 1
        self._move()

    def _ended(self, task: asyncio.Task[Execution]) -> None:
        if not task.cancelled():
            task.exception()  # the followers get it
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def follow(self) -> AsyncIterator[tuple[Stream, bytes] | Missed | Execution]:
        """Yield the output so far, as far as it is held, then the result. Raises what the execution raised."""
        at = 0
        while True:
            moved = self._moved
            if at < self._first:
                yield Missed(self._first - at)
                at = self._first
            elif at < self._first + len(self._chunks):
                chunk = self._chunks[at - self._first]
                at += 1
                yield chunk
            elif self.task.done():
                yield await self.task
                return
            else:
                await moved.wait()


@dataclass(slots=True)
class _Live:
    interpreter: Interpreter
    host: ServerHost
    made: Made
    creator: Caller
    executions: OrderedDict[str, Underway] = field(default_factory=OrderedDict)
    """At first those that an earlier server began and that are resumed."""
    resumed: tuple[asyncio.Task[Execution], ...] = ()
    """New code waits for these, because they change the memory."""
    known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Ids of executions that were started. Each runs only once."""

    def remember(self, execution: str) -> None:
        self.known[execution] = None
        while len(self.known) > _MOST_KNOWN:
            self.known.popitem(last=False)

    @property
    def is_busy(self) -> bool:
        return any(not each.task.done() for each in self.executions.values())


@dataclass(frozen=True, slots=True)
class Description:
    row: ThreadRow
    history: Replay
    box: str | None
    is_live: bool
    creator: Caller | None
    """None if it lives in the process that created it."""


class ServerInterpreters:
    """Owns the live interpreters until `close`. Their boxes, and what runs in them, continue."""

    def __init__(
        self,
        boxes: Boxes,
        store: StreamStore,
        threads: Threads,
        seals: Seals,
        new_host: Callable[[], ServerHost],
        *,
        most: int = _MOST_LIVE,
    ) -> None:
        """`new_host` makes the host of one interpreter, which its caller closes."""
        self._boxes = boxes
        self._store = store
        self._threads = threads
        self._seals = seals
        self.new_host = new_host
        self._most = most
        self._live: OrderedDict[str, _Live] = OrderedDict()
        """In order of use, the most recently used last."""
        self._turns: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        live, self._live = list(self._live.values()), OrderedDict()
        await asyncio.gather(*(self._let_go(each) for each in live))

    # --- creating and listing ---

    async def create(self, made: Made, creator: Caller, *, title: str | None, labels: Mapping[str, str]) -> str:
        """Create an interpreter, with a box and a Python in it. It works for its creator from then on, also when other
        callers of the tenant use it."""
        id = new_id("i")
        await self._write_down(id, made, creator, title or f"Interpreter {id}", labels)
        async with self._turn(id):
            live = await self._open(id, made, creator)
            try:
                await live.interpreter.start()
            except BaseException:
                await self._remove(id, live)
                raise
        return id

    async def page(self, wanted: RowFilter) -> ThreadPage:
        return await self._threads.list(wanted)

    async def boxes(self) -> dict[str, str]:
        """The boxes of interpreters, by the interpreter's id."""
        rows = await self._boxes.rows.live(self._boxes.tenant, self._boxes.node)
        return {
            row.key.removeprefix(KEY_PREFIX): row.id
            for row in rows
            if row.key is not None and row.key.startswith(KEY_PREFIX)
        }

    def is_live(self, id: str) -> bool:
        return id in self._live

    async def describe(self, id: str) -> Description:
        """Raises `InterpreterNotFound`."""
        row = await self._row(id)
        live = self._live.get(id)
        if live is not None:
            await live.interpreter.flush()
        entries = await self._entries(row.id, (ALL,))
        sealed = [each for each in entries if each["payload"]["type"] == SETTINGS and self._is_ours(row.id, each)]
        creator = self._creator(sealed[-1]) if sealed else None
        return Description(row, replay(entries), (await self.boxes()).get(id), live is not None, creator)

    async def box_of(self, id: str) -> str:
        """The id of its box, also if the interpreter lives in a script. Raises `InterpreterNotFound`,
        `InterpreterDeleted`."""
        row = await self._row(id)
        for box in (await self._boxes.list(BoxFilter(key=f"{KEY_PREFIX}{id}"))).rows:
            return box.id
        if row.archived:
            raise InterpreterDeleted(f"interpreter {id} was deleted", hint="its thread shows what it did")
        raise InterpreterWithoutBox(f"interpreter {id} has no box now", hint="run code in it, which creates one")

    # --- using one ---

    async def execute(
        self,
        id: str,
        code: str,
        variables: Mapping[str, Any],
        timeout: float | None,
        execution: str,
        read: ReadMade,
        trace: Mapping[str, str],
    ) -> Underway:
        """Start an execution, or follow the one that already has this id. `trace` are the headers of the request that
        name the caller's trace."""
        live = await self._get(id, read)
        underway = live.executions.get(execution)
        if underway is not None:
            return underway
        if execution in live.known:
            raise ExecutionKnown(
                f"execution {execution} was started before, and its result is no longer held",
                hint=f"see thread t-{id} for what it did",
            )

        async def run(on_output: OutputCallback) -> Execution:
            if live.resumed:
                await asyncio.wait(live.resumed)
            with continued_trace(trace):
                running = live.interpreter.execute(
                    code, variables or None, timeout=timeout, on_output=on_output, id=execution
                )
                return await self._written(live.interpreter, running)

        underway = live.executions[execution] = Underway(execution, run)
        live.remember(execution)
        ended = [key for key, each in live.executions.items() if each.task.done()]
        for key in ended[: max(0, len(live.executions) - _KEPT_EXECUTIONS)]:
            del live.executions[key]
        return underway

    async def _written(self, interpreter: Interpreter, running: Awaitable[Execution]) -> Execution:
        done = await running
        try:
            await interpreter.flush()  # first on disk: whoever gets the result also finds it on the thread
        except RecordUnwritten as error:
            log.warning("%s", error)  # the result matters more
        return done

    async def interrupt(self, id: str, read: ReadMade) -> None:
        await (await self.interpreter(id, read)).interrupt()

    async def reset(self, id: str, read: ReadMade) -> None:
        """Clear its memory. Files and thread stay."""
        await (await self.interpreter(id, read)).reset()

    async def configure(
        self, id: str, made: Made, force_new: bool, changed: Mapping[str, Any], read: ReadMade
    ) -> Transition:
        """Change its workspace. `made` are its settings from then on."""
        live = await self._get(id, read)
        transition = await live.interpreter.configure_workspace(**changed, force_new=force_new)
        live.made = made
        await self._write_down(id, made, live.creator, "", {})
        return transition

    async def made(self, id: str, read: ReadMade) -> Made:
        return (await self._get(id, read)).made

    async def interpreter(self, id: str, read: ReadMade) -> Interpreter:
        """Return the started interpreter, which this object still owns."""
        found = (await self._get(id, read)).interpreter
        return await found.start()

    async def delete(self, id: str) -> None:
        """Delete its box with everything in it. Its volume stays, and so does its thread, archived."""
        row = await self._row(id)
        async with self._turn(id):
            live = self._live.get(id)
            if live is not None:
                await self._remove(id, live)
            else:
                for box in (await self._boxes.list(BoxFilter(key=f"{KEY_PREFIX}{id}"))).rows:
                    await self._boxes.delete(box.id)
        if not row.archived:
            await self._threads.archive(row.id, True)

    # --- opening one again ---

    async def _get(self, id: str, read: ReadMade) -> _Live:
        async with self._turn(id):
            live = self._live.get(id)
            if live is None:
                made, creator = await self._read_made(id, read)
                told = replay(await self._entries(f"t-{id}", (EXECUTION,)))
                begun = [each for each in told.executions if each.ok is None][-_MOST_RESUMED:]
                live = await self._open(id, made, creator, begun)
                for each in told.executions:
                    live.remember(each.id)
            self._live.move_to_end(id)
            return live

    def _resume(self, interpreter: Interpreter, begun: ReplayedExecution) -> Underway:
        """Continue an execution that an earlier server began, and record its result as if there was no break."""
        given = begun.payload.get("timeout")
        timeout = float(given) if isinstance(given, int | float) and 0 < given < _LONGEST_SECONDS else None

        async def run(on_output: OutputCallback) -> Execution:
            running = interpreter.resume(begun.id, begun.code or "", timeout=timeout, on_output=on_output)
            return await self._written(interpreter, running)

        return Underway(begun.id, run)

    async def _open(self, id: str, made: Made, creator: Caller, begun: Sequence[ReplayedExecution] = ()) -> _Live:
        await self._make_room()
        host = self.new_host()
        interpreter = Interpreter(
            id=id,
            host=host,
            template=made.template,
            model=made.model,
            spec=made.spec,
            repo_url=made.repo_url,
            ref=made.ref,
            volume=made.volume,
            workspace=made.workspace,
            user=creator.user,
            tenant=creator.tenant,
            output_fields=made.output_fields,
            limits=made.limits,
            timeout=made.timeout,
            output_limit=made.output_limit,
            memory=made.memory,
            restore=made.restore,
            keep=True,
            roots=(),
            begun=[each.id for each in begun],
            durable=True,
        )
        resumed = OrderedDict((each.id, self._resume(interpreter, each)) for each in reversed(begun))
        live = _Live(interpreter, host, made, creator, resumed, tuple(each.task for each in resumed.values()))
        self._live[id] = live
        return live

    async def _make_room(self) -> None:
        while len(self._live) >= self._most:
            idle = next((id for id, each in self._live.items() if not each.is_busy), None)
            if idle is None:
                raise TooManyInterpreters(
                    f"{self._most} interpreters are already running code", hint="wait until one of them is done"
                )
            await self._let_go(self._live.pop(idle))

    async def _read_made(self, id: str, read: ReadMade) -> tuple[Made, Caller]:
        row = await self._row(id)
        if row.archived:
            raise InterpreterDeleted(f"interpreter {id} was deleted", hint="its thread shows what it did")
        written = await self._entries(row.id, (SETTINGS,))
        # Settings that another client wrote there could choose the network and the volume of a box.
        entries = [each for each in written if self._is_ours(row.id, each)]
        if written and not entries:
            raise InterpreterNotFound(
                f"the settings of interpreter {id} do not have this server's seal, so they cannot be trusted",
                hint="create another; the thread of this one still shows what it did",
            )
        if not entries:
            raise InterpreterElsewhere(
                f"interpreter {id} belongs to the process that created it", hint="see it with holdfast interpreter show"
            )
        try:
            return read(entries[-1]["payload"]["settings"]), self._creator(entries[-1])
        except (KeyError, TypeError, ValueError) as error:
            raise InterpreterNotFound(f"cannot read the settings of interpreter {id}: {error}") from None

    def _is_ours(self, thread: str, entry: Mapping[str, Any]) -> bool:
        """Whether this server wrote an entry, and not a client."""
        return self._seals.origin(thread, entry) is Origin.HERE

    def _creator(self, entry: Mapping[str, Any]) -> Caller:
        """The creator in settings that this server wrote. Those of earlier versions name none."""
        written = entry["payload"].get("creator")
        return Caller.from_json(written) if written else Caller(tenant=self._boxes.tenant, user=DEFAULT_USER)

    async def _row(self, id: str) -> ThreadRow:
        try:
            row = await self._threads.get(f"t-{id}")
        except NotFound:
            row = None
        if row is None or row.labels.get(THREAD_LABEL) != id:
            raise InterpreterNotFound(
                f"there is no interpreter {id}", hint="list interpreters with holdfast interpreter list"
            )
        return row

    async def _entries(self, thread: str, types: tuple[str, ...]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        since, is_whole = 0, False
        while not is_whole:
            page = await self._threads.entries(thread, types=types, since=since, limit=1000)
            found += page.entries
            since, is_whole = page.position, page.up_to_date
        return found

    async def _write_down(self, id: str, made: Made, creator: Caller, title: str, labels: Mapping[str, str]) -> None:
        host = self.new_host()
        try:
            thread = (await host.record(f"t-{id}", title=title, labels={**labels, THREAD_LABEL: id})).thread
        finally:
            await host.close()
        payload = {"type": SETTINGS, "settings": dict(made.document), "creator": creator.to_json()}
        entry = Entry(new_entry_id(), now_ms(), payload)
        sealed = keyed(self._seals.seal(thread, entry))
        await self._store.append(THREADS + thread, AppendRequest(keyed=(sealed,)))

    # --- closing ---

    async def _let_go(self, live: _Live) -> None:
        try:
            await live.interpreter.shutdown(delete=False)
        except Exception:  # a failure must not keep the others open
            log.exception("interpreter %s did not close properly", live.interpreter.id)
        await self._forget(live)

    async def _remove(self, id: str, live: _Live) -> None:
        self._live.pop(id, None)
        try:
            await live.interpreter.shutdown(delete=True)
        finally:
            await self._forget(live)

    async def _forget(self, live: _Live) -> None:
        await asyncio.gather(*(each.task for each in live.executions.values()), return_exceptions=True)
        await live.host.close()

    def _turn(self, id: str) -> asyncio.Lock:
        if len(self._turns) > 4 * self._most:
            self._turns = {key: lock for key, lock in self._turns.items() if lock.locked()}
        return self._turns.setdefault(id, asyncio.Lock())
