"""`holdfast volume`: files that outlive boxes and are shared by them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.boxes import Volume
    from holdfast.client import Client

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name of the volume.", show_default=False)]
ProviderOption = Annotated[str, Option("--provider", metavar="NAME", help="Provider that has the volume.")]


def create(
    name: NameArgument,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a volume. Boxes mount it by its name.

    \b
    holdfast volume create cache
    holdfast box create --volume cache:/home/box/.cache
    """

    async def work(client: Client) -> Volume:
        return await client.boxes.volumes.create(name, provider=provider)

    volume = ask(where, work)
    if as_json:
        write_json(_document(volume))
    elif is_terminal():
        write_field("volume", Cell(volume.name, "bold"))
        write_field("next", hint(f"holdfast box create --volume {volume.name}:/workspace/{volume.name}"))
    else:
        write_line(volume.name)


def list_(
    provider: ProviderOption = "local",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only names.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the volumes."""

    async def work(client: Client) -> list[Volume]:
        return list(await client.boxes.volumes.list(provider=provider))

    volumes = ask(where, work)
    if as_json:
        write_json({"volumes": [_document(volume) for volume in volumes]})
    elif quiet:
        for volume in volumes:
            write_line(volume.name)
    elif not volumes:
        write_field("no volumes", hint("create one with holdfast volume create NAME"))
    else:
        now = time.time()
        write_table(
            ("name", "size", "age"),
            [
                (
                    Cell(volume.name, "bold"),
                    "" if volume.size is None else describe_size(volume.size),
                    describe_duration(now - volume.created_at / 1000),
                )
                for volume in volumes
            ],
        )


def delete(
    name: NameArgument,
    provider: ProviderOption = "local",
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Delete a volume and its files, permanently. A volume that a box mounts is not deleted."""

    async def check_exists(client: Client) -> None:
        if name not in [each.name for each in await client.boxes.volumes.list(provider=provider)]:
            raise VolumeNotFound(f"there is no volume {name}")

    if not yes:
        from holdfast.api.errors.boxes import VolumeNotFound

        ask(where, check_exists)
        confirm(
            f"Delete volume {name} with everything in it, permanently?",
            refusal=f"deleting volume {name} is permanent, and there is no terminal to ask for confirmation",
            command=f"holdfast volume delete {name} --yes",
            unchanged=f"volume {name} was not deleted",
        )

    async def work(client: Client) -> int:
        return await client.boxes.volumes.delete(name, provider=provider)

    freed = ask(where, work)
    if as_json:
        write_json({"name": name, "deleted": True, "freed": freed})
    else:
        write_field("deleted", name, Cell(f"  freed {describe_size(freed)}", "dim"))


def _document(volume: Volume) -> dict[str, Any]:
    return {"name": volume.name, "createdAt": volume.created_at, "size": volume.size}
