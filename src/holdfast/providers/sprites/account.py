"""The account at Sprites: the token and the address of the API, and where they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

API_URL: Final = "https://api.sprites.dev"
CONFIG: Final = Path(".sprites") / "sprites.json"
"""The file of the vendor's command line, in the user's home."""
_TOKEN_NAMES: Final = ("api_token", "token")


@dataclass(frozen=True, slots=True)
class Account:
    token: str = field(repr=False)
    url: str = API_URL
    source: str = "the settings"
    """Where the token was found, for messages."""


def find_account(token: str | None, url: str | None, user_home: Path) -> Account | None:
    """Returns the account of the settings, or else of the vendor's own file. Blocks.

    The settings have the flag, or else the variable of the environment: the command line decides that.
    """
    if token:
        return Account(token, url or API_URL)
    return read_config(user_home / CONFIG, url)


def read_config(path: Path, url: str | None = None) -> Account | None:
    """Returns the account that the vendor's command line uses now, or None if its file holds no token.

    The command line may keep tokens in the keyring of the system instead. Those are not read.
    """
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    selected = _map(_map(told).get("current_selection"))
    wanted = url or _text(selected.get("url")) or API_URL
    organizations = _map(_map(_map(_map(told).get("urls")).get(wanted)).get("orgs"))
    chosen = [organizations.get(_text(selected.get("org")) or ""), *organizations.values(), told]
    for each in chosen:
        for name in _TOKEN_NAMES:
            if token := _text(_map(each).get(name)):
                return Account(token, wanted, str(path))
    return None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
