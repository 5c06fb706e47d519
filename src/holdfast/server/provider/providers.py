"""The providers of a server, and the accounts among them, which are added, changed and removed while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.box.box import Liveness
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxUnreachable, CannotIsolate
from holdfast.api.errors.providers import AccountInUse, AccountNotFound, CredentialMissing, InvalidAccount
from holdfast.api.providers import AccountChange, ProviderRecord
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.accounts import SEALED, AccountRow, Accounts, Chosen, account_home, choose, file_in_use
from holdfast.providers.factory import make_provider, opened
from holdfast.providers.unavailable import UnavailableProvider
from holdfast.redaction import Scrubber

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.providers.descriptor import ProviderDescriptor

log = logging.getLogger(__name__)

_PROBED: Final = 4
"""How many boxes a new credential has to know."""


class _RedactingFilter(logging.Filter):
    """Takes credentials out of log lines, of whatever logger."""

    def __init__(self, redacted: Callable[[str], str]) -> None:
        super().__init__()
        self._redacted = redacted

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redacted(record.getMessage()), ()
        return True


class ServerProviders:
    """Owns the providers from `open_accounts` to `close`. `providers` is what the box service uses.

    `flags` are settings of the command line and `environment` those of its variables. They are for the default account
    of each kind.
    """

    def __init__(
        self,
        accounts: Accounts,
        kinds: Mapping[str, ProviderDescriptor],
        home: Path,
        egress: Egress,
        *,
        flags: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        self.providers = Providers({})
        self._accounts = accounts
        self._kinds = kinds
        self.home = home
        self._egress = egress
        self._flags = flags
        self._environment = environment
        self._changing = asyncio.Lock()
        self._scrubbers: list[Scrubber] = []
        self._filter = _RedactingFilter(self.redacted)

    # --- from start to end ---

    def settings(self) -> dict[str, Any]:
        """Returns the settings of all default accounts."""
        merged = dict(self._flags)
        for kind in self._kinds.values():
            merged |= self._chosen(kind).values
        return merged

    async def open_accounts(self, defaults: Mapping[str, Provider]) -> None:
        """Take over the default accounts, which were opened with `settings`, and open the others."""
        self._learn_secrets()
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._filter)
        for name, provider in defaults.items():
            self.providers.put(name, provider)
        for row in self._accounts.all():
            try:
                self._accounts.credential(row)
            except CredentialMissing as error:
                await self._replace(
                    row.name, UnavailableProvider(row.name, CannotIsolate(error.message, hint=error.hint))
                )
                continue
            if row.kind not in self._kinds:
                self.providers.put(row.name, UnavailableProvider(row.name, _no_such_kind(row)))
            elif row.name not in self.providers:
                self.providers.put(row.name, await opened(await self._as_stored(row.name)))

    async def close(self) -> None:
        for name, provider in list(self.providers.items()):
            try:
                await provider.close()
            except Exception:
                log.exception("provider %s did not close", name)
        for handler in logging.getLogger().handlers:
            handler.removeFilter(self._filter)

    def _chosen(self, kind: ProviderDescriptor) -> Chosen:
        row = self._accounts.find(kind.name)
        try:
            stored = None if row is None else self._accounts.values(row)
        except CredentialMissing:
            stored = row.plain if row is not None else None
        return choose(kind, flags=self._flags, stored=stored, environment=self._environment)

    # --- looking ---

    async def records(self, boxes: Boxes) -> list[ProviderRecord]:
        """Returns all providers, those that are ready first."""
        counts = await boxes.rows.count_live(boxes.tenant)
        found = [await self._record(name, provider, counts) for name, provider in list(self.providers.items())]
        return sorted(found, key=lambda each: (not each.is_ready, each.kind, each.name != each.kind, each.name))

    async def record(self, name: str, boxes: Boxes) -> ProviderRecord:
        """Raises `AccountNotFound`."""
        if (provider := self.providers.get(name)) is None:
            raise self._unknown(name)
        return await self._record(name, provider, await boxes.rows.count_live(boxes.tenant))

    async def _record(self, name: str, provider: Provider, counts: Mapping[str, int]) -> ProviderRecord:
        row = self._accounts.find(name)
        kind = name if row is None else row.kind
        descriptor = self._kinds.get(kind)
        problem: BoxError | None = None
        try:
            provider.check_usable()
        except BoxError as error:
            problem = error
        return ProviderRecord(
            name=name,
            kind=kind,
            isolation="" if problem is not None else provider.isolation,
            is_ready=problem is None,
            reason=None if problem is None else self.redacted(problem.message),
            hint=None if problem is None or problem.hint is None else self.redacted(problem.hint),
            boxes=counts.get(name, 0),
            is_added=row is not None,
            credential=await self._source(row, descriptor, is_ready=problem is None),
            needs_credential=descriptor is not None and descriptor.has_accounts,
            settings={} if row is None else row.plain,
        )

    async def _source(self, row: AccountRow | None, kind: ProviderDescriptor | None, *, is_ready: bool) -> str | None:
        if row is not None and row.credential is not None and (not row.is_default or not is_ready):
            return SEALED
        if kind is None or not kind.has_accounts:
            return None
        found = self._chosen(kind).credential
        return found or (await asyncio.to_thread(file_in_use, kind) if is_ready else None)

    def redacted(self, text: str) -> str:
        """Returns a text without the credentials of all accounts: vendors quote what they refuse."""
        for each in self._scrubbers:
            text = each.text(text)
        return text

    def _learn_secrets(self, *more: str) -> None:
        """Find out what `redacted` removes. `more` are secrets that are not stored yet."""
        found = list(more)
        for kind in self._kinds.values():
            values = self._chosen(kind).values
            found += [values[each.name] for each in kind.secrets if each.name in values]
        for row in self._accounts.all():
            with suppress(CredentialMissing):
                found += self._accounts.credential(row).values()
        self._scrubbers = [Scrubber(each) for each in dict.fromkeys(found)]

    def _unknown(self, name: str) -> AccountNotFound:
        return AccountNotFound(f"there is no provider {name!r}", hint="list them with holdfast provider list")

    # --- changing ---

    async def put(self, name: str, change: AccountChange, boxes: Boxes) -> ProviderRecord:
        """Add an account, or change one. Raises `InvalidAccount` or `AccountInUse`, and changes nothing then."""
        async with self._changing:
            row = self._accounts.prepare(name, change.kind, change.settings, change.credential)
            before = self._accounts.find(name)
            if before is None and not row.is_default and name in self.providers:
                raise InvalidAccount(f"{name} is the name of another provider", hint="choose another name")
            self._learn_secrets(*self._accounts.credential(row).values())
            provider = await self._made(row)
            with self._closed(name):
                had = AccountRow(name, row.kind) if before is None else before
                if name in self.providers and had.settings != row.settings:
                    await self._check_unused(name, boxes, f"the settings of {name} cannot change")
                await to_the_end(self._put(row, provider, boxes))
            log.info("account %s of %s was %s", name, row.kind, "added" if before is None else "changed")
        return await self.record(name, boxes)

    async def _put(self, row: AccountRow, provider: Provider, boxes: Boxes) -> None:
        was_there = row.name in self.providers
        await self._replace(row.name, provider, boxes)
        try:
            await self._accounts.write(row)
        except BaseException:  # the disk is full, for example: what is stored is what is used
            if was_there:
                await self._replace(row.name, await self._as_stored(row.name))
            else:
                await self._take_out(row.name)
            raise

    async def remove(self, name: str, boxes: Boxes) -> None:
        """Remove an account and its credential. Raises `AccountNotFound`, or `AccountInUse` while it has boxes."""
        async with self._changing:
            row = self._accounts.find(name)
            if row is None:
                if name not in self.providers:
                    raise self._unknown(name)
                raise AccountNotFound(
                    f"{name} was not added as an account: there is nothing to remove",
                    hint="list them with holdfast provider list",
                )
            with self._closed(name):
                await self._check_unused(name, boxes, f"{name} cannot be removed")
                await boxes.pool.drain_provider(name)
                await to_the_end(self._remove(row))
            log.info("account %s of %s was removed", name, row.kind)

    async def _remove(self, row: AccountRow) -> None:
        await self._accounts.remove(row.name)
        if row.is_default and row.kind in self._kinds:
            await self._replace(row.name, await self._as_stored(row.name))
        else:
            await self._take_out(row.name)

    async def _take_out(self, name: str) -> None:
        provider = self.providers[name]
        self.providers.take_out(name)
        await provider.close()

    async def _made(self, row: AccountRow) -> Provider:
        """Create the provider of a row that is not stored yet, to find out whether its settings make sense."""
        kind = self._kinds[row.kind]
        values: Mapping[str, Any] = self._accounts.values(row)
        if row.is_default:
            values = choose(kind, flags=self._flags, stored=values, environment=self._environment).values
        try:
            return await make_provider(kind, row.name, account_home(self.home, row), self._egress, values)
        except BoxError as error:
            raise InvalidAccount(
                f"{row.name} cannot be used: {self.redacted(error.message)}", hint=error.hint
            ) from None

    async def _as_stored(self, name: str) -> Provider:
        """Create a provider by what is stored, or that of a kind which has no account any more. Does not open it."""
        row = self._accounts.find(name)
        if row is None or row.is_default:
            kind, home, values = self._kinds[name], self.home, self._chosen(self._kinds[name]).values
        else:
            kind, home, values = self._kinds[row.kind], account_home(self.home, row), self._accounts.values(row)
        try:
            return await make_provider(kind, name, home, self._egress, values)
        except BoxError as error:
            return UnavailableProvider(name, error)

    async def _replace(self, name: str, provider: Provider, boxes: Boxes | None = None) -> None:
        """Close the provider of a name, open this one, and put it in its place. Two on one folder are never open.

        With `boxes`, raises `InvalidAccount` if the new one does not have the boxes of the old one, which then stays: a
        credential of another account would have them all taken for gone.
        """
        before = self.providers.get(name)
        if before is None:
            self.providers.put(name, await opened(provider))
            return
        known = [] if boxes is None else await _some_live(before, name, boxes)
        away = BoxUnreachable(f"provider {name} is being changed", hint="try again in a moment")
        self.providers.put(name, UnavailableProvider(name, away))
        await before.close()
        fresh = await opened(provider)
        lost = [id for id in known if await fresh.probe(id) is Liveness.GONE]
        if lost:
            await fresh.close()
            fresh = await opened(await self._as_stored(name))
        self.providers.put(name, fresh)
        if lost:
            raise InvalidAccount(
                f"this is the credential of another account: it does not have box {lost[0]}",
                hint="add it under another name, or delete the boxes of this one first",
            )

    @contextmanager
    def _closed(self, name: str) -> Iterator[None]:
        """No box is created there meanwhile. Raises `AccountInUse` if one is being created now."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.providers.closed(name))
            except BoxConflict as error:
                raise AccountInUse(error.message, hint=error.hint) from None
            yield

    async def _check_unused(self, name: str, boxes: Boxes, what: str) -> None:
        if count := (await boxes.rows.count_live(boxes.tenant)).get(name, 0):
            raise AccountInUse(
                f"{what}: it has {count} {'box' if count == 1 else 'boxes'}",
                hint="delete them with holdfast box delete, or add another account under another name",
            )


def _no_such_kind(row: AccountRow) -> CannotIsolate:
    return CannotIsolate(
        f"there is no kind of provider {row.kind} in this installation",
        hint=f"install what brings it, or remove the account: holdfast provider remove {row.name}",
    )


async def _some_live(provider: Provider, name: str, boxes: Boxes) -> list[str]:
    """Returns some boxes of a provider that exist for sure."""
    rows = [row for row in await boxes.rows.live(boxes.tenant, boxes.node) if row.provider == name]
    return [row.id for row in rows[:_PROBED] if await provider.probe(row.id) is Liveness.LIVE]
