"""`holdfast up`: starts the server here, and says where it is. The server itself is in holdfast.server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path  # the command line is read by these types
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

from holdfast.cli.discovery import the_home
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.parameters import Given, Option
from holdfast.cli.server.provider_options import NO_PROVIDER_OPTIONS, ProviderOptions, settings_of, warnings
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json
from holdfast.local_server import find_answering

if TYPE_CHECKING:
    from holdfast.local_server import RunningServer


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_OF_THIS_COMMAND: Final = frozenset({"--home", "--json", "--log-level"})
"""Options that say nothing of how a server is to be."""


def up(
    given: Given,
    home: HomeOption = None,
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8484,
    long_poll_timeout: Annotated[
        float, Option(metavar="SECONDS", min=0.1, help="How long a long-poll waits for something new.")
    ] = 30.0,
    no_auth: Annotated[bool, Option("--no-auth", help="Ask nobody for a key; on loopback only.")] = False,
    pool: Annotated[
        int,
        Option(
            metavar="BOXES", min=0, max=1000, help="Boxes kept ready at most, for who asks for the like; 0 for none."
        ),
    ] = 8,
    allow_private: Annotated[
        list[str] | None,
        Option(
            metavar="HOST",
            envvar="HOLDFAST_ALLOW_PRIVATE",
            help="A host, address or network at private addresses that boxes may reach; may be given several times.",
        ),
    ] = None,
    egress_proxy: Annotated[
        str | None,
        Option(
            metavar="PROXY",
            envvar="HOLDFAST_EGRESS_PROXY",
            help="Proxy of this network, for boxes: http://host:port, or env:NAME or file:PATH that has its URL.",
        ),
    ] = None,
    registry_mirror: Annotated[
        list[str] | None,
        Option(
            metavar="URL",
            envvar="HOLDFAST_REGISTRY_MIRROR",
            help="A registry to ask before Docker Hub, for image pull; may be given several times.",
        ),
    ] = None,
    daytona: Annotated[
        bool, Option("--daytona", help="Serve the Daytona API over the boxes of this server, at /compat/daytona.")
    ] = False,
    provider_options: ProviderOptions = NO_PROVIDER_OPTIONS,
    log_level: Annotated[LogLevel, Option(help="What the log on standard error has.")] = LogLevel.INFO,
    first_key: Annotated[bool, Option("--first-key/--no-first-key", hidden=True)] = True,
    as_json: JsonOption = False,
) -> None:
    """Start the server on this machine, until Ctrl-C. Where one runs already, says where, and leaves it as it is."""
    from holdfast.server.compose import CannotServe, serve
    from holdfast.server.config import Settings
    from holdfast.server.home import HomeInUse

    folder = the_home(home)
    provider_settings = settings_of(provider_options)
    _check_network(allow_private or (), egress_proxy)
    settings = Settings(
        home=folder,
        host=host,
        port=port,
        long_poll_timeout=long_poll_timeout,
        auth=not no_auth,
        log_level=log_level.value,
        allow_private=tuple(allow_private or ()),
        egress_proxy=egress_proxy,
        registry_mirrors=tuple(map(_mirror, registry_mirror or ())),
        pool=pool,
        daytona=daytona,
        provider_settings=provider_settings,
        first_key=first_key,
    )

    def started(running: RunningServer, first_key: str | None) -> None:
        if as_json:
            write_json(_document(running, first_key, folder))
        else:
            _introduce(running, first_key, folder)
            if daytona:
                write_field("daytona", f"{running.url}/compat/daytona", hint("  as DAYTONA_API_URL"))
        for warning in warnings(provider_settings):
            note("careful", warning)

    try:
        serve(settings, started)
    except HomeInUse as error:
        running = find_answering(folder)
        asked = [name for name in given if name not in _OF_THIS_COMMAND]
        if running is None or asked:
            why = f"; it was started without {', '.join(asked)}, or with other values" if running else ""
            raise CommandError(
                f"{error}{why}", next_step="holdfast down stops it; or give another --home", exit=Exit.CONFLICT
            ) from None
        if as_json:
            write_json({**_document(running, None, folder), "alreadyRunning": True})
        else:
            _introduce(running, None, folder, already=True)
        return
    except CannotServe as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(
            f"the home {folder} cannot be used: {error.strerror or error}", next_step="give another one with --home DIR"
        ) from None
    if not as_json:
        note("stopped", "all entries are on disk", hint("  holdfast up goes on from here"))


def _check_network(allow_private: Sequence[str], egress_proxy: str | None) -> None:
    """Before anything starts: what boxes may reach is wired up in the background."""
    if not allow_private and egress_proxy is None:
        return
    from holdfast.egress.private_networks import Private
    from holdfast.egress.upstream_proxy import UpstreamProxy

    try:
        Private.parse(allow_private)
        UpstreamProxy.of(egress_proxy, os.environ)
    except ValueError as error:
        raise CommandError(
            str(error),
            next_step="holdfast up --help says what --allow-private and --egress-proxy take",
            exit=Exit.USAGE,
        ) from None


def _mirror(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username or parts.query or parts.fragment:
        raise CommandError(
            f"{url} is not the URL of a registry",
            next_step="holdfast up --registry-mirror https://mirror.corp.example",
            exit=Exit.USAGE,
        )
    return url


def _document(running: RunningServer, first_key: str | None, home: Path) -> dict[str, Any]:
    key = {} if first_key is None else {"apiKey": first_key}
    return {"url": running.url, "pid": running.pid, "version": running.version, "home": str(home), **key}


def _introduce(running: RunningServer, first_key: str | None, home: Path, *, already: bool = False) -> None:
    told = f"  runs already, as process {running.pid}; holdfast down stops it" if already else ""
    write_field("server", Cell(running.url, "bold"), hint(told))
    write_field("home", str(home))
    if first_key is not None:
        write_field("api key", first_key)
        write_field("", hint("shown this once; holdfast key create NAME makes more"))
    elif running.api_key is None:
        write_field("api key", Cell("none needed (--no-auth)", "dim"))
    else:
        write_field("api key", hint("holdfast key create NAME makes one; commands on this machine need none"))
    write_field("next", hint('holdfast thread new "a title"'), Cell("" if already else "   in another terminal", "dim"))
