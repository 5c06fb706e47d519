"""Interpreters that live in a server, used over HTTP: `client.interpreters`.

For one that lives in this process and can call your functions, see `holdfast.Interpreter`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

from holdfast.api.box.records import Preview
from holdfast.api.errors import Unauthorized, Unreachable, error_from_document
from holdfast.api.ids import new_id
from holdfast.api.interpreters import (
    InterpreterDetail,
    InterpreterInfo,
    InterpreterPage,
    LoadedState,
    NewExecution,
    NewInterpreter,
    RemoteExecution,
    SavedSession,
    WorkspaceChange,
    WorkspaceTransition,
)
from holdfast.api.runtime_tests import BoxTest, ModelTest, RuntimeReport
from holdfast.client.connection import ServerConnection, encode_json, not_understood
from holdfast.client.resource import LONG_SECONDS, Resource
from holdfast.trace_context import current_trace

_PAGE: Final = 200
_SILENCE: Final = 75.0
"""The server sends a sign of life every 15 seconds."""

OnOutput = Callable[[Literal["stdout", "stderr"], str], None]


class Interpreters:
    """All interpreters of one server: `client.interpreters`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._interpreters = Resource(connection, "/v1/interpreters")

    async def create(
        self,
        *,
        template: str | None = None,
        model: str | None = None,
        box: Mapping[str, Any] | None = None,
        repo_url: str | None = None,
        ref: str | None = None,
        volume: str | None = None,
        workspace: str | None = None,
        output_fields: Sequence[Mapping[str, str]] | None = None,
        timeout: float | None = None,
        restore: Literal["fork"] | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> InterpreterDetail:
        """Create an interpreter with a box and a Python in it. `box` has the same fields as for runs: provider, image,
        cpu, memory, network and so on. With `restore="fork"`, killing code does not lose state. `workspace`
        mounts the volume of that workspace of your tenant; the server knows tenant and user from your key.
        """
        new = NewInterpreter(
            template=template,
            model=model,
            repo_url=repo_url,
            ref=ref,
            volume=volume,
            workspace=workspace,
            restore=restore,
            title=title,
            labels=dict(labels or {}),
        )
        given = new.to_request() | _box(box)
        if output_fields is not None:
            given["outputFields"] = [dict(each) for each in output_fields]
        if timeout is not None:
            given["timeoutSeconds"] = timeout
        answer = await self._interpreters.ask("POST", "", given, repeatable=False, timeout=LONG_SECONDS)
        return answer.read(InterpreterDetail.from_json)

    async def get(self, id: str) -> InterpreterDetail:
        """Returns an interpreter with the counts from its thread: executions, calls and tokens."""
        return (await self._interpreters.below(id).ask("GET")).read(InterpreterDetail.from_json)

    async def execute(
        self,
        id: str,
        code: str,
        *,
        variables: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        execution_id: str | None = None,
    ) -> RemoteExecution:
        """Run code until it ends. `on_output` receives its output as it is printed.

        Lost connections are reopened, and the code still runs only once.
        """
        new = NewExecution(
            code=code, id=execution_id or new_id("x"), variables=dict(variables or {}), timeout_seconds=timeout
        )
        body = encode_json(new.to_request())
        path = f"/v1/interpreters/{quote(id, safe='')}/execute/stream"
        following = _Following(on_output)
        connection = self._connection
        deadline, attempt = time.monotonic() + connection.retry_seconds, 0
        while True:
            used = connection.address
            try:
                return await self._follow(path, body, following)
            except (Unreachable, Unauthorized) as error:
                if await connection.found_elsewhere(error, used):
                    continue
                if following.moved:
                    deadline, attempt, following.moved = time.monotonic() + connection.retry_seconds, 0, False
                delay = connection.backoff.delay(attempt)
                if isinstance(error, Unauthorized) or time.monotonic() + delay >= deadline:
                    raise
                await connection.wait(error, delay, attempt + 1)
                attempt += 1

    async def _follow(self, path: str, body: bytes, following: _Following) -> RemoteExecution:
        following.begin()
        async with self._connection.exchange(
            "POST", path, body=body, media_type="application/json", headers=current_trace(), silence=_SILENCE
        ) as response:
            async for line in response.aiter_lines():
                if line and (done := following.take(line)) is not None:
                    return done
        raise Unreachable(
            f"{self._connection.url} closed the connection before the code ended",
            hint="the code is still running; its result will be on the thread",
        )

    async def interrupt(self, id: str) -> None:
        """Raise KeyboardInterrupt in the running code, if any."""
        await self._interpreters.below(id).ask("POST", "/interrupt")

    async def reset(self, id: str) -> None:
        """Start a new Python in the same box, with empty memory. Ends running code."""
        await self._interpreters.below(id).ask("POST", "/reset", timeout=LONG_SECONDS)

    async def preview(self, id: str, port: int) -> Preview:
        """Returns the URL at which a browser reaches a port that code in the box listens on."""
        answer = await self._interpreters.below(id).ask("GET", "/preview", parameters=[("port", str(port))])
        return answer.read(Preview.from_json)

    async def configure_workspace(
        self,
        id: str,
        *,
        repo_url: str | None = None,
        ref: str | None = None,
        volume: str | None = None,
        force_new: bool = False,
    ) -> WorkspaceTransition:
        """Change the workspace in place. Returns what happened to the box, and why."""
        change = WorkspaceChange(repo_url=repo_url, ref=ref, volume=volume, force_new=force_new)
        answer = await self._interpreters.below(id).ask("POST", "/workspace", change.to_request(), timeout=LONG_SECONDS)
        return answer.read(WorkspaceTransition.from_json)

    async def export_state(self, id: str) -> AsyncIterator[bytes]:
        """Yields the saved memory, for `import_state` of this interpreter or another."""
        async with self._interpreters.below(id).exchange("GET", "/state", silence=LONG_SECONDS) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def import_state(self, id: str, state: AsyncIterator[bytes] | bytes) -> LoadedState:
        """Replace the whole memory. Returns the names that were loaded and those that could not be."""
        async with self._interpreters.below(id).exchange("PUT", "/state", body=state, silence=LONG_SECONDS) as response:
            return LoadedState.from_json(json.loads(await response.aread()))

    async def save_session(self, id: str, session: str) -> SavedSession:
        """Save the memory on the volume, for this or another interpreter of the same user and workspace."""
        path = f"/sessions/{quote(session, safe='')}/save"
        answer = await self._interpreters.below(id).ask("POST", path, repeatable=False, timeout=LONG_SECONDS)
        return answer.read(SavedSession.from_json)

    async def load_session(self, id: str, session: str) -> LoadedState:
        """Replace the whole memory by that of a session."""
        path = f"/sessions/{quote(session, safe='')}/load"
        answer = await self._interpreters.below(id).ask("POST", path, timeout=LONG_SECONDS)
        return answer.read(LoadedState.from_json)

    async def delete(self, id: str) -> None:
        """Delete its box and memory. Its thread is kept."""
        await self._interpreters.below(id).ask("DELETE", timeout=LONG_SECONDS)

    async def page(self, *, deleted: bool = False, cursor: str | None = None, limit: int = 50) -> InterpreterPage:
        """Returns up to `limit` interpreters (200 at most) and the cursor of the next page."""
        parameters = [("limit", str(limit)), ("deleted", str(deleted).lower())]
        if cursor is not None:
            parameters.append(("cursor", cursor))
        return (await self._interpreters.ask("GET", parameters=parameters)).read(InterpreterPage.from_json)

    async def test_box(
        self, *, box: Mapping[str, Any] | None = None, repo_url: str | None = None, ref: str | None = None
    ) -> RuntimeReport:
        """Test whether interpreters work here. Returns each phase with its time and problems."""
        return await self._test("box", BoxTest(repo_url=repo_url, ref=ref).to_request() | _box(box))

    async def test_model(self, *, model: str | None = None) -> RuntimeReport:
        """Test whether a model answers."""
        return await self._test("lm", ModelTest(model=model).to_request())

    async def _test(self, what: str, wanted: Mapping[str, Any]) -> RuntimeReport:
        answer = await self._connection.ask(
            "POST", f"/v1/runtime/tests/{what}", body=encode_json(wanted), repeatable=False, timeout=LONG_SECONDS
        )
        return answer.read(RuntimeReport.from_json)

    # Last, so that `list` means the builtin everywhere above.
    async def list(self, *, deleted: bool = False, limit: int | None = None) -> AsyncIterator[InterpreterInfo]:
        """Yields all interpreters, including those of scripts and notebooks, latest activity first, at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            page = await self.page(deleted=deleted, cursor=cursor, limit=_PAGE if left is None else min(left, _PAGE))
            for info in page.interpreters:
                yield info
            left = None if left is None else left - len(page.interpreters)
            cursor = page.next_cursor
            if cursor is None:
                return


def _box(box: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the `box` field of a request."""
    return {"box": dict(box)} if box is not None else {}


class _Following:
    """Reads the lines of an execution. Skips those that an earlier connection already delivered."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._on_output = on_output
        self._seen = 0
        self._at = 0
        self.moved = False

    def begin(self) -> None:
        self._at = 0

    def take(self, line: str) -> RemoteExecution | None:
        try:
            told = json.loads(line)
            kind = told["type"]
        except (ValueError, LookupError, TypeError):
            raise not_understood(f"a line of an execution cannot be read: {line[:80]!r}") from None
        self.moved = True
        if kind == "result":
            try:
                return RemoteExecution.from_json(told)
            except (LookupError, TypeError, ValueError) as error:
                raise not_understood(f"the result of an execution cannot be read: {error}") from None
        if kind == "error":
            problem = told.get("error") or {}
            if problem.get("code") == "unavailable":
                raise Unreachable(str(problem.get("message")), code="unavailable", hint=problem.get("hint"))
            raise error_from_document(problem)
        if kind == "missed":
            self._at += int(told.get("chunks", 0))
            self._seen = max(self._seen, self._at)
        elif kind == "output":
            self._at += 1
            if self._at > self._seen:
                self._seen = self._at
                if self._on_output is not None and told["text"]:
                    self._on_output(told["stream"], told["text"])
        return None
