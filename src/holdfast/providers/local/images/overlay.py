"""Reads what an overlay of layers shows at a path, on the host, without mounting it and without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.providers.local.images.unpack import OPAQUE

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST: Final = 1 << 20


def kind_at(layers: Sequence[Path], path: str) -> int | None:
    """Returns the mode of what is at a path, even a link, or None. Layers are ordered lowest first."""
    found = _find(layers, path)
    if found is None:
        return None
    folder, mode = found
    os.close(folder)
    return mode


def read_at(layers: Sequence[Path], path: str) -> bytes | None:
    """Returns the content of a small file, or None if there is no such file."""
    found = _find(layers, path)
    if found is None:
        return None
    folder, mode = found
    try:
        if not stat.S_ISREG(mode):
            return None
        file = os.open(Path(path).name, _FILE, dir_fd=folder)
        try:
            return os.read(file, _MOST)
        finally:
            os.close(file)
    except OSError:
        return None
    finally:
        os.close(folder)


def _find(layers: Sequence[Path], path: str) -> tuple[int, int] | None:
    """Returns the open folder that contains it, and its mode."""
    parts = path.strip("/").split("/")
    for layer in reversed(layers):
        try:
            at = os.open(layer, _FOLDER)
        except OSError:
            continue
        covered = False
        for number, part in enumerate(parts, 1):
            try:
                mode = os.lstat(part, dir_fd=at).st_mode
            except OSError:
                break
            if stat.S_ISCHR(mode):  # marks a deletion: a layer has no devices
                os.close(at)
                return None
            if number == len(parts):
                return at, mode
            if not stat.S_ISDIR(mode):
                os.close(at)
                return None
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
            covered = covered or _is_opaque(at)
        os.close(at)
        if covered:
            return None
    return None


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False
