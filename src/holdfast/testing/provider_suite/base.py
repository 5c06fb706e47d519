"""The base of the provider suites: the fixtures of a provider, and boxes that are removed after their test."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, TypeVar

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.process import Completed, Connection, Process, Stream
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.errors.boxes import SnapshotNotFound, VolumeNotFound
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.time_limit import time_limit

Reopen = Callable[[], Awaitable[Provider]]
"""Opens another provider on the same data. The caller closes it."""

PATIENCE: Final = 60.0
"""Seconds for something that is immediate on any machine that works."""
MEGABYTE: Final = 1 << 20
_TICKS: Final = 100
_CLAIMS: Final = "holdfast_claims"
_Test = TypeVar("_Test", bound=Callable[..., Any])
_Found = TypeVar("_Found")
_return_freed_memory = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it


def claims(*capabilities: Capability) -> Callable[[_Test], _Test]:
    """Mark a test that applies only to providers with these capabilities."""

    def mark(test: _Test) -> _Test:
        setattr(test, _CLAIMS, capabilities)
        return test

    return mark


@dataclass
class Coverage:
    """What the suite tested of one provider, and what it skipped because the provider does not claim it."""

    claimed: frozenset[Capability]
    tried: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def lines(self, name: str) -> list[str]:
        refused = ", ".join(sorted(set(Capability) - self.claimed)) or "nothing"
        said = f"provider {name}: {self.tried} tests of {len(self.claimed)} capabilities; must refuse: {refused}"
        return [said, *(f"  {count} tests skipped: {why}" for why, count in sorted(self.left_out.items()))]


class CoverageReport:
    """A pytest plugin that prints the coverage of each provider at the end of a run."""

    def __init__(self) -> None:
        self._of: dict[str, Coverage] = {}

    def of(self, provider: Provider) -> Coverage:
        return self._of.setdefault(provider.name, Coverage(provider.capabilities))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, coverage in self._of.items():
            for line in coverage.lines(name):
                terminalreporter.write_line(line)


class BoxFactory:
    """Creates boxes, snapshots and volumes for one test, and removes them after it."""

    def __init__(self, provider: Provider, spec: BoxSpec) -> None:
        self._provider = provider
        self._spec = spec
        self._handles: list[Box] = []
        self._boxes: list[str] = []
        self._snapshots: list[str] = []
        self._volumes: list[str] = []

    async def box(self, *, labels: Mapping[str, str] | None = None, id: str | None = None, **changes: Any) -> Box:
        """Create a box. `labels` are added to those of the spec; all other arguments change the spec."""
        spec = replace(self._spec, **changes)
        return self.handle(await self._provider.create(spec, id=self.expect(id or fresh("box")), labels=labels))

    async def box_of(self, spec: BoxSpec, *, labels: Mapping[str, str] | None = None) -> Box:
        return self.handle(await self._provider.create(spec, id=self.expect(fresh("box")), labels=labels))

    async def restore(self, snapshot: str, **changes: Any) -> Box:
        spec = replace(self._spec, **changes)
        return self.handle(await self._provider.restore(snapshot, spec, id=self.expect(fresh("box"))))

    async def fork(self, box: Box) -> Box:
        return self.handle(await box.fork(id=self.expect(fresh("fork"))))

    async def attach(self, id: str) -> Box:
        return self.handle(await self._provider.attach(id))

    def handle(self, box: Box) -> Box:
        """Close this handle at the end."""
        self._handles.append(box)
        return box

    def expect(self, id: str) -> str:
        """Remove the box with this id at the end, if it exists."""
        self._boxes.append(id)
        return id

    async def snapshot(self, box: Box, **labels: str) -> Snapshot:
        return self.snapshot_to_delete(await box.snapshot(labels=labels))

    def snapshot_to_delete(self, snapshot: Snapshot) -> Snapshot:
        self._snapshots.append(snapshot.id)
        return snapshot

    async def volume(self) -> str:
        name = self.volume_to_delete(fresh("volume"))
        await self._provider.create_volume(name)
        return name

    def mount(self, volume: str, *, subpath: str = "", read_only: bool = False) -> VolumeMount:
        """Mount a volume as the folder `shared` of a box."""
        return VolumeMount(volume, f"{self._spec.workdir}/shared", subpath, read_only)

    def volume_to_delete(self, name: str) -> str:
        self._volumes.append(name)
        return name

    async def clear(self) -> None:
        for handle in self._handles:
            await handle.close()
        await asyncio.gather(*(self._provider.remove(id) for id in self._boxes))
        for snapshot in reversed(self._snapshots):
            with suppress(SnapshotNotFound):
                await self._provider.delete_snapshot(snapshot)
        for volume in self._volumes:
            with suppress(VolumeNotFound):
                await self._provider.delete_volume(volume)


class Suite:
    """The fixtures. A provider's suite overrides `provider`, and `reopen` and `spec` if possible."""

    pytestmark: ClassVar[Any] = pytest.mark.anyio
    time_limit: ClassVar[float] = 90.0
    """Seconds for one test. A provider that hangs fails."""
    claimed: ClassVar[frozenset[Capability] | None] = None
    """What the provider claims, if known in advance: see `leave_out_unclaimed`."""
    python: ClassVar[str] = "python3"
    """The Python for the tests of ports."""

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _within_limit(test))

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"

    @pytest.fixture
    def provider(self) -> Provider:
        """An open provider."""
        raise NotImplementedError("override the fixture `provider`, as holdfast.testing.provider_suite explains")

    @pytest.fixture
    def reopen(self) -> Reopen:
        """Returns a function that opens another provider on the same data."""
        pytest.skip("the fixture `reopen` is not defined, so restarts are not tested")

    @pytest.fixture
    def spec(self, provider: Provider) -> BoxSpec:
        """The smallest spec for a box of this provider."""
        modes = {
            Network.NONE: Capability.NETWORK_NONE,
            Network.OPEN: Capability.NETWORK_OPEN,
            Network.ALLOW: Capability.NETWORK_ALLOW,
        }
        mode = next(mode for mode, capability in modes.items() if capability in provider.capabilities)
        return BoxSpec(provider=provider.name, network=NetworkPolicy(mode))

    @pytest.fixture
    async def factory(self, provider: Provider, spec: BoxSpec) -> AsyncIterator[BoxFactory]:
        factory = BoxFactory(provider, spec)
        try:
            yield factory
        finally:
            await factory.clear()

    @pytest.fixture
    async def box(self, factory: BoxFactory) -> Box:
        """A running box for this test alone."""
        return await factory.box()

    @pytest.fixture
    def open_folder(self) -> Iterator[Path]:
        """A folder of this machine that every user may read. Only the provider keeps a box out."""
        with TemporaryDirectory(prefix="holdfast-suite-") as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)

    @pytest.fixture(autouse=True)
    def only_what_is_claimed(self, request: pytest.FixtureRequest, provider: Provider) -> None:
        coverage = _coverage_report(request.config).of(provider)
        wanted = getattr(request.function, _CLAIMS, ())
        missing = [capability for capability in wanted if capability not in provider.capabilities]
        if missing:
            why = f"{missing[0].value} is not claimed"
            coverage.left_out[why] += 1
            pytest.skip(why)
        coverage.tried += 1


def leave_out_unclaimed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of what a suite's `claimed` lacks. Call it in your `pytest_collection_modifyitems`."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        claimed = getattr(getattr(item, "cls", None), "claimed", None)
        wanted = getattr(getattr(item, "function", None), _CLAIMS, ())
        (kept if claimed is None or claimed >= set(wanted) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _coverage_report(config: pytest.Config) -> CoverageReport:
    name = "holdfast-provider-coverage"
    known = config.pluginmanager.get_plugin(name)
    if isinstance(known, CoverageReport):
        return known
    report = CoverageReport()
    config.pluginmanager.register(report, name)
    return report


def _within_limit(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(self: Suite, *arguments: Any, **named: Any) -> None:
        async with time_limit(self.time_limit):
            await test(self, *arguments, **named)

    return limited


# --- helpers for the tests ---


def fresh(what: str) -> str:
    """Returns an unused name."""
    return f"{what}-{secrets.token_hex(6)}"


async def tick(moment: int) -> None:
    """Wait until the clock has passed a millisecond, so that what is created next is newer to the provider."""
    for _ in range(_TICKS):
        if time.time_ns() // 1_000_000 > moment:
            return
        await asyncio.sleep(0.001)


async def sh(box: Box, script: str, *arguments: str, **named: Any) -> Completed:
    """Run a shell script in a box. `$1` and so on are the arguments."""
    return await box.exec(["sh", "-c", script, "sh", *arguments], **named)


async def text(box: Box, script: str, *arguments: str) -> str:
    """Returns what a shell script prints. It must succeed."""
    done = await sh(box, script, *arguments, timeout=PATIENCE)
    assert done.exit_code == 0, f"{script}: exit code {done.exit_code}: {done.stderr.decode(errors='replace')}"
    return done.text.strip("\n")


async def appears(box: Box, path: str) -> None:
    """Wait for a file in the box."""
    await sh(box, 'until [ -s "$1" ]; do sleep 0.01; done', path, timeout=PATIENCE)


async def number_in(box: Box, path: str) -> int:
    """Wait for a file with a number in it, and return the number."""
    await appears(box, path)
    return int(await box.files.read(path))


async def runs(box: Box, pid: int) -> bool:
    """Returns whether a process is running in the box. Zombies do not count."""
    done = await sh(box, 'test -d "/proc/$1" && ! grep -q "^State:[[:space:]]*[ZX]" "/proc/$1/status"', str(pid))
    return done.exit_code == 0


async def ends(box: Box, pid: int) -> None:
    """Wait until a process in the box has exited."""
    await eventually(lambda: _not(runs(box, pid)), f"process {pid} still runs")


async def _not(answer: Awaitable[bool]) -> bool:
    return not await answer


async def eventually(check: Callable[[], Awaitable[_Found]], otherwise: str, *, patience: float = PATIENCE) -> _Found:
    """Call `check` again and again until its result is true, and return it."""
    try:
        async with time_limit(patience):
            while True:
                found = await check()
                if found:
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{otherwise}, after {patience:g} seconds") from None


async def prints(process: Process, wanted: bytes, *, stream: Stream = "stdout", offset: int = 0) -> bytes:
    """Wait until a process has printed something. Returns everything it printed from the offset."""
    seen = b""
    try:
        async with time_limit(PATIENCE):
            async for chunk in process.output(stream, offset):
                assert chunk.offset == offset + len(seen)
                seen += chunk.data
                if wanted in seen:
                    return seen
                await asyncio.sleep(0)
    except TimeoutError:
        pass
    raise AssertionError(f"{wanted!r} was not printed, but {seen!r}")


async def all_of(process: Process, stream: Stream = "stdout", offset: int = 0) -> bytes:
    """Returns everything that a process prints until it exits."""
    seen = []
    at = offset
    async for chunk in process.output(stream, offset):
        assert chunk.offset == at, f"a chunk begins at {chunk.offset}, the one before it ended at {at}"
        at = chunk.next_offset
        assert at - offset <= 64 * MEGABYTE, "the output does not end"
        seen.append(chunk.data)
        await asyncio.sleep(0)  # lets the time limit apply, whatever the provider does
    return b"".join(seen)


async def exactly(connection: Connection, count: int) -> bytes:
    seen = b""
    while len(seen) < count:
        piece = await connection.read()
        assert piece, f"the connection ended after {len(seen)} of {count} bytes"
        seen += piece
    return seen


async def rest(connection: Connection) -> bytes:
    seen = []
    while piece := await connection.read():
        seen.append(piece)
    return b"".join(seen)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a running task, and check that it ends."""
    assert not task.done(), "there is nothing to cancel: it has ended"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Memory:
    """Measures how much this process grows, for tests in which a lot of data passes through it.

    Memory that was freed does not count: how much of it an allocator keeps depends on what ran before.
    """

    def __init__(self) -> None:
        self._start = self._now()
        self._peak = self._start
        self._looks = 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % 16 == 0:
            self._peak = max(self._peak, self._now())

    @property
    def grown(self) -> int:
        return max(self._peak, self._now()) - self._start

    @staticmethod
    def _now() -> int:
        if _return_freed_memory is not None:
            _return_freed_memory(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def pieces(count: int, size: int) -> Iterator[bytes]:
    """Yields many bytes without holding them; every piece is different."""
    for number in range(count):
        yield number.to_bytes(8, "big") * (size // 8)


async def streamed(count: int, size: int) -> AsyncIterator[bytes]:
    for piece in pieces(count, size):
        yield piece
