"""Accounts of providers: what makes sense, where a credential comes from, and credentials that nobody reads at rest."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.stores import open_accounts

from holdfast.api.errors.providers import AccountNotFound, CredentialMissing, InvalidAccount
from holdfast.providers.accounts import Accounts, account_home, choose
from holdfast.providers.modal.descriptor import MODAL
from holdfast.providers.registry import descriptors

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
ID, KEY = "ak-0123456789abcdefghij", "as-0123456789abcdefghij"
TOKEN = {"modal_token_id": ID, "modal_token_secret": KEY}
URL = "https://modal.example.com"


@pytest.fixture
async def accounts(tmp_path: Path) -> AsyncIterator[Accounts]:
    async with open_accounts(tmp_path / "data.db", SECRET) as accounts:
        yield accounts


async def put(
    accounts: Accounts,
    name: str = "work",
    kind: str | None = "modal",
    settings: Mapping[str, Any] | None = None,
    credential: Mapping[str, str] | None = None,
) -> None:
    await accounts.write(accounts.prepare(name, kind, settings or {}, TOKEN if credential is None else credential))


async def test_an_account_has_a_name_a_kind_settings_and_a_credential(accounts: Accounts) -> None:
    await put(accounts, settings={"modal_app": "boxes", "modal_direct": True})
    await put(accounts, "modal", None)
    await put(accounts, "mine", "sprites", credential={"sprites_token": " token \n"})
    assert [(row.name, row.kind) for row in accounts.all()] == [
        ("mine", "sprites"), ("modal", "modal"), ("work", "modal"),
    ]  # fmt: skip
    assert accounts.values(accounts.get("work")) == {**TOKEN, "modal_app": "boxes", "modal_direct": True}
    assert accounts.values(accounts.get("mine")) == {"sprites_token": "token"}
    await accounts.remove("work")
    with pytest.raises(AccountNotFound, match="'work'"):
        accounts.get("work")


async def test_each_account_has_a_home_of_its_own(accounts: Accounts) -> None:
    await put(accounts)
    await put(accounts, "modal", None)
    homes = [account_home(Path("/home"), row) for row in accounts.all()]
    assert homes == [Path("/home"), Path("/home/accounts/work")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "Upper"}, "not a valid name"),
        ({"name": ".."}, "not a valid name"),
        ({"name": "a/b"}, "not a valid name"),
        ({"name": ""}, "not a valid name"),
        ({"name": "x" * 64}, "not a valid name"),
        ({"name": "docker"}, "another kind"),
        ({"kind": None}, "the kind of work is not known"),
        ({"kind": "nowhere"}, "no kind of provider 'nowhere'"),
        ({"kind": "local"}, "local needs no account"),
        ({"kind": "process"}, "process needs no account"),
        ({"settings": {"modal_speed": "high"}}, "has no setting 'modal_speed'"),
        ({"settings": {"sprites_url": URL}}, "has no setting 'sprites_url'"),
        ({"settings": {"modal_token_secret": KEY}}, "is secret"),
        ({"settings": {"modal_app": True}}, "not a text"),
        ({"settings": {"modal_app": "a\nb"}}, "not a text"),
        ({"settings": {"modal_direct": "yes"}}, "not a switch"),
        ({"settings": {"modal_server_url": "http://modal.example.com"}}, "in plain text"),
        ({"credential": {}}, "needs a credential"),
        ({"credential": {"modal_app": "boxes"}}, "not part of a credential"),
        ({"credential": {"modal_token_secret": f"{KEY} more"}}, "empty, or contains spaces"),
        ({"credential": {"modal_token_secret": f"{KEY}\r\nx-evil: 1"}}, "empty, or contains spaces"),
        ({"credential": {"modal_token_secret": KEY * 1000}}, "empty, or contains spaces"),
    ],
)
async def test_an_account_that_makes_no_sense_is_refused(accounts: Accounts, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidAccount, match=words) as caught:
        await put(accounts, **given)
    assert KEY not in f"{caught.value} {caught.value.hint}"
    assert accounts.all() == []


async def test_a_change_keeps_what_it_does_not_name(accounts: Accounts) -> None:
    await put(accounts, settings={"modal_app": "boxes"})
    await put(accounts, kind=None, credential={"modal_token_secret": "as-new"})
    assert accounts.values(accounts.get("work")) == {
        "modal_app": "boxes", "modal_token_id": ID, "modal_token_secret": "as-new",
    }  # fmt: skip
    with pytest.raises(InvalidAccount, match="is an account of modal"):
        await put(accounts, kind="sprites", credential={"sprites_token": "token"})


async def test_a_credential_does_not_move_to_another_server(accounts: Accounts) -> None:
    await put(accounts)
    moved = {"modal_server_url": "https://evil.example.com"}
    with pytest.raises(InvalidAccount, match="need its credential again: modal_token_id, modal_token_secret"):
        await put(accounts, settings=moved, credential={})
    with pytest.raises(InvalidAccount, match="need its credential again: modal_token_secret"):
        await put(accounts, settings=moved, credential={"modal_token_id": ID})
    assert accounts.get("work").plain == {}
    await put(accounts, settings=moved)
    assert accounts.get("work").plain == moved
    await put(accounts, settings={"modal_server_url": None})
    assert accounts.get("work").plain == {}


# --- where a credential comes from ----------------------------------------------------------------------------------

FLAG = {"modal_token_id": "flag", "modal_token_secret": "flag"}
SEALED = {"modal_token_id": "sealed", "modal_token_secret": "sealed"}
VARIABLE = {"modal_token_id": "variable", "modal_token_secret": "variable"}


@pytest.mark.parametrize(
    ("flags", "stored", "environment", "source", "values"),
    [
        ({}, None, {}, None, {}),
        ({}, None, VARIABLE, "MODAL_TOKEN_ID", VARIABLE),
        ({}, SEALED, VARIABLE, "sealed", SEALED),
        (FLAG, SEALED, VARIABLE, "--modal-token-id", FLAG),
        (FLAG, None, VARIABLE, "--modal-token-id", FLAG),
        # Halves of two never meet.
        ({"modal_token_id": "flag"}, SEALED, VARIABLE, "--modal-token-id", {"modal_token_id": "flag"}),
        # A sealed one goes nowhere that the environment says.
        ({}, SEALED, {"modal_server_url": URL}, "sealed", SEALED),
        ({"modal_server_url": URL}, SEALED, {}, "sealed", {**SEALED, "modal_server_url": URL}),
        # An account without a credential only changes settings.
        ({}, {"modal_app": "a"}, {**VARIABLE, "modal_app": "b"}, "MODAL_TOKEN_ID", {**VARIABLE, "modal_app": "a"}),
        (FLAG, {"modal_app": "a"}, {"modal_server_url": URL}, "--modal-token-id", {**FLAG, "modal_server_url": URL}),
        ({"docker_host": "x"}, None, {"docker_host": "y"}, None, {}),
    ],
)
def test_a_credential_comes_from_a_flag_an_account_or_a_variable(
    flags: dict[str, Any], stored: dict[str, Any] | None, environment: dict[str, Any], source: str | None, values: Any
) -> None:
    chosen = choose(MODAL, flags=flags, stored=stored, environment=environment)
    assert (chosen.credential, chosen.values) == (source, values)


def test_every_setting_that_sounds_secret_is_marked_as_secret() -> None:
    sounds = re.compile(r"token|secret|password|credential|api_key")
    found = {each.name: each.secret for known in descriptors() for each in known.settings if sounds.search(each.name)}
    assert found
    assert all(found.values()), found


# --- credentials at rest --------------------------------------------------------------------------------------------


async def test_no_file_and_no_text_shows_a_credential(tmp_path: Path) -> None:
    async with open_accounts(tmp_path / "data.db", SECRET) as accounts:
        await put(accounts, settings={"modal_app": "boxes"})
        files = [path for path in tmp_path.iterdir() if path.is_file()]
        assert any(b"boxes" in path.read_bytes() for path in files)
        for path in files:
            assert KEY[-8:].encode() not in path.read_bytes()
        shown = f"{accounts.all()} {vars(accounts)} {choose(MODAL, flags=TOKEN, stored=None, environment={})}"
        assert KEY not in shown
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


async def test_a_credential_that_was_sealed_with_another_secret_has_to_be_given_again(tmp_path: Path) -> None:
    async with open_accounts(tmp_path / "data.db", SECRET) as accounts:
        await put(accounts)
    async with open_accounts(tmp_path / "data.db", b"o" * 32) as accounts:
        with pytest.raises(CredentialMissing, match="cannot be read"):
            accounts.values(accounts.get("work"))
        with pytest.raises(InvalidAccount, match="needs a credential"):
            await put(accounts, credential={})
        await put(accounts)
        assert accounts.values(accounts.get("work")) == TOKEN


@pytest.mark.parametrize(
    "tamper",
    [
        """UPDATE provider_accounts SET settings = '{"modal_server_url": "https://evil.example.com"}'""",
        "UPDATE provider_accounts SET kind = 'sprites' WHERE name = 'work'",
        "UPDATE provider_accounts SET credential = (SELECT credential FROM provider_accounts WHERE name = 'other')",
        "UPDATE provider_accounts SET credential = x'0102' WHERE name = 'work'",
    ],
)
async def test_a_credential_does_not_open_for_another_place(tmp_path: Path, tamper: str) -> None:
    async with open_accounts(tmp_path / "data.db", SECRET) as accounts:
        await put(accounts)
        await put(accounts, "other")
    with sqlite3.connect(tmp_path / "data.db") as connection:
        connection.execute(tamper)
    connection.close()
    async with open_accounts(tmp_path / "data.db", SECRET) as accounts:
        with pytest.raises(CredentialMissing, match="cannot be read"):
            accounts.values(accounts.get("work"))
