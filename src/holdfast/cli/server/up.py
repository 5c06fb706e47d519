"""`holdfast up`: starts the server on this machine, and prints its address. The server itself is in holdfast.server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path  # the command line is read by these types
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.parsing.parameters import Option, OptionsUsed
from holdfast.cli.server.provider_options import (
    NO_PROVIDER_OPTIONS,
    ProviderOptions,
    warnings,
    without_own_address,
)
from holdfast.cli.server.server_options import NO_SERVER_OPTIONS, Chosen, ServerOptions, Source, choose
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json
from holdfast.client.local_server import find_answering
from holdfast.storage import maintenance

if TYPE_CHECKING:
    from holdfast.client.local_server import RunningServer
    from holdfast.server.config import Settings


_OF_THIS_COMMAND: Final = frozenset({"--home", "--json", "--log-level", "--default-port"})
"""Options that are not settings of the server."""


def up(
    used: OptionsUsed,
    home: HomeOption = None,
    server_options: ServerOptions = NO_SERVER_OPTIONS,
    provider_options: ProviderOptions = NO_PROVIDER_OPTIONS,
    as_json: JsonOption = False,
    default_port: Annotated[
        int | None, Option("--default-port", hidden=True, help="Port to listen on if none is configured.")
    ] = None,
) -> None:
    """Start the server on this machine, until Ctrl-C. If one is already running, print its address and exit."""
    from holdfast.server.compose import CannotServe, serve
    from holdfast.server.home import HomeInUse

    folder = home_or_default(home)
    chosen = choose(server_options, provider_options, used, os.environ, folder)
    if default_port is not None:
        chosen = [
            replace(each, value=default_port) if (each.name, each.source) == ("port", Source.DEFAULT) else each
            for each in chosen
        ]
    settings = settings_for(chosen, folder)

    def started(running: RunningServer, first_key: str | None, login: str | None) -> None:
        if as_json:
            write_json(_document(running, first_key, folder))
        else:
            _print_server(running, first_key, folder)
            _print_page(running, login)
            if settings.daytona:
                write_field("daytona", f"{running.url}/compat/daytona", hint("  as DAYTONA_API_URL"))
        for warning in warnings({**settings.provider_environment, **settings.provider_settings}):
            note("careful", warning)

    try:
        serve(settings, started)
    except HomeInUse as error:
        running = find_answering(folder)
        changed = [name for name in used if name not in _OF_THIS_COMMAND]
        if running is None or changed:
            why = f"; it was started without {', '.join(changed)}, or with other values" if running else ""
            raise CommandError(
                f"{error}{why}", next_step="stop it with holdfast down, or use another --home", exit=Exit.CONFLICT
            ) from None
        if as_json:
            write_json({**_document(running, None, folder), "alreadyRunning": True})
        else:
            _print_server(running, None, folder, already=True)
            _print_page(running, _login_url(running) if is_terminal() else None)
        return
    except CannotServe as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(
            f"cannot use the home {folder}: {error.strerror or error}", next_step="choose another with --home DIR"
        ) from None
    if as_json:
        return
    if maintenance.is_there(folder):
        note("stopped", "all entries are on disk", hint("  start again with holdfast up"))
    else:
        note("stopped", f"{folder} is not there any more", hint("  if it was moved, name it with --home DIR"))


def _print_page(running: RunningServer, login: str | None) -> None:
    """Print the link that logs a browser in on a terminal only: what goes into a pipe may end in a log."""
    if login is not None and is_terminal():
        write_field("page", login, hint("  logs one browser in, within 10 minutes; holdfast login makes more"))
    elif running.api_key is not None:
        write_field("page", running.url, hint("  a link that logs a browser in: holdfast login"))


def _login_url(running: RunningServer) -> str | None:
    """Returns a link to the page of a running server, or None if it gives none."""
    from holdfast.client import HoldfastError, SyncClient

    if running.api_key is None:
        return None  # the page needs no login
    try:
        with SyncClient(running.url, api_key=running.api_key, retry_seconds=0.0) as client:
            return running.url.rstrip("/") + client.logins.create_link().path
    except HoldfastError:
        return None


def settings_for(chosen: Sequence[Chosen], home: Path) -> Settings:
    """Returns the settings of a server, checked before anything starts."""
    from holdfast.server.config import Settings, declared

    values = {each.name: each for each in chosen}
    own = {each.name: values.pop(each.name).value for each in declared()}
    _check_network(own["allow_private"], own["egress_proxy"])
    _check_delegation(own["delegation"])
    own["registry_mirrors"] = tuple(map(_mirror, own["registry_mirrors"]))
    own["preview_url"] = _preview_url(own["preview_url"])
    environment = {each.name: each.value for each in values.values() if each.source is not Source.OPTION}
    return Settings(
        home=home,
        provider_settings={each.name: each.value for each in values.values() if each.source is Source.OPTION},
        provider_environment=without_own_address(environment, own["port"]),
        **own,
    )


def _preview_url(text: str | None) -> str | None:
    from holdfast.server.wire.box_hosts import BadPreviewUrl, BoxHosts

    try:
        BoxHosts(text)
    except BadPreviewUrl as error:
        raise usage_error(f"--preview-url {error}", "holdfast up --preview-url https://preview.example.com") from None
    return text


def _check_network(allow_private: Sequence[str], egress_proxy: str | None) -> None:
    """Check these options before anything starts: the server would read them only later, in the background."""
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
            next_step="see --allow-private and --egress-proxy in holdfast up --help",
            exit=Exit.USAGE,
        ) from None


def _check_delegation(limits: str) -> None:
    if not limits:
        return
    from holdfast.api.errors import InvalidRequest
    from holdfast.api.run.tasks import DelegationLimits

    try:
        DelegationLimits.parse(limits)
    except InvalidRequest as error:
        raise usage_error(
            f"--delegation: {error.message}; {error.hint}", 'holdfast up --delegation "depth=2"'
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


def _print_server(running: RunningServer, first_key: str | None, home: Path, *, already: bool = False) -> None:
    state = f"  already running, as process {running.pid}; stop it with holdfast down" if already else ""
    write_field("server", Cell(running.url, "bold"), hint(state))
    write_field("home", str(home))
    if first_key is not None:
        write_field("api key", first_key)
        write_field("", hint("shown only this once; create more with holdfast key create NAME"))
    elif running.api_key is None:
        write_field("api key", Cell("none needed (--no-auth)", "dim"))
    else:
        write_field("api key", hint("create one with holdfast key create NAME; commands on this machine need none"))
    write_field("next", hint('holdfast thread new "a title"'), Cell("" if already else "   in another terminal", "dim"))
