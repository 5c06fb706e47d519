"""The steps of a recipe, each with a hash of everything that it depends on: earlier steps, and the files it reads.

Two steps with the same hash are assumed to have the same result.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.api.images import Image, ImageConfig
from holdfast.images.errors import InvalidRecipe
from holdfast.images.recipe import Command, Recipe

_FORMAT: Final = 1
"""Version of how steps are run. Another version does not use the snapshots of this one."""
_MOST_FILES: Final = 200_000
_SHOWN: Final = 60

INSTALL: Final = r"""
set -eu
if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true
    apt-get update -q
    apt-get install -q -y --no-install-recommends -- "$@"
    apt-get clean
    rm -rf /var/lib/apt/lists/*
elif command -v apk >/dev/null 2>&1; then
    apk add --no-cache -- "$@"
elif command -v dnf >/dev/null 2>&1; then
    dnf install -y --setopt=install_weak_deps=False -- "$@"
    dnf clean all
elif command -v microdnf >/dev/null 2>&1; then
    microdnf install -y "$@"
elif command -v zypper >/dev/null 2>&1; then
    zypper --non-interactive install --no-recommends -- "$@"
elif command -v pacman >/dev/null 2>&1; then
    pacman -Sy --noconfirm --needed -- "$@"
else
    echo "this image has no package manager that a recipe can use (apt, apk, dnf, zypper, pacman)" >&2
    exit 78
fi
"""


@dataclass(frozen=True, slots=True)
class PackagesStep:
    hash: str
    packages: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "packages"

    @property
    def what(self) -> str:
        return shortened(" ".join(self.packages))


@dataclass(frozen=True, slots=True)
class FilesStep:
    hash: str
    files: Mapping[str, Path]

    @property
    def kind(self) -> str:
        return "files"

    @property
    def what(self) -> str:
        return shortened("  ".join(self.files))


@dataclass(frozen=True, slots=True)
class CommandStep:
    hash: str
    command: Command

    @property
    def kind(self) -> str:
        return "run"

    @property
    def what(self) -> str:
        line = self.command[-1] if self.command[:3] == ("/bin/sh", "-e", "-c") else " ".join(self.command)
        return shortened(line.strip())


Step = PackagesStep | FilesStep | CommandStep


@dataclass(frozen=True, slots=True)
class Plan:
    base: Image
    steps: tuple[Step, ...]
    config: ImageConfig
    """Of the image, and of every step."""
    hash: str
    """Of everything."""
    env: Mapping[str, str] = field(default_factory=dict)


def make_plan(recipe: Recipe, base: Image, folder: Path) -> Plan:
    """`folder` contains the recipe's files, which are read. Raises `InvalidRecipe` if one is missing."""
    env = {**base.config.env, **recipe.env}
    workdir = recipe.workdir or base.config.workdir
    config = ImageConfig(env, workdir, base.config.user)
    at = _hash("begin", _FORMAT, base.digest)
    steps: list[Step] = []
    for group in recipe.groups:
        if group.packages:
            at = _hash("packages", at, INSTALL, sorted(group.packages), env, recipe.network.to_json())
            steps.append(PackagesStep(at, group.packages))
        if group.files:
            sources = {target: _inside(folder, source) for target, source in group.files.items()}
            contents = {target: list(contents_of(source)) for target, source in sources.items()}
            at = _hash("files", at, contents)
            steps.append(FilesStep(at, sources))
        for command in group.commands:
            at = _hash("command", at, command, env, workdir, recipe.network.to_json())
            steps.append(CommandStep(at, command))
    return Plan(base, tuple(steps), config, _hash("end", at, config.to_json()), env)


def contents_of(source: Path) -> Iterator[list[Any]]:
    """Yields everything that a file or folder would bring into a box: names, kinds, modes and contents."""
    for number, (name, path) in enumerate(_walk(source)):
        if number >= _MOST_FILES:
            raise InvalidRecipe(f"{source} has more than {_MOST_FILES} files", hint="name the parts that are needed")
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            yield [name, "link", str(path.readlink())]
        elif stat.S_ISDIR(status.st_mode):
            yield [name, "folder", mode]
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                yield [name, "file", mode, hashlib.file_digest(file, "sha256").hexdigest()]
        else:
            raise InvalidRecipe(f"{path} is neither a file, a folder nor a link", hint="leave it out")


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _walk(source: Path) -> Iterator[tuple[str, Path]]:
    yield "", source
    if source.is_dir():
        for folder, folders, files in os.walk(source):
            folders.sort()
            for name in sorted((*folders, *files)):
                path = Path(folder) / name
                yield path.relative_to(source).as_posix(), path


def _inside(folder: Path, source: str) -> Path:
    """Follows links before checking, so that a recipe from another person takes nothing from outside its folder."""
    root = folder.resolve()
    try:
        path = (root / source).resolve(strict=True)
    except (OSError, RuntimeError):
        raise InvalidRecipe(
            f"there is no {source} in {folder}", hint="paths are relative to the recipe's folder"
        ) from None
    if not path.is_relative_to(root):
        raise InvalidRecipe(f"{source} leads out of {folder}", hint="copy it there: a recipe cannot use other files")
    return path


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
