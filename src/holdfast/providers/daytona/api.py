"""The Daytona API: the vendor's SDK, with retries and limits of time. Raises `DaytonaError`, `TimeoutError`, `OSError`.

It has two hosts: the control plane makes and finds sandboxes, and the toolbox proxy reaches into them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import warnings
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import aiohttp
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaConnectionError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    ListSandboxesQuery,
)
from daytona.common.snapshot import Snapshot as DaytonaSnapshot
from daytona.common.volume import Volume as DaytonaVolume

from holdfast.providers.daytona.account import Account
from holdfast.providers.daytona.errors import StateNeverCame, retry_after
from holdfast.providers.daytona.network import DaytonaNetwork
from holdfast.providers.daytona.states import PASSING, Phase, phase_of
from holdfast.providers.retries import PASSING as PASSING_STATUSES
from holdfast.providers.retries import TRIES, pause_before
from holdfast.time_limit import time_limit

T = TypeVar("T")

CALL_SECONDS: Final = 30.0
START_SECONDS: Final = 120.0
BUILD_SECONDS: Final = 1800.0
"""For images, which Daytona builds or pulls first."""
RESTORE_SECONDS: Final = 600.0
"""For archived sandboxes, whose files are elsewhere."""
SNAPSHOT_SECONDS: Final = 180.0
_DELETE_SECONDS: Final = 60.0
_STATE_POLL: Final = 0.5
_FIRST_SNAPSHOT_POLL: Final = 0.1
_SNAPSHOT_POLL: Final = 2.0
_PAGE: Final = 100
_MOST_SANDBOXES: Final = 20_000
_ORGANIZATION: Final = "X-Daytona-Organization-ID"


class Refused(DaytonaError):
    """A sandbox or a snapshot has failed, and Daytona says why."""


class DaytonaApi:
    """One account. The caller opens and closes it."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._client: AsyncDaytona | None = None

    def open(self) -> None:
        """Connects to nothing yet."""
        config = DaytonaConfig(
            api_key=self.account.api_key,
            api_url=self.account.api_url.rstrip("/"),
            target=self.account.target,
            organization_id=self.account.organization,
            otel_enabled=False,
            # Otherwise every server keeps one more connection open, to be told about changes of states. Whether a box
            # runs is asked for anyway.
            use_deprecated_polling=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            client = AsyncDaytona(config)
        client._target = self.account.target  # and not what the SDK finds in the environment, or in a file .env
        if self.account.organization is not None:
            # The SDK sends this for tokens of people only.
            for each in (client._api_client, client._toolbox_api_client):
                each.default_headers[_ORGANIZATION] = self.account.organization
        self._client = client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()  # type: ignore[no-untyped-call]

    @property
    def _sdk(self) -> AsyncDaytona:
        if self._client is None:
            raise RuntimeError("the provider is not open: use it in `async with`, or await its open()")
        return self._client

    # --- sandboxes ---

    async def create(
        self, params: CreateSandboxFromSnapshotParams | CreateSandboxFromImageParams, is_own: Callable[[Any], bool]
    ) -> AsyncSandbox:
        """Create a sandbox and wait until it runs.

        An earlier attempt may have created it although its answer was lost: `is_own` tells whether that is so.
        """
        assert params.name is not None
        built = isinstance(params, CreateSandboxFromImageParams)
        seconds = BUILD_SECONDS if built else START_SECONDS
        try:
            return await repeated(lambda: self._sdk.create(params, timeout=seconds), seconds=seconds + 5)
        except DaytonaConflictError:
            sandbox = await self.get(params.name)
            if not is_own(sandbox):
                raise
            await self.wait_until_settled(sandbox, seconds)
            if phase_of(sandbox.state) is not Phase.RUNNING:
                raise failed(sandbox) from None
            return sandbox

    async def get(self, name: str) -> AsyncSandbox:
        """Raises `DaytonaNotFoundError`."""
        return await repeated(lambda: self._sdk.get(name, request_timeout=CALL_SECONDS), seconds=CALL_SECONDS + 1)

    async def find(self, name: str) -> AsyncSandbox | None:
        try:
            return await self.get(name)
        except DaytonaNotFoundError:
            return None

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[AsyncSandbox]:
        """What it returns has neither variables nor volumes."""

        async def collect() -> list[AsyncSandbox]:
            found: dict[str, AsyncSandbox] = {}
            query = ListSandboxesQuery(labels=dict(labels), limit=_PAGE)
            async for each in self._sdk.list(query, request_timeout=CALL_SECONDS):
                found[each.id] = each
                if len(found) > _MOST_SANDBOXES:
                    raise DaytonaError("the list of sandboxes does not end")
            return list(found.values())

        return await repeated(collect, seconds=2 * CALL_SECONDS)

    async def start(self, sandbox: AsyncSandbox, seconds: float) -> None:
        """Start a sandbox that does not run, and wait for that. Raises `Refused` if it has failed."""
        work = sandbox.recover if sandbox.recoverable else sandbox.start
        try:
            await repeated(lambda: work(timeout=seconds), seconds=seconds + 5)
        except DaytonaError:
            await self.refresh(sandbox)
            if phase_of(sandbox.state) is Phase.FAILED:
                raise failed(sandbox) from None
            if phase_of(sandbox.state) is not Phase.RUNNING:
                raise

    async def stop(self, sandbox: AsyncSandbox) -> None:
        try:
            await repeated(lambda: sandbox.stop(timeout=START_SECONDS), seconds=START_SECONDS + 5)
        except DaytonaError:
            await self.refresh(sandbox)
            if phase_of(sandbox.state) not in (Phase.STOPPED, Phase.GONE):  # an answer may have been lost
                raise

    async def delete(self, sandbox: AsyncSandbox) -> None:
        """Delete a sandbox and wait for that. One that is gone is fine."""
        with contextlib.suppress(DaytonaNotFoundError):
            await repeated(lambda: sandbox.delete(timeout=_DELETE_SECONDS, wait=True), seconds=_DELETE_SECONDS + 5)

    async def refresh(self, sandbox: AsyncSandbox) -> None:
        await repeated(lambda: sandbox.refresh_data(request_timeout=CALL_SECONDS), seconds=CALL_SECONDS + 1)

    async def wait_until_settled(self, sandbox: AsyncSandbox, seconds: float) -> Phase:
        """Wait until a sandbox is in no passing state. Raises `StateNeverCame`."""
        try:
            async with time_limit(seconds):
                while (phase := phase_of(sandbox.state)) in PASSING:
                    await asyncio.sleep(_STATE_POLL)
                    await self.refresh(sandbox)
        except TimeoutError:
            raise StateNeverCame(
                f"sandbox {sandbox.name} is still {state_name(sandbox)} after {seconds:.0f} s"
            ) from None
        return phase

    async def set_labels(self, sandbox: AsyncSandbox, labels: Mapping[str, str]) -> None:
        kept = {name: value for name, value in sandbox.labels.items() if name.startswith("code-toolbox-")}
        work = {**kept, **labels}
        await repeated(lambda: sandbox.set_labels(work, request_timeout=CALL_SECONDS), seconds=CALL_SECONDS + 1)

    async def set_network(self, sandbox: AsyncSandbox, network: DaytonaNetwork) -> None:
        def work() -> Awaitable[None]:
            if network.addresses is None and network.domains is None:
                return sandbox.update_network_settings(
                    network_block_all=network.block_all, request_timeout=CALL_SECONDS
                )
            return sandbox.update_network_settings(
                network_allow_list=network.addresses or "",
                domain_allow_list=network.domains or "",
                request_timeout=CALL_SECONDS,
            )

        await repeated(work, seconds=CALL_SECONDS + 1)

    async def set_auto_delete(self, sandbox: AsyncSandbox, minutes: int) -> None:
        await repeated(
            lambda: sandbox.set_auto_delete_interval(minutes, request_timeout=CALL_SECONDS), seconds=CALL_SECONDS + 1
        )

    async def fork(self, sandbox: AsyncSandbox, name: str) -> AsyncSandbox:
        """Not repeated: a fork has the labels of its origin, so that nobody can tell whose it is."""
        async with time_limit(START_SECONDS + 5):
            return await sandbox.fork(name, timeout=START_SECONDS)

    async def preview(self, sandbox: AsyncSandbox, port: int, seconds: int | None) -> tuple[str, str]:
        """Returns the address of a port, and its token. With `seconds`, the address works alone for so long."""
        if seconds is not None:
            signed = await repeated(
                lambda: sandbox.create_signed_preview_url(port, expires_in_seconds=seconds), seconds=CALL_SECONDS
            )
            return signed.url, signed.token
        link = await repeated(lambda: sandbox.get_preview_link(port), seconds=CALL_SECONDS)
        return link.url, link.token

    # --- inside a sandbox ---

    async def run(self, sandbox: AsyncSandbox, command: str, seconds: float) -> tuple[int, str]:
        """Run a command that can be repeated. Returns its exit code and what it printed."""
        done = await repeated(lambda: sandbox.process.exec(command, timeout=int(seconds)), seconds=seconds + 5)
        return int(done.exit_code), str(done.result or "")

    async def upload(self, sandbox: AsyncSandbox, data: bytes, path: str) -> None:
        await repeated(lambda: sandbox.fs.upload_file(data, path), seconds=2 * CALL_SECONDS)

    # --- snapshots ---

    async def snapshot(self, sandbox: AsyncSandbox, name: str) -> None:
        """Make a snapshot of a sandbox, and wait until it is active. Not repeated after a failure."""
        async with time_limit(SNAPSHOT_SECONDS + 5):
            await sandbox.create_snapshot(name, timeout=SNAPSHOT_SECONDS)
        await self.wait_until_active(name)

    async def wait_until_active(self, name: str) -> None:
        """Raises `Refused` or `StateNeverCame`."""
        pause = _FIRST_SNAPSHOT_POLL
        state = "unknown"
        try:
            async with time_limit(SNAPSHOT_SECONDS):
                while True:
                    found = await self._get_snapshot(name)
                    state = "not listed" if found is None else str(getattr(found.state, "value", found.state))
                    if state == "active":
                        return
                    if state in ("error", "build_failed", "removing"):
                        reason = None if found is None else found.error_reason
                        raise Refused(f"snapshot {name} is in state {state}: {reason or 'no reason given'}")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _SNAPSHOT_POLL)
        except TimeoutError:
            raise StateNeverCame(f"snapshot {name} is still {state} after {SNAPSHOT_SECONDS:.0f} s") from None

    async def _get_snapshot(self, name: str) -> DaytonaSnapshot | None:
        try:
            return await repeated(lambda: self._sdk.snapshot.get(name), seconds=CALL_SECONDS)
        except DaytonaNotFoundError:
            return None

    async def delete_snapshot(self, name: str) -> None:
        """One that is not there is fine."""
        with contextlib.suppress(DaytonaNotFoundError):
            await repeated(lambda: self._sdk.snapshot.delete(name), seconds=CALL_SECONDS)

    # --- volumes ---

    async def create_volume(self, name: str) -> DaytonaVolume:
        """Raises `DaytonaConflictError` if there is one. Not repeated: nobody could tell whose it is."""
        async with time_limit(CALL_SECONDS):
            return await self._sdk.volume.create(name)

    async def volumes(self) -> list[DaytonaVolume]:
        return await repeated(self._sdk.volume.list, seconds=CALL_SECONDS)

    async def ready_volume(self, name: str) -> DaytonaVolume:
        """Returns a volume once it can be mounted. Raises `DaytonaNotFoundError`, `Refused` or `StateNeverCame`."""
        try:
            async with time_limit(START_SECONDS):
                while True:
                    found = await repeated(lambda: self._sdk.volume.get(name), seconds=CALL_SECONDS)
                    state = str(getattr(found.state, "value", found.state))
                    if state == "ready":
                        return found
                    if state in ("error", "deleting", "deleted", "pending_delete"):
                        raise Refused(f"volume {name} is in state {state}: {found.error_reason or 'no reason given'}")
                    await asyncio.sleep(_STATE_POLL)
        except TimeoutError:
            raise StateNeverCame(f"volume {name} is not ready after {START_SECONDS:.0f} s") from None

    async def delete_volume(self, volume: DaytonaVolume) -> None:
        await repeated(lambda: self._sdk.volume.delete(volume), seconds=CALL_SECONDS)


async def repeated(work: Callable[[], Awaitable[T]], *, seconds: float) -> T:
    """Do what may be done twice, and repeat it if it fails for now. Each attempt may take so long."""
    for attempt in range(TRIES):
        try:
            async with time_limit(seconds):
                return await work()
        except (DaytonaError, aiohttp.ClientError) as error:
            pause = pause_before(attempt, _retry_after(error), random.random())
            if attempt == TRIES - 1 or pause is None or not may_repeat(error):
                if isinstance(error, aiohttp.ClientError):
                    raise ConnectionError(str(error)) from error
                raise
            await asyncio.sleep(pause)
    raise AssertionError("the loop returns or raises")


def _retry_after(error: BaseException) -> float | None:
    return retry_after(error) if isinstance(error, DaytonaError) else None


def may_repeat(error: BaseException) -> bool:
    """Returns whether a failure may pass. One that took too long already does not."""
    if isinstance(error, DaytonaError) and error.status_code is not None:
        return error.status_code == 429 or error.status_code in PASSING_STATUSES
    if isinstance(error, DaytonaTimeoutError):
        return False
    return isinstance(error, (DaytonaConnectionError, aiohttp.ClientError))


def failed(sandbox: AsyncSandbox) -> Refused:
    reason = sandbox.error_reason or "no reason given"
    return Refused(f"sandbox {sandbox.name} is in state {state_name(sandbox)}: {reason}")


def state_name(sandbox: AsyncSandbox) -> str:
    return str(getattr(sandbox.state, "value", sandbox.state))


def milliseconds(text: str | datetime | None) -> int:
    """Returns a time of Daytona's, or 0 if there is none."""
    if text is None:
        return 0
    moment = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
