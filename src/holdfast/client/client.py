"""The client: one server, its threads, boxes and keys. Async; `sync` has the twin for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.connection import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT, FindAgain, ServerConnection
from holdfast.client.default_server import find_default, find_default_again

if TYPE_CHECKING:
    from holdfast.api.access.keys import Token
    from holdfast.client.access.keys import Keys
    from holdfast.client.access.logins import Logins
    from holdfast.client.access.tenants import Members, Tenants
    from holdfast.client.box.boxes import Boxes
    from holdfast.client.connection import RetryNotice
    from holdfast.client.egress import Egress
    from holdfast.client.environments import EnvironmentStore
    from holdfast.client.images import Images
    from holdfast.client.interpreters import Interpreters
    from holdfast.client.model.costs import Costs
    from holdfast.client.model.models import ModelStore
    from holdfast.client.providers import ProviderStore
    from holdfast.client.resource import Resource
    from holdfast.client.run.agents import AgentStore
    from holdfast.client.run.forks import Forks
    from holdfast.client.run.runs import Runs
    from holdfast.client.run.tasks import Tasks
    from holdfast.client.secrets import SecretStore
    from holdfast.client.session.gateway import SessionGateways
    from holdfast.client.session.inbox import Inbox
    from holdfast.client.session.sessions import Sessions
    from holdfast.client.session.workflows import Workflows
    from holdfast.client.thread.shares import Shares
    from holdfast.client.thread.thread import Thread
    from holdfast.client.thread.threads import Threads
    from holdfast.client.transport import Transport
    from holdfast.client.webhooks import Webhooks


class Client:
    """A Holdfast server. Safe to share between the tasks of one event loop; `async with` closes it.

    Without a URL, the client uses the same server and key as the command line: `HOLDFAST_URL`, or the server running on
    this machine. Raises `Unreachable` if none is running. With a URL, nothing is read from the environment.

    `api_key` is an API key or a thread token. `timeout` limits one attempt, `retry_seconds` all retries of one call.
    `on_retry` is called before each retry. `find_again` is called when the server does not answer or no longer accepts
    the credential, and returns where the server is now: it may have been restarted at another address.

    `transport` sends the requests; the default uses httpx.
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

    # Each is loaded on first use: a program that only appends needs none of the others.
    @cached_property
    def agents(self) -> AgentStore:
        from holdfast.client.run.agents import AgentStore

        return AgentStore(self._connection)

    @cached_property
    def threads(self) -> Threads:
        from holdfast.client.thread.threads import Threads

        return Threads(self._connection)

    @cached_property
    def keys(self) -> Keys:
        from holdfast.client.access.keys import Keys

        return Keys(self._connection)

    @cached_property
    def tenants(self) -> Tenants:
        from holdfast.client.access.tenants import Tenants

        return Tenants(self._connection)

    @cached_property
    def logins(self) -> Logins:
        from holdfast.client.access.logins import Logins

        return Logins(self._connection)

    @cached_property
    def shares(self) -> Shares:
        from holdfast.client.thread.shares import Shares

        return Shares(self._connection)

    @cached_property
    def members(self) -> Members:
        from holdfast.client.access.tenants import Members

        return Members(self._connection)

    @cached_property
    def boxes(self) -> Boxes:
        from holdfast.client.box.boxes import Boxes

        return Boxes(self._connection)

    @cached_property
    def egress(self) -> Egress:
        from holdfast.client.egress import Egress

        return Egress(self._connection)

    @cached_property
    def forks(self) -> Forks:
        from holdfast.client.run.forks import Forks

        return Forks(self._connection)

    @cached_property
    def environments(self) -> EnvironmentStore:
        from holdfast.client.environments import EnvironmentStore

        return EnvironmentStore(self._connection)

    @cached_property
    def images(self) -> Images:
        from holdfast.client.images import Images

        return Images(self._connection)

    @cached_property
    def models(self) -> ModelStore:
        from holdfast.client.model.models import ModelStore

        return ModelStore(self._connection)

    @cached_property
    def costs(self) -> Costs:
        from holdfast.client.model.costs import Costs

        return Costs(self._connection)

    @cached_property
    def providers(self) -> ProviderStore:
        from holdfast.client.providers import ProviderStore

        return ProviderStore(self._connection)

    @cached_property
    def workflows(self) -> Workflows:
        from holdfast.client.session.workflows import Workflows

        return Workflows(self._connection)

    @cached_property
    def inbox(self) -> Inbox:
        from holdfast.client.session.inbox import Inbox

        return Inbox(self._connection)

    @cached_property
    def gateway(self) -> SessionGateways:
        from holdfast.client.session.gateway import SessionGateways

        return SessionGateways(self._connection)

    @cached_property
    def secrets(self) -> SecretStore:
        from holdfast.client.secrets import SecretStore

        return SecretStore(self._connection)

    @cached_property
    def webhooks(self) -> Webhooks:
        from holdfast.client.webhooks import Webhooks

        return Webhooks(self._connection)

    @cached_property
    def runs(self) -> Runs:
        from holdfast.client.run.runs import Runs

        return Runs(self._connection)

    @cached_property
    def sessions(self) -> Sessions:
        from holdfast.client.session.sessions import Sessions

        return Sessions(self._connection)

    @cached_property
    def tasks(self) -> Tasks:
        from holdfast.client.run.tasks import Tasks

        return Tasks(self._connection)

    @cached_property
    def interpreters(self) -> Interpreters:
        from holdfast.client.interpreters import Interpreters

        return Interpreters(self._connection)

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def has_credential(self) -> bool:
        """Whether this client sends a credential. A server that requires none needs none in its links either."""
        return bool(self._connection.credential_header)

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def thread(self, id: str) -> Thread:
        """Returns a handle on a thread, without a request."""
        from holdfast.client.thread.thread import Thread

        return Thread(self._connection, id)

    def box_resource(self, name: str) -> Resource:
        """Returns the resource of one box, by its id or, for exec, by its key, without a request."""
        from holdfast.client.resource import Resource

        return Resource(self._connection, "/v1/boxes").below(name)

    async def health(self) -> dict[str, Any]:
        """Returns the health of the server. Needs no credential."""
        return (await self._connection.ask("GET", "/health")).read(dict)

    async def renew_token(self) -> Token:
        """Exchange this client's thread token for a new one, and use that from now on."""
        from holdfast.api.access.keys import Token

        token = (await self._connection.ask("POST", "/v1/tokens/renew")).read(Token.from_json)
        self._connection.use_credential(token.token)
        return token

    async def aclose(self) -> None:
        """Close all connections. Closing twice does nothing."""
        try:
            if "models" in vars(self):  # it was used and may have its own connection
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
