"""`holdfast image import`, `list`, `show` and `remove`: root filesystems that boxes start with."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.images import Image
    from holdfast.client import Client

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name or digest of the image.", show_default=False)]
ProviderOption = Annotated[str, Option("--provider", metavar="NAME", help="Provider that has the image.")]
_PIECE: Final = 1 << 18


def import_(
    source: Annotated[
        str,
        Argument(metavar="SOURCE", help="A directory, an archive, or - for standard input.", show_default=False),
    ],
    name: Annotated[
        str | None, Option("--name", "-n", metavar="NAME", help="Name of the image. Default: the file's name.")
    ] = None,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Import an image: a directory, a root filesystem tarball, an OCI layout, or the output of docker save.

    \b
    holdfast image import rootfs.tar.gz --name debian:12
    docker save alpine | holdfast image import - --name alpine
    holdfast box create --image debian:12
    """
    wanted = name or _name_of(source)

    async def work(client: Client) -> Image:
        return await client.images.import_archive(wanted, _pieces(source), provider=provider)

    began = time.monotonic()
    image = ask(where, work)
    if as_json:
        write_json(image.to_json())
    elif is_terminal():
        seconds = time.monotonic() - began
        write_field("image", Cell(image.name, "bold"), Cell(f"  {describe_size(image.size)}  {seconds:.1f} s", "dim"))
        write_field("next", hint(f"holdfast box create --image {image.name}"))
    else:
        write_line(image.name)


def list_(
    provider: ProviderOption = "local",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only names.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the images."""

    async def work(client: Client) -> list[Image]:
        return list(await client.images.list(provider=provider))

    images = ask(where, work)
    if as_json:
        write_json({"images": [image.to_json() for image in images]})
    elif quiet:
        for image in images:
            write_line(image.name)
    elif not images:
        write_field("no images", hint("pull one from a registry with holdfast image pull NAME"))
    else:
        now = time.time()
        write_table(
            ("name", "digest", "size", "layers", "age"),
            [
                (
                    Cell(image.name, "bold"),
                    image.digest.removeprefix("sha256:")[:12],
                    describe_size(image.size),
                    str(len(image.layers)),
                    describe_duration(now - image.created_at / 1000),
                )
                for image in images
            ],
        )


def show(
    name: NameArgument,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show an image: its layers, and the settings for its processes."""

    async def work(client: Client) -> Image:
        return await client.images.get(name, provider=provider)

    image = ask(where, work)
    if as_json:
        write_json(image.to_json())
        return
    write_field("image", Cell(image.name, "bold"))
    write_field("digest", image.digest)
    if image.pulled is not None:
        write_field("pulled", image.pulled)
    write_field("size", describe_size(image.size))
    write_field("age", describe_duration(time.time() - image.created_at / 1000))
    write_field("user", image.config.user or "root")
    write_field("workdir", image.config.workdir or "/workspace")
    for variable, value in sorted(image.config.env.items()):
        write_field("env", f"{variable}={value}")
    for label, value in sorted(image.labels.items()):
        write_field("label", f"{label}={value}")
    for layer in image.layers:
        write_field("layer", Cell(layer, "dim"))


def remove(
    name: NameArgument,
    provider: ProviderOption = "local",
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Remove an image. Boxes that started from it keep working; files that nothing needs any more are deleted."""
    confirm_end("remove", f"image {name}", f"holdfast image remove {name}", yes=yes)

    async def work(client: Client) -> int:
        return await client.images.remove(name, provider=provider)

    freed = ask(where, work)
    if as_json:
        write_json({"name": name, "removed": True, "freed": freed})
    else:
        write_field("removed", name, Cell(f"  freed {describe_size(freed)}", "dim"))


def _name_of(source: str) -> str:
    """`./Alpine-3.20.tar.gz` is `alpine-3.20`."""
    stem = Path(source).resolve().name.lower() if source != "-" else ""
    for ending in (".gz", ".xz", ".zst", ".bz2", ".tgz", ".txz", ".tar", ".oci"):
        stem = stem.removesuffix(ending)
    if not stem:
        raise CommandError(
            "an image needs a name", next_step="holdfast image import SOURCE --name NAME", exit=Exit.USAGE
        )
    return stem


def _pieces(source: str) -> AsyncIterator[bytes]:
    if source == "-":
        from holdfast.cli.terminal.pipes import InputPipe

        return aiter(InputPipe(sys.stdin.fileno()))
    path = Path(source)
    if not path.exists():
        raise CommandError(f"{source} does not exist", next_step="holdfast image import --help", exit=Exit.USAGE)
    return _packed(path) if path.is_dir() else _file(path)


async def _file(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


async def _packed(folder: Path) -> AsyncIterator[bytes]:
    """Yield a directory as a tar archive, packed while it is sent."""
    from holdfast.guest.init import tree

    read, write = os.pipe()

    def pack() -> None:
        try:
            with os.fdopen(write, "wb", buffering=1 << 18) as out:
                tree.pack(str(folder), out)
        except BrokenPipeError:
            return  # the reader has stopped
        except OSError as error:
            raise CommandError(
                f"cannot pack {folder}: {error}", next_step="make its files readable, or pack it as a tarball"
            ) from None

    packing = asyncio.ensure_future(asyncio.to_thread(pack))
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            while piece := await asyncio.to_thread(pipe.read, _PIECE):
                yield piece
    finally:
        await asyncio.wait([packing])
    packing.result()
