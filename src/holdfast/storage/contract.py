"""The contract of a storage: it opens the database of a server and provides the stores.

Each store has its own contract, in the package that uses it, and a test suite for it in
`holdfast.testing.store_suites`. An implementation is right when it passes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.boxes.rows import BoxRows
    from holdfast.compat.daytona.records import RecordStore
    from holdfast.egress.environment_policies import PolicyStore
    from holdfast.egress.models.budgets import BudgetStore
    from holdfast.egress.models.model import ModelStore
    from holdfast.egress.models.prices import PriceStore
    from holdfast.egress.records import DecisionStore
    from holdfast.environments.secrets.rows import NamedSecretStore
    from holdfast.environments.store import EnvironmentStore
    from holdfast.gateway.credentials.cookies import CookieStore
    from holdfast.providers.accounts import AccountStore
    from holdfast.sessions.tools.mailbox_rows import MessageStore
    from holdfast.sessions.tools.memory_rows import MemoryStore
    from holdfast.sessions.workflows.rows import WorkflowStore
    from holdfast.threads.access.credentials import KeyStore, SecretStore
    from holdfast.threads.access.logins import LoginStore
    from holdfast.threads.access.members import MemberStore, TenantStore
    from holdfast.threads.access.shares import ShareStore
    from holdfast.threads.rows import RowStore
    from holdfast.threads.store import StreamStore
    from holdfast.threads.subscriptions.store import SubscriptionStore


class Storage(Protocol):
    """The stores of one tenant. They are bound to the event loop that opened the storage, and end with `close`.

    The first group of stores is ready at once. The others may load modules on first access, so a server gets them in a
    thread.
    """

    @property
    def is_exclusive(self) -> bool:
        """Whether no other server can use this storage at the same time. If so, leases of a dead server can be taken at
        once.
        """
        ...

    @property
    def streams(self) -> StreamStore: ...

    @property
    def thread_rows(self) -> RowStore: ...

    @property
    def subscriptions(self) -> SubscriptionStore: ...

    @property
    def api_keys(self) -> KeyStore: ...

    @property
    def members(self) -> MemberStore: ...

    @property
    def logins(self) -> LoginStore: ...

    @property
    def shares(self) -> ShareStore: ...

    @property
    def tenants(self) -> TenantStore:
        """The other tenants of the server. Only the storage of the default tenant has any."""
        ...

    @property
    def secrets(self) -> SecretStore: ...

    # --- loaded on first access ---

    @property
    def boxes(self) -> BoxRows: ...

    @property
    def egress_decisions(self) -> DecisionStore: ...

    @property
    def egress_policies(self) -> PolicyStore: ...

    @property
    def environments(self) -> EnvironmentStore: ...

    @property
    def models(self) -> ModelStore: ...

    @property
    def model_prices(self) -> PriceStore: ...

    @property
    def budgets(self) -> BudgetStore: ...

    @property
    def provider_accounts(self) -> AccountStore: ...

    @property
    def named_secrets(self) -> NamedSecretStore: ...

    @property
    def gateway_cookies(self) -> CookieStore: ...

    @property
    def messages(self) -> MessageStore: ...

    @property
    def workflows(self) -> WorkflowStore: ...

    @property
    def memories(self) -> MemoryStore: ...

    @property
    def daytona_records(self) -> RecordStore: ...

    def statistics(self) -> dict[str, int]:
        """Returns counters since the start: commits, and the operations in them."""
        ...

    def make_room(self) -> bool:
        """Release some of the disk space that is reserved for emergencies. Returns False if there is none left."""
        ...

    async def close(self) -> None:
        """Finish all accepted operations, then close the database."""
