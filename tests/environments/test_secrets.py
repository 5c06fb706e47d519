"""Secrets: sealed at rest, bound to hosts, rotated, removed, and every step recorded without a value."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.stores import open_secrets

from holdfast.api.errors.secrets import InvalidSecret, SecretMissing, SecretNotFound
from holdfast.api.secrets import Binding, Exposure, Placement, SecretAction, SecretEvent
from holdfast.environments.secrets import Secrets

pytestmark = pytest.mark.anyio

VALUE = "sk-live-0123456789abcdefghij"
NEWER = "sk-live-zyxwvutsrqponmlkjihg"
ROOT = bytes(range(32))
HOST = (Binding(host="api.example.com", name="Authorization", format="Bearer {}"),)


@pytest.fixture
async def secrets(tmp_path: Path) -> AsyncIterator[Secrets]:
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        yield secrets


def files_of(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


async def test_a_secret_is_there_after_a_restart_and_nowhere_in_the_clear(tmp_path: Path) -> None:
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        made = await secrets.set("TOKEN", VALUE, HOST, by="alice")
        assert VALUE.encode() not in files_of(tmp_path)
        assert VALUE not in repr(made)
        assert VALUE not in repr(secrets.all())
    assert VALUE.encode() not in files_of(tmp_path)
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        assert secrets.get("TOKEN") == made
        assert secrets.reveal("TOKEN") == VALUE


async def test_rotation_keeps_the_bindings_and_the_old_value_is_gone(secrets: Secrets) -> None:
    first = await secrets.set("TOKEN", VALUE, HOST, by="alice")
    second = await secrets.rotate("TOKEN", NEWER, by="bob")
    assert (first.version, second.version) == (1, 2)
    assert second.bindings == first.bindings
    assert second.changed_by == "bob"
    assert secrets.reveal("TOKEN") == NEWER


async def test_names_are_known_without_values(secrets: Secrets) -> None:
    await secrets.set("TOKEN", VALUE, HOST, by="alice")
    assert secrets.exists("TOKEN")
    assert not secrets.exists("OTHER")
    assert secrets.missing(["OTHER", "TOKEN", "MORE", "OTHER"]) == ("OTHER", "MORE")


async def test_a_removed_secret_is_gone_and_its_events_stay(secrets: Secrets) -> None:
    await secrets.set("TOKEN", VALUE, HOST, by="alice")
    await secrets.rotate("TOKEN", NEWER, by="bob")
    await secrets.remove("TOKEN", by="carol")
    with pytest.raises(SecretNotFound):
        secrets.get("TOKEN")
    with pytest.raises(SecretMissing, match="TOKEN"):
        secrets.reveal("TOKEN")
    events = await secrets.events("TOKEN")
    assert [(each.action, each.by, each.version) for each in events] == [
        ("removed", "carol", 2), ("rotated", "bob", 2), ("set", "alice", 1),
    ]  # fmt: skip
    again = await secrets.set("TOKEN", VALUE, HOST, by="alice")
    assert again.version == 1


async def test_what_boxes_do_is_recorded_once_for_each_place(secrets: Secrets) -> None:
    await secrets.set("TOKEN", VALUE, HOST, by="alice")
    for _ in range(3):
        secrets.note("TOKEN", SecretAction.USED, box="b-1", thread="t-1", host="api.example.com")
    secrets.note("TOKEN", SecretAction.USED, box="b-2", host="api.example.com")
    secrets.note("TOKEN", SecretAction.REFUSED, box="b-2", host="api.example.com", detail="TRACE")
    events = await secrets.events("TOKEN")
    assert [(each.action, each.box) for each in events] == [
        ("refused", "b-2"), ("used", "b-2"), ("used", "b-1"), ("set", ""),
    ]  # fmt: skip
    await secrets.rotate("TOKEN", NEWER, by="bob")
    secrets.note("TOKEN", SecretAction.USED, box="b-1", thread="t-1", host="api.example.com")
    assert (await secrets.events("TOKEN"))[0].version == 2


async def test_a_reader_sees_what_is_still_being_written_in_its_order(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.set("TOKEN", VALUE, HOST, by="alice")
    writing, free = asyncio.Event(), asyncio.Event()
    add_events = secrets._store.add_events

    async def slowly(events: Sequence[tuple[str, SecretEvent]]) -> None:
        if not writing.is_set():
            writing.set()
            await free.wait()
        await add_events(events)

    monkeypatch.setattr(secrets._store, "add_events", slowly)
    secrets.note("TOKEN", SecretAction.USED, box="b-1", host="api.example.com")
    await writing.wait()
    secrets.note("TOKEN", SecretAction.REFUSED, box="b-1", host="api.example.com")
    reader = asyncio.create_task(secrets.events("TOKEN"))
    asyncio.get_running_loop().call_later(0.05, free.set)
    assert [each.action for each in await reader] == ["refused", "used", "set"]


@pytest.mark.parametrize(
    "attack",
    [
        """UPDATE named_secrets SET bindings = replace(bindings, 'api.example.com', 'evil.example.org')""",
        "UPDATE named_secrets SET expose = 'env'",
        "UPDATE named_secrets SET version = 7",
        "UPDATE named_secrets SET value = (SELECT value FROM named_secrets WHERE name = 'OTHER')",
        "UPDATE named_secrets SET value = x'0102'",
    ],
)
async def test_a_row_that_was_changed_in_the_database_cannot_be_opened(tmp_path: Path, attack: str) -> None:
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        await secrets.set("TOKEN", VALUE, HOST, by="alice")
        await secrets.set("OTHER", NEWER, HOST, by="alice")
    connection = sqlite3.connect(tmp_path / "holdfast.db")
    connection.execute(f"{attack} WHERE name = 'TOKEN'")
    connection.commit()
    connection.close()
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        with pytest.raises(SecretMissing, match="TOKEN cannot be read"):
            secrets.reveal("TOKEN")
        assert secrets.reveal("OTHER") == NEWER


async def test_another_root_secret_opens_nothing(tmp_path: Path) -> None:
    async with open_secrets(tmp_path / "holdfast.db", ROOT) as secrets:
        await secrets.set("TOKEN", VALUE, HOST, by="alice")
    async with open_secrets(tmp_path / "holdfast.db", bytes(32)) as secrets:
        with pytest.raises(SecretMissing):
            secrets.reveal("TOKEN")


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A" * 64, "PATH", "https_proxy", "LD_PRELOAD", "GIT_SSH"])
async def test_a_name_is_that_of_a_variable_without_a_meaning_of_its_own(secrets: Secrets, name: str) -> None:
    with pytest.raises(InvalidSecret):
        await secrets.set(name, VALUE, HOST, by="alice")


@pytest.mark.parametrize(
    "value", ["", "short", "with a blank in the value", "line\nline-0123456789", "ä" * 20, "x" * 9000]
)
async def test_a_bound_value_fits_into_a_request(secrets: Secrets, value: str) -> None:
    with pytest.raises(InvalidSecret) as refused:
        await secrets.set("TOKEN", value, HOST, by="alice")
    assert not value or value not in str(refused.value)
    await secrets.set("TOKEN", VALUE, HOST, by="alice")
    with pytest.raises(InvalidSecret):
        await secrets.rotate("TOKEN", value, by="alice")
    assert secrets.reveal("TOKEN") == VALUE


async def test_an_exposed_value_may_have_lines(secrets: Secrets) -> None:
    await secrets.set("KEY_FILE", "-----BEGIN\nlines\n", expose=Exposure.FILE, by="alice")
    assert secrets.reveal("KEY_FILE") == "-----BEGIN\nlines\n"


@pytest.mark.parametrize(
    "binding",
    [
        Binding(host="*.example.com"),
        Binding(host="203.0.113.7"),
        Binding(host="[2001:db8::1]"),
        Binding(host="203.0.113.0/24"),
        Binding(host="GET api.example.com"),
        Binding(host="api.example.com:443,8443"),
        Binding(host="user@api.example.com"),
        Binding(host="api.example.com/path"),
        Binding(host=""),
        Binding(host="api.example.com", name="Host"),
        Binding(host="api.example.com", name="Transfer-Encoding"),
        Binding(host="api.example.com", name="Proxy-Authorization"),
        Binding(host="api.example.com", name="X\r\nHost: evil"),
        Binding(host="api.example.com", format="Bearer"),
        Binding(host="api.example.com", format="{} {}"),
        Binding(host="api.example.com", format="{}\r\nX: y"),
        Binding(host="api.example.com", placement=Placement.QUERY),
        Binding(host="api.example.com", placement=Placement.QUERY, name="a&b"),
        Binding(host="api.example.com", placement=Placement.BASIC, name="a:b"),
        Binding(host="api.example.com", placement=Placement.GIT),
        Binding(host="api.example.com", placement=Placement.GIT, repositories=("../other",)),
        Binding(host="api.example.com", placement=Placement.GIT, repositories=("acme/..",)),
        Binding(host="api.example.com", placement=Placement.GIT, repositories=("acme/%2e%2e/x",)),
        Binding(host="api.example.com", repositories=("acme/app",)),
    ],
)
async def test_a_binding_that_could_mean_more_than_one_place_is_refused(secrets: Secrets, binding: Binding) -> None:
    with pytest.raises(InvalidSecret):
        await secrets.set("TOKEN", VALUE, [binding], by="alice")
    assert not secrets.exists("TOKEN")


async def test_bindings_are_kept_in_canonical_form(secrets: Secrets) -> None:
    made = await secrets.set(
        "TOKEN",
        VALUE,
        [
            Binding(host="API.Example.com.:443"),
            Binding(host="git.example.com:8443", placement=Placement.GIT, repositories=("/acme/app.git", "acme/app")),
        ],
        by="alice",
    )
    assert [(each.host, each.name, each.repositories) for each in made.bindings] == [
        ("api.example.com", "Authorization", ()),
        ("git.example.com:8443", "x-access-token", ("acme/app",)),
    ]


async def test_a_secret_that_goes_nowhere_is_refused(secrets: Secrets) -> None:
    with pytest.raises(InvalidSecret, match="would go nowhere"):
        await secrets.set("TOKEN", VALUE, by="alice")


async def test_a_placeholder_does_not_show_the_value(secrets: Secrets) -> None:
    made = await secrets.set("TOKEN", VALUE, HOST, by="alice")
    assert made.placeholder == "holdfast-placeholder-TOKEN"
    for placeholder in (VALUE, VALUE[:10], f"x{VALUE}", "two\nlines"):
        with pytest.raises(InvalidSecret):
            await secrets.set("TOKEN", VALUE, HOST, placeholder=placeholder, by="alice")
    assert (await secrets.set("TOKEN", VALUE, HOST, placeholder="sk-test-none", by="a")).placeholder == "sk-test-none"
