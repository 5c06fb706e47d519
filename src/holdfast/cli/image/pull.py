"""`holdfast image pull`: pulls an image from a registry."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from holdfast.cli.errors import usage_error
from holdfast.cli.image.build import print_image
from holdfast.cli.image.commands import ProviderOption
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import note

if TYPE_CHECKING:
    from holdfast.api.images import Image
    from holdfast.client import Client

_LONGEST: Final = 1 << 16


def pull(
    image: Annotated[
        str,
        Argument(metavar="NAME[:TAG|@DIGEST]", help="Name of the image, as in Docker.", show_default=False),
    ],
    name: Annotated[str | None, Option("--name", "-n", metavar="NAME", help="Save it under another name.")] = None,
    username: Annotated[str | None, Option("--username", "-u", metavar="USER", help="User at the registry.")] = None,
    password_stdin: Annotated[bool, Option("--password-stdin", help="Read the password from standard input.")] = False,
    insecure: Annotated[
        bool, Option("--insecure", help="Allow plain HTTP. Loopback addresses may always use it.")
    ] = False,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Pull an image from a registry. In a pipe, print only its name.

    Names are those of Docker: debian means docker.io/library/debian:latest. Several layers are downloaded at once and
    verified by their digests; an interrupted download continues where it stopped. Pulling again downloads only what has
    changed. Credentials of docker login are used if the server is on this machine.

    \b
    holdfast image pull debian:12
    holdfast image pull ghcr.io/team/app:1 --username me --password-stdin < token
    holdfast box create --image debian:12
    """
    from holdfast.cli.terminal.step_progress import StepProgress

    login = _read_login(username, password_stdin=password_stdin)
    began = time.monotonic()

    async def work(client: Client) -> Image:
        credentials = login or _docker_login(image, client.url)
        with StepProgress() as progress:
            return await client.images.pull(
                image,
                save_as=name,
                credentials=credentials,
                insecure=insecure,
                provider=provider,
                progress=progress,
            )

    try:
        made = ask(where, work)
    except KeyboardInterrupt:
        note("stopped", "what was downloaded is kept; run the same command to continue")
        raise
    print_image(made, time.monotonic() - began, as_json=as_json)


def _read_login(username: str | None, *, password_stdin: bool) -> tuple[str, str] | None:
    if username is None:
        if password_stdin:
            raise usage_error("--password-stdin needs --username", "--username USER --password-stdin")
        return None
    if password_stdin:
        password = sys.stdin.read(_LONGEST).rstrip("\r\n")
    elif sys.stdin.isatty():
        import typer

        password = typer.prompt("  password     ", hide_input=True, default="", show_default=False, err=True)
    else:
        password = ""
    if not password:
        raise usage_error("standard input contains no password", "--username USER --password-stdin < FILE")
    return username, password


def _docker_login(image: str, url: str) -> tuple[str, str] | None:
    """Credentials of `docker login` on this machine, only for a server on this machine."""
    from holdfast.cli.image.docker_login import find_login
    from holdfast.images.registry.reference import is_loopback, parse_reference

    return find_login(parse_reference(image).registry) if is_loopback(urlsplit(url).netloc) else None
