"""Where a home notes its namespace at a Docker daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.providers import namespace

_FILE: Final = "ground"
"""Homes created by earlier versions have their namespace in a file of this name."""


def namespace_of(home: Path) -> str:
    """Returns the namespace of a home. Creates one if there is none. Blocks."""
    return namespace.namespace_of(home / "docker", _FILE)
