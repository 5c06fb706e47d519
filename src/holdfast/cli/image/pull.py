"""`holdfast image pull`: an image from a registry, by its name."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from holdfast.cli.box.spec import wrong
from holdfast.cli.image.build import tell
from holdfast.cli.image.commands import ProviderOption
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import note

if TYPE_CHECKING:
    from holdfast.api.images import Image
    from holdfast.client import Client

_LONGEST: Final = 1 << 16


def pull(
    image: Annotated[
        str,
        Argument(metavar="NAME[:TAG|@DIGEST]", help="Name of the image, as Docker has it.", show_default=False),
    ],
    name: Annotated[str | None, Option("--name", "-n", metavar="NAME", help="Its name here, if not the same.")] = None,
    username: Annotated[str | None, Option("--username", "-u", metavar="USER", help="User at the registry.")] = None,
    password_stdin: Annotated[bool, Option("--password-stdin", help="Read the password from standard input.")] = False,
    insecure: Annotated[bool, Option("--insecure", help="Allow plain HTTP. On loopback it is allowed anyway.")] = False,
    provider: ProviderOption = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Pull an image from a registry. In a pipe, only its name is printed.

    Names are those of Docker: debian is docker.io/library/debian:latest. Layers come several at once and are checked
    by their digests; what was cut short goes on where it stopped. Pulling again asks the registry once, and fetches
    what has changed. Where you are logged in by docker login, that is used, if the server is on this machine.

    \b
    holdfast image pull debian:12
    holdfast image pull ghcr.io/team/app:1 --username me --password-stdin < token
    holdfast box create --image debian:12
    """
    from holdfast.cli.image.build_progress import BuildProgress

    given = _given(username, password_stdin=password_stdin)
    began = time.monotonic()

    async def work(client: Client) -> Image:
        credentials = given or _logged_in(image, client.url)
        with BuildProgress() as progress:
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
        note("stopped", "what came is kept; the same command goes on there")
        raise
    tell(made, time.monotonic() - began, as_json=as_json)


def _given(username: str | None, *, password_stdin: bool) -> tuple[str, str] | None:
    if username is None:
        if password_stdin:
            raise wrong("--password-stdin needs the user, too", "--username USER --password-stdin")
        return None
    if password_stdin:
        password = sys.stdin.read(_LONGEST).rstrip("\r\n")
    elif sys.stdin.isatty():
        import typer

        password = typer.prompt("  password     ", hide_input=True, default="", show_default=False, err=True)
    else:
        password = ""
    if not password:
        raise wrong("there is no password on standard input", "--username USER --password-stdin < FILE")
    return username, password


def _logged_in(image: str, url: str) -> tuple[str, str] | None:
    """What `docker login` has left on this machine, for a server on this machine alone."""
    from holdfast.cli.image.docker_login import find_login
    from holdfast.images.registry.reference import is_loopback, parse_reference

    return find_login(parse_reference(image).registry) if is_loopback(urlsplit(url).netloc) else None
