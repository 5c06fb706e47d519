"""The client: one server, its threads, boxes and keys. Async; `sync` has the twin for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast.api.keys import Token
from holdfast.client.agents import AgentStore
from holdfast.client.backoff import RetryNotice
from holdfast.client.box.boxes import Boxes
from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT, FindAgain, ServerConnection
from holdfast.client.default_server import find_default, find_default_again
from holdfast.client.egress import Egress
from holdfast.client.images import Images
from holdfast.client.interpreters import Interpreters
from holdfast.client.keys import Keys
from holdfast.client.models import ModelStore
from holdfast.client.runs import Runs
from holdfast.client.thread.thread import Thread
from holdfast.client.thread.threads import Threads


class Client:
    """A Holdfast server. Safe to share between the tasks of one event loop; `async with` closes it.

    Without a URL it is the server that the command line would use: `HOLDFAST_URL`, or the one that runs on this
    machine, with its key; raises `Unreachable` where none runs. With a URL nothing is read from the environment.

    `api_key` is an API key or a thread token. `timeout` bounds one attempt, `retry_seconds` all retries of one call;
    `on_retry` is told of each. `find_again` is asked where the server is now, when it does not answer or takes the
    credential no more: one that was started again may be elsewhere.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        on_retry: Callable[[RetryNotice], None] | None = None,
        find_again: FindAgain | None = None,
    ) -> None:
        if url is None:
            found = find_default(api_key)
            url, find_again = found.url, find_again or partial(find_default_again, api_key)
            api_key = found.api_key
        self._connection = ServerConnection(
            url,
            api_key=api_key,
            timeout=timeout,
            retry_seconds=retry_seconds,
            on_retry=on_retry,
            find_again=find_again,
        )
        self.agents = AgentStore(self._connection)
        self.threads = Threads(self._connection)
        self.keys = Keys(self._connection)
        self.boxes = Boxes(self._connection)
        self.egress = Egress(self._connection)
        self.images = Images(self._connection)
        self.models = ModelStore(self._connection)
        self.runs = Runs(self._connection)
        self.interpreters = Interpreters(self._connection)

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def has_credential(self) -> bool:
        """Whether it sends one. A server that asks for none needs none in its links either."""
        return bool(self._connection.credential_header)

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def thread(self, id: str) -> Thread:
        """A handle on a thread; asks nothing yet."""
        return Thread(self._connection, id)

    async def health(self) -> dict[str, Any]:
        """What the server says of itself; needs no credential."""
        return (await self._connection.ask("GET", "/health")).read(dict)

    async def renew_token(self) -> Token:
        """Exchange the thread token this client uses for a fresh one, and use that from now on."""
        token = (await self._connection.ask("POST", "/v1/tokens/renew")).read(Token.from_json)
        self._connection.use_credential(token.token)
        return token

    async def aclose(self) -> None:
        """Let go of all connections. Closing twice does nothing."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
