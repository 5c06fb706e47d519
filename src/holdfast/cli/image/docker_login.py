"""Reads the credentials of `docker login`: from `config.json`, or from a helper program that it names.

Only the command line reads them, and only for one registry. A server never does.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_HUB: Final = "docker.io"
_HUB_KEY: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECONDS: Final = 20.0
_LARGEST: Final = 1 << 20


def find_login(registry: str, environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return the user and password for this registry, or None if there is no login."""
    variables = os.environ if environment is None else environment
    folder = variables.get("DOCKER_CONFIG")
    path = Path(folder) if folder else Path(variables.get("HOME") or "~").expanduser() / ".docker"
    config = _read(path / "config.json")
    helpers, auths = config.get("credHelpers"), config.get("auths")
    key = _HUB_KEY if registry == _HUB else registry
    helper = helpers.get(registry) if isinstance(helpers, dict) else None
    helper = helper or config.get("credsStore")
    if isinstance(helper, str) and (found := _ask_helper(helper, key)) is not None:
        return found
    if isinstance(auths, dict):
        for name in (key, registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/"):
            if (found := _decoded(auths.get(name))) is not None:
                return found
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _decoded(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict):
        return None
    user, password = entry.get("username"), entry.get("password")
    if isinstance(auth := entry.get("auth"), str):
        try:
            user, _, password = base64.b64decode(auth).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
    return (user, password) if isinstance(user, str) and isinstance(password, str) and user and password else None


def _ask_helper(name: str, key: str) -> tuple[str, str] | None:
    """Ask the program `docker-credential-NAME`, as docker does."""
    program = shutil.which(f"docker-credential-{name}") if _HELPER.fullmatch(name) else None
    if program is None:
        return None
    try:
        done = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=_SECONDS, check=False)
        answer = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return (
        _decoded({"username": answer.get("Username"), "password": answer.get("Secret")})
        if isinstance(answer, dict)
        else None
    )
