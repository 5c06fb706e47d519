"""The server of a client that is given no URL: the one that the command line would use, with the same key."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.api.errors import Unauthorized, Unreachable
from holdfast.local_server import NoServer, ServerAddress, choose_server, default_home


def find_default(api_key: str | None) -> ServerAddress:
    """Raises `Unreachable` where no server is named and none runs; starts none."""
    home = default_home(os.environ, sys.platform, Path.home())
    try:
        return choose_server(None, api_key, None, os.environ, home)
    except NoServer as error:
        hint = "holdfast up starts one; or give the client a URL, or set HOLDFAST_URL"
        raise Unreachable(f"{error} ({hint})", hint=hint) from None
    except PermissionError:
        raise Unauthorized(
            f"{home / 'server.json'} belongs to another user",
            code="unauthorized",
            hint="give the client a URL and an API key",
        ) from None
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"{home / 'server.json'} cannot be read: {error}", hint="start the server again: holdfast up"
        ) from None


async def find_default_again(api_key: str | None) -> tuple[str, str | None] | None:
    """The same choice once more: a server that was started again has another key, perhaps another port."""
    try:
        found = find_default(api_key)
    except (Unreachable, Unauthorized):
        return None
    return found.url, found.api_key
