"""Webhooks have no key, so their path tells the tenant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.server.wire.dispatch import Dispatch
from holdfast.server.wire.tenant_dispatch import TenantDispatch

pytestmark = pytest.mark.anyio


class Fronts:
    has_others = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def front(self, name: str) -> Dispatch:
        self.asked.append(name)

        async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

        return cast(Dispatch, nothing)

    async def front_of_box(self, box: str) -> Dispatch:
        raise AssertionError(box)


@pytest.mark.parametrize(
    ("path", "key", "tenant"),
    [
        ("/v1/hooks/acme~g-1", None, "acme"),
        ("/v1/channel-events/acme~t-1/slack", None, "acme"),
        ("/v1/hooks/g-1", None, "default"),
        ("/v1/hooks/ACME~g-1", None, "default"),
        ("/v1/threads/acme~t-1", None, "default"),
        ("/v1/hooks/acme~g-1", b"Bearer hf_other.secret", "other"),
    ],
)
async def test_a_webhook_goes_to_the_tenant_that_its_path_names(path: str, key: bytes | None, tenant: str) -> None:
    fronts = Fronts()
    default = SimpleNamespace(is_elsewhere=None, ends_with_client=None, destination=lambda *_: None)
    dispatch = TenantDispatch(cast(Dispatch, default), fronts)
    headers = [] if key is None else [(b"authorization", key)]
    scope = {"type": "http", "path": path, "raw_path": path.encode(), "headers": headers, "state": {}}
    await dispatch(scope, None, None)
    assert fronts.asked == [tenant]
