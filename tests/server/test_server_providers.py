"""What becomes of providers and boxes when an account changes or goes: the token of this kind names a folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, CannotIsolate
from holdfast.api.errors.providers import AccountInUse, InvalidAccount
from holdfast.api.providers import AccountChange
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.pool_rules import PoolSettings
from holdfast.providers.accounts import AccountRow, Accounts
from holdfast.providers.descriptor import ProviderDescriptor, Setting
from holdfast.server.provider.providers import ServerProviders
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.provider_accounts import SqliteAccounts
from holdfast.testing.dummy import DummyProvider

pytestmark = pytest.mark.anyio

ONE, OTHER = "token-0123456789abcdef", "token-fedcba9876543210"


def make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    if settings["shed_token"] is None:
        raise CannotIsolate("there is no token", hint="give one")
    if settings["shed_roof"] == "none":
        raise CannotIsolate(f"{settings['shed_token']} needs a roof")
    return DummyProvider(home / settings["shed_token"], name="shed")


TOKEN = Setting("shed_token", "Token.", variable="SHED_TOKEN", secret=True)
SHED = ProviderDescriptor("shed", make, settings=(TOKEN, Setting("shed_roof", "Roof.")))


class World:
    def __init__(self, providers: ServerProviders, boxes: Boxes, store: SqliteAccounts) -> None:
        self.providers = providers
        self.boxes = boxes
        self.store = store

    async def put(self, name: str = "work", token: str | None = ONE, **settings: str | None) -> None:
        given = {} if token is None else {"shed_token": token}
        change = AccountChange(kind="shed", settings=dict(settings), credential=given)
        await self.providers.put(name, change, self.boxes)

    async def create(self, provider: str = "work") -> str:
        return (await self.boxes.create(BoxSpec(provider=provider))).id

    def dummy(self, name: str = "work") -> DummyProvider:
        return cast("DummyProvider", self.providers.providers[name])


@asynccontextmanager
async def open_world(
    path: Path, *, secret: bytes = b"s" * 32, kinds: Mapping[str, ProviderDescriptor] | None = None, **environment: str
) -> AsyncIterator[World]:
    known = {"shed": SHED} if kinds is None else kinds
    pool = PoolSettings(boxes=2, quiet_seconds=0.0, memory=lambda: 1.0)
    async with Database(path / "data.db") as database, SqliteBoxes(path / "data.db") as rows:
        store = SqliteAccounts(database)
        async with Accounts(store, secret, known) as accounts:
            providers = ServerProviders(
                accounts, known, path / "home", cast("Egress", None), flags={}, environment=environment
            )
            await providers.open_accounts({})
            boxes = Boxes(rows, providers.providers, node="here", pool=pool)
            try:
                yield World(providers, boxes, store)
            finally:
                await boxes.close()
                await providers.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        yield world


async def test_the_credential_of_another_account_is_refused_and_the_old_one_stays(world: World) -> None:
    await world.put()
    box = await world.create()
    with pytest.raises(InvalidAccount, match=f"another account: it does not have box {box}"):
        await world.put(token=OTHER)
    assert world.dummy().folder.name == ONE
    assert (await world.boxes.sweep()).gone == ()
    async with await world.boxes.open(box) as opened:
        assert (await opened.exec(["echo", "hello"])).text == "hello\n"
    await world.boxes.delete(box)
    await world.put(token=OTHER)
    assert world.dummy().folder.name == OTHER


async def test_an_account_that_cannot_be_stored_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(row: AccountRow, now: int) -> None:
        raise OSError("the disk is full")

    await world.put()
    monkeypatch.setattr(world.store, "put", fail)
    with pytest.raises(OSError, match="full"):
        await world.put(token=OTHER)
    with pytest.raises(OSError, match="full"):
        await world.put("new")
    assert world.dummy().folder.name == ONE
    assert list(world.providers.providers) == ["work"]


async def test_settings_that_make_no_sense_to_the_provider_are_refused_without_the_credential(world: World) -> None:
    with pytest.raises(InvalidAccount, match=r"work cannot be used: \*+ needs a roof"):
        await world.put(shed_roof="none")
    assert list(world.providers.providers) == []
    assert await world.store.load_all() == []


async def test_an_account_in_which_a_box_is_being_created_is_not_removed(world: World) -> None:
    await world.put()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await go_on.wait()

    world.dummy().at["create"] = hold
    creating = asyncio.create_task(world.create())
    await entered.wait()
    for change in (world.providers.remove("work", world.boxes), world.put(token=OTHER)):
        with pytest.raises(AccountInUse):
            await change
    go_on.set()
    box = await creating
    with pytest.raises(AccountInUse, match="it has 1 box"):
        await world.providers.remove("work", world.boxes)
    await world.boxes.delete(box)
    await world.providers.remove("work", world.boxes)


async def test_the_pool_of_an_account_goes_with_it(world: World) -> None:
    await world.put()
    dummy = world.dummy()
    await world.boxes.pool.keep(BoxSpec(provider="work"), 2)
    await asyncio.wait_for(world.boxes.pool.settled(), 60)
    assert len(await dummy.find()) == 2
    await world.providers.remove("work", world.boxes)
    assert await dummy.find() == []
    assert world.boxes.pool.statistics().size == 0


async def test_without_its_account_a_kind_uses_the_environment_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, shed_token=OTHER) as world:
        await world.put("shed")
        assert (await world.providers.record("shed", world.boxes)).credential == "sealed"
        assert world.dummy("shed").folder.name == ONE
        await world.providers.remove("shed", world.boxes)
        assert (await world.providers.record("shed", world.boxes)).credential == "SHED_TOKEN"
        assert world.dummy("shed").folder.name == OTHER


async def test_an_account_that_cannot_be_opened_says_why_and_keeps_its_boxes(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.put()
        box = await world.create()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"secret": b"o" * 32}, "the credential of work cannot be read"),
        ({"kinds": {}}, "there is no kind of provider shed"),
    ]
    for changed, why in cases:
        async with open_world(tmp_path, **changed) as world:
            record = await world.providers.record("work", world.boxes)
            assert (record.is_ready, record.boxes) == (False, 1)
            assert why in (record.reason or "")
            assert "holdfast provider" in (record.hint or "")
            await world.boxes.sweep()
            with pytest.raises(BoxError, match=why):
                await world.boxes.open(box)
    async with open_world(tmp_path) as world:
        async with await world.boxes.open(box) as opened:
            assert (await opened.exec(["echo", "hello"])).text == "hello\n"
        await world.boxes.delete(box)


async def test_credentials_are_taken_out_of_every_line_of_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.put()
    logging.getLogger().addHandler(caplog.handler)
    caplog.handler.addFilter(world.providers._filter)
    logging.getLogger("vendor").warning("%s is refused", ONE)
    assert caplog.messages[-1] == f"{'*' * len(ONE)} is refused"
