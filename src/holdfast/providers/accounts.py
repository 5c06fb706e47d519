"""The accounts of providers: their names, settings and sealed credentials, and where a credential comes from.

An account is a provider somewhere else with a credential of its own. The default account of a kind has the name of the
kind. It need not be stored: options of `holdfast up`, the environment or the vendor's own file may have its credential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit

from holdfast.api.errors.providers import AccountNotFound, CredentialMissing, InvalidAccount
from holdfast.api.ids import now_ms
from holdfast.encryption import CannotDecrypt, Cipher, is_plain_text
from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind

SEALED: Final = "sealed"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SECRET: Final = re.compile(r"[!-~]{1,4096}")
_FOLDER: Final = "accounts"
_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One account as it is stored."""

    name: str
    kind: str
    settings: str = "{}"
    """A JSON object of what is not secret."""
    credential: bytes | None = field(default=None, repr=False)
    """A JSON object of the secret settings, sealed for `purpose`."""

    @property
    def purpose(self) -> str:
        """What the credential is sealed for. In a row that points at another server, it cannot be opened."""
        return f"{self.name} {self.kind} {self.settings}"

    @property
    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.settings)
        return found

    @property
    def is_default(self) -> bool:
        return self.name == self.kind


class AccountStore(Protocol):
    """The accounts that were added to a server. What `put` and `remove` have returned from is on disk."""

    async def load_all(self) -> list[AccountRow]: ...

    async def put(self, row: AccountRow, now: int) -> None:
        """Write a row, in place of the one of that name. `now` is UTC milliseconds."""

    async def remove(self, name: str) -> bool:
        """Remove a row. Returns whether there was one."""


# --- where settings come from ---


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings of the default account of a kind."""

    values: Mapping[str, Any] = field(repr=False)
    credential: str | None
    """Where the credential comes from. None if no setting has one."""


def choose(
    descriptor: ProviderDescriptor,
    *,
    flags: Mapping[str, Any],
    stored: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
) -> Chosen:
    """Returns the settings by which the default account is opened: flags first, then the account, then the environment.

    A credential is taken as a whole from one of them, so that halves of two never meet. A sealed one goes nowhere that
    the environment says: where an account has a credential, the environment is not used at all.
    """
    secrets = {each.name: each for each in descriptor.secrets}
    known = {each.name for each in descriptor.settings}
    account = stored or {}
    if any(flags.get(name) for name in secrets):
        order: tuple[Mapping[str, Any], ...] = (flags, environment)
    elif any(account.get(name) for name in secrets):
        order = (flags, account)
    else:
        order = (flags, account, environment)
    values = {name: value for layer in reversed(order) for name, value in layer.items() if name in known - set(secrets)}
    for layer in order:
        given = {name: layer[name] for name in secrets if layer.get(name)}
        if given:
            first = secrets[next(iter(given))]
            source = first.option if layer is flags else SEALED if layer is account else first.variable
            return Chosen({**values, **given}, source)
    return Chosen(values, None)


def file_in_use(descriptor: ProviderDescriptor) -> str | None:
    """Returns the vendor's own file, if there is one. Blocks."""
    path = descriptor.credential_file
    return path if path is not None and Path(path).expanduser().is_file() else None


def account_home(home: Path, row: AccountRow) -> Path:
    """Returns where an account keeps its records: each has a folder of its own."""
    return home if row.is_default else home / _FOLDER / row.name


# --- the accounts of a server ---


class Accounts:
    """All accounts, in a store and in memory. `async with` loads them.

    Credentials are encrypted in both. One is decrypted only while its provider is opened.
    """

    def __init__(
        self,
        store: AccountStore,
        secret: bytes,
        kinds: Mapping[str, ProviderDescriptor],
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`secret` has 32 bytes and is used only for this. `kinds` are the providers that are offered."""
        self._store = store
        self._cipher = Cipher(secret)
        self._kinds = kinds
        self._clock = clock
        self._rows: dict[str, AccountRow] = {}

    async def __aenter__(self) -> Self:
        self._rows = {row.name: row for row in await self._store.load_all()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does not close the store, which its owner closes."""

    def all(self) -> list[AccountRow]:
        return sorted(self._rows.values(), key=lambda row: row.name)

    def find(self, name: str) -> AccountRow | None:
        return self._rows.get(name)

    def get(self, name: str) -> AccountRow:
        """Raises `AccountNotFound`."""
        row = self._rows.get(name)
        if row is None:
            raise AccountNotFound(f"no account {name[:80]!r} was added", hint="list them with holdfast provider list")
        return row

    def credential(self, row: AccountRow) -> dict[str, str]:
        """Returns the secret settings of an account. Raises `CredentialMissing` if they cannot be decrypted."""
        if row.credential is None:
            return {}
        try:
            found: dict[str, str] = json.loads(self._cipher.decrypt(row.credential, row.purpose))
        except CannotDecrypt as error:
            hint = f"give it again: holdfast provider add {row.name}"
            raise CredentialMissing(f"the credential of {row.name} cannot be read: {error}", hint=hint) from None
        return found

    def values(self, row: AccountRow) -> dict[str, Any]:
        """Returns all settings of an account, as its provider takes them. Raises `CredentialMissing`."""
        descriptor = self._kinds.get(row.kind)
        folders = {} if descriptor is None else {each.name for each in descriptor.settings if _is_folder(each)}
        plain = {name: Path(value) if name in folders else value for name, value in row.plain.items()}
        return {**plain, **self.credential(row)}

    # --- changing ---

    def prepare(
        self, name: str, kind: str | None, settings: Mapping[str, Any], credential: Mapping[str, str]
    ) -> AccountRow:
        """Returns the row of a new or changed account, and writes nothing. Raises `InvalidAccount`.

        A credential stays only while the other settings stay.
        """
        before = self._rows.get(_checked_name(name))
        if before is None and len(self._rows) >= _MOST:
            raise InvalidAccount(f"there are {_MOST} accounts already", hint="remove those that are not needed")
        descriptor = self._descriptor(name, kind, before)
        plain = {} if before is None else before.plain
        changed = {**plain, **_checked_settings(descriptor, settings)}
        changed = {each: value for each, value in sorted(changed.items()) if value is not None}
        secrets = _checked_credential(descriptor, credential)
        row = AccountRow(name, descriptor.name, json.dumps(changed))
        if before is not None and before.credential is not None:
            secrets = self._carried_over(before, row, secrets)
        if not secrets:
            if not row.is_default:
                wanted = ", ".join(each.name for each in descriptor.secrets)
                raise InvalidAccount(f"{name} needs a credential of its own: {wanted}", hint=_how_to_give(name, row))
            return row
        for each, value in changed.items():
            if isinstance(value, str) and is_plain_text(value):
                raise InvalidAccount(
                    f"{each}: the credential would be sent to {urlsplit(value).hostname} in plain text",
                    hint="use https, or a server on this machine or network",
                )
        return AccountRow(name, row.kind, row.settings, self._cipher.encrypt(json.dumps(secrets), row.purpose))

    def _carried_over(self, before: AccountRow, row: AccountRow, given: dict[str, str]) -> dict[str, str]:
        """Returns the credential of a changed account: what it had, and what is given now in its place."""
        try:
            had = self.credential(before)
        except CredentialMissing:
            return given
        if before.purpose == row.purpose:
            return {**had, **given}
        if missing := had.keys() - given.keys():
            raise InvalidAccount(
                f"other settings of {row.name} need its credential again: {', '.join(sorted(missing))}",
                hint=_how_to_give(row.name, row),
            )
        return given

    def _descriptor(self, name: str, kind: str | None, before: AccountRow | None) -> ProviderDescriptor:
        having = sorted(each.name for each in self._kinds.values() if each.has_accounts)
        kinds = f"kinds with accounts: {', '.join(having)}"
        if kind is None:
            kind = name if before is None else before.kind
            if kind not in self._kinds:
                raise InvalidAccount(f"the kind of {name} is not known", hint=f"give --kind; {kinds}")
        elif before is not None and before.kind != kind:
            raise InvalidAccount(f"{name} is an account of {before.kind}", hint=f"holdfast provider remove {name}")
        if kind not in self._kinds:
            raise InvalidAccount(f"there is no kind of provider {kind[:80]!r}", hint=kinds)
        if not self._kinds[kind].has_accounts:
            raise InvalidAccount(f"{kind} needs no account", hint=f"use it as it is: --provider {kind}; {kinds}")
        if name in self._kinds and name != kind:
            raise InvalidAccount(f"{name} is the name of another kind of provider", hint="choose another name")
        return self._kinds[kind]

    async def write(self, row: AccountRow) -> None:
        await self._store.put(row, self._clock())
        self._rows[row.name] = row

    async def remove(self, name: str) -> None:
        await self._store.remove(name)
        self._rows.pop(name, None)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidAccount(
            f"{name[:80]!r} is not a valid name for an account", hint="use lower case letters, digits, dots, dashes"
        )
    return name


def _checked_settings(descriptor: ProviderDescriptor, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name: each for each in descriptor.settings if not each.secret}
    for name, value in given.items():
        if any(each.name == name for each in descriptor.secrets):
            raise InvalidAccount(f"{name} is secret", hint="give it as part of the credential")
        if name not in known:
            raise InvalidAccount(
                f"{descriptor.name} has no setting {name[:80]!r}", hint=f"it has {', '.join(known) or 'none'}"
            )
        if value is not None and not _fits(known[name], value):
            raise InvalidAccount(f"{name}: {str(value)[:80]!r} is not a {known[name].kind.value}")
    return dict(given)


def _fits(setting: Setting, value: Any) -> bool:
    match setting.kind:
        case SettingKind.SWITCH:
            return isinstance(value, bool)
        case SettingKind.SIZE:
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and bool(value) and value.isprintable()


def _checked_credential(descriptor: ProviderDescriptor, given: Mapping[str, str]) -> dict[str, str]:
    """The errors do not contain the credential."""
    known = {each.name for each in descriptor.secrets}
    checked = {}
    for name, value in given.items():
        if name not in known:
            raise InvalidAccount(
                f"{name[:80]!r} is not part of a credential of {descriptor.name}", hint=f"it has {', '.join(known)}"
            )
        checked[name] = value.strip()
        if not _SECRET.fullmatch(checked[name]):
            raise InvalidAccount(f"{name} is empty, or contains spaces or line ends", hint="give the value alone")
    return checked


def _how_to_give(name: str, row: AccountRow) -> str:
    kind = "" if row.is_default else f" --kind {row.kind}"
    return f"holdfast provider add {name}{kind} --credential-stdin < FILE"


def _is_folder(setting: Setting) -> bool:
    return setting.kind is SettingKind.FOLDER
