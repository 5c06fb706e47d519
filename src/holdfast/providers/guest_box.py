"""A box with a guest: the part of the contract that does not depend on how the guest is reached.

Calls about the lifecycle go to the provider. Subclasses transfer the bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from holdfast.api.box.box import Box, BoxInfo, Deleted, LimitHit, Metrics
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.process import MAX_OUTPUT, Channel, Completed, Process, ProcessInfo, Sink
from holdfast.api.box.records import Preview, Step
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import check_labels
from holdfast.api.errors.boxes import BoxUnreachable, InvalidSpec, Unsupported
from holdfast.providers.diagnosis import Check, take_step
from holdfast.providers.guest_protocol import GuestRefused, check_terminal, number_in, optional_number_in

_PING_SECONDS: Final = 10.0


class Lifecycle(Protocol):
    """Changes the boxes of a provider. Each box is handed it, and not the provider."""

    async def stop_box(self, id: str) -> None: ...

    async def start_box(self, id: str) -> None: ...

    async def pause_box(self, id: str) -> None: ...

    async def remove(self, id: str) -> int: ...

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot: ...

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box: ...

    async def set_network(self, id: str, policy: NetworkPolicy) -> None: ...

    async def open_guest_api(self, id: str) -> str: ...


class Guest(Protocol):
    """Sends requests to a guest and returns its answers."""

    async def ask(self, message: dict[str, Any], *, seconds: float | None = ...) -> dict[str, Any]: ...

    async def ask_path(self, message: dict[str, Any], path: str, *, seconds: float | None = ...) -> dict[str, Any]: ...


class Processes(Protocol):
    """Starts processes in a box, and finds those that were spawned there."""

    async def exec(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        timeout: float | None = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
        probe: bool = False,
    ) -> Completed:
        """With `probe`, the command only tests the box and does not count as work."""

    async def channel(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Channel:
        """Returns once the command runs."""

    async def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        stdin: bool,
        size: tuple[int, int] | None,
        tree: bool = False,
    ) -> Process:
        """`size` is the rows and columns of its terminal, or None. With `tree`, its descendants end with it."""

    async def get(self, id: str) -> Process:
        """Raises `ProcessNotFound`."""

    async def all(self) -> list[ProcessInfo]:
        """Returns all spawned processes, oldest first."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a provider knows about a box without asking its guest. A field is None if unknown."""

    memory: int | None = None
    cpu_seconds: float | None = None
    disk: int | None = None
    """Only if it is cheap to read. Otherwise, `GuestBox.disk` returns it."""
    out_of_memory: int | None = None
    sent: int | None = None
    received: int | None = None
    outgoing: int | None = None


class GuestBox(Box):
    """Subclasses define how the guest is reached, and implement `connect`, `power` and `_connection_checks`.

    They own no connection that outlives a call, so closing a handle closes nothing.
    """

    def __init__(
        self, info: BoxInfo, lifecycle: Lifecycle, guest: Guest, processes: Processes, probe_processes: Processes
    ) -> None:
        """`guest` and `probe_processes` do not wake the box. `processes` does, for callers that work in the box."""
        self.id = info.id
        self.info = info
        self._lifecycle = lifecycle
        self._guest = guest
        self._processes = processes
        self._probe_processes = probe_processes

    @abstractmethod
    def own_environment(self) -> Mapping[str, str]:
        """Returns the environment of every command. The spec's variables override it."""

    @abstractmethod
    def own_workdir(self) -> str:
        """Returns the default folder of commands."""

    @abstractmethod
    def _connection_checks(self) -> Sequence[tuple[str, Check]]:
        """Returns the named checks that `ping` runs before it asks the guest."""

    # --- processes ---

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self.own_environment(), **self.spec.env, **(env or {})}

    def _folder(self, cwd: str | None) -> str:
        workdir = self.own_workdir()
        return workdir if cwd is None else cwd if cwd.startswith("/") else f"{workdir}/{cwd}"

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Completed:
        return await self._processes.exec(
            argv,
            self._environment(env),
            self._folder(cwd),
            stdin=stdin,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output=max_output,
        )

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        tree: bool = False,
    ) -> Process:
        if pty:
            check_terminal(rows, columns)
            env = {"TERM": "xterm-256color", **(env or {})}
        size = (rows, columns) if pty else None
        environment, folder = self._environment(env), self._folder(cwd)
        return await self._processes.spawn(argv, environment, folder, stdin=stdin, size=size, tree=tree)

    async def python(self) -> tuple[str, ...]:
        return python_of(await self._guest.ask({"op": "python"}), self.id)

    async def process(self, id: str) -> Process:
        return await self._processes.get(id)

    async def processes(self) -> list[ProcessInfo]:
        return await self._processes.all()

    async def channel(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Channel:
        return await self._processes.channel(argv, self._environment(env), self._folder(cwd))

    # --- the network ---

    async def preview(self, port: int) -> Preview:
        check_port(port)
        raise Unsupported(
            f"provider {self.info.provider} does not support preview: the server has an address for each port of a box",
            hint="ask the server (holdfast box port), or use connect",
        )

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._lifecycle.set_network(self.id, policy)

    async def open_guest_api(self) -> str:
        return await self._lifecycle.open_guest_api(self.id)

    # --- lifecycle ---

    async def stop(self) -> None:
        await self._lifecycle.stop_box(self.id)

    async def start(self) -> None:
        await self._lifecycle.start_box(self.id)

    async def pause(self) -> None:
        await self._lifecycle.pause_box(self.id)

    async def delete(self) -> Deleted:
        return Deleted(await self._lifecycle.remove(self.id))

    async def snapshot(self, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        check_labels(labels or {})
        return await self._lifecycle.snapshot_box(self.id, labels or {})

    async def fork(self, *, id: str | None = None, labels: Mapping[str, str] | None = None) -> Box:
        return await self._lifecycle.fork_box(self.id, id, labels or {})

    # --- inspecting ---

    async def usage(self) -> ResourceUsage:
        """Returns what the provider knows about the box. Cheap."""
        return ResourceUsage()

    async def limits_hit(self) -> list[LimitHit]:
        times = (await self.usage()).out_of_memory
        if not times:
            return []
        limit = "" if self.spec.memory is None else f"; its limit is {self.spec.memory >> 20} MB"
        how_often = "once" if times == 1 else f"{times} times"
        return [LimitHit("memory", f"the box ran out of memory {how_often}{limit}")]

    async def disk(self) -> int | None:
        """Returns the bytes on disk. May take long."""
        return None

    async def metrics(self) -> Metrics:
        found = await self.activity()
        return found if found.disk is not None else replace(found, disk=await self.disk())

    async def activity(self) -> Metrics:
        try:
            answer = await self._ask_activity()
        except GuestRefused as refused:
            raise BoxUnreachable(f"the guest of box {self.id} cannot report its activity: {refused}") from None
        usage = await self.usage()
        worked = optional_number_in(answer, "cpu")
        return Metrics(
            number_in(answer, "processes"),
            number_in(answer, "connections"),
            number_in(answer, "idle") / 1000,
            memory=usage.memory,
            cpu_seconds=usage.cpu_seconds,
            disk=usage.disk,
            out_of_memory=usage.out_of_memory,
            listening=optional_number_in(answer, "listening"),
            sent=usage.sent,
            received=usage.received,
            outgoing=usage.outgoing,
            work_seconds=None if worked is None else worked / 1000,
        )

    async def _ask_activity(self) -> Mapping[str, Any]:
        return await self._guest.ask({"op": "activity"})

    async def ping(self) -> list[Step]:
        steps: list[Step] = []
        for name, check in (
            *self._connection_checks(),
            ("guest", self._ping_guest),
            ("run a command", self._ping_command),
            ("workdir", self._ping_workdir),
        ):
            steps.append(await take_step(name, check, f"holdfast box diagnose {self.id}"))
            if not steps[-1].ok:
                break
        return steps

    async def _ping_guest(self) -> str:
        answer = await self._guest.ask({"op": "ping"})
        return f"python {str(answer.get('python'))[:20]}"

    async def _ping_command(self) -> str:
        done = await self._probe_processes.exec(
            ["true"], self._environment(None), "/", timeout=_PING_SECONDS, probe=True
        )
        return f"exit code {done.exit_code}"

    async def _ping_workdir(self) -> str:
        workdir = self.own_workdir()
        request = {"op": "stat", "path": workdir, "cwd": "/", "looks": True}
        await self._guest.ask_path(request, workdir, seconds=_PING_SECONDS)
        return workdir

    async def close(self) -> None:
        return None


def python_of(answer: Mapping[str, Any], box: str) -> tuple[str, ...]:
    """Returns the command that starts Python for Holdfast's code in a box, as its guest reports it."""
    command = answer.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(each, str) for each in command):
        raise BoxUnreachable(f"the guest of box {box} does not report how it was started")
    return tuple(command)


def check_port(port: int) -> None:
    if not 0 < port < 65536:
        raise InvalidSpec(f"there is no port {port}")
