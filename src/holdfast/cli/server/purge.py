"""`holdfast purge`: removes everything of a home, after showing what that is."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption, Where
from holdfast.cli.server.down import stop_server
from holdfast.cli.session import ask, find_or_start_server, home_or_default
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import Cell, note, write_field, write_json
from holdfast.cli.terminal.sizes import describe_size
from holdfast.client.local_server import find_running

if TYPE_CHECKING:
    from holdfast.client import Client

_OURS: Final = ("holdfast.db", "secret", "lock")
"""Files that a home has once its server answers. A backup lacks some of them. A folder without them is not ours."""
_MARK: Final = "purging"
_MARKED: Final = "holdfast purge removes this folder\n"
"""The content of a file in a home that is being removed. If purge is killed, the next one removes the rest."""
_MOST_SHOWN: Final = 10
_GONE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What there is to remove."""

    boxes: tuple[tuple[str, str], ...]
    """Provider and id."""
    threads: int
    snapshots: tuple[str, ...]
    volumes: tuple[tuple[str, str], ...]
    """Provider and name."""
    images: int
    models: tuple[str, ...]
    """Models with a key."""
    running: int
    unreached: Mapping[str, str]
    """Providers that do not answer, and why. What they have cannot be removed; everything else still is."""

    @property
    def box_ids(self) -> tuple[str, ...]:
        return tuple(id for _, id in self.boxes)


@dataclass(frozen=True, slots=True)
class Left:
    """Descriptions of what could not be removed."""

    behind: tuple[str, ...]
    """At a provider that does not answer."""
    failed: tuple[str, ...]


def purge(home: HomeOption = None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Remove everything of a home, permanently: its server, boxes, threads, volumes, images, models and keys.

    Shows what will be removed, and asks first. Runs in progress are ended. What bin/holdfast set up in a checkout
    stays: delete the folder .holdfast there.
    """
    from holdfast.providers.host.disk.data_dir import measure

    folder = home_or_default(home).absolute()
    check_home(folder)
    if is_half_removed(folder):
        remove_folder(folder)
        if as_json:
            write_json({"home": str(folder), "removed": True, "boxes": [], "freed": 0, "leftBehind": []})
        else:
            write_field("removed", str(folder), Cell("  the rest of an earlier purge", "dim"))
        return
    where = Where(None, None, folder)
    with temporary_server(folder):
        found = ask(where, find_holdings)
        size = measure(folder)
        if not as_json:
            show(folder, found, size)
        if not yes:
            confirm(
                "Remove all of it, permanently?",
                refusal="purging is permanent, and there is no terminal to ask for confirmation",
                command="holdfast purge --yes",
                unchanged="nothing was removed",
            )

    async def work(client: Client) -> Left:
        return await remove(client, found)

    left = ask(where, work)
    if left.failed:
        for each in left.failed:
            note("left", each)
        raise CommandError(
            f"not everything could be removed, so {folder} stays", next_step="holdfast box list; then purge again"
        )
    running = find_running(folder)
    if running is not None:
        stop_server(folder, running)
    remove_folder(folder)
    if as_json:
        write_json(
            {
                "home": str(folder),
                "removed": True,
                "boxes": list(found.box_ids),
                "freed": size,
                "leftBehind": list(left.behind),
            }
        )
        return
    for each in left.behind:
        note("left behind", each)
    write_field("removed", str(folder), Cell(f"  freed {describe_size(size)}", "dim"))


@contextlib.contextmanager
def temporary_server(folder: Path) -> Iterator[None]:
    """Ensure a server on the home: boxes outlive their server, and only a running server can delete them.

    A server that was started for this is stopped again if nothing is removed. Others may have its port by now.
    """
    running, started = find_or_start_server(folder, anywhere=True)
    try:
        yield
    except BaseException:
        if started:
            stop_server(folder, running)
        raise


def check_home(folder: Path) -> None:
    """Refuse a folder that no server has ever used, so that a wrong --home is not deleted."""
    if not folder.is_dir():
        raise CommandError(f"{folder} does not exist: nothing to remove", exit=Exit.NOT_FOUND)
    is_ours = is_half_removed(folder) or all((folder / name).is_file() for name in _OURS)
    if folder.is_symlink() or not is_ours:
        raise CommandError(
            f"{folder} is not the home of a server, so it is left alone",
            next_step="find the home with holdfast doctor, or name another with --home DIR",
            exit=Exit.USAGE,
        )


def is_half_removed(folder: Path) -> bool:
    """Returns whether a purge was killed here after it had removed the boxes and stopped the server."""
    try:
        return (folder / _MARK).read_text() == _MARKED
    except (OSError, ValueError):
        return False


async def find_holdings(client: Client) -> Holdings:
    """Ask the server for everything it has."""
    from holdfast.api.errors.boxes import BoxError, Unsupported

    boxes = [each async for each in client.boxes.list()]
    volumes: list[tuple[str, str]] = []
    unreached: dict[str, str] = {}
    for provider in sorted({"local", *(each.spec.provider for each in boxes)}):
        try:
            volumes += [(provider, each.name) for each in await client.boxes.volumes.list(provider=provider)]
        except Unsupported:
            continue  # the provider has no volumes
        except BoxError as error:
            unreached[provider] = error.message
    try:
        snapshots = tuple(each.id for each in await client.boxes.snapshots())
    except BoxError:
        if not unreached:
            raise
        snapshots = ()  # snapshots on this machine are files in the home
    return Holdings(
        boxes=tuple((each.spec.provider, each.id) for each in boxes),
        threads=len([each async for each in client.threads.list(archived="any")]),
        snapshots=snapshots,
        volumes=tuple(volumes),
        images=len(await client.images.list()),
        models=tuple(each.name for each in await client.models.list() if each.has_key),
        running=len([each async for each in client.runs.list(status="running")]),
        unreached=unreached,
    )


def show(folder: Path, found: Holdings, size: int) -> None:
    """Print what will be removed."""
    write_field("home", str(folder), Cell(f"  {describe_size(size)}", "dim"))
    if found.running:
        write_field("runs", Cell(f"{found.running} in progress", "yellow"))
    write_field("boxes", _some(found.box_ids))
    write_field("threads", f"{found.threads:,}")
    write_field("snapshots", f"{len(found.snapshots):,}")
    write_field("volumes", _some(tuple(name for _, name in found.volumes)))
    write_field("images", f"{found.images:,}")
    write_field("models", _some(found.models))
    for provider, why in found.unreached.items():
        note("not reached", f"{provider}: {why}; what it has is left behind")


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{len(names)}: {', '.join(names[:_MOST_SHOWN])}{more}" if names else "0"


async def remove(client: Client, found: Holdings) -> Left:
    """Remove what is outside the home, or runs as processes. Returns what could not be removed, and why."""
    from holdfast.client import HoldfastError

    failed: list[str] = []
    behind = {name: [f"what else Holdfast may have there ({why})"] for name, why in found.unreached.items()}

    async def attempt(what: str, provider: str | None, deletion: Awaitable[object]) -> None:
        try:
            await deletion
        except HoldfastError as error:
            if error.status in _GONE:
                return  # a box takes the snapshots of its sleep along
            if provider in behind:
                behind[provider].insert(-1, what)
            else:
                failed.append(f"{what}: {error}")

    for provider, id in found.boxes:
        await attempt(f"box {id}", provider, client.boxes.delete(id))
    for id in found.snapshots:
        await attempt(f"snapshot {id}", None, client.boxes.delete_snapshot(id))
    for provider, name in found.volumes:
        await attempt(f"volume {name}", provider, client.boxes.volumes.delete(name, provider=provider))
    return Left(tuple(f"at {name}: {', '.join(things)}" for name, things in behind.items()), tuple(failed))


def remove_folder(folder: Path) -> None:
    """Remove a folder without following links, whatever modes its files have and however deep it is."""
    from holdfast.guest.init.search import remove_tree

    with contextlib.suppress(OSError):  # a full disk has no space for the mark
        (folder / _MARK).write_text(_MARKED)
    with contextlib.suppress(OSError):
        for each in folder.iterdir():  # the mark is removed last, with the folder
            if each.is_dir() and not each.is_symlink():
                remove_tree(str(each))
            elif each.name != _MARK:
                each.unlink()
    with contextlib.suppress(OSError):
        remove_tree(str(folder))
    if folder.exists():
        raise CommandError(f"cannot remove all of {folder}", next_step=f"rm -rf {folder}, as its owner or as root")
