"""The stores on SQLite keep their contracts. Streams and boxes, which have more to test, have files of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.egress.environment_policies import PolicyStore
from holdfast.egress.models.store import ModelStore
from holdfast.storage.sqlite.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.egress_policies import SqlitePolicies
from holdfast.storage.sqlite.models import SqliteModels
from holdfast.storage.sqlite.secret_file import SecretFile
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.subscriptions import SqliteSubscriptions
from holdfast.testing.store_suites import ApiKeySuite, ModelSuite, PolicySuite, SecretSuite, SubscriptionSuite
from holdfast.testing.store_suites.opener import OpenStore
from holdfast.threads.access.credentials import KeyStore, SecretStore
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


class TestSqliteSubscriptions(SubscriptionSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[SubscriptionStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[SubscriptionStore]:
            async with open_streams(tmp_path) as streams:
                yield SqliteSubscriptions(streams, tenant=tenant)

        return open_store


class TestSqliteModels(ModelSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[ModelStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[ModelStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqliteModels(database, tenant=tenant)

        return open_store


class TestSqlitePolicies(PolicySuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore[PolicyStore]:
        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[PolicyStore]:
            async with Database(tmp_path / "holdfast.db") as database:
                yield SqlitePolicies(database, tenant=tenant)

        return open_store


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
