"""A language server in a box: JSON-RPC over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Channel
from holdfast.api.errors.boxes import BoxError
from holdfast.box_json import parse
from holdfast.compat.daytona.http.errors import ApiError
from holdfast.time_limit import time_limit

COMMANDS: Final = {
    "python": ("pylsp", "pyright-langserver --stdio", "basedpyright-langserver --stdio", "jedi-language-server"),
    "typescript": ("typescript-language-server --stdio",),
    "javascript": ("typescript-language-server --stdio",),
}
"""By language: what may be in an image, the first that is there is taken."""
ANSWER_SECONDS: Final = 60.0
_MAX_HEAD: Final = 65_536
_MAX_MESSAGE: Final = 8 * 1024 * 1024
_MAX_VALUES: Final = 250_000
log = logging.getLogger(__name__)


class LanguageServer:
    """Owns its process in the box, and the task that reads from it, from `start` to `close`."""

    def __init__(self, box: Box, channel: Channel) -> None:
        self._box = box
        self._channel = channel
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._reading = asyncio.create_task(self._read(), name=f"language server in {box.id}")

    @classmethod
    async def start(cls, box: Box, command: str, folder: str, env: dict[str, str]) -> LanguageServer:
        """Takes over the handle of the box."""
        server = cls(box, await box.channel(["/bin/sh", "-c", f"exec {command}"], env=env, cwd=folder))
        try:
            uri = f"file://{folder}"
            capabilities = {
                "textDocument": {
                    "completion": {"completionItem": {"snippetSupport": False}},
                    "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
                },
                "workspace": {"symbol": {}},
            }
            folders = [{"uri": uri, "name": folder.rpartition("/")[2] or "/"}]
            await server.ask(
                "initialize",
                {"processId": None, "rootUri": uri, "capabilities": capabilities, "workspaceFolders": folders},
            )
            await server.tell("initialized", {})
        except BaseException:
            await asyncio.shield(server.close())
            raise
        return server

    @property
    def ended(self) -> bool:
        return self._reading.done()

    async def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        """Returns the result of a request."""
        self._last += 1
        number = self._last
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": number, "method": method, "params": parameters})
            async with time_limit(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise ApiError(
                500, f"the language server did not answer {method} within {ANSWER_SECONDS:.0f} seconds"
            ) from None
        finally:
            self._answers.pop(number, None)

    async def tell(self, method: str, parameters: dict[str, Any]) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": parameters})

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(BoxError, OSError):
            await self._channel.close()
        await self._box.close()

    async def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        try:
            await self._channel.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        except (BoxError, OSError):
            raise _lost(self._channel) from None

    async def _read(self) -> None:
        buffer = bytearray()
        try:
            while data := await self._channel.read():
                buffer += data
                while (message := _take(buffer)) is not None:
                    await self._receive(message)
        except (ApiError, BoxError, OSError, ValueError, RecursionError) as error:
            log.info("a language server in box %s ended: %s", self._box.id, error)
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(_lost(self._channel))

    async def _receive(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        number = message.get("id")
        if "method" in message:
            if number is not None:  # it asks for settings and the like: it gets none
                await self._send({"id": number, "result": None})
            return
        answer = self._answers.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(ApiError(400, f"the language server refused: {str(message['error'])[:500]}"))
        else:
            answer.set_result(message.get("result"))


def _lost(channel: Channel) -> ApiError:
    told = channel.stderr[-500:].decode("utf-8", "replace").strip()
    return ApiError(400, f"the language server has ended{f': {told}' if told else ''}", "LSP_SERVER_NOT_INITIALIZED")


def _take(buffer: bytearray) -> Any:
    """Takes the first whole message off a buffer. Returns None if there is none yet."""
    end = buffer.find(b"\r\n\r\n", 0, _MAX_HEAD)
    if end < 0:
        if len(buffer) >= _MAX_HEAD:
            raise ValueError("its messages have no headers")
        return None
    size = -1
    for line in bytes(buffer[:end]).split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            size = int(value)
    if not 0 <= size <= _MAX_MESSAGE:
        raise ValueError("its messages have no usable length")
    if len(buffer) < end + 4 + size:
        return None
    message = parse(buffer[end + 4 : end + 4 + size], most_bytes=_MAX_MESSAGE, most_values=_MAX_VALUES)
    del buffer[: end + 4 + size]
    return message
