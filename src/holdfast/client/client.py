"""The client: one server, its threads, boxes and keys. Async; `sync` has the twin for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT, FindAgain, ServerConnection
from holdfast.client.default_server import find_default, find_default_again

if TYPE_CHECKING:
    from holdfast.api.keys import Token
    from holdfast.client.agents import AgentStore
    from holdfast.client.backoff import RetryNotice
    from holdfast.client.box.boxes import Boxes
    from holdfast.client.egress import Egress
    from holdfast.client.images import Images
    from holdfast.client.interpreters import Interpreters
    from holdfast.client.keys import Keys
    from holdfast.client.models import ModelStore
    from holdfast.client.resource import BoxConnection
    from holdfast.client.runs import Runs
    from holdfast.client.thread.thread import Thread
    from holdfast.client.thread.threads import Threads
    from holdfast.client.transport import Transport


class Client:
    """A Holdfast server. Safe to share between the tasks of one event loop; `async with` closes it.

    Without a URL it is the server that the command line would use: `HOLDFAST_URL`, or the one that runs on this
    machine, with its key; raises `Unreachable` where none runs. With a URL nothing is read from the environment.

    `api_key` is an API key or a thread token. `timeout` bounds one attempt, `retry_seconds` all retries of one call;
    `on_retry` is told of each. `find_again` is asked where the server is now, when it does not answer or takes the
    credential no more: one that was started again may be elsewhere.
    `transport` is how it asks: httpx, unless another is given.
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
        transport: Transport | None = None,
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
            transport=transport,
        )

    # Each is loaded when it is first used: a program that only appends needs none of the others.
    @cached_property
    def agents(self) -> AgentStore:
        from holdfast.client.agents import AgentStore

        return AgentStore(self._connection)

    @cached_property
    def threads(self) -> Threads:
        from holdfast.client.thread.threads import Threads

        return Threads(self._connection)

    @cached_property
    def keys(self) -> Keys:
        from holdfast.client.keys import Keys

        return Keys(self._connection)

    @cached_property
    def boxes(self) -> Boxes:
        from holdfast.client.box.boxes import Boxes

        return Boxes(self._connection)

    @cached_property
    def egress(self) -> Egress:
        from holdfast.client.egress import Egress

        return Egress(self._connection)

    @cached_property
    def images(self) -> Images:
        from holdfast.client.images import Images

        return Images(self._connection)

    @cached_property
    def models(self) -> ModelStore:
        from holdfast.client.models import ModelStore

        return ModelStore(self._connection)

    @cached_property
    def runs(self) -> Runs:
        from holdfast.client.runs import Runs

        return Runs(self._connection)

    @cached_property
    def interpreters(self) -> Interpreters:
        from holdfast.client.interpreters import Interpreters

        return Interpreters(self._connection)

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
        from holdfast.client.thread.thread import Thread

        return Thread(self._connection, id)

    def box_resource(self, name: str) -> BoxConnection:
        """How one box is asked, by its id or, for exec, by its key; asks nothing yet."""
        from holdfast.client.resource import BoxConnection

        return BoxConnection(self._connection, "/v1/boxes").below(name)

    async def health(self) -> dict[str, Any]:
        """What the server says of itself; needs no credential."""
        return (await self._connection.ask("GET", "/health")).read(dict)

    async def renew_token(self) -> Token:
        """Exchange the thread token this client uses for a fresh one, and use that from now on."""
        from holdfast.api.keys import Token

        token = (await self._connection.ask("POST", "/v1/tokens/renew")).read(Token.from_json)
        self._connection.use_credential(token.token)
        return token

    async def aclose(self) -> None:
        """Let go of all connections. Closing twice does nothing."""
        try:
            if "models" in vars(self):  # it was used, so it may have a connection of its own
                await self.models.aclose()
        finally:
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
