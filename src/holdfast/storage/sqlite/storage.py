"""The storage of one server on one machine: a file in its home, and the stores in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from holdfast.api.ids import now_ms
from holdfast.storage.errors import CannotOpen
from holdfast.storage.sqlite import DATABASE, SECRET, reserve
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.access.logins import SqliteLogins
from holdfast.storage.sqlite.access.members import SqliteMembers
from holdfast.storage.sqlite.access.shares import SqliteShares
from holdfast.storage.sqlite.access.tenants import SqliteTenants
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.secret_file import SecretFile
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.subscriptions import SqliteSubscriptions
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows

if TYPE_CHECKING:
    from holdfast.storage.sqlite.access.gateway_cookies import SqliteCookies
    from holdfast.storage.sqlite.boxes import SqliteBoxes
    from holdfast.storage.sqlite.daytona_records import SqliteDaytonaRecords
    from holdfast.storage.sqlite.egress_decisions import SqliteDecisions
    from holdfast.storage.sqlite.egress_policies import SqlitePolicies
    from holdfast.storage.sqlite.environments import SqliteEnvironments
    from holdfast.storage.sqlite.model.budgets import SqliteBudgets
    from holdfast.storage.sqlite.model.model_prices import SqlitePrices
    from holdfast.storage.sqlite.model.models import SqliteModels
    from holdfast.storage.sqlite.named_secrets import SqliteNamedSecrets
    from holdfast.storage.sqlite.provider_accounts import SqliteAccounts
    from holdfast.storage.sqlite.session.mailbox import SqliteMessages
    from holdfast.storage.sqlite.session.memories import SqliteMemories
    from holdfast.storage.sqlite.session.workflows import SqliteWorkflows


class SqliteStorage:
    """`Storage` in a folder. Open it with `open`; `async with` closes it.

    Streams and the tables beside them share one writer thread. Boxes and egress tables each have their own connection
    and thread, so that appends never wait for them.
    """

    is_exclusive: Final = True

    def __init__(self, folder: Path, streams: SqliteStreams) -> None:
        self._path = folder / DATABASE
        self._database = Database(self._path)
        self._boxes: SqliteBoxes | None = None
        self.streams: Final = streams
        self.thread_rows: Final = SqliteThreadRows(streams)
        self.subscriptions: Final = SqliteSubscriptions(streams)
        self.api_keys: Final = SqliteApiKeys(streams)
        self.members: Final = SqliteMembers(streams)
        self.logins: Final = SqliteLogins(streams)
        self.shares: Final = SqliteShares(streams)
        self.tenants: Final = SqliteTenants(streams)
        self.secrets: Final = SecretFile(folder / SECRET)

    @classmethod
    async def open(cls, folder: Path, *, clock: Callable[[], int] = now_ms) -> SqliteStorage:
        try:
            return cls(folder, await SqliteStreams.open(folder / DATABASE, clock=clock))
        except sqlite3.Error as error:
            raise CannotOpen(
                f"the data in {folder} cannot be opened: {error}. Run holdfast doctor, or use another --home DIR"
            ) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @cached_property
    def boxes(self) -> SqliteBoxes:
        from holdfast.storage.sqlite.boxes import SqliteBoxes

        self._boxes = SqliteBoxes(self._path)
        return self._boxes

    @cached_property
    def egress_decisions(self) -> SqliteDecisions:
        from holdfast.storage.sqlite.egress_decisions import SqliteDecisions

        return SqliteDecisions(self._database)

    @cached_property
    def egress_policies(self) -> SqlitePolicies:
        from holdfast.storage.sqlite.egress_policies import SqlitePolicies

        return SqlitePolicies(self._database)

    @cached_property
    def environments(self) -> SqliteEnvironments:
        from holdfast.storage.sqlite.environments import SqliteEnvironments

        return SqliteEnvironments(self._database)

    @cached_property
    def models(self) -> SqliteModels:
        from holdfast.storage.sqlite.model.models import SqliteModels

        return SqliteModels(self._database)

    @cached_property
    def model_prices(self) -> SqlitePrices:
        from holdfast.storage.sqlite.model.model_prices import SqlitePrices

        return SqlitePrices(self._database)

    @cached_property
    def budgets(self) -> SqliteBudgets:
        from holdfast.storage.sqlite.model.budgets import SqliteBudgets

        return SqliteBudgets(self._database)

    @cached_property
    def provider_accounts(self) -> SqliteAccounts:
        from holdfast.storage.sqlite.provider_accounts import SqliteAccounts

        return SqliteAccounts(self._database)

    @cached_property
    def named_secrets(self) -> SqliteNamedSecrets:
        from holdfast.storage.sqlite.named_secrets import SqliteNamedSecrets

        return SqliteNamedSecrets(self._database)

    @cached_property
    def gateway_cookies(self) -> SqliteCookies:
        from holdfast.storage.sqlite.access.gateway_cookies import SqliteCookies

        return SqliteCookies(self._database)

    @cached_property
    def messages(self) -> SqliteMessages:
        from holdfast.storage.sqlite.session.mailbox import SqliteMessages

        return SqliteMessages(self._database)

    @cached_property
    def workflows(self) -> SqliteWorkflows:
        from holdfast.storage.sqlite.session.workflows import SqliteWorkflows

        return SqliteWorkflows(self._database)

    @cached_property
    def memories(self) -> SqliteMemories:
        from holdfast.storage.sqlite.session.memories import SqliteMemories

        return SqliteMemories(self._database)

    @cached_property
    def daytona_records(self) -> SqliteDaytonaRecords:
        from holdfast.storage.sqlite.daytona_records import SqliteDaytonaRecords

        return SqliteDaytonaRecords(self._database)

    def statistics(self) -> dict[str, int]:
        return self.streams.statistics()

    def make_room(self) -> bool:
        return reserve.spend(self._path)

    async def close(self) -> None:
        """Closing twice does nothing."""
        if self._boxes is not None:
            await self._boxes.close()
        await self._database.close()
        await self.streams.close()
