"""The tenants of a server: which there are, and the open ones. Each has a home of its own, below that of the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.api.access.tenants import DEFAULT_TENANT, TENANT_NAME, TenantQuotas, TenantRecord, TenantRole
from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.server.config import Settings
from holdfast.server.home import Home
from holdfast.server.lazy import Lazy
from holdfast.server.tenant.core import ServerParts
from holdfast.server.tenant.tenant import Tenant, open_tenant
from holdfast.server.wire.dispatch import Dispatch
from holdfast.server.wire.streams import StreamTenant
from holdfast.threads.access.credentials import ApiKey
from holdfast.threads.access.members import TenantStore

log = logging.getLogger(__name__)

FOLDER: Final = "tenants"
"""The homes of tenants, in the home of the server."""
MOST: Final = 200
"""An open tenant has a database with its threads and connections, and later a launcher of boxes."""
_NAME: Final = re.compile(TENANT_NAME)
_REMOVED: Final = ".removed-"
_MOST_BOXES: Final = 4096
_NO_QUOTAS: Final = TenantQuotas()

OpenTenant = Callable[[str], AbstractAsyncContextManager[Tenant]]


def settings_of(settings: Settings, name: str) -> Settings:
    """Returns the settings of another tenant than the default one.

    It gets nothing that belongs to the operator of the server: no accounts of providers, no way into the private
    network, and only the kinds of boxes that the operator lets tenants have.
    """
    return replace(
        settings,
        home=settings.home / FOLDER / name,
        first_key=False,
        allow_private=(),
        public_only=True,
        provider_settings={},
        provider_environment={},
        provider_kinds=settings.tenant_providers,
    )


@contextlib.asynccontextmanager
async def open_on_home(name: str, settings: Settings, server: ServerParts) -> AsyncIterator[Tenant]:
    """Open another tenant than the default one."""
    own = settings_of(settings, name)
    with Home(own.home) as home:
        async with open_tenant(name, own, home, server) as tenant:
            await tenant.begin_work()
            yield tenant


class Tenants:
    """All tenants. Owns the open ones, except for the default one, from `start` to `close`."""

    def __init__(self, home: Path, open: OpenTenant, clock: Callable[[], int]) -> None:
        self._home = home / FOLDER
        self._open = open
        self._clock = clock
        self._default: Tenant | None = None
        self._others: dict[str, Lazy[Tenant]] = {}
        self._changing = asyncio.Lock()
        self._quotas: dict[str, TenantQuotas] = {}
        self._cleaning: asyncio.Task[None] | None = None
        self._of_boxes: dict[str, str] = {}
        """The tenants of boxes that were looked up. Ids of boxes are never used again."""

    @property
    def default(self) -> Tenant:
        assert self._default is not None
        return self._default

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    @property
    def _store(self) -> TenantStore:
        return self.default.storage.tenants

    async def start(self, default: Tenant) -> None:
        self._default = default
        self._quotas = await self._store.quotas()
        for record in await self._store.list():
            self._others[record.name] = self._lazy(record.name)

    def begin(self) -> None:
        """Open all tenants, in the background: runs and sessions of before go on."""
        for lazy in self._others.values():
            lazy.begin()
        self._cleaning = asyncio.create_task(asyncio.to_thread(self._remove_leftovers), name="leftovers of tenants")

    async def close(self) -> None:
        if self._cleaning is not None:
            await asyncio.gather(self._cleaning, return_exceptions=True)
        await asyncio.gather(*(lazy.close() for lazy in self._others.values()))

    def _lazy(self, name: str) -> Lazy[Tenant]:
        return Lazy(f"tenant {name}", lambda: self._open(name))

    # --- finding ---

    def opened(self) -> list[Tenant]:
        """Returns all tenants that are open by now, the default one first."""
        others = (lazy.opened for lazy in self._others.values())
        return [*([] if self._default is None else [self._default]), *(each for each in others if each is not None)]

    async def find(self, name: str) -> Tenant:
        """Returns a tenant, opened. For an unknown name it is the default one, which refuses its credentials."""
        lazy = self._others.get(name)
        return self.default if lazy is None else await lazy.get()

    async def named(self, name: str) -> Tenant:
        """Returns another tenant than the default one. Raises `NotFound`."""
        lazy = self._others.get(name)
        if lazy is None:
            raise NotFound(f"there is no tenant {name}", hint="list them with holdfast tenant list")
        return await lazy.get()

    def opened_streams(self, name: str) -> StreamTenant | None:
        lazy = self._others.get(name)
        tenant = self._default if lazy is None else lazy.opened
        return None if tenant is None else tenant.streams

    async def streams(self, name: str) -> StreamTenant:
        return (await self.find(name)).streams

    def all_streams(self) -> Iterable[StreamTenant]:
        return [tenant.streams for tenant in self.opened()]

    async def front(self, name: str) -> Dispatch:
        return (await self.find(name)).front

    async def front_of_box(self, box: str) -> Dispatch:
        """Returns the app that serves a box. That of an unknown box is the default tenant's."""
        name = self._of_boxes.get(box)
        if name is None and (name := await self._look_up_box(box)) is not None:
            if len(self._of_boxes) >= _MOST_BOXES:
                self._of_boxes.clear()
            self._of_boxes[box] = name
        return await self.front(name or DEFAULT_TENANT)

    async def _look_up_box(self, box: str) -> str | None:
        if await self.default.has_box(box):
            return DEFAULT_TENANT
        for name, lazy in list(self._others.items()):
            try:
                if await (await lazy.get()).has_box(box):
                    return name
            except Exception as error:  # a tenant whose data is damaged must not keep the boxes of others away
                log.warning("tenant %s cannot be asked for box %s: %s", name, box, error)
        return None

    def quotas_of(self, name: str) -> TenantQuotas:
        return self._quotas.get(name, _NO_QUOTAS)

    # --- changing ---

    async def list(self) -> list[TenantRecord]:
        """Returns all tenants beside the default one."""
        return await self._store.list()

    async def create(self, name: str) -> tuple[TenantRecord, ApiKey, str]:
        """Create a tenant. Returns it, and the API key of its first owner with its secret."""
        if not _NAME.fullmatch(name) or name == DEFAULT_TENANT:
            raise InvalidRequest(
                f"{name!r} cannot be the name of a tenant", hint="use 1 to 16 small letters and digits, a letter first"
            )
        async with self._changing:
            if name in self._others:
                raise Conflict(f"there is already a tenant {name}", hint="choose another name")
            if len(self._others) >= MOST:
                raise Conflict(f"a server has at most {MOST} tenants", hint="remove one, or start another server")
            now = self._clock()
            if (left := await asyncio.to_thread(self._set_aside, name)) is not None:
                await asyncio.to_thread(_remove, left)  # of a removal that was interrupted
            await self._store.add(name, now)
            lazy = self._others[name] = self._lazy(name)
            try:
                key, secret = await (await lazy.get()).access.create_key("first", TenantRole.OWNER)
            except BaseException:
                await self._drop(name)
                raise
        log.info("tenant %s was created", name)
        return TenantRecord(name=name, created_at=now), key, secret

    async def remove(self, name: str) -> None:
        """Remove a tenant with all that it has. Raises `Conflict` while it has boxes."""
        async with self._changing:
            if boxes := await (await self.named(name)).live_boxes():
                raise Conflict(
                    f"tenant {name} has {boxes} {'box' if boxes == 1 else 'boxes'}",
                    hint="delete them first, with a key of the tenant: holdfast box delete ID",
                )
            await self._drop(name)
        log.info("tenant %s was removed", name)

    async def limit(self, name: str, quotas: TenantQuotas) -> None:
        """Set what a tenant may use, from now on. Raises `NotFound`."""
        await self.named(name)
        await self._store.put_quotas(name, quotas)
        self._quotas[name] = quotas

    async def _drop(self, name: str) -> None:
        self._quotas.pop(name, None)
        lazy = self._others.pop(name)
        self._of_boxes.clear()
        await asyncio.gather(lazy.close(), return_exceptions=True)
        # First out of the way: whatever keeps it from being removed, a later tenant of this name does not find it.
        removed = await asyncio.to_thread(self._set_aside, name)
        await self._store.remove(name)
        if removed is not None:
            await asyncio.to_thread(_remove, removed)

    def _set_aside(self, name: str) -> Path | None:
        """Rename the home of a tenant to a name that no tenant can have. Returns None if there is none."""
        target = self._home / f"{_REMOVED}{secrets.token_hex(8)}"
        try:
            (self._home / name).rename(target)
        except FileNotFoundError:
            return None
        return target

    def _remove_leftovers(self) -> None:
        """Remove what a server that died had set aside."""
        for each in self._home.glob(f"{_REMOVED}*"):
            _remove(each)


def _remove(folder: Path) -> None:
    """Boxes can nest folders deeper than `shutil.rmtree` goes."""
    from holdfast.guest.init.search import remove_tree

    try:
        remove_tree(str(folder))
    except OSError as error:
        log.warning("%s could not be removed, and will be at the next start: %s", folder, error)
