"""Quotas of tenants: requests, boxes, runs, storage and spending, each refused with a hint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.api.access.tenants import TenantQuotas
from holdfast.api.errors import QuotaExceeded, TooManyRequests
from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.egress.models.budgets import Budgets
from holdfast.server.tenant.quotas import Quotas
from holdfast.testing.server import ServerProcess


class World:
    def __init__(self, owner: httpx.Client, tenant: httpx.Client) -> None:
        self.owner = owner
        self.tenant = tenant

    def limit(self, **quotas: Any) -> None:
        assert self.owner.put("/v1/tenants/acme/quotas", json=quotas).status_code == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("quotas") / "home"
    with ServerProcess(home, providers=dummies, daytona=True) as server, api_of(server) as owner:
        key = owner.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as tenant:
            yield World(owner, tenant)


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.limit()


def test_a_tenant_sends_so_many_requests_a_second(world: World) -> None:
    world.limit(requests=0.05)
    path = "/v1/stream/threads/t-none?offset=-1"
    answers = [world.tenant.get(each) for each in ("/v1/caller", "/v1/caller", path)]
    refused = [each for each in answers if each.status_code == 429]
    assert len(refused) == 2, "one at once"
    for each in refused:
        assert 1 <= int(each.headers["retry-after"]) <= 20
        assert "0.05 requests a second" in each.json()["error"]["message"]
        assert each.json()["error"]["hint"]
    assert world.owner.get("/v1/caller").status_code == 200, "of another tenant"


def test_the_daytona_api_and_ports_count_as_requests_and_changes_are_audited(world: World) -> None:
    box = world.tenant.post("/v1/boxes", json={}).json()["box"]["id"]
    for path in ("/compat/daytona/sandbox", f"/v1/boxes/{box}/ports/3000/"):
        world.limit(requests=0.05)
        answers = [world.tenant.get(path).status_code for _ in range(3)]
        assert answers[1:] == [429, 429], (path, answers)
    world.limit()
    world.tenant.delete(f"/v1/boxes/{box}")
    assert world.tenant.delete("/compat/daytona/sandbox/none").status_code == 404
    assert world.tenant.delete("/compat/daytona/toolbox/none/files?path=x").status_code == 404
    deadline = time.monotonic() + 240
    audited: list[tuple[str, str]] = []
    while ("DELETE", "/compat/daytona/sandbox/none") not in audited:
        assert time.monotonic() < deadline, audited
        entries = world.tenant.get("/v1/audit?limit=1000").json()["entries"]
        audited = [(each["payload"]["method"], each["payload"]["path"]) for each in entries]
    assert not [path for _, path in audited if "/toolbox/" in path], "by the hundred"


def test_a_tenant_has_so_many_boxes(world: World) -> None:
    world.limit(boxes=1)
    box = world.tenant.post("/v1/boxes", json={}).json()["box"]["id"]
    for method, path in (("POST", "/v1/boxes"), ("POST", f"/v1/boxes/{box}/fork")):
        refused = world.tenant.request(method, path, json={})
        assert refused.status_code == 403, refused.text
        assert refused.json()["error"]["code"] == "quota_exceeded"
    assert world.owner.post("/v1/boxes", json={}).status_code == 201
    assert world.tenant.delete(f"/v1/boxes/{box}").status_code == 200
    again = world.tenant.post("/v1/boxes", json={})
    assert again.status_code == 201
    world.tenant.delete(f"/v1/boxes/{again.json()['box']['id']}")


def test_a_tenant_over_its_storage_reads_and_deletes(world: World) -> None:
    thread = world.tenant.post("/v1/threads", json={}).json()["id"]
    world.limit(storage=1)
    entry = [{"payload": {"type": "chat", "text": "more"}}]
    for answer in (
        world.tenant.post("/v1/threads", json={}),
        world.tenant.post(f"/v1/stream/threads/{thread}", json=entry),
        world.tenant.put("/v1/stream/notes", json=[]),
        world.tenant.post("/v1/workspaces", content=b"archive"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "quota_exceeded"), answer.text
    assert world.tenant.get(f"/v1/stream/threads/{thread}?offset=-1").status_code == 200
    assert world.tenant.delete(f"/v1/threads/{thread}").status_code == 204


def test_quotas_are_the_operators(world: World) -> None:
    world.limit(boxes=3)
    assert world.tenant.put("/v1/tenants/acme/quotas", json={}).status_code == 403
    assert world.owner.get("/v1/tenants/acme/quotas").json()["boxes"] == 3
    assert world.owner.put("/v1/tenants/nobody/quotas", json={}).status_code == 404
    assert world.owner.put("/v1/tenants/acme/quotas", json={"boxes": -1}).status_code == 422


# --- decisions ---


def quotas(found: TenantQuotas, ticks: list[float]) -> Quotas:
    return Quotas(lambda: found, Path("/nowhere"), lambda: ticks[0])


def test_requests_come_back_with_time() -> None:
    ticks = [100.0]
    limited = quotas(TenantQuotas(requests=2), ticks)
    for _ in range(4):
        limited.take_request()
    with pytest.raises(TooManyRequests) as refused:
        limited.take_request()
    assert refused.value.headers == ((b"retry-after", b"1"),)
    ticks[0] += 0.5
    limited.take_request()
    with pytest.raises(TooManyRequests):
        limited.take_request()


@pytest.mark.anyio
async def test_runs_at_once_are_counted() -> None:
    limited = quotas(TenantQuotas(runs=2), [0.0])

    async def one() -> int:
        return 1

    async def two() -> int:
        return 2

    await limited.check_run(one)
    with pytest.raises(TooManyRequests, match="2 runs at once"):
        await limited.check_run(two)
    with pytest.raises(QuotaExceeded):
        quotas(TenantQuotas(boxes=0), [0.0]).check_box(0)
    quotas(TenantQuotas(), [0.0]).check_box(10**6)


@pytest.mark.parametrize(
    ("own", "ceiling", "expected"),
    [
        (None, None, None),
        (None, 5.0, Budget(cost=5)),
        (Budget(cost=3), 5.0, Budget(cost=3)),
        (Budget(cost=9, tokens=7), 5.0, Budget(cost=5, tokens=7)),
        (Budget(tokens=7), 5.0, Budget(cost=5, tokens=7)),
        (Budget(cost=9), None, Budget(cost=9)),
    ],
    ids=str,
)
def test_the_budget_of_a_day_is_at_most_what_the_operator_allows(
    own: Budget | None, ceiling: float | None, expected: Budget | None
) -> None:
    limited = quotas(TenantQuotas(spend=ceiling), [0.0])
    budgets = Budgets(None, day_ceiling=lambda: limited.day_budget)  # type: ignore[arg-type]
    if own is not None:
        budgets._known[BudgetScope.DAY, ""] = own
    assert budgets.find(BudgetScope.DAY) == expected
    assert budgets.find(BudgetScope.THREAD, "t-1") is None
