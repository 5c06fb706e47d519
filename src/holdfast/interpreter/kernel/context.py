"""One context of a kernel, from the host. Its connection may break, and is then made again.

A box is not trusted: every message is bounded, and a malformed one ends the context.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection, Stream
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.guest.kernel import value_codec
from holdfast.guest.kernel.descriptors import CUT_OFF
from holdfast.guest.kernel.protocol import PIECE, InvalidMessage, Unpacker, pack, pack_head
from holdfast.interpreter.bridge.calls import Call, Handler, Submission, ToolName
from holdfast.interpreter.execution import Execution, OutputCallback, RunningExecution, killed_result, read_result
from holdfast.interpreter.kernel.endpoint import BROKEN, CONNECT_SECONDS, KernelEndpoint
from holdfast.interpreter.kernel.host_calls import MOST_AT_ONCE, Answer, HostCalls, refusal
from holdfast.time_limit import time_limit

_LONGEST_BODY: Final = 64 << 20
"""The largest arguments of a call, and the largest value, in bytes."""
GRACE_SECONDS: Final = 5.0
"""How long interrupted code may take to end before its context is killed."""
_LONGEST_MESSAGE: Final = 32_000
_RETRY_SECONDS: Final = 0.05
_RECONNECT_SECONDS: Final = 120.0
"""How long a broken connection is retried. A server that restarts has to find its boxes in a cloud first."""
_LARGE: Final = 1 << 18
"""A body of this many bytes or more is written piece by piece."""
_KILLED: Final = 128 + signal.SIGKILL.value


@dataclass(frozen=True, slots=True)
class SavedNames:
    """Which names of a context were saved or loaded, and which were not."""

    names: tuple[str, ...]
    unsaved: Mapping[str, str]
    """The reason for each name that was not."""


class ContextReset(KernelLost):
    """The context was reset while it ran code. It still exists."""


class ContextRefused(KernelUnreachable):
    """A context refused a request. It still exists, unchanged."""


class _Taken(Exception):
    """Another host has taken the context over."""


class Context:
    """One namespace in a process of its own. Executions run one at a time; others wait."""

    def __init__(self, endpoint: KernelEndpoint, id: str, tools: tuple[ToolName, ...] = ()) -> None:
        """`tools` are the ones that are already defined in it."""
        self.id = id
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Mapping[str, Any]] | None = None
        self._turn = asyncio.Lock()
        self._writing = asyncio.Lock()
        """Held while a message is written: a large one takes several writes."""
        self._running: RunningExecution | None = None
        self._waiting: dict[str, asyncio.Future[tuple[Mapping[str, Any], bytes]]] = {}
        self._calls = HostCalls(self._send)
        self._sent: dict[str, list[bytes]] = {}
        """Requests without an answer, by id. They are sent again on a new connection: it is not known whether they
        arrived on the old one. The context takes each id once."""
        self._deferred: list[bytes] = []
        """Messages that are sent together with the next one."""
        self._tools = tools
        self._expected: dict[str, RunningExecution] = {}
        """Executions of an earlier process that wait for `resume`."""
        self._held_calls: dict[str, tuple[Mapping[str, Any], bytes]] = {}
        """Calls of expected executions, by id."""
        self._found_running = ""
        self._closed = False
        self._lost: KernelLost | None = None
        self.pid = 0
        self.python = ""
        self.restored = ""
        """The execution before which its memory was restored, or empty."""

    @property
    def box(self) -> Box:
        return self._endpoint.box

    # --- the connection ---

    async def connect(self, *, make: bool = False, restore: bool = False) -> None:
        """`make` creates a context that does not exist; without it, `KernelLost` is raised. `restore` starts a new
        context from the restore point of the old one, if there is one."""
        connection = await self._endpoint.connect()
        self._ready = _future()
        self._connection = connection
        self._reader = asyncio.create_task(self._read(connection, self._ready), name=f"context {self.id}")
        try:
            request = {"t": "attach", "context": self.id, "make": make, "restore": restore}
            endpoint = {"token": self._endpoint.token, "alone": self._endpoint.orphan_seconds}
            await connection.write(pack({**request, **endpoint}))
            async with time_limit(CONNECT_SECONDS):
                greeting = await asyncio.shield(self._ready)
        except (KernelLost, KernelUnreachable):
            await self._disconnect()
            raise
        except (TimeoutError, *BROKEN) as error:
            await self._disconnect()
            raise KernelUnreachable(f"context {self.id} of box {self.box.id} does not answer: {error}") from None
        except BaseException:
            await self._disconnect()
            raise
        self.pid = int(greeting["pid"])
        self.python = str(greeting["python"])
        self.restored = str(greeting.get("restored", ""))

    @property
    def is_running(self) -> bool:
        """Whether it runs code for this process."""
        return self._running is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def _disconnect(self) -> None:
        reconnecting = self._reconnecting
        if reconnecting is not None and reconnecting is not asyncio.current_task():
            self._reconnecting = None
            reconnecting.cancel()
            await asyncio.gather(reconnecting, return_exceptions=True)
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        try:
            if reader is not None:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        finally:  # even if this is cancelled: nothing else can close the connection now
            if connection is not None:
                with contextlib.suppress(*BROKEN):
                    await connection.close()

    async def close(self) -> None:
        """Disconnect. The context goes on running, and keeps its results for the next connection."""
        self._closed = True
        await self._calls.drop()
        await self._disconnect()
        self._fail(KernelUnreachable(f"context {self.id} was closed"))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, KernelLost):
            self._lost = error
        waiting, self._waiting = self._waiting, {}
        self._sent.clear()
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _forget(self, id: str) -> None:
        """Wait for the answer to a request no longer."""
        self._waiting.pop(id, None)
        self._sent.pop(id, None)

    async def _read(self, connection: Connection, ready: asyncio.Future[Mapping[str, Any]]) -> None:
        unpacker = Unpacker(_LONGEST_BODY)
        why: Exception | None = None
        try:
            while data := await connection.read(PIECE):
                for document, body in unpacker.take(data):
                    if document["t"] == "ready" and not ready.done():
                        self._found_running = str(document.get("running"))
                        ready.set_result(document)
                    elif document["t"] == "refused" and not ready.done():
                        if document.get("why") != "ended":  # for example, its process is just ending
                            raise KernelUnreachable(f"context {self.id} was refused: {document.get('why')}")
                        raise KernelLost(f"context {self.id} {_ended_by(document.get('code'))}")
                    else:
                        self._on_message(document, body)
        except (InvalidMessage, KeyError, TypeError, ValueError) as error:
            why = KernelUnreachable(f"context {self.id} sent a malformed message: {error}")
        except (KernelLost, KernelUnreachable) as error:
            why = error
        except _Taken:
            self._fail(self._taken())
            self._closed = True
        except BROKEN:
            pass
        if not ready.done():
            ready.set_exception(why or KernelUnreachable(f"context {self.id} hung up"))
            return
        with contextlib.suppress(*BROKEN):
            await connection.close()
        if self._connection is connection:
            self._connection = None
            if not self._closed:
                self._reconnecting = asyncio.create_task(self._reconnect(why), name=f"reconnect {self.id}")

    async def _reconnect(self, why: Exception | None) -> None:
        """Find out whether the context has ended, or only the connection. A context that sent garbage is killed."""
        if why is not None:
            with contextlib.suppress(KernelUnreachable):
                await self.kill()
            self._fail(KernelLost(f"{why}; it was killed"))
            return
        deadline = time.monotonic() + _RECONNECT_SECONDS
        while True:
            try:
                await self.connect()
                await self._send_again()
                return
            except KernelLost as error:
                self._fail(error)
                return
            except KernelUnreachable as error:
                if time.monotonic() >= deadline:
                    self._fail(error)
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _send_again(self) -> None:
        async with self._writing:
            connection = self._connection
            if connection is None:
                return
            try:
                for pieces in list(self._sent.values()):
                    await _write_all(connection, pieces)
            except BROKEN:
                await self._give_up(connection)

    async def _give_up(self, connection: Connection) -> None:
        """Close a broken connection, so that its reader notices, and connects again."""
        with contextlib.suppress(*BROKEN):
            await connection.close()

    def _taken(self) -> KernelUnreachable:
        return KernelUnreachable(
            f"context {self.id} of box {self.box.id} was taken over by another process",
            hint="one interpreter at a time can use it: create one with the same id to take it back",
        )

    def _on_message(self, document: Mapping[str, Any], body: bytes) -> None:
        kind = document["t"]
        if kind == "taken":
            raise _Taken
        if kind == "out":
            running = self._expected_execution(document) or self._running
            if running is not None and document["e"] in (running.id, ""):
                stream: Stream = "stderr" if document["s"] == 2 else "stdout"
                running.add_output(stream, body)
                if running.on_output is not None:
                    running.on_output(stream, body)
        elif kind == "done":
            future = self._waiting.get(document["id"])
            self._forget(document["id"])
            if future is not None and not future.done():
                future.set_result((document, body))
            self._deferred.append(pack({"t": "confirm", "id": document["id"]}))
        elif kind == "call":
            self._on_call(document, body)
        elif kind == "cancel":
            self._calls.cancel(document["id"])

    def _unconnected(self) -> KernelUnreachable:
        return KernelUnreachable(f"context {self.id} of box {self.box.id} is not connected")

    async def _send(self, document: dict[str, Any], body: bytes | Sequence[bytes] = b"") -> None:
        """Send a message. A request whose answer is waited for is sent again if the connection breaks."""
        if self._connection is None and self._lost is None and not self._closed:
            if self._reconnecting is None or self._reconnecting.done():
                self._reconnecting = asyncio.create_task(self._reconnect(None), name=f"reconnect {self.id}")
            await asyncio.wait([self._reconnecting])
        pieces = [body] if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        id = str(document.get("id", ""))
        async with self._writing:
            connection = self._connection
            if connection is None:
                raise self._lost or (self._taken() if self._closed else self._unconnected())
            message = [pack_head(document, size), *pieces]
            if id in self._waiting:
                self._sent[id] = message
            head = b"".join([*self._deferred, message[0]])
            self._deferred.clear()
            try:
                if size < _LARGE:
                    await connection.write(b"".join([head, *pieces]))
                else:
                    await _write_all(connection, [head, *pieces])
            except BROKEN as error:
                if id not in self._sent:
                    raise KernelUnreachable(f"context {self.id} of box {self.box.id} hung up: {error}") from None
                await self._give_up(connection)

    # --- calls ---

    def _on_call(self, document: Mapping[str, Any], body: bytes) -> None:
        id = str(document["id"])
        if self._expected_execution(document) is not None:
            if len(self._held_calls) < MOST_AT_ONCE:
                self._held_calls.setdefault(id, (document, body))
            return
        running = self._running
        if running is not None and document["e"] != running.id:
            running = None
        self._calls.take(id, lambda: self._carry_out(id, document, body, running))

    async def _carry_out(
        self, id: str, document: Mapping[str, Any], body: bytes, running: RunningExecution | None
    ) -> Answer:
        if running is not None:
            running.call_began(time.monotonic())
        try:
            return await self._answer_of(id, document, body, running)
        finally:
            if running is not None:
                running.call_ended(time.monotonic())

    async def _answer_of(
        self, id: str, document: Mapping[str, Any], body: bytes, running: RunningExecution | None
    ) -> Answer:
        try:
            name = str(document["name"])
            if running is None:
                raise PermissionError(f"{name} was called by an execution that is not running")
            if self._calls.underway > MOST_AT_ONCE:
                raise RuntimeError(f"more than {MOST_AT_ONCE} calls at once")
            if running.handler is None or name not in {each.name for each in self._tools}:
                raise LookupError(f"the host has no {name}")
            arguments = value_codec.load(body)
            result = await running.handler(Call(id, name, tuple(arguments["args"]), arguments["kwargs"], running.id))
            submitted = isinstance(result, Submission)
            content = value_codec.dump(result.values if submitted else result)
            return Answer({"ok": True, "submitted": submitted}, content)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # an error of a tool is raised in the code that called it
            kind = type(error).__name__
            return refusal(kind, str(error)[:_LONGEST_MESSAGE] or kind, _arguments_of(error))

    async def define(self, tools: Sequence[ToolName]) -> None:
        """Define the functions of the host that code here can call, if they have changed."""
        wanted = tuple(tools)
        if wanted == self._tools:
            return
        await self._request("define", tools=_tool_documents(wanted))
        self._tools = wanted

    def _define_with_next(
        self, tools: tuple[ToolName, ...]
    ) -> tuple[str, asyncio.Future[tuple[Mapping[str, Any], bytes]]]:
        """Like `define`, but sent together with the next message."""
        id = f"q-{secrets.token_hex(8)}"
        done = self._waiting[id] = asyncio.get_running_loop().create_future()
        self._sent[id] = [pack({"t": "define", "id": id, "tools": _tool_documents(tools)})]
        self._deferred += self._sent[id]
        self._tools = tools
        return id, done

    # --- executions ---

    async def execute(
        self,
        code: str,
        *,
        variables: Mapping[str, Any] | None = None,
        encoded_variables: Sequence[bytes] = (),
        timeout: float | None = None,
        on_output: OutputCallback | None = None,
        id: str | None = None,
        limit: int = OUTPUT_LIMIT,
        env: Mapping[str, str] | None = None,
        tools: Sequence[ToolName] | None = None,
        handler: Handler | None = None,
        restore: bool = False,
    ) -> Execution:
        """Run code to its end.

        `encoded_variables` come from `value_codec.dump_parts`. `timeout` counts while the code computes, not while it
        waits for the host. `env` is added to the environment while the code runs. `tools` are defined first, if they
        differ from those defined now, and `handler` answers their calls. With `restore`, `restart` can bring the
        present memory back if the context has to be killed.

        Errors of the code are in the result. Raises `KernelLost`, `KernelUnreachable`, and `value_codec.Unshippable`
        for variables that cannot be sent.
        """
        id = id or f"x-{secrets.token_hex(8)}"
        body = value_codec.dump_parts(dict(variables)) if variables else encoded_variables
        async with self._turn:
            done = _future()
            running = RunningExecution(id, time.monotonic(), limit, done, on_output, handler)
            self._waiting[id] = done
            self._running = running
            before = self._tools
            defining = None if tools is None or tuple(tools) == before else self._define_with_next(tuple(tools))
            try:
                request: dict[str, Any] = {"t": "execute", "id": id, "code": code, "limit": limit}
                if env:
                    request["env"] = dict(env)
                if restore:
                    request["restore"] = True
                await self._send(request, body)
                document, content = await self._watch(running, timeout)
                if defining is not None and defining[1].done():
                    self._check("define", (await defining[1])[0])
            except BaseException as error:
                self._tools = before  # so that they are defined again
                if isinstance(error, asyncio.CancelledError) and await self._stop(running) is None and restore:
                    await self.restart()
                raise
            finally:
                self._forget(id)
                if defining is not None:
                    self._forget(defining[0])
                    _discard(defining[1])
                self._running = None
                await self._calls.end()
        return read_result(running, document, content, time.monotonic())

    def expect(self, begun: Sequence[str]) -> None:
        """Keep results, output and calls of these executions for `resume`. Must be called before `connect`."""
        for id in begun:
            self._expected[id] = RunningExecution(id, time.monotonic(), OUTPUT_LIMIT, _future(), None)
            self._waiting[id] = self._expected[id].done

    def _expected_execution(self, document: Mapping[str, Any]) -> RunningExecution | None:
        execution = document["e"]
        return self._expected.get(execution) if isinstance(execution, str) else None

    async def resume(
        self,
        id: str,
        *,
        timeout: float | None = None,
        on_output: OutputCallback | None = None,
        limit: int = OUTPUT_LIMIT,
        tools: Sequence[ToolName] = (),
        handler: Handler | None = None,
    ) -> Execution | None:
        """Wait for the end of an execution that an earlier process began. The context keeps its result until it is
        confirmed. `tools` are the ones that the code knows. `timeout` counts from now on. Returns None if the context
        has no such result."""
        running = self._expected.get(id)
        if running is None:
            return None
        if not running.done.done() and self._found_running != id:
            await self._request("set")  # results that the context keeps arrive before the answer
        async with self._turn:
            del self._expected[id]
            if not running.done.done() and self._found_running != id:
                self._waiting.pop(id, None)
                return None
            running = replace(running, limit=limit, on_output=on_output, handler=handler)
            self._running, self._tools = running, tuple(tools)
            held, self._held_calls = self._held_calls, {}
            for document, body in held.values():
                self._on_call(document, body)
            try:
                document, content = await self._watch(running, timeout)
                await self._reload_output(running, document)
            finally:
                self._waiting.pop(id, None)
                self._running = None
                await self._calls.end()
        done = read_result(running, document, content, time.monotonic())
        took = document.get("seconds")
        return replace(done, seconds=took, compute_seconds=took) if isinstance(took, float) else done

    async def _reload_output(self, running: RunningExecution, document: Mapping[str, Any]) -> None:
        """Read the whole output, including what went to the earlier process. If that fails, keep what arrived here."""
        files = {each.get("name"): each.get("path") for each in document.get("artifacts", ())}
        with contextlib.suppress(*BROKEN):
            printed = (await self._exchange("printed", execution=running.id)).get("printed")
            for stream in ("stdout", "stderr"):
                if isinstance(printed, Mapping) and isinstance(text := printed.get(stream), str):
                    running.discard_output(stream)
                    running.add_output(stream, text.encode())
                elif isinstance(path := files.get(stream), str):
                    pieces = self.box.files.stream(path)
                    running.discard_output(stream)
                    async for piece in pieces:
                        running.add_output(stream, piece)

    async def _watch(self, running: RunningExecution, timeout: float | None) -> tuple[Mapping[str, Any], bytes]:
        if timeout is None:
            return await running.done
        while not running.done.done():
            running.calls_changed.clear()
            left = None if running.calls else timeout - running.computed(time.monotonic())
            if left is not None and left <= 0:
                return await self._stop_late(running, timeout)
            changed: asyncio.Future[Any] = asyncio.ensure_future(running.calls_changed.wait())
            try:
                await asyncio.wait((running.done, changed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        return await running.done

    async def _stop_late(self, running: RunningExecution, timeout: float) -> tuple[Mapping[str, Any], bytes]:
        ended = await self._stop(running)
        message = f"the code took longer than {timeout:g} s and was interrupted"
        if ended is None:
            return killed_result(f"{message}; it did not stop, so its context was killed"), b""
        document, body = ended
        if document.get("error") is None:
            return document, body  # it ended just before the interrupt
        trace = document["error"].get("traceback", "")
        error = {"kind": "TimeoutError", "message": message, "traceback": f"{trace}\n{message}"}
        return {**document, "error": error}, body

    async def _stop(self, running: RunningExecution) -> tuple[Mapping[str, Any], bytes] | None:
        """Interrupt the code, and kill the context if that does not help. Returns None if it was killed."""
        try:
            async with time_limit(GRACE_SECONDS):
                await self.interrupt()
                return await asyncio.shield(running.done)
        except (TimeoutError, KernelUnreachable):
            await self.kill()
            return None

    async def interrupt(self, *, grace: float | None = None) -> None:
        """Raise KeyboardInterrupt in the running code. With `grace`, kill code that has not ended after this many
        seconds."""
        running = self._running
        await self._endpoint.signal(self.id, signal.SIGINT.value)
        if grace is not None and running is not None:
            ended, _ = await asyncio.wait({running.done}, timeout=grace)
            if not ended and self._running is running:
                await self.kill()

    async def kill(self) -> None:
        """End the context. Its memory is lost."""
        with contextlib.suppress(KernelLost):
            await self._endpoint.signal(self.id, signal.SIGKILL.value)

    async def reset(self) -> None:
        """Replace the context with an empty one. Running code ends with `ContextReset`."""
        await self.kill()
        self._fail(ContextReset(f"context {self.id} was reset"))
        self._lost = None
        async with self._turn:
            await self.kill()  # an execution that waited may have begun meanwhile
            await self.restart(restore=False)

    async def restart(self, *, restore: bool = True) -> None:
        """Start a new context in place of one that has ended. It starts from the restore point if `restore` is true and
        there is one, and empty otherwise."""
        await self._disconnect()
        self._fail(KernelLost(f"context {self.id} was started anew"))
        self._closed, self._lost = False, None
        self._calls.forget()
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                await self.connect(make=True, restore=restore)
                break
            except KernelUnreachable:  # the old one was still ending
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
        self._deferred.clear()
        if self._tools:
            _, defined = self._define_with_next(self._tools)
            defined.add_done_callback(_retrieve_exception)

    # --- the rest ---

    async def fork(self, count: int) -> list[Context]:
        """Create contexts with the memory of this one, which they share until one of them changes it."""
        ids = [f"{self.id[:64]}-{secrets.token_hex(6)}" for _ in range(count)]
        await self._request("fork", ids=ids)
        forks = [Context(self._endpoint, id, self._tools) for id in ids]
        try:
            async with asyncio.TaskGroup() as group:
                for each in forks:
                    group.create_task(each.connect())
        except BaseException as error:
            # The caller does not get them, so they would never end.
            for each in forks:
                await each.kill()
                await each.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        return forks

    async def save(self, path: str) -> SavedNames:
        """Write everything that can be pickled to a file in the box."""
        return _saved_names(await self._request("save", _cloudpickle(), path=path))

    async def load(self, path: str) -> SavedNames:
        """Replace the namespace with the content of a file."""
        return _saved_names(await self._request("load", _cloudpickle(), path=path))

    async def serve_notebook(self, tool: str) -> None:
        """Define what notebooks expect: `display`, `get_ipython`, names of IPython. Values are shown by calling
        `tool`."""
        await self._request("notebook", tool=tool)

    async def configure(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> None:
        await self._request("set", cwd=cwd, env=dict(env or {}))

    async def _request(self, kind: str, body: bytes = b"", **fields: Any) -> Mapping[str, Any]:
        async with self._turn:
            return await self._exchange(kind, body, **fields)

    async def _exchange(self, kind: str, body: bytes = b"", **fields: Any) -> Mapping[str, Any]:
        """Send a request and wait for its answer. The caller holds the turn."""
        id = f"q-{secrets.token_hex(8)}"
        done: asyncio.Future[tuple[Mapping[str, Any], bytes]] = _future()
        self._waiting[id] = done
        try:
            await self._send({"t": kind, "id": id, **fields}, body)
            document, _ = await done
        finally:
            self._forget(id)
        self._check(kind, document)
        return document

    def _check(self, kind: str, document: Mapping[str, Any]) -> None:
        if error := document.get("error"):
            raise ContextRefused(f"context {self.id} could not {kind}: {error.get('kind')}: {error.get('message')}")


def _arguments_of(error: Exception) -> bytes:
    """The encoded arguments of a built-in error, so that the box can raise the same. Empty if they are too large."""
    if type(error).__module__ != "builtins" or not error.args:
        return b""
    arguments = [*error.args, error.filename] if isinstance(error, OSError) and error.filename else list(error.args)
    try:
        content = value_codec.dump(arguments)
    except value_codec.Unshippable:
        return b""
    return content if len(content) <= _LONGEST_MESSAGE else b""


async def _write_all(connection: Connection, pieces: Sequence[bytes]) -> None:
    """Write all pieces even if the caller is cancelled: half a message would corrupt the connection."""

    async def write() -> None:
        for piece in pieces:
            await connection.write(piece)

    writing = asyncio.ensure_future(write())
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def _tool_documents(tools: Sequence[ToolName]) -> list[dict[str, str]]:
    return [{"name": each.name, "doc": each.doc} for each in tools]


def _ended_by(code: object) -> str:
    if code == _KILLED:
        return "was killed"
    if code == CUT_OFF:
        return "has ended: its code closed the connection to the host"
    return "does not exist" if code is None else f"has ended (exit code {code})"


@functools.cache
def _cloudpickle() -> bytes:
    """The source of cloudpickle. It is sent only when needed, because most contexts are never saved."""
    found = importlib.util.find_spec("cloudpickle")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("cloudpickle.py").read_bytes()


def _saved_names(document: Mapping[str, Any]) -> SavedNames:
    return SavedNames(
        tuple(str(each) for each in document["names"]), {str(k): str(v) for k, v in document["unsaved"].items()}
    )


def _future() -> asyncio.Future[Any]:
    """A future that does not warn if its exception is never retrieved."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_retrieve_exception)
    return future


def _discard(future: asyncio.Future[Any]) -> None:
    """Cancel a future, or ignore its result: another one has reported the error."""
    if not future.cancel() and not future.cancelled():
        future.exception()


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
