"""What keeps its state in a database, opened on a file of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.egress import DecisionLog, EnvironmentPolicies
from holdfast.egress.models import Models
from holdfast.environments.secrets import Secrets
from holdfast.providers.accounts import Accounts
from holdfast.providers.registry import descriptors
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.egress_decisions import SqliteDecisions
from holdfast.storage.sqlite.egress_policies import SqlitePolicies
from holdfast.storage.sqlite.model.models import SqliteModels
from holdfast.storage.sqlite.named_secrets import SqliteNamedSecrets
from holdfast.storage.sqlite.provider_accounts import SqliteAccounts


@asynccontextmanager
async def open_records(path: Path, *, kept: int = 10_000) -> AsyncIterator[DecisionLog]:
    async with Database(path) as database, DecisionLog(SqliteDecisions(database), kept=kept) as records:
        yield records


@asynccontextmanager
async def open_policies(path: Path) -> AsyncIterator[EnvironmentPolicies]:
    async with Database(path) as database, EnvironmentPolicies(SqlitePolicies(database)) as policies:
        yield policies


@asynccontextmanager
async def open_models(path: Path, secret: bytes) -> AsyncIterator[Models]:
    async with Database(path) as database, Models(SqliteModels(database), secret) as models:
        yield models


@asynccontextmanager
async def open_secrets(path: Path, secret: bytes) -> AsyncIterator[Secrets]:
    async with Database(path) as database, Secrets(SqliteNamedSecrets(database), secret) as secrets:
        yield secrets


@asynccontextmanager
async def open_accounts(path: Path, secret: bytes) -> AsyncIterator[Accounts]:
    kinds = {each.name: each for each in descriptors()}
    async with Database(path) as database, Accounts(SqliteAccounts(database), secret, kinds) as accounts:
        yield accounts
