"""Reads the text of an environment, strictly: what it does not know is an error. Pure.

All errors of a text are reported together. Each names its line and its field, the value, and what is allowed.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.environments import ENVIRONMENT_NAME, MAX_TEXT, MOST_REPOSITORIES, READY_SECONDS, Service
from holdfast.api.errors import InvalidRequest
from holdfast.api.errors.boxes import InvalidSpec
from holdfast.api.errors.environments import InvalidEnvironment
from holdfast.api.errors.repositories import InvalidRepository
from holdfast.api.limits import MAX_TIMEOUT
from holdfast.api.model.budgets import Budget
from holdfast.api.quantities import parse_duration, parse_size
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.environments.environment import Environment, Limits, Repository
from holdfast.repositories.address import check_ref, parse_remote
from holdfast.repositories.names import is_git_name

T = TypeVar("T")
_LONGEST_POLICY: Final = 200
Path = tuple[str | int, ...]

_NAME: Final = re.compile(ENVIRONMENT_NAME)
_PROVIDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_AGENT: Final = re.compile(r"[a-z][a-z0-9-]{0,31}(:[^\x00-\x1f\x7f]{1,1000})?")
_MODEL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(/[!-+\--~]{1,200})?")
_SECRET: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(:push)?")
_SERVICE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
_MOST: Final = 64
_MOST_SERVICES: Final = 8
_LONGEST_READY: Final = 600
_LONGEST_PATH: Final = 500
_LONGEST_COMMAND: Final = 4096
_MEGABYTE: Final = 1024 * 1024
_MOST_DOTS: Final = 3000
"""The time to read a name grows with the square of its parts: one of 8,000 takes a second."""
BUDGETS: Final = ("cost", "tokens")


def parse_environment(text: str) -> Environment:
    """Raises `InvalidEnvironment` with all errors of the text."""
    if len(text) > MAX_TEXT:
        raise InvalidEnvironment(
            f"the environment has {len(text)} characters, more than {MAX_TEXT}",
            hint="put long commands into a script of the repository",
        )
    try:
        if text.count(".") > _MOST_DOTS:
            raise RecursionError
        document = tomllib.loads(text)
    except RecursionError:
        raise InvalidEnvironment("the environment is nested too deeply", hint=_SEE) from None
    except ValueError as error:  # of TOML, or a number with thousands of digits
        raise InvalidEnvironment(f"the environment is not valid TOML: {error}", hint=_SEE) from None
    reading = _Reading(text)
    environment = _environment(reading, document)
    reading.finish()
    return environment


_SEE: Final = "docs/environments.md describes the file"


class _Invalid(Exception):
    """A value that is not allowed. The message says what is."""


class _Reading:
    """Collects the errors of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: Mapping[Path, int] | None = None
        self._problems: list[tuple[int, str]] = []

    def problem(self, path: Path, message: str) -> None:
        if self._lines is None:
            self._lines = lines_of(self._text)  # once: a text may have thousands of problems
        line = line_of(self._lines, path)
        self._problems.append((line, f"line {line}: {_dotted(path)}: {message}"))

    def read(self, table: Mapping[str, Any], path: Path, read: Callable[[Any], T]) -> T | None:
        """Returns the value of the last name of a path, or None if it is missing or invalid."""
        value = table.get(str(path[-1]))
        if value is None:
            return None
        try:
            return read(value)
        except _Invalid as error:
            self.problem(path, str(error))
            return None

    def each(self, table: Mapping[str, Any], name: str, read: Callable[[Any], T], most: int = _MOST) -> tuple[T, ...]:
        """Returns the valid items of a list."""
        values = table.get(name, [])
        if not isinstance(values, list):
            self.problem((name,), f"{_shown(values)} is not a list")
            return ()
        if len(values) > most:
            self.problem((name,), f"{len(values)} items, more than {most}")
            return ()
        found = []
        for number, value in enumerate(values):
            try:
                found.append(read(value))
            except _Invalid as error:
                self.problem((name, number), str(error))
        return tuple(found)

    def table(self, table: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        value = table.get(name, {})
        if not isinstance(value, dict):
            self.problem((name,), f"{_shown(value)} is not a table: write [{name}], then {known[0]} = … below it")
            return {}
        self.only(value, (name,), known)
        return value

    def only(self, table: Mapping[str, Any], path: Path, known: tuple[str, ...]) -> None:
        for name in table:
            if name not in known:
                self.problem((*path, name), f"there is no such field; the fields are {', '.join(known)}")

    def named(
        self, table: Mapping[str, Any], name: str, read: Callable[[str, Any, Path], T | None], most: int
    ) -> tuple[T, ...]:
        """Returns the valid values of a table whose names are free."""
        values = table.get(name, {})
        if not isinstance(values, dict):
            self.problem((name,), f"{_shown(values)} is not a table: write [{name}], then NAME = … below it")
            return ()
        if len(values) > most:
            self.problem((name,), f"{len(values)} of them, more than {most}")
            return ()
        found = (read(key, value, (name, key)) for key, value in values.items())
        return tuple(each for each in found if each is not None)

    def finish(self) -> None:
        if self._problems:
            told = "; ".join(message for _, message in sorted(self._problems)[:20])
            raise InvalidEnvironment(f"the environment is invalid: {told}", hint=_SEE)


FIELDS: Final = (
    "name", "provider", "image", "repositories", "setup", "inputs", "services", "agent", "models", "secrets",
    "optional_secrets", "egress", "limits", "test", "budget", "checkpoints",
)  # fmt: skip
_NOT_YET: Final = {
    "recipe": 'build the image first (holdfast image build FILE), and name it: image = "NAME"',
}
"""Fields that one may expect and that do not exist, and what to do instead."""
_SERVICES: Final = ("command", "ready", "timeout", "environment")
_REPOSITORIES: Final = ("url", "ref", "path")
_PROTOCOLS: Final = ("https", "ssh")
"""No paths: what the user's folder has is in the workspace anyway, and what is outside of it is not for this text."""
_LIMITS: Final = ("cpu", "memory", "disk", "pids", "timeout")


def _environment(reading: _Reading, document: Mapping[str, Any]) -> Environment:
    for name in _NOT_YET.keys() & document.keys():
        reading.problem((name,), f"there is no such field; {_NOT_YET[name]}")
    reading.only({name: each for name, each in document.items() if name not in _NOT_YET}, (), FIELDS)
    limits = reading.table(document, "limits", _LIMITS)
    budget = reading.table(document, "budget", BUDGETS)
    inputs = reading.each(document, "inputs", _path)
    if inputs and not document.get("setup"):
        reading.problem(("inputs",), "inputs are files that setup commands read, and there is no setup")
    environment = Environment(
        name=reading.read(document, ("name",), _matching(_NAME, "a name: up to 63 letters, digits, dots and dashes")),
        provider=reading.read(document, ("provider",), _matching(_PROVIDER, "the name of a provider, such as local")),
        image=reading.read(document, ("image",), _image),
        setup=reading.each(document, "setup", _command),
        inputs=inputs,
        repositories=_repositories(reading, document),
        services=reading.named(document, "services", lambda *given: _service(reading, *given), _MOST_SERVICES),
        agent=reading.read(document, ("agent",), _matching(_AGENT, "the name of an agent, such as claude")),
        models=reading.each(document, "models", _matching(_MODEL, "a model: NAME or NAME/MODEL"), 8),
        secrets=reading.each(document, "secrets", _secret),
        optional_secrets=reading.each(document, "optional_secrets", _secret),
        egress=reading.read(document, ("egress",), _egress),
        limits=Limits(
            cpu=reading.read(limits, ("limits", "cpu"), _cores),
            memory=reading.read(limits, ("limits", "memory"), _size(16 * _MEGABYTE, "16M")),
            disk=reading.read(limits, ("limits", "disk"), _size(_MEGABYTE, "1M")),
            pids=reading.read(limits, ("limits", "pids"), _integer(4, 1 << 22)),
            timeout=reading.read(limits, ("limits", "timeout"), _timeout),
        ),
        test=reading.read(document, ("test",), _command),
        budget=Budget(
            cost=reading.read(budget, ("budget", "cost"), _dollars),
            tokens=reading.read(budget, ("budget", "tokens"), _integer(1, 1_000_000_000_000)),
        ),
        checkpoints=reading.read(document, ("checkpoints",), _checkpoints),
    )
    names = [each.partition(":")[0] for each in (*environment.secrets, *environment.optional_secrets)]
    for name in sorted({each for each in names if names.count(each) > 1}):
        where = "optional_secrets" if "optional_secrets" in document else "secrets"
        reading.problem((where,), f"{name} is listed twice")
    return environment


# --- repositories and services ---


def _repositories(reading: _Reading, document: Mapping[str, Any]) -> tuple[Repository, ...]:
    found = reading.each(document, "repositories", _repository, MOST_REPOSITORIES)
    paths = [PurePosixPath(each.path) for each in found]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if path == other or path in other.parents or other in path.parents:
                reading.problem(("repositories",), f"the folders {other} and {path} are not apart: give them a path")
    return found


def _repository(value: Any) -> Repository:
    """`URL[@REF]`, or a table. Whoever wrote the text may be hostile: nothing is looked up here."""
    table = {"url": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("url"), str):
        raise _Invalid(f'{_shown(value)} is not a repository: "URL@REF", or {{ url = "…", ref = "…", path = "…" }}')
    if unknown := sorted(set(table) - set(_REPOSITORIES)):
        raise _Invalid(f"there is no such field: {', '.join(unknown)}; the fields are {', '.join(_REPOSITORIES)}")
    url, ref = _text(table["url"]), table.get("ref")
    try:
        address = parse_remote(url)
        if ref is not None:
            check_ref(_text(ref))
    except InvalidRepository as error:
        raise _Invalid(f"{error.message}; {error.hint}") from None
    if address.protocol not in _PROTOCOLS:
        raise _Invalid(f"{_shown(url)} is on the machine of whoever runs it: use {' or '.join(_PROTOCOLS)}")
    if ref is not None and address.ref is not None:
        raise _Invalid(f"{_shown(value)} has two refs")
    named = address.url.rstrip("/").replace(":", "/").rpartition("/")[2].removesuffix(".git")
    return Repository(address.url, address.ref if ref is None else ref, _folder(table.get("path", named)))


def _path(value: Any) -> str:
    """A path in the workspace. It cannot lead out of it."""
    text = _text(value)
    path = PurePosixPath(text)
    leads_out = text.startswith(("/", "~")) or ".." in path.parts or not text.isprintable()
    if not text or leads_out or len(text) > _LONGEST_PATH or str(path) == ".":
        raise _Invalid(f"{_shown(value)} is not a path in the workspace: a relative path without ..")
    return str(path)


def _folder(value: Any) -> str:
    """A folder of the workspace that a repository can be cloned into."""
    path = _path(value)
    if is_git_name(tuple(part.encode() for part in PurePosixPath(path).parts), False):
        raise _Invalid(f"{_shown(value)} belongs to git: choose another path")
    return path


def _service(reading: _Reading, name: str, value: Any, path: Path) -> Service | None:
    table = {"command": value} if isinstance(value, str) else value
    if not _SERVICE.fullmatch(name):
        reading.problem(path, f"{_shown(name)} is not the name of a service: up to 31 small letters, digits and dashes")
        return None
    if not isinstance(table, dict) or "command" not in table:
        reading.problem(path, f'{_shown(value)} is not a service: a command, or a table with command = "…"')
        return None
    reading.only(table, path, _SERVICES)
    variables = table.get("environment", {})
    if not isinstance(variables, dict) or not all(map(_is_variable, variables.items())):
        reading.problem(
            (*path, "environment"), f'{_shown(variables)} is not a table of variables: {{ NAME = "value" }}'
        )
        return None
    command = reading.read(table, (*path, "command"), _command)
    ready = reading.read(table, (*path, "ready"), _ready)
    seconds = reading.read(table, (*path, "timeout"), _ready_seconds)
    return Service(
        name=name,
        command=command or "",
        port=ready if isinstance(ready, int) else None,
        check=ready if isinstance(ready, str) else None,
        seconds=seconds or READY_SECONDS,
        environment=dict(variables),
    )


def _is_variable(item: tuple[str, Any]) -> bool:
    name, value = item
    return bool(_VARIABLE.fullmatch(name)) and isinstance(value, str) and "\0" not in value and len(value) <= 4096


def _ready(value: Any) -> int | str:
    if type(value) is int and 0 < value < 65536:
        return value
    if isinstance(value, str):
        return _command(value)
    raise _Invalid(f"{_shown(value)} is neither a port nor a command for the shell")


def _ready_seconds(value: Any) -> int:
    seconds = _timeout(value)
    if seconds > _LONGEST_READY:
        raise _Invalid(f"{_shown(value)} is more than {_LONGEST_READY // 60}m")
    return seconds


# --- values ---


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Invalid(f"{_shown(value)} is not a string")
    if "\0" in value:
        raise _Invalid("it contains a zero byte")
    return value


def _matching(form: re.Pattern[str], what: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not form.fullmatch(_text(value)):
            raise _Invalid(f"{_shown(value)} is not {what}")
        return str(value)

    return read


def _secret(value: Any) -> str:
    return _matching(_SECRET, "the name of a secret: letters, digits and underscores, or NAME:push")(value)


def _image(value: Any) -> str:
    text = _text(value)
    if not 0 < len(text) < 512 or any(character < "!" for character in text):
        raise _Invalid(f"{_shown(value)} is not the name of an image, such as python:3.13")
    return text


def _command(value: Any) -> str:
    text = _text(value)
    if not text.strip() or len(text) > _LONGEST_COMMAND:
        raise _Invalid(f"{_shown(value)} is not a command: a line for the shell, up to {_LONGEST_COMMAND} characters")
    return text


def _egress(value: Any) -> NetworkPolicy:
    allowed = 'a list of hosts such as ["default", "api.example.com"], or "none", or "open"'
    try:
        if value in ("none", "open"):
            policy = NetworkPolicy(Network(value))
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            policy = NetworkPolicy(Network.ALLOW, tuple(value)) if value else NetworkPolicy()
        else:
            raise _Invalid(f"{_shown(value)} is not {allowed}")
        policy.check()
    except InvalidSpec as error:
        raise _Invalid(f"{error.message}; write {allowed}") from None
    return policy


def _cores(value: Any) -> float:
    if not _is_number(value) or not 0.01 <= value <= 1024:
        raise _Invalid(f"{_shown(value)} is not a number of cores, such as 0.5 or 4")
    return float(value)


def _size(least: int, shown: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            size = value if type(value) is int else parse_size(_text(value))
        except (ValueError, OverflowError) as error:
            raise _Invalid(str(error)) from None
        if not least <= size < 1 << 60:
            raise _Invalid(f"{_shown(value)} is less than {shown}" if size < least else f"{_shown(value)} is too much")
        return size

    return read


def _timeout(value: Any) -> int:
    try:
        seconds = value if type(value) is int else parse_duration(_text(value))
    except ValueError as error:
        raise _Invalid(str(error)) from None
    if not 1 <= seconds <= MAX_TIMEOUT:
        raise _Invalid(f"{_shown(value)} is not between 1s and {MAX_TIMEOUT // 86400}d")
    return seconds


def _integer(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _Invalid(f"{_shown(value)} is not a whole number from {least} to {most}")
        return value

    return read


def _dollars(value: Any) -> float:
    if not _is_number(value) or not 0 < value < 1_000_000:
        raise _Invalid(f"{_shown(value)} is not an amount of dollars, such as 2.5")
    return float(value)


def _checkpoints(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_POLICY:
        raise _Invalid(f'{_shown(value)} is no policy, such as "off" or "every keep=20 size=2G"')
    try:
        CheckpointPolicy.parse(value)
    except InvalidRequest as error:
        raise _Invalid(f"{error.message}: {error.hint}") from None
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no numbers with thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text


# --- lines ---

_HEADER: Final = re.compile(r"""\s*(\[\[?)\s*([A-Za-z0-9_."'-]+)\s*\]""")
_KEY: Final = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[=.]""")


def lines_of(text: str) -> dict[Path, int]:
    """Returns the first line of each table and field of a text: tomllib does not tell positions."""
    tables: dict[str, int] = {}
    found: dict[Path, int] = {}
    at: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2]
            tables[name] = tables.get(name, -1) + 1
            parts = tuple(part.strip("\"'") for part in name.split("."))
            at = (*parts, tables[name]) if header[1] == "[[" else parts
        elif key := _KEY.match(line):
            found.setdefault((*at, key[1]), number)
            continue
        else:
            continue
        found.setdefault(at, number)
    return found


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """Returns the line of a field, or of the closest table or field around it."""
    return next((lines[path[:count]] for count in range(len(path), 0, -1) if path[:count] in lines), 1)
