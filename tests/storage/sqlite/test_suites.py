"""The stores on SQLite keep their contracts. Streams and boxes, which have more to test, have files of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.errors import Unavailable
from holdfast.compat.daytona.records import RecordStore
from holdfast.egress.environment_policies import PolicyStore
from holdfast.egress.models.budgets import BudgetStore
from holdfast.egress.models.model import ModelStore
from holdfast.egress.models.prices import PriceStore
from holdfast.egress.records import DecisionStore
from holdfast.environments.secrets import NamedSecretStore
from holdfast.environments.store import EnvironmentStore
from holdfast.gateway.credentials.cookies import CookieStore
from holdfast.providers.accounts import AccountStore
from holdfast.sessions.tools.mailbox_rows import MessageStore
from holdfast.sessions.tools.memory_rows import MemoryStore
from holdfast.sessions.workflows.rows import WorkflowStore
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.access.gateway_cookies import SqliteCookies
from holdfast.storage.sqlite.access.logins import SqliteLogins
from holdfast.storage.sqlite.access.members import SqliteMembers
from holdfast.storage.sqlite.access.shares import SqliteShares
from holdfast.storage.sqlite.access.tenants import SqliteTenants
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.daytona_records import SqliteDaytonaRecords
from holdfast.storage.sqlite.egress_decisions import SqliteDecisions
from holdfast.storage.sqlite.egress_policies import SqlitePolicies
from holdfast.storage.sqlite.environments import SqliteEnvironments
from holdfast.storage.sqlite.model.budgets import SqliteBudgets
from holdfast.storage.sqlite.model.model_prices import SqlitePrices
from holdfast.storage.sqlite.model.models import SqliteModels
from holdfast.storage.sqlite.named_secrets import SqliteNamedSecrets
from holdfast.storage.sqlite.provider_accounts import SqliteAccounts
from holdfast.storage.sqlite.secret_file import SecretFile
from holdfast.storage.sqlite.session.mailbox import SqliteMessages
from holdfast.storage.sqlite.session.memories import SqliteMemories
from holdfast.storage.sqlite.session.workflows import SqliteWorkflows
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.subscriptions import SqliteSubscriptions
from holdfast.storage.sqlite.thread_rows import SqliteThreadRows
from holdfast.testing.store_suites import (
    AccountSuite,
    ApiKeySuite,
    BudgetSuite,
    CookieSuite,
    DecisionSuite,
    EnvironmentSuite,
    LoginSuite,
    MemberSuite,
    MemorySuite,
    MessageSuite,
    ModelSuite,
    NamedSecretSuite,
    PolicySuite,
    PriceSuite,
    RecordSuite,
    SecretSuite,
    ShareSuite,
    SubscriptionSuite,
    TenantSuite,
    ThreadRowSuite,
    WorkflowSuite,
)
from holdfast.testing.store_suites.access.logins import LoginStores
from holdfast.testing.store_suites.access.members import Stores
from holdfast.testing.store_suites.egress_decisions import decision, read
from holdfast.testing.store_suites.opener import OpenStore
from holdfast.testing.store_suites.thread_rows import Opened, row_of
from holdfast.threads.access.credentials import KeyStore, SecretStore
from holdfast.threads.access.members import TenantStore
from holdfast.threads.access.shares import ShareStore
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import RowFilter, RowStore
from holdfast.threads.store import StreamConfig, StreamStore
from holdfast.threads.subscriptions.store import SubscriptionStore


@asynccontextmanager
async def open_streams(path: Path) -> AsyncIterator[SqliteStreams]:
    streams = await SqliteStreams.open(path / "holdfast.db")
    try:
        yield streams
    finally:
        await streams.close()


class TestSqliteApiKeys(ApiKeySuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[KeyStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[KeyStore]:
            async with open_streams(tmp_path) as streams:
                yield SqliteApiKeys(streams, tenant=tenant)

        return open_store


class TestSqliteLogins(LoginSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[LoginStores]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[LoginStores]:
            async with open_streams(tmp_path) as streams:
                yield (
                    SqliteLogins(streams, tenant=tenant),
                    SqliteMembers(streams, tenant=tenant),
                    SqliteApiKeys(streams, tenant=tenant),
                )

        return open_store


class TestSqliteShares(ShareSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[ShareStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[ShareStore]:
            async with open_streams(tmp_path) as streams:
                yield SqliteShares(streams, tenant=tenant)

        return open_store


class TestSqliteMembers(MemberSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[Stores]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[Stores]:
            async with open_streams(tmp_path) as streams:
                yield SqliteMembers(streams, tenant=tenant), SqliteApiKeys(streams, tenant=tenant)

        return open_store


class TestSqliteTenants(TenantSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[TenantStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[TenantStore]:
            async with open_streams(tmp_path) as streams:
                yield SqliteTenants(streams)

        return open_store


class TestSqliteDaytonaRecords(RecordSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[RecordStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[RecordStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteDaytonaRecords(database)

        return open_store


class TestSqliteSubscriptions(SubscriptionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[SubscriptionStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[SubscriptionStore]:
            async with open_streams(tmp_path) as streams:
                yield SqliteSubscriptions(streams, tenant=tenant)

        return open_store


class TestSqliteThreadRows(ThreadRowSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[Opened]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[Opened]:
            async with open_streams(tmp_path) as streams:
                yield streams, SqliteThreadRows(streams, tenant=tenant)

        return open_store

    async def test_a_listed_row_is_decoded_once_until_it_changes(self, streams: StreamStore, store: RowStore) -> None:
        await streams.create(f"{THREADS}t-1", StreamConfig(content_type="text/plain"))
        made = await row_of(streams, "t-1")
        await store.save_rows([made], [])
        [first], [again] = await store.list_rows(RowFilter()), await store.list_rows(RowFilter())
        assert again is first
        assert first == made
        await store.save_rows([replace(made, title="another")], [])
        [changed] = await store.list_rows(RowFilter())
        assert changed.title == "another"


class TestSqliteEnvironments(EnvironmentSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[EnvironmentStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[EnvironmentStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteEnvironments(database, tenant=tenant)

        return open_store


class TestSqliteMemories(MemorySuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[MemoryStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[MemoryStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteMemories(database, tenant=tenant)

        return open_store


class TestSqliteMessages(MessageSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[MessageStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[MessageStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteMessages(database, tenant=tenant)

        return open_store


class TestSqliteWorkflows(WorkflowSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[WorkflowStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[WorkflowStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteWorkflows(database, tenant=tenant)

        return open_store


class TestSqliteModels(ModelSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[ModelStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[ModelStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteModels(database, tenant=tenant)

        return open_store


class TestSqlitePrices(PriceSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[PriceStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[PriceStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqlitePrices(database, tenant=tenant)

        return open_store


class TestSqliteCookies(CookieSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[CookieStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[CookieStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteCookies(database, tenant=tenant)

        return open_store


class TestSqliteBudgets(BudgetSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[BudgetStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[BudgetStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteBudgets(database, tenant=tenant)

        return open_store


class TestSqliteAccounts(AccountSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[AccountStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[AccountStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteAccounts(database, tenant=tenant)

        return open_store


class TestSqliteNamedSecrets(NamedSecretSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[NamedSecretStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[NamedSecretStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteNamedSecrets(database, tenant=tenant)

        return open_store


class TestSqlitePolicies(PolicySuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[PolicyStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[PolicyStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqlitePolicies(database, tenant=tenant)

        return open_store


class TestSqliteDecisions(DecisionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[DecisionStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[DecisionStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteDecisions(database)

        return open_store

    async def test_a_batch_is_written_whole_or_not_at_all(self, store: DecisionStore) -> None:
        await store.write([decision(1), decision(2)], {}, {})
        with pytest.raises(Unavailable):
            await store.write([decision(3), decision(1)], {decision(2).id: (1, 1, 1)}, {"b-1": 0})
        assert await read(store) == [decision(2), decision(1)]


MAKE_A_SECRET = """
import asyncio, sys
from pathlib import Path
from holdfast.storage.sqlite.secret_file import SecretFile
print("ready", flush=True)
for path in sys.stdin:
    print(asyncio.run(SecretFile(Path(path.strip())).root()).hex(), flush=True)
"""


class TestSecretFile(SecretSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[SecretStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[SecretStore]:
            yield SecretFile(tmp_path / "secret")

        return open_store

    def test_two_processes_that_make_it_at_once_get_the_same(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", MAKE_A_SECRET]
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as one,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as two,
        ):
            for each in (one, two):
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n"
            for number in range(50):
                for each in (one, two):
                    assert each.stdin is not None
                    each.stdin.write(f"{tmp_path}/secret-{number}\n")
                assert one.stdout is not None
                assert two.stdout is not None
                assert one.stdout.readline() == two.stdout.readline() != "\n"
            one.communicate()
            two.communicate()
        made = sorted(path.name for path in tmp_path.iterdir())
        assert made == sorted(f"secret-{number}" for number in range(50)), "something else was left behind"
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
