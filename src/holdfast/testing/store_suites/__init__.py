"""The contracts of the stores of a `Storage` as tests. An implementation runs each with one fixture (pytest and anyio):

    class TestMyApiKeys(ApiKeySuite):
        @pytest.fixture
        def open_store(self, tmp_path):
            @asynccontextmanager
            async def open_store(tenant):
                async with MyStorage.open(tmp_path, tenant=tenant) as storage:
                    yield storage.api_keys
            return open_store

`open_store` opens the same data each time it is called. The data is empty when a test begins. The suites of accounts,
boxes, models, policies and secrets open it several times at once, as several servers do. `StreamSuite` and
`ThreadRowSuite` need other fixtures: their modules tell which.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "access.api_keys", "access.gateway_cookies", "access.logins", "access.members", "access.shares", "access.tenants",
    "accounts", "box_leases", "box_rows", "daytona_records", "egress_decisions", "egress_policies", "environments",
    "model.budgets", "model.model_prices", "model.models", "named_secrets", "secrets", "session.mailbox",
    "session.memories", "session.workflows", "streams", "subscriptions", "thread_rows",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from holdfast.testing.store_suites.access.api_keys import ApiKeySuite  # noqa: E402
from holdfast.testing.store_suites.access.gateway_cookies import CookieSuite  # noqa: E402
from holdfast.testing.store_suites.access.logins import LoginSuite  # noqa: E402
from holdfast.testing.store_suites.access.members import MemberSuite  # noqa: E402
from holdfast.testing.store_suites.access.shares import ShareSuite  # noqa: E402
from holdfast.testing.store_suites.access.tenants import TenantSuite  # noqa: E402
from holdfast.testing.store_suites.accounts import AccountSuite  # noqa: E402 - after the rewrite is asked for
from holdfast.testing.store_suites.box_leases import BoxLeaseSuite  # noqa: E402
from holdfast.testing.store_suites.box_rows import BoxRowSuite  # noqa: E402
from holdfast.testing.store_suites.daytona_records import RecordSuite  # noqa: E402
from holdfast.testing.store_suites.egress_decisions import DecisionSuite  # noqa: E402
from holdfast.testing.store_suites.egress_policies import PolicySuite  # noqa: E402
from holdfast.testing.store_suites.environments import EnvironmentSuite  # noqa: E402
from holdfast.testing.store_suites.model.budgets import BudgetSuite  # noqa: E402
from holdfast.testing.store_suites.model.model_prices import PriceSuite  # noqa: E402
from holdfast.testing.store_suites.model.models import ModelSuite  # noqa: E402
from holdfast.testing.store_suites.named_secrets import NamedSecretSuite  # noqa: E402
from holdfast.testing.store_suites.secrets import SecretSuite  # noqa: E402
from holdfast.testing.store_suites.session.mailbox import MessageSuite  # noqa: E402
from holdfast.testing.store_suites.session.memories import MemorySuite  # noqa: E402
from holdfast.testing.store_suites.session.workflows import WorkflowSuite  # noqa: E402
from holdfast.testing.store_suites.streams import StreamSuite  # noqa: E402
from holdfast.testing.store_suites.subscriptions import SubscriptionSuite  # noqa: E402
from holdfast.testing.store_suites.thread_rows import ThreadRowSuite  # noqa: E402

__all__ = [
    "AccountSuite", "ApiKeySuite", "BoxLeaseSuite", "BoxRowSuite", "BudgetSuite", "CookieSuite", "DecisionSuite",
    "EnvironmentSuite", "LoginSuite", "MemberSuite", "MemorySuite", "MessageSuite", "ModelSuite", "NamedSecretSuite",
    "PolicySuite", "PriceSuite", "RecordSuite", "SecretSuite", "ShareSuite", "StreamSuite", "SubscriptionSuite",
    "TenantSuite", "ThreadRowSuite", "WorkflowSuite",
]  # fmt: skip
