"""A recipe: what an image is built from, in a small TOML file. Unknown keys are errors. Pure.

    base = "holdfast/base"
    name = "team/web"
    packages = ["libpq-dev"]
    commands = ["pip install -r /opt/app/requirements.txt"]
    workdir = "/opt/app"

    [files]
    "/opt/app/requirements.txt" = "requirements.txt"

    [env]
    PYTHONUNBUFFERED = "1"

Packages are installed first, then files are copied, then commands run. `[[steps]]` are further groups, in order.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from holdfast.api.box.network import DEFAULT_LIST, Network, NetworkPolicy
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.boxes.images import check_reference
from holdfast.images.errors import InvalidRecipe

_GROUP: Final = ("packages", "files", "commands")
_KEYS: Final = ("base", "name", *_GROUP, "steps", "env", "workdir", "network")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:~=@/-]{0,200}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST: Final = 1 << 20
_MOST: Final = 1000

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    packages: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Paths in the image, and their sources below the recipe's folder."""
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    base: str
    groups: tuple[Group, ...]
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    network: NetworkPolicy = field(default_factory=lambda: NetworkPolicy(Network.ALLOW, (DEFAULT_LIST,)))


def read_recipe(path: Path) -> Recipe:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidRecipe(
            f"the recipe {path} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="name a TOML file, or `base` for holdfast/base",
        ) from None
    if len(data) > _LARGEST:
        raise InvalidRecipe(f"the recipe {path} is larger than {_LARGEST} bytes", hint="a recipe is a small TOML file")
    try:
        return parse_recipe(data.decode())
    except UnicodeDecodeError:
        raise InvalidRecipe(f"the recipe {path} is not a text file", hint="recipes are TOML files in UTF-8") from None
    except InvalidRecipe as error:
        raise InvalidRecipe(f"{path}: {error.message}", hint=error.hint) from None


def parse_recipe(text: str) -> Recipe:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecipe(f"invalid TOML: {error}") from None
    _only(document, _KEYS, "a recipe")
    if "base" not in document:
        raise InvalidRecipe("a recipe must name the image that it starts from", hint='base = "holdfast/base"')
    steps = document.get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps) or len(steps) > _MOST:
        raise InvalidRecipe("steps must be tables", hint="write [[steps]], with packages, files or commands below")
    for step in steps:
        _only(step, _GROUP, "a step")
    groups = tuple(group for each in (document, *steps) if (group := _group(each)) != Group())
    workdir = document.get("workdir")
    return Recipe(
        base=_reference(document["base"], "base"),
        groups=groups,
        name=None if "name" not in document else _reference(document["name"], "name"),
        env=_env(document.get("env", {})),
        workdir=None if workdir is None else _target(workdir, "workdir"),
        network=_network(document["network"]) if "network" in document else Recipe("", ()).network,
    )


def _group(document: Mapping[str, Any]) -> Group:
    packages = _texts(document.get("packages", []), "packages", '["git", "curl"]')
    for package in packages:
        # They become arguments of a package manager, where a leading dash would make an option.
        if not _PACKAGE.fullmatch(package):
            raise InvalidRecipe(f"{package!r} is not a valid package name")
    files = document.get("files", {})
    if not isinstance(files, dict) or len(files) > _MOST:
        raise InvalidRecipe("files must be a table", hint='write [files], then "/path/in/the/image" = "path/here"')
    return Group(
        tuple(packages),
        {_target(target, "files"): _source(source, target) for target, source in files.items()},
        _commands(document.get("commands", [])),
    )


def _commands(value: Any) -> tuple[Command, ...]:
    hint = 'a line for the shell, or a list of arguments: commands = ["make install", ["tool", "--yes"]]'
    if not isinstance(value, list) or len(value) > _MOST:
        raise InvalidRecipe("commands must be a list", hint=hint)
    found = []
    for each in value:
        if isinstance(each, str) and each.strip():
            found.append(("/bin/sh", "-e", "-c", each))
        elif isinstance(each, list) and each and all(isinstance(part, str) for part in each):
            found.append(tuple(each))
        else:
            raise InvalidRecipe(f"{each!r} is not a command", hint=hint)
        if any("\0" in part for part in found[-1]):
            raise InvalidRecipe("a command contains a zero byte")
    return tuple(found)


def _network(value: Any) -> NetworkPolicy:
    """Parses `none`, `allow`, `open`, or a list of hosts."""
    hint = 'network = "none", "allow" (the default list), "open", or a list of hosts: ["default", "example.com"]'
    try:
        if isinstance(value, list):
            policy = NetworkPolicy(Network.ALLOW, tuple(_texts(value, "network", hint)))
        elif isinstance(value, str):
            mode = Network(value)
            policy = NetworkPolicy(mode, (DEFAULT_LIST,) if mode is Network.ALLOW else ())
        else:
            raise ValueError(value)
        policy.check()
    except InvalidSpec as error:
        raise InvalidRecipe(error.message, hint=error.hint or hint) from None
    except ValueError:
        raise InvalidRecipe(f"{value!r} is not a network setting", hint=hint) from None
    return policy


def _env(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidRecipe("env must be a table", hint='write [env], then NAME = "value"')
    for name, each in value.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(each, str) or "\0" in each:
            raise InvalidRecipe(f"the variable {name!r} is invalid", hint='write NAME = "value"')
    return dict(value)


def _reference(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise InvalidRecipe(f"{key}: {value!r} cannot name an image", hint=f'{key} = "holdfast/base"')
    try:
        return check_reference(value)
    except InvalidSpec as error:
        raise InvalidRecipe(f"{key}: {error.message}", hint=error.hint) from None


def _target(value: Any, key: str) -> str:
    plain = isinstance(value, str) and value.startswith("/") and "\0" not in value and len(value) < 4096
    if not plain or ".." in PurePosixPath(value).parts:
        raise InvalidRecipe(f"{key}: {value!r} is not a path in the image", hint="start it with /, without ..")
    return posixpath.normpath("/" + str(value).strip("/"))


def _source(value: Any, target: str) -> str:
    plain = isinstance(value, str) and value and "\0" not in value and not value.startswith(("/", "~"))
    if not plain or ".." in PurePosixPath(value).parts:
        raise InvalidRecipe(
            f"{target} = {value!r}: files must be in the recipe's folder", hint="a path relative to it, without .."
        )
    return str(value)


def _texts(value: Any, key: str, form: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value) or len(value) > _MOST:
        raise InvalidRecipe(f"{key} must be a list of strings", hint=f"{key} = {form}")
    return value


def _only(document: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    if unknown := sorted(set(document) - set(known)):
        raise InvalidRecipe(f"{what} has no key {', '.join(unknown)}", hint=f"possible keys: {', '.join(known)}")
