"""The Sprites API: the vendor's SDK, with retries, limits of time, and the calls that the SDK lacks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
from sprites import AsyncSpritesClient
from sprites.async_sprite import AsyncSprite
from sprites.exceptions import SpriteError
from sprites.types import Checkpoint, ListOptions, NetworkPolicy
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from holdfast.providers.retries import TRIES, pause_before, read_retry_after
from holdfast.providers.sprites.account import Account
from holdfast.providers.sprites.errors import ApiProblem, message_in, translated
from holdfast.providers.sprites.retries import RetryingTransport, may_repeat
from holdfast.time_limit import time_limit

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
EXIT: Final = 3
STDIN_EOF: Final = 4
log = logging.getLogger(__name__)

_REQUEST_SECONDS: Final = 30.0
_CREATE_SECONDS: Final = 120.0
_CONNECT_SECONDS: Final = 30.0
_CHECKPOINT_SECONDS: Final = 300.0
_RUN_ON_SECONDS: Final = 60
"""How long a command runs on without a connection: as long we can come back to it."""
_INPUT_PIECE: Final = 1 << 18
_MAX_MESSAGE: Final = 16 << 20
_MAX_OUTPUT: Final = 4 << 20
_MAX_PAGES: Final = 1000
_PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class Found:
    """A sprite as the API describes it."""

    name: str
    status: str
    labels: tuple[str, ...]

    @property
    def asleep(self) -> bool:
        """The next request that needs it wakes it."""
        return self.status in ("cold", "warm")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command. Its output is text."""

    exit_code: int
    stdout: str
    stderr: str


class SpritesApi:
    """One account. The caller opens and closes it."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._client: AsyncSpritesClient | None = None

    def open(self) -> None:
        client = AsyncSpritesClient(self.account.token, self.account.url, timeout=_REQUEST_SECONDS)
        # The SDK has no place for a transport. Its own keep what it read from the environment: proxies, say.
        http = client._client
        http._transport = RetryingTransport(http._transport)
        http._mounts = {
            pattern: None if transport is None else RetryingTransport(transport)
            for pattern, transport in http._mounts.items()
        }
        self._client = client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def _sdk(self) -> AsyncSpritesClient:
        if self._client is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._client

    async def reach(self) -> str:
        """Ask without the token. Any answer will do. Raises `BoxUnreachable`."""
        with translated(f"{self.account.url} cannot be asked"):
            async with time_limit(_REQUEST_SECONDS), httpx.AsyncClient() as client:
                answer = await client.head(self.account.url)
        return f"{self.account.url} answers ({answer.status_code})"

    def sprite(self, name: str) -> AsyncSprite:
        return self._sdk.sprite(name)

    # --- sprites ---

    async def create(self, name: str, labels: Sequence[str] | None) -> None:
        async with time_limit(_CREATE_SECONDS):
            await self._sdk.create_sprite(name, labels=None if labels is None else list(labels))

    async def get(self, name: str) -> Found:
        async with time_limit(2 * _REQUEST_SECONDS):
            sprite = await self._sdk.get_sprite(name)
        return Found(sprite.name, sprite.status or "", tuple(sprite.labels))

    async def list_sprites(self, prefix: str) -> list[Found]:
        found: dict[str, Found] = {}
        token: str | None = None
        for _ in range(_MAX_PAGES):
            options = ListOptions(prefix=prefix, max_results=_PAGE, continuation_token=token)
            async with time_limit(2 * _REQUEST_SECONDS):
                page = await self._sdk.list_sprites(options)
            for each in page.sprites:
                if each.name.startswith(prefix):
                    found[each.name] = Found(each.name, each.status, tuple(each.labels))
            token = page.next_continuation_token
            if not page.has_more or token is None:
                return list(found.values())
        raise SpriteError("the list of sprites does not end")

    async def set_labels(self, name: str, labels: Sequence[str]) -> None:
        async with time_limit(2 * _REQUEST_SECONDS):
            await self._sdk.update_sprite(name, labels=list(labels))

    async def destroy(self, name: str) -> bool:
        """Returns whether there was such a sprite."""
        try:
            async with time_limit(2 * _REQUEST_SECONDS):
                await self._sdk.destroy_sprite(name)
        except ApiProblem as problem:
            if problem.missing:
                return False
            raise
        return True

    # --- parts of a sprite ---

    async def set_policy(self, name: str, policy: NetworkPolicy) -> None:
        async with time_limit(2 * _REQUEST_SECONDS):
            await self.sprite(name).update_network_policy(policy)

    async def put_service(self, name: str, service: str, command: Sequence[str]) -> None:
        """Define and start a service. Raises `SpriteError` if it does not start."""
        async with time_limit(2 * _REQUEST_SECONDS):
            events = await self.sprite(name).create_service(service, command[0], args=list(command[1:]), duration=0.1)
        for event in events:
            if event.type == "error":
                raise SpriteError(f"the service {service} does not start: {event.data}")

    async def stop_service(self, name: str, service: str) -> None:
        with contextlib.suppress(ApiProblem):  # it is not running
            async with time_limit(2 * _REQUEST_SECONDS):
                await self.sprite(name).stop_service(service, timeout=1.0)

    async def checkpoint(self, name: str, comment: str) -> Checkpoint:
        """Create a checkpoint, and return it as it is listed."""
        async with time_limit(_CHECKPOINT_SECONDS):
            _check_events(await self.sprite(name).create_checkpoint(comment, timeout=_CHECKPOINT_SECONDS))
            for each in await self.checkpoints(name):
                if each.comment == comment:
                    return each
        raise SpriteError("the checkpoint was created, but is not listed")

    async def checkpoints(self, name: str) -> list[Checkpoint]:
        async with time_limit(2 * _REQUEST_SECONDS):
            return await self.sprite(name).list_checkpoints()

    async def restore_checkpoint(self, name: str, id: str) -> None:
        async with time_limit(_CHECKPOINT_SECONDS):
            _check_events(await self.sprite(name).restore_checkpoint(id, timeout=_CHECKPOINT_SECONDS))

    async def delete_checkpoint(self, name: str, id: str) -> None:
        """Raises `ApiProblem` if the API does not offer it for this checkpoint."""
        async with time_limit(2 * _REQUEST_SECONDS):
            await self._sdk.http_client.delete(f"{self._path(name)}/checkpoints/{quote(id, safe='')}")

    # --- commands ---

    def _path(self, name: str) -> str:
        return f"{self.account.url.rstrip('/')}/v1/sprites/{quote(name, safe='')}"

    async def run_short(
        self, name: str, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = _REQUEST_SECONDS
    ) -> Done:
        """Run a command that ends soon and prints text, in one request."""
        async with time_limit(seconds):
            response = await self._sdk.http_client.post(
                f"{self._path(name)}/exec",
                params=[*(("cmd", each) for each in argv), ("stdin", "true" if stdin else "false")],
                content=stdin,
                headers={"Content-Type": "application/octet-stream"},
                timeout=seconds,
            )
        return read_frames(response.content)

    async def run(self, name: str, argv: Sequence[str], *, stdin: bytes = b"", seconds: float) -> Done:
        """Run a command of any length. After a lost connection, attach to it again while it runs on.

        If that fails, because its session is not known or ended meanwhile, the command is started again: it has to be
        repeatable. So is one with input, because nobody knows how much of that has arrived.
        """
        output = {STDOUT: bytearray(), STDERR: bytearray()}
        session: str | None = None
        async with time_limit(seconds):
            for attempt in range(TRIES):
                try:
                    if session is None:
                        for each in output.values():
                            each.clear()
                    async with (
                        self._attached(name, argv, session) as socket,
                        _sending(socket, stdin if session is None else None),
                    ):
                        async for message in socket:
                            if isinstance(message, str):
                                session = session_in(message) or session
                            elif message[:1] == bytes([EXIT]):
                                return Done(message[1], *(_text(output[each]) for each in (STDOUT, STDERR)))
                            elif message and message[0] in output:
                                output[message[0]] += message[1:]
                                if len(output[message[0]]) > _MAX_OUTPUT:
                                    raise SpriteError(f"{argv[0]} prints too much")
                except ApiProblem as problem:
                    if session is None or not problem.missing:
                        raise
                    session = None
                except (OSError, WebSocketException) as error:
                    log.info("the connection to %s was lost while %s ran: %s", name, argv[0], error)
                    if stdin and session is not None:
                        await self.kill(name, session)
                        session = None
                await asyncio.sleep(pause_before(attempt, None, 0.0) or 0.0)
        raise SpriteError(f"the connection was lost {TRIES} times while {argv[0]} ran")

    @contextlib.asynccontextmanager
    async def _attached(self, name: str, argv: Sequence[str], session: str | None) -> AsyncIterator[ClientConnection]:
        socket = await self.connect(name, argv, session=session, run_on=_RUN_ON_SECONDS)
        try:
            yield socket
        finally:
            await socket.close()

    async def connect(
        self, name: str, argv: Sequence[str] = (), *, session: str | None = None, run_on: int | None = None
    ) -> ClientConnection:
        """Start a command and connect to its stdin and output, or attach to one that runs. Raises `ApiProblem`."""
        query = [("cmd", each) for each in argv] if session is None else []
        query.append(("stdin", "true"))
        if run_on is not None:
            query.append(("max_run_after_disconnect", f"{run_on}s"))
        path = f"{self._path(name)}/exec" + ("" if session is None else f"/{quote(session, safe='')}")
        url = f"ws{path.removeprefix('http')}?{urlencode(query)}"
        for attempt in range(TRIES):
            try:
                return await connect(
                    url,
                    additional_headers={"Authorization": f"Bearer {self.account.token}"},
                    open_timeout=_CONNECT_SECONDS,
                    close_timeout=1.0,
                    ping_interval=15.0,
                    ping_timeout=45.0,
                    max_size=_MAX_MESSAGE,
                    compression=None,
                )
            except InvalidStatus as refused:
                problem = _problem_of(refused)
                pause = pause_before(attempt, problem.retry_after, 0.5)
                # A refused upgrade has started nothing.
                if pause is None or attempt == TRIES - 1 or not may_repeat("GET", path, problem.status):
                    raise problem from None
                await asyncio.sleep(pause)
        raise AssertionError("the loop returns or raises")

    async def kill(self, name: str, session: str) -> None:
        """End a command that may have ended already."""
        with contextlib.suppress(ApiProblem):
            async with time_limit(_REQUEST_SECONDS):
                url = f"{self._path(name)}/exec/{quote(session, safe='')}/kill"
                await self._sdk.http_client.post(url, json={"signal": "SIGKILL", "timeout": 1})


def read_frames(body: bytes) -> Done:
    """Read the answer to a short command. Frames have a tag and no length, so this holds for text alone."""
    if len(body) < 2 or body[-2] != EXIT:
        raise SpriteError("the answer to a command was cut off")
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    current = STDOUT
    for byte in body[:-2]:
        if byte in output:
            current = byte
        else:
            output[current].append(byte)
    return Done(body[-1], _text(output[STDOUT]), _text(output[STDERR]))


def session_in(message: str) -> str | None:
    """Returns the session's id, if the message tells it."""
    try:
        told = json.loads(message)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("type") != "session_info":
        return None
    id = told.get("session_id") or told.get("id")
    return str(id) if id else None


def created_ms(checkpoint: Checkpoint) -> int:
    moment: datetime = checkpoint.create_time
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@contextlib.asynccontextmanager
async def _sending(socket: ClientConnection, data: bytes | None) -> AsyncIterator[None]:
    """Send the input of a command meanwhile. A command that fails at once does not read it."""
    if data is None:
        yield
        return
    task = asyncio.create_task(_send_input(socket, data))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _send_input(socket: ClientConnection, data: bytes) -> None:
    with contextlib.suppress(ConnectionClosed):  # a command may end before it has read all; its exit code says more
        for start in range(0, len(data), _INPUT_PIECE):
            await socket.send(bytes([STDIN]) + data[start : start + _INPUT_PIECE])
        await socket.send(bytes([STDIN_EOF]))


def _problem_of(refused: InvalidStatus) -> ApiProblem:
    response = refused.response
    after = read_retry_after(response.headers.get("retry-after"), time.time())
    return ApiProblem(response.status_code, message_in(bytes(response.body or b"")), retry_after=after)


def _check_events(events: Any) -> None:
    for event in events:
        if event.type == "error":
            raise SpriteError(str(event.error or event.data))


def _text(data: bytearray) -> str:
    return bytes(data).decode("utf-8", "replace")
