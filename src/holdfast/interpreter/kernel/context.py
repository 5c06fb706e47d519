"""One context of a kernel, from the host: over a connection that may break and be made again.

What comes from a box is anybody's: every message is bounded, and one that makes no sense ends the connection.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.box.process import Connection, Stream
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.interpreters import KernelLost, KernelUnreachable
from holdfast.api.limits import OUTPUT_LIMIT
from holdfast.guest.kernel import value_codec
from holdfast.guest.kernel.descriptors import CUT_OFF
from holdfast.guest.kernel.protocol import PIECE, Garbage, Unpacker, pack, pack_head
from holdfast.interpreter.bridge.calls import Call, Handler, Submission, ToolName
from holdfast.interpreter.kernel.execution import Printed, Running, killed, result_of
from holdfast.interpreter.kernel.host_calls import MOST_AT_ONCE, Answer, HostCalls, refusal
from holdfast.interpreter.results import Execution, Saved
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.interpreter.kernel.kernel import Kernels

_LONGEST_BODY: Final = 64 << 20
"""Bytes of a call's arguments, or of a value."""
CONNECT_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 5.0
"""How long code that was interrupted may take to end before its context is killed."""
_LONGEST_MESSAGE: Final = 32_000
_RETRY_SECONDS: Final = 0.05
_LARGE: Final = 1 << 18
"""Bytes of a body that is written piece by piece."""
_KILLED: Final = 128 + signal.SIGKILL.value


class ContextReset(KernelLost):
    """The context was emptied while it ran code. It is there."""


class ContextRefused(KernelUnreachable):
    """A context did not do what it was asked for, and says why. It is there, as it was."""


class _Taken(Exception):
    """Another host has the context now."""


class Context:
    """One namespace in a process of its own. One execution at a time; others wait their turn."""

    def __init__(self, kernels: Kernels, id: str, handler: Handler | None, tools: tuple[ToolName, ...] = ()) -> None:
        """`tools` are those that code in it knows already."""
        self.kernels = kernels
        self.id = id
        self.handler = handler
        """Carries calls out. May be changed between executions."""
        self._connection: Connection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._finder: asyncio.Task[None] | None = None
        """Makes a broken connection again."""
        self._ready: asyncio.Future[Mapping[str, Any]] | None = None
        self._turn = asyncio.Lock()
        self._writing = asyncio.Lock()
        """Held while a message is written: a large one takes several goes, and no other may come in between."""
        self._running: Running | None = None
        self._waiting: dict[str, asyncio.Future[tuple[Mapping[str, Any], bytes]]] = {}
        self._calls = HostCalls(self._send)
        self._along: list[bytes] = []
        """Messages that go with the next one: nobody waits for them."""
        self._tools = tools
        self._expected: dict[str, Running] = {}
        """Executions of an earlier process that somebody is going to `resume`."""
        self._held: dict[str, tuple[Mapping[str, Any], bytes]] = {}
        """Their calls, by id."""
        self._found_running = ""
        self._closed = False
        self._lost: KernelLost | None = None
        self.pid = 0
        self.python = ""
        self.restored = ""
        """The execution that it was restored from: its memory is as it was before that."""

    # --- the connection ---

    async def connect(self, *, make: bool = False, restore: bool = False) -> None:
        """Raises `KernelLost` where the context has ended, and is not to be made. `restore`: its restore point takes
        its place, where it has one."""
        connection = await self.kernels.connect()
        self._ready = _future()
        self._connection = connection
        self._reader = asyncio.create_task(self._read(connection, self._ready), name=f"context {self.id}")
        try:
            asked = {"t": "attach", "context": self.id, "make": make, "token": self.kernels.token, "restore": restore}
            await connection.write(pack({**asked, "alone": self.kernels.alone}))
            async with time_limit(CONNECT_SECONDS):
                greeting = await asyncio.shield(self._ready)
        except (TimeoutError, OSError, BoxError) as error:
            await self._hang_up()
            raise KernelUnreachable(
                f"context {self.id} of box {self.kernels.box.id} does not answer: {error}"
            ) from None
        except BaseException:
            await self._hang_up()
            raise
        self.pid = int(greeting["pid"])
        self.python = str(greeting["python"])
        self.restored = str(greeting.get("restored", ""))

    @property
    def is_running(self) -> bool:
        """Whether it runs code for this process."""
        return self._running is not None

    async def _hang_up(self) -> None:
        finder = self._finder
        if finder is not None and finder is not asyncio.current_task():
            self._finder = None
            finder.cancel()
            await asyncio.gather(finder, return_exceptions=True)
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        try:
            if reader is not None:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        finally:  # also where this itself is cancelled: nobody else knows of the connection any more
            if connection is not None:
                with contextlib.suppress(BoxError, OSError):
                    await connection.close()

    async def close(self) -> None:
        """Let go of it: it lives on. What it runs goes on, and what comes of that waits for the next connection."""
        self._closed = True
        self.kernels.forget(self)
        await self._calls.drop()
        await self._hang_up()
        self._fail(KernelUnreachable(f"context {self.id} was let go of"))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, KernelLost):
            self._lost = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

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
                        if document.get("why") != "ended":  # it is dying, say: soon somebody knows of what
                            raise KernelUnreachable(f"context {self.id} was refused: {document.get('why')}")
                        raise KernelLost(f"context {self.id} {_ended_by(document.get('code'))}")
                    else:
                        self._hear(document, body)
        except (Garbage, KeyError, TypeError, ValueError) as error:
            why = KernelUnreachable(f"context {self.id} sends what makes no sense: {error}")
        except (KernelLost, KernelUnreachable) as error:
            why = error
        except _Taken:
            self._fail(self._taken())
            self._closed = True
        except (BoxError, OSError):
            pass
        if not ready.done():
            ready.set_exception(why or KernelUnreachable(f"context {self.id} hung up"))
            return
        with contextlib.suppress(BoxError, OSError):
            await connection.close()
        if self._connection is connection:
            self._connection = None
            if not self._closed:
                self._finder = asyncio.create_task(self._find_again(why), name=f"context {self.id}, again")

    async def _find_again(self, why: Exception | None) -> None:
        """The connection broke while we did not want it to: the context has ended, or only the way to it."""
        if why is not None:
            with contextlib.suppress(KernelUnreachable):
                await self.kill()
            self._fail(KernelLost(f"{why}; so it was killed"))
            return
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                await self.connect()
                return
            except KernelLost as error:
                self._fail(error)
                return
            except KernelUnreachable as error:
                if time.monotonic() >= deadline:
                    self._fail(error)
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    def _taken(self) -> KernelUnreachable:
        return KernelUnreachable(
            f"context {self.id} of box {self.kernels.box.id} was taken over by another",
            hint="one interpreter at a time: make a new one with the same id to take it back",
        )

    def _hear(self, document: Mapping[str, Any], body: bytes) -> None:
        kind = document["t"]
        if kind == "taken":
            raise _Taken
        if kind == "out":
            running = self._expected_of(document) or self._running
            if running is not None and document["e"] in (running.id, ""):
                stream: Stream = "stderr" if document["s"] == 2 else "stdout"
                running.take(stream, body)
                if running.on_output is not None:
                    running.on_output(stream, body)
        elif kind == "done":
            future = self._waiting.pop(document["id"], None)
            if future is not None and not future.done():
                future.set_result((document, body))
            self._along.append(pack({"t": "confirm", "id": document["id"]}))
        elif kind == "call":
            self._take_call(document, body)
        elif kind == "cancel":
            self._calls.cancel(document["id"])

    def _unconnected(self) -> KernelUnreachable:
        return KernelUnreachable(f"context {self.id} of box {self.kernels.box.id} is not connected")

    async def _send(self, document: dict[str, Any], body: bytes | Sequence[bytes] = b"") -> None:
        if self._connection is None and self._lost is None and self._finder is not None:
            await asyncio.wait([self._finder])
        pieces = [body] if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        async with self._writing:
            connection = self._connection
            if connection is None:
                raise self._lost or (self._taken() if self._closed else self._unconnected())
            head = b"".join([*self._along, pack_head(document, size)])
            self._along.clear()
            try:
                if size < _LARGE:
                    await connection.write(b"".join([head, *pieces]))
                else:
                    await _write_all(connection, [head, *pieces])
            except (BoxError, OSError) as error:
                raise KernelUnreachable(f"context {self.id} of box {self.kernels.box.id} hung up: {error}") from None

    # --- calls ---

    def _take_call(self, document: Mapping[str, Any], body: bytes) -> None:
        id = str(document["id"])
        if self._expected_of(document) is not None:
            if len(self._held) < MOST_AT_ONCE:
                self._held.setdefault(id, (document, body))
            return
        running = self._running
        if running is not None and document["e"] != running.id:
            running = None
        self._calls.take(id, lambda: self._carry_out(id, document, body, running))

    async def _carry_out(self, id: str, document: Mapping[str, Any], body: bytes, running: Running | None) -> Answer:
        if running is not None:
            running.call_began(time.monotonic())
        try:
            return await self._answer_of(id, document, body, running)
        finally:
            if running is not None:
                running.call_ended(time.monotonic())

    async def _answer_of(self, id: str, document: Mapping[str, Any], body: bytes, running: Running | None) -> Answer:
        try:
            name = str(document["name"])
            if running is None:
                raise PermissionError(f"{name} was called by an execution that does not run")
            if self._calls.underway > MOST_AT_ONCE:
                raise RuntimeError(f"more than {MOST_AT_ONCE} calls at once")
            if self.handler is None or name not in {each.name for each in self._tools}:
                raise LookupError(f"the host has no {name}")
            given = value_codec.load(body)
            result = await self.handler(Call(id, name, tuple(given["args"]), given["kwargs"], running.id))
            submitted = isinstance(result, Submission)
            content = value_codec.dump(result.values if submitted else result)
            return Answer({"ok": True, "submitted": submitted}, content)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever a tool raises is for the code that called it
            kind = type(error).__name__
            return refusal(kind, str(error)[:_LONGEST_MESSAGE] or kind, _arguments_of(error))

    async def define(self, tools: Sequence[ToolName]) -> None:
        """The functions of the host's that code here can call. Told to the context where they have changed."""
        wanted = tuple(tools)
        if wanted == self._tools:
            return
        await self._request("define", tools=_told(wanted))
        self._tools = wanted

    def _define_along(self, tools: tuple[ToolName, ...]) -> tuple[str, asyncio.Future[tuple[Mapping[str, Any], bytes]]]:
        """As `define`, with whatever is sent next: nobody waits for it alone."""
        id = f"q-{secrets.token_hex(8)}"
        done = self._waiting[id] = asyncio.get_running_loop().create_future()
        self._along.append(pack({"t": "define", "id": id, "tools": _told(tools)}))
        self._tools = tools
        return id, done

    # --- executions ---

    async def execute(
        self,
        code: str,
        *,
        variables: Mapping[str, Any] | None = None,
        given: Sequence[bytes] = (),
        timeout: float | None = None,
        on_output: Printed | None = None,
        id: str | None = None,
        limit: int = OUTPUT_LIMIT,
        env: Mapping[str, str] | None = None,
        tools: Sequence[ToolName] | None = None,
        restore: bool = False,
    ) -> Execution:
        """Run code to its end.

        `given` are variables that `value_codec.dump_parts` has encoded already. `timeout` counts while the code
        computes, not while the host works for it. `env` is added to its environment for that time. `tools` are defined
        first, if they differ from the ones that are defined now. With `restore`, `restart` can bring back what the
        context has in memory now, should it have to be killed.

        Errors of the code are in the result. Raises `KernelLost`, `KernelUnreachable`, and
        `value_codec.Unshippable` for variables that cannot be sent.
        """
        id = id or f"x-{secrets.token_hex(8)}"
        body = value_codec.dump_parts(dict(variables)) if variables else given
        async with self._turn:
            done = _future()
            running = Running(id, time.monotonic(), limit, done, on_output)
            self._waiting[id] = done
            self._running = running
            before = self._tools
            defining = None if tools is None or tuple(tools) == before else self._define_along(tuple(tools))
            try:
                asked: dict[str, Any] = {"t": "execute", "id": id, "code": code, "limit": limit}
                if env:
                    asked["env"] = dict(env)
                if restore:
                    asked["restore"] = True
                await self._send(asked, body)
                document, content = await self._watch(running, timeout)
                if defining is not None and defining[1].done():
                    self._check("define", (await defining[1])[0])
            except BaseException as error:
                self._tools = before  # so that they are told again
                if isinstance(error, asyncio.CancelledError) and await self._stop(running) is None and restore:
                    await self.restart()
                raise
            finally:
                self._waiting.pop(id, None)
                if defining is not None:
                    self._waiting.pop(defining[0], None)
                    _let_go_of(defining[1])
                self._running = None
                await self._calls.end()
        return result_of(running, document, content, time.monotonic())

    def expect(self, begun: Sequence[str]) -> None:
        """Before it is connected: results, output and calls of these wait for `resume`."""
        for id in begun:
            self._expected[id] = Running(id, time.monotonic(), OUTPUT_LIMIT, _future(), None)
            self._waiting[id] = self._expected[id].done

    def _expected_of(self, document: Mapping[str, Any]) -> Running | None:
        execution = document["e"]
        return self._expected.get(execution) if isinstance(execution, str) else None

    async def resume(
        self,
        id: str,
        *,
        timeout: float | None = None,
        on_output: Printed | None = None,
        limit: int = OUTPUT_LIMIT,
        tools: Sequence[ToolName] = (),
    ) -> Execution | None:
        """Wait for the end of an execution that an earlier process began: its result is kept until somebody has it.
        `tools` are those that it knows. `timeout` counts from now on. None: nobody knows of it any more."""
        running = self._expected.get(id)
        if running is None:
            return None
        if not running.done.done() and self._found_running != id:
            await self._request("set")  # what is kept comes before the answer
        async with self._turn:
            del self._expected[id]
            if not running.done.done() and self._found_running != id:
                self._waiting.pop(id, None)
                return None
            running.limit, running.on_output = limit, on_output
            self._running, self._tools = running, tuple(tools)
            held, self._held = self._held, {}
            for document, body in held.values():
                self._take_call(document, body)
            try:
                document, content = await self._watch(running, timeout)
                await self._print_again(running, document)
            finally:
                self._waiting.pop(id, None)
                self._running = None
                await self._calls.end()
        done = result_of(running, document, content, time.monotonic())
        took = document.get("seconds")
        return replace(done, seconds=took, compute_seconds=took) if isinstance(took, float) else done

    async def _print_again(self, running: Running, document: Mapping[str, Any]) -> None:
        """Also what went to the earlier process. Where that cannot be had, it is what came since."""
        files = {each.get("name"): each.get("path") for each in document.get("artifacts", ())}
        with contextlib.suppress(KernelLost, KernelUnreachable, BoxError):
            told = (await self._exchange("printed", execution=running.id)).get("printed")
            for stream in ("stdout", "stderr"):
                if isinstance(told, Mapping) and isinstance(text := told.get(stream), str):
                    running.take_again(stream)
                    running.take(stream, text.encode())
                elif isinstance(path := files.get(stream), str):
                    pieces = self.kernels.box.files.stream(path)
                    running.take_again(stream)
                    async for piece in pieces:
                        running.take(stream, piece)

    async def _watch(self, running: Running, timeout: float | None) -> tuple[Mapping[str, Any], bytes]:
        if timeout is None:
            return await running.done
        while not running.done.done():
            running.moved.clear()
            left = None if running.calls else timeout - running.computed(time.monotonic())
            if left is not None and left <= 0:
                return await self._end_late(running, timeout)
            moved: asyncio.Future[Any] = asyncio.ensure_future(running.moved.wait())
            try:
                await asyncio.wait((running.done, moved), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
        return await running.done

    async def _end_late(self, running: Running, timeout: float) -> tuple[Mapping[str, Any], bytes]:
        ended = await self._stop(running)
        said = f"the code took longer than {timeout:g} s and was interrupted"
        if ended is None:
            return killed(f"{said}; it did not stop, so its context was killed", lost=True), b""
        document, body = ended
        if document.get("error") is None:
            return document, body  # it was just done
        trace = document["error"].get("traceback", "")
        return {**document, "error": {"kind": "TimeoutError", "message": said, "traceback": f"{trace}\n{said}"}}, body

    async def _stop(self, running: Running) -> tuple[Mapping[str, Any], bytes] | None:
        """Interrupt it, then kill it. None: it was killed, and all of its state with it."""
        try:
            async with time_limit(GRACE_SECONDS):
                await self.interrupt()
                return await asyncio.shield(running.done)
        except (TimeoutError, KernelUnreachable):
            await self.kill()
            return None

    async def interrupt(self, *, grace: float | None = None) -> None:
        """KeyboardInterrupt in the code that runs. With `grace`, code that has not ended so many seconds later is
        killed."""
        running = self._running
        await self.kernels.signal(self.id, signal.SIGINT.value)
        if grace is not None and running is not None:
            ended, _ = await asyncio.wait({running.done}, timeout=grace)
            if not ended and self._running is running:
                await self.kill()

    async def kill(self) -> None:
        """End it, with all that it has in memory."""
        with contextlib.suppress(KernelLost):
            await self.kernels.signal(self.id, signal.SIGKILL.value)

    async def reset(self) -> None:
        """A new, empty context in the place of this one. What runs in it is ended, with `ContextReset`."""
        await self.kill()
        self._fail(ContextReset(f"context {self.id} was reset"))
        self._lost = None
        async with self._turn:
            await self.kill()  # one that was in the queue may have begun another
            await self.restart(restore=False)

    async def restart(self, *, restore: bool = True) -> None:
        """A new context in the place of one that has ended: from its restore point, where there is one and `restore`
        says so; else empty."""
        await self._hang_up()
        self._fail(KernelLost(f"context {self.id} was started anew"))
        self._closed, self._lost = False, None
        self._calls.forget()
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                await self.connect(make=True, restore=restore)
                break
            except KernelUnreachable:  # the old one was dying
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
        self._along.clear()
        if self._tools:
            _, defined = self._define_along(self._tools)
            defined.add_done_callback(_take_note)
        self.kernels.adopt(self)

    # --- the rest ---

    async def fork(self, count: int) -> list[Context]:
        """More contexts with all that this one has, which share its memory until one of them changes something."""
        ids = [f"{self.id[:64]}-{secrets.token_hex(6)}" for _ in range(count)]
        await self._request("fork", ids=ids)
        made = [Context(self.kernels, id, self.handler, self._tools) for id in ids]
        try:
            async with asyncio.TaskGroup() as group:
                for each in made:
                    group.create_task(each.connect())
        except BaseException as error:
            # Nobody knows of them: they would live for ever.
            for each in made:
                await each.kill()
                await each.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for each in made:
            self.kernels.adopt(each)
        return made

    async def save(self, path: str) -> Saved:
        """Write what can be pickled to a file of the box."""
        return _saved(await self._request("save", _library(), path=path))

    async def load(self, path: str) -> Saved:
        """Replace what there is by what a file has."""
        return _saved(await self._request("load", _library(), path=path))

    async def serve_notebook(self, tool: str) -> None:
        """Have what notebooks have: `display`, `get_ipython`, IPython's names. What is shown goes to that tool."""
        await self._request("notebook", tool=tool)

    async def configure(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> None:
        await self._request("set", cwd=cwd, env=dict(env or {}))

    async def _request(self, kind: str, body: bytes = b"", **fields: Any) -> Mapping[str, Any]:
        async with self._turn:
            return await self._exchange(kind, body, **fields)

    async def _exchange(self, kind: str, body: bytes = b"", **fields: Any) -> Mapping[str, Any]:
        """Of who has the turn."""
        id = f"q-{secrets.token_hex(8)}"
        done: asyncio.Future[tuple[Mapping[str, Any], bytes]] = _future()
        self._waiting[id] = done
        try:
            await self._send({"t": kind, "id": id, **fields}, body)
            document, _ = await done
        finally:
            self._waiting.pop(id, None)
        self._check(kind, document)
        return document

    def _check(self, kind: str, document: Mapping[str, Any]) -> None:
        if error := document.get("error"):
            raise ContextRefused(f"context {self.id} could not {kind}: {error.get('kind')}: {error.get('message')}")


def _arguments_of(error: Exception) -> bytes:
    """What an error of Python's own is made of, so that it is the same in the box; empty where that is much."""
    if type(error).__module__ != "builtins" or not error.args:
        return b""
    given = [*error.args, error.filename] if isinstance(error, OSError) and error.filename else list(error.args)
    try:
        content = value_codec.dump(given)
    except value_codec.Unshippable:
        return b""
    return content if len(content) <= _LONGEST_MESSAGE else b""


async def _write_all(connection: Connection, pieces: Sequence[bytes]) -> None:
    """To the end, also where whoever wanted it is cancelled: half a message would spoil all that follow."""

    async def write() -> None:
        for piece in pieces:
            await connection.write(piece)

    writing = asyncio.ensure_future(write())
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def _told(tools: Sequence[ToolName]) -> list[dict[str, str]]:
    return [{"name": each.name, "doc": each.doc} for each in tools]


def _ended_by(code: object) -> str:
    if code == _KILLED:
        return "was killed"
    if code == CUT_OFF:
        return "has ended: its code closed the descriptors that lead to the host"
    return "is not there" if code is None else f"has ended (exit code {code})"


@functools.cache
def _library() -> bytes:
    """The source of cloudpickle. It goes along where it is needed: most contexts are never saved."""
    found = importlib.util.find_spec("cloudpickle")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("cloudpickle.py").read_bytes()


def _saved(document: Mapping[str, Any]) -> Saved:
    return Saved(
        tuple(str(each) for each in document["names"]), {str(k): str(v) for k, v in document["unsaved"].items()}
    )


def _future() -> asyncio.Future[Any]:
    """One whose failure is nobody's news where nobody waits for it any more."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_take_note)
    return future


def _let_go_of(future: asyncio.Future[Any]) -> None:
    """Whatever became of it was told by another."""
    if not future.cancel() and not future.cancelled():
        future.exception()


def _take_note(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
