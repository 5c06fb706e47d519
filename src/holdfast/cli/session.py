"""Connects commands to a server: finds it and its credential, and starts one in the background if the home has none."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.exits import Exit
from holdfast.cli.terminal.console import hint, note
from holdfast.client.local_server import (
    NoServer,
    RunningServer,
    ServerNotStarted,
    choose_server,
    default_home,
    find_or_start,
    find_or_start_anywhere,
)

if TYPE_CHECKING:
    from holdfast.cli.options import Where
    from holdfast.client import Client, RetryNotice, SyncClient
    from holdfast.client.connection import FindAgain
    from holdfast.client.transport import Transport

T = TypeVar("T")

_PATIENCE: Final = 5.0
RESTART_SECONDS: Final = 120.0
"""How long a command that waits for something waits for a server that is being restarted."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    url: str
    api_key: str | None = field(repr=False)
    when_away: str
    """What to do if it does not answer."""
    key_from: str | None = None
    """The option or the variable that the credential was given with."""


def home_or_default(home: Path | None) -> Path:
    return home or default_home(os.environ, sys.platform, Path.home())


def find_server(
    server: str | None, api_key: str | None, home: Path | None, environment: Mapping[str, str], default: Path
) -> FoundServer:
    """Return the server that the options or the environment name. Raises `CommandError` if there is none."""
    folder = home or default
    try:
        found = choose_server(server, api_key, home, environment, default)
    except NoServer as error:
        raise CommandError(
            str(error),
            next_step="start one with holdfast up, or name another with --server URL",
            exit=Exit.UNREACHABLE,
        ) from None
    except PermissionError:
        raise CommandError(
            f"{folder / 'server.json'} belongs to another user",
            next_step="give --server URL and --api-key KEY",
            exit=Exit.NOT_AUTHORISED,
        ) from None
    except (OSError, ValueError) as error:
        raise CommandError(
            f"cannot read {folder / 'server.json'}: {error}",
            next_step="give --server URL, or restart the server: holdfast up",
        ) from None
    key_from = "--api-key" if api_key else "HOLDFAST_API_KEY" if environment.get("HOLDFAST_API_KEY") else None
    if found.home is None:
        return FoundServer(found.url, found.api_key, "check the URL, and that the server is running", key_from)
    restart = f"if the server of {folder} is busy, run the command again; if it is down, start it with holdfast up"
    return FoundServer(found.url, found.api_key, restart, key_from)


def server_of(where: Where) -> FoundServer:
    """Return the server that a command's options name, or else the environment."""
    return find_server(where.server, where.api_key, where.home, os.environ, home_or_default(None))


def again(where: Where) -> FindAgain:
    """Return a function that searches again, for a client whose server was restarted.

    The URL and key in a home may have changed since; options that the user gave have not.
    """

    async def search() -> tuple[str, str | None] | None:
        try:
            found = server_of(where)
        except CommandError:
            return None
        return found.url, found.api_key

    return search


@contextlib.contextmanager
def connect(where: Where, *, retry_seconds: float = 0.0) -> Iterator[SyncClient]:
    """A client of the chosen server. Its errors become errors of the command."""
    found = server_of(where)
    skip_httpx_cli()
    # Imported late: this takes longer than all other imports together.
    from holdfast.client import HoldfastError, SyncClient

    try:
        client = SyncClient(
            found.url,
            api_key=found.api_key,
            retry_seconds=retry_seconds,
            on_retry=RetryNotes().report,
            find_again=again(where),
        )
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None
    with client:
        try:
            yield client
        except HoldfastError as error:
            raise command_error(error, when_away=found.when_away, key_from=found.key_from) from error


def skip_httpx_cli() -> None:
    """Keep httpx from importing its own command line, which takes a third of the time in which our commands start."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


class RetryNotes:
    """Prints once that the server does not answer, not at every attempt."""

    def __init__(self) -> None:
        self._last_reason = ""

    def report(self, notice: RetryNotice) -> None:
        if notice.attempt == 1 or notice.reason != self._last_reason:
            self._last_reason = notice.reason
            note("waiting", f"{notice.reason}; trying again")


def ensure_server(where: Where, *, anywhere: bool = False) -> None:
    """Start a server on the home, if the command uses that home and no server answers there: `anywhere` on any port."""
    if where.server is not None or (where.home is None and os.environ.get("HOLDFAST_URL")):
        return
    began = time.monotonic()
    running, started = find_or_start_server(home_or_default(where.home), anywhere=anywhere)
    if started:
        took = f"  {time.monotonic() - began:.1f} s"
        note("server", running.url, hint(f"  started in the background; stop it with holdfast down{took}"))
    elif not _answers(running.url):
        note(
            "waiting",
            f"for the server at {running.url}, which accepts connections but has not answered for {_PATIENCE:g} s; "
            f"its process is {running.pid}",
            hint(f"  if it hangs: kill -9 {running.pid}, and run the command again; boxes keep running"),
        )


def _answers(url: str) -> bool:
    """Returns whether it answers soon. The kernel accepts connections even for a server that hangs."""
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_PATIENCE)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    except TimeoutError:
        return False
    except (OSError, HTTPException):
        return True  # another problem, which the command itself will report
    finally:
        connection.close()
    return True


def find_or_start_server(home: Path, *, anywhere: bool = False) -> tuple[RunningServer, bool]:
    """Return the server of a home, and whether it was started just now: `anywhere` on any port."""
    try:
        return find_or_start_anywhere(home) if anywhere else find_or_start(home)
    except ServerNotStarted as error:
        raise CommandError(error.message, next_step=error.hint, exit=Exit.UNREACHABLE) from None


def ask(where: Where, work: Callable[[Client], Awaitable[T]], *, retry_seconds: float = 0.0) -> T:
    """Run `work` with a client of the chosen server. Its errors become errors of the command.

    `retry_seconds` is how long to wait for a server that is being restarted.
    """
    import asyncio

    async def main() -> T:
        async with reach(where, retry_seconds=retry_seconds) as client:
            return await work(client)

    return asyncio.run(main())


def ask_blocking(where: Where, work: Callable[[Client], Awaitable[T]], *, retry_seconds: float = 0.0) -> T:
    """Like `ask`, for work that sends one request after the other. It needs no event loop, which takes long to load."""
    if is_secure(where):
        return ask(where, work, retry_seconds=retry_seconds)
    from holdfast.client.transport.blocking import BlockingTransport, run

    async def main() -> T:
        async with reach(where, retry_seconds=retry_seconds, transport=BlockingTransport()) as client:
            return await work(client)

    return run(main())


def is_secure(where: Where) -> bool:
    """Returns whether the server's URL is https, which only the transport with an event loop supports."""
    return server_of(where).url.startswith("https:")


@contextlib.asynccontextmanager
async def reach(
    where: Where, *, retry_seconds: float = 0.0, transport: Transport | None = None
) -> AsyncIterator[Client]:
    """Find the server and open a client: a restarted server may have another key and port."""
    found = server_of(where)
    skip_httpx_cli()
    from holdfast.api.errors import HoldfastError
    from holdfast.client.client import Client

    try:
        client = Client(
            found.url,
            api_key=found.api_key,
            retry_seconds=retry_seconds,
            on_retry=RetryNotes().report,
            find_again=again(where),
            transport=transport,
        )
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None
    async with client:
        try:
            yield client
        except HoldfastError as error:
            raise command_error(error, when_away=found.when_away, key_from=found.key_from) from error
