"""The default server of a client without a URL: the same server and key that the command line uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.api.errors import Unauthorized, Unreachable
from holdfast.client.local_server import NoServer, ServerAddress, choose_server, default_home


def find_default(api_key: str | None) -> ServerAddress:
    """Returns the default server. Raises `Unreachable` if none is named and none is running."""
    home = default_home(os.environ, sys.platform, Path.home())
    try:
        return choose_server(None, api_key, None, os.environ, home)
    except NoServer as error:
        hint = "start one: holdfast up; or pass a URL to the client, or set HOLDFAST_URL"
        raise Unreachable(f"{error} ({hint})", hint=hint) from None
    except PermissionError:
        raise Unauthorized(
            f"{home / 'server.json'} belongs to another user",
            code="unauthorized",
            hint="pass a URL and an API key to the client",
        ) from None
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"{home / 'server.json'} cannot be read: {error}", hint="restart the server: holdfast up"
        ) from None


async def find_default_again(api_key: str | None) -> tuple[str, str | None] | None:
    """Find the default server again: after a restart it has another key, and perhaps another port."""
    try:
        found = find_default(api_key)
    except (Unreachable, Unauthorized):
        return None
    return found.url, found.api_key
