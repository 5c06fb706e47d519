"""What a provider with boxes on this machine has to supply: how the processes of a box are started, confined and ended.

The rest of such a provider is the same for all: `lifecycle.py`, `snapshots.py` and `guest_provider.py` build on this.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.api.box.box import BoxInfo
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, BoxStopped, BoxUnreachable, CreateFailed, Unsupported
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.network_policy import Traffic
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.host import limits
from holdfast.providers.host.disk import layers
from holdfast.providers.host.disk.data_dir import HELD, SEALED, SEALING, BoxImage, BoxRecord, DataDir, remove_tree
from holdfast.providers.host.gates import Gates
from holdfast.providers.host.guest_client import GuestClient

_SPAWN_SECONDS: Final = 60.0
"""A process that starts is recorded sooner than that."""
_LOG_BYTES: Final = 2000
_SEAL_TRIES: Final = 10
_SEAL_PAUSE: Final = 0.02
_THREADS: Final = 4
P = ParamSpec("P")
T = TypeVar("T")


class Sandbox(ABC):
    """Runs the boxes of one data directory. Methods that change a box expect that the caller has locked it."""

    capabilities: frozenset[Capability] = frozenset()
    tools: str | None = None
    """Path in the boxes of the programs that this machine provides."""
    other_user: bool = False
    """Whether processes in boxes run as another user than this process."""

    def __init__(self, provider: str, data_dir: DataDir) -> None:
        self.provider = provider
        """Name of the provider."""
        self.data_dir = data_dir
        self.workers = Workers()
        self.gates = Gates()

    def guest(self, id: str, created_at: int | None = None) -> GuestClient:
        return GuestClient(id, self.data_dir.box(id), created_at)

    # --- starting and ending ---

    @abstractmethod
    async def launch(self, record: BoxRecord) -> int:
        """Start the guest of a box. Returns its first process. Its socket shows whether it comes up."""

    async def confine(self, record: BoxRecord, pid: int) -> None:
        """Put a process of a starting box under the limits of the box, before any command of the user runs in it."""
        return

    async def end(self, guest: GuestClient) -> None:
        """End every process of a box."""
        await guest.kill()

    def release(self, id: str) -> None:
        """Free what a stopped box still uses of the machine, except its files."""
        return

    def start_error(self, id: str) -> BoxError:
        """Returns the reason why a box did not start."""
        return CreateFailed(f"box {id} did not come up: {self.start_log(id)}")

    def start_log(self, id: str) -> str:
        try:
            with (self.data_dir.box(id) / "start.log").open("rb") as file:  # a box can write any amount to it
                return file.read(_LOG_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    # --- the network ---

    async def open_egress(self, guest: GuestClient, record: BoxRecord) -> None:
        """Connect a box to the network as its policy allows, before any command of the user runs in it."""
        return

    def has_guest_api(self, record: BoxRecord) -> bool:
        """Returns whether the running box can reach Holdfast, so that it must be able to after a restart too."""
        return False

    async def open_guest_api(self, guest: GuestClient, record: BoxRecord) -> None:
        raise Unsupported(
            f"boxes of provider {self.provider} cannot reach Holdfast",
            hint="use provider local, through the server of its home",
        )

    def traffic(self, id: str) -> Traffic | None:
        """Returns what a box has sent and received, if that is known."""
        return None

    # --- commands ---

    @abstractmethod
    def workdir(self, info: BoxInfo) -> str: ...

    @abstractmethod
    def environment(self, info: BoxInfo) -> dict[str, str]: ...

    def usage(self, id: str) -> limits.GroupUsage:
        return limits.GroupUsage()

    # --- files ---

    def check(self, spec: BoxSpec) -> None:
        """Raises an error for a spec that is not possible, before anything is created."""
        require(self.provider, self.capabilities, *needed(spec))

    def first_layers(self, spec: BoxSpec) -> tuple[tuple[str, ...], BoxImage | None]:
        """Returns the layers that a new box starts with, and its image. Raises `ImageNotFound`."""
        return (), None

    def prepare_files(self, record: BoxRecord) -> None:
        folder = self.data_dir.box(record.id)
        self.data_dir.make_folder(folder / "upper")
        self.data_dir.make_folder(folder / "work", 0o700)

    def recover(self, record: BoxRecord) -> BoxRecord:
        """Finish an interrupted change to the layers of a stopped box, before it starts."""
        return layers.recover(self.data_dir, record)

    async def copy_files(self, source: int, target: int) -> dict[str, Any]:
        """Copy a folder that a box may change into an empty one that it cannot, without following links.

        Returns the answer of `Launcher.copy`.
        """
        raise Unsupported(f"provider {self.provider} cannot copy the files of a running box")

    async def seal_files(self, guest: GuestClient) -> bool:
        """Make the files of a running box read-only for every process, for good. False if one has a file open."""
        return False

    async def seal(self, guest: GuestClient) -> bool:
        """Make the files of a box that is about to end read-only, and record that until the box starts again.

        Tries several times: processes that were just killed may take a moment to close their files.
        """
        folder = self.data_dir.box(guest.box)
        (folder / SEALING).touch()
        for _ in range(_SEAL_TRIES):
            if await self.seal_files(guest):
                (folder / SEALING).rename(folder / SEALED)
                return True
            await asyncio.sleep(_SEAL_PAUSE)
        (folder / SEALING).unlink(missing_ok=True)
        return False

    def is_sealed(self, id: str) -> bool:
        return (self.data_dir.box(id) / SEALED).exists()

    def forget_seal(self, id: str) -> None:
        for name in (SEALING, SEALED):
            (self.data_dir.box(id) / name).unlink(missing_ok=True)

    # --- freezing ---

    async def freeze(self, id: str) -> None:
        """Freeze every process of a box. Only called if the provider claims `pause`."""
        return

    async def thaw(self, id: str) -> None:
        """Undo `freeze`. Does nothing if the box is not frozen."""
        return

    def frozen_activity(self, id: str) -> dict[str, Any] | None:
        """Returns the activity of a paused box, whose guest cannot answer. None if the box is not paused."""
        return None

    @contextlib.asynccontextmanager
    async def frozen(self, id: str) -> AsyncIterator[None]:
        """Stop every process of a running box while its files are copied."""
        guest = self.guest(id)
        (self.data_dir.box(id) / HELD).touch()
        try:
            try:
                # A process can arrange to be continued. If it then changes files, the copy notices.
                await guest.ask({"op": "kill_all", "number": signal.SIGSTOP.value})
            except GuestRefused as refused:
                raise BoxUnreachable(f"box {id} cannot be frozen: {refused}") from None
            yield
        finally:
            with contextlib.suppress(BoxError, GuestRefused):
                await to_the_end(self._continue(guest))

    async def _continue(self, guest: GuestClient) -> None:
        with contextlib.suppress(BoxStopped):  # no process is left
            await guest.ask({"op": "kill_all", "number": signal.SIGCONT.value})
        (self.data_dir.box(guest.box) / HELD).unlink(missing_ok=True)

    # --- repair ---

    def needs_repair(self, id: str) -> bool:
        """Whether an interrupted operation left a box in a wrong state. Also true while the operation is running."""
        folder = self.data_dir.box(id)
        return (folder / HELD).exists() or self._is_half_sealed(id) or any(True for _ in _leftovers(folder))

    def _is_half_sealed(self, id: str) -> bool:
        """Whether the process that was ending a box died. Processes in the box may no longer be able to write."""
        return (self.data_dir.box(id) / SEALING).exists() or (self.is_sealed(id) and self.guest(id).alive())

    async def repair(self, id: str) -> None:
        """Undo or finish what `needs_repair` found."""
        folder = self.data_dir.box(id)
        for path in _leftovers(folder):
            await self.workers.on_disk(remove_tree, path) if path.is_dir() else path.unlink(missing_ok=True)
        if self._is_half_sealed(id):
            await self.end(self.guest(id))
            self.release(id)
            (folder / SEALING).unlink(missing_ok=True)
        if (folder / HELD).exists():
            with contextlib.suppress(BoxError, GuestRefused):
                await self._continue(self.guest(id))

    def sweep_machine(self) -> list[str]:
        """Remove leftovers outside of the data directory. Returns a line for each."""
        return []


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yields files of a box whose writing was interrupted, and records of processes that never started."""
    yield from folder.glob(".*")
    long_ago = time.time() - _SPAWN_SECONDS
    for path in folder.glob("processes/*"):
        with contextlib.suppress(FileNotFoundError):
            if not (path / "process.json").exists() and path.stat().st_mtime < long_ago:
                yield path


class Workers:
    """Threads for slow work on the disk, and tasks in the background.

    The owner calls `close`, after which the workers can be used again.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def on_disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run slow work on separate threads, so that reading a small file does not wait for a large removal."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-disk")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(work, *args, **kwargs))

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until the tasks in the background have ended."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
