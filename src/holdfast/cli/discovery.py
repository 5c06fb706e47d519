"""Which server a command talks to, and with which credential. The command line beats the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.console import note
from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.exits import Exit
from holdfast.local_server import RunningServer, default_home, read_running

if TYPE_CHECKING:
    from holdfast.client import RetryNotice, SyncClient


@dataclass(frozen=True, slots=True)
class FoundServer:
    url: str
    api_key: str | None = field(repr=False)
    when_away: str
    """What to do where it does not answer."""


def the_home(home: Path | None) -> Path:
    return home or default_home(os.environ, sys.platform, Path.home())


def find_server(
    server: str | None, api_key: str | None, home: Path | None, environment: Mapping[str, str], default: Path
) -> FoundServer:
    """`--server`, then `--home`, then `HOLDFAST_URL`, then the home by default; and likewise for the credential.

    The key of a running server is used for that server only: no other URL ever gets it.
    """
    api_key = api_key or environment.get("HOLDFAST_API_KEY")
    url = server or (environment.get("HOLDFAST_URL") if home is None else None)
    folder = home or default
    check_url = "check the URL, and that the server runs"
    if url is not None and api_key is not None:
        return FoundServer(url, api_key, check_url)
    running = _running_server(folder)
    if url is not None:
        same = running is not None and running.url.rstrip("/") == url.rstrip("/")
        return FoundServer(url, running.api_key if running is not None and same else None, check_url)
    if running is None:
        raise CommandError(
            f"no server runs on {folder}",
            next_step="holdfast up starts one; or name another with --server URL",
            exit=Exit.UNREACHABLE,
        )
    option = "" if home is None else f" --home {home}"
    start = f"the server of {folder} is gone or busy: holdfast up{option} starts it again"
    return FoundServer(running.url, api_key or running.api_key, start)


def _running_server(home: Path) -> RunningServer | None:
    try:
        return read_running(home)
    except PermissionError:
        raise CommandError(
            f"{home / 'server.json'} belongs to another user",
            next_step="give --server URL and --api-key KEY",
            exit=Exit.NOT_AUTHORISED,
        ) from None
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{home / 'server.json'} cannot be read: {error}",
            next_step="give --server URL, or start the server again: holdfast up",
        ) from None


@contextmanager
def connect(
    server: str | None, api_key: str | None, home: Path | None, *, retry_seconds: float = 0.0
) -> Iterator[SyncClient]:
    """A client of the server that was asked for. Its errors become the command's."""
    found = find_server(server, api_key, home, os.environ, the_home(None))
    leave_out_what_httpx_brings()
    # Late: this import takes longer than all others together.
    from holdfast.client import HoldfastError, SyncClient

    try:
        client = SyncClient(found.url, api_key=found.api_key, retry_seconds=retry_seconds, on_retry=RetryNotes().tell)
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None
    with client:
        try:
            yield client
        except HoldfastError as error:
            raise command_error(error, when_away=found.when_away) from error


def leave_out_what_httpx_brings() -> None:
    """Importing httpx imports its own command line too, a third of the time that a command of ours takes to start."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


class RetryNotes:
    """Says once that the server is away, not at every attempt."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, notice: RetryNotice) -> None:
        if notice.attempt == 1 or notice.reason != self._told:
            self._told = notice.reason
            note("waiting", f"{notice.reason}; trying again")
