"""Codes of links that log a browser in, in memory."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import Unauthorized
from holdfast.threads.access.credentials import Grant
from holdfast.threads.access.logins import CODE_MS, Login, Logins

pytestmark = pytest.mark.anyio
OWNER = Grant("default", user="ada", key="k-1")
VIEWER = Grant("default", user="bob", key="k-2", role=TenantRole.VIEWER)


class Stored:
    """A store that only takes logins."""

    async def add(self, login: Login, digest: bytes) -> None: ...

    async def remove_expired(self, now: int) -> int:
        return 0


@pytest.fixture
def logins() -> Logins:
    store: Any = Stored()
    return Logins(store, "default", lambda: 1)


async def test_nobody_makes_the_codes_of_others_void(logins: Logins) -> None:
    code, expires_at = logins.issue_code(OWNER)
    theirs = [logins.issue_code(VIEWER)[0] for _ in range(200)]
    assert expires_at == 1 + CODE_MS
    assert (await logins.redeem(code))[0].user == "ada"
    with pytest.raises(Unauthorized):
        await logins.redeem(theirs[179])
    for each in theirs[180:]:
        assert (await logins.redeem(each))[0].role is TenantRole.VIEWER
