"""The settings of a server on the command line: their options, and where each value comes from.

An option comes before an environment variable, that before `holdfast.toml` in the home, and that before the default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.server.provider_options import settings_of, split_by_source
from holdfast.cli.terminal.sizes import parse_size
from holdfast.providers.descriptor import Setting, SettingKind
from holdfast.providers.registry import descriptors
from holdfast.server.config import Declared, declared

FILE: Final = "holdfast.toml"
_MOST_BYTES: Final = 1024 * 1024
_NAMES: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
}


class Source(StrEnum):
    """Where a value comes from, the strongest first."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting with its value."""

    name: str
    value: Any
    source: Source
    secret: bool = False
    place: str = ""
    """The option, the variable or the file that has it."""


def _option(each: Declared) -> tuple[str, Any, Any]:
    """The field of an option group: its name, annotation and default."""
    more: dict[str, Any] = {"help": each.help, "envvar": each.variable}
    for key, value in (("metavar", each.metavar), ("min", each.least), ("max", each.most)):
        if value is not None:
            more[key] = int(value) if key != "metavar" and each.kind is int else value
    if each.hidden:
        more["hidden"] = True
    option = Option(each.option, **more)
    if each.choices:
        return each.name, Annotated[_choice(each), option], each.default
    if each.kind is bool:
        return each.name, Annotated[bool, option], False
    if each.kind is tuple:
        return each.name, Annotated[list[str] | None, option], None
    if each.kind is str and not each.default:
        return each.name, Annotated[str | None, option], None
    return each.name, Annotated[each.kind, option], each.default


def _choice(each: Declared) -> type:
    return StrEnum(each.name.title().replace("_", ""), [(word.upper(), word) for word in each.choices])  # type: ignore[return-value]


if TYPE_CHECKING:
    ServerOptions = OptionGroup
else:
    ServerOptions = make_dataclass(
        "ServerOptions",
        [_option(each) for each in declared()],
        bases=(OptionGroup,),
        namespace={"__module__": __name__},
        frozen=True,
    )

NO_SERVER_OPTIONS = ServerOptions()


def choose(
    server: OptionGroup,
    providers: OptionGroup,
    used: Sequence[str],
    environment: Mapping[str, str],
    home: Path,
) -> list[Chosen]:
    """Returns every setting with its value and its source. Those of providers that have none are left out.

    `used` are the options of the command line. Raises `CommandError` for a file that is not right.
    """
    given = vars(server)
    file = home / FILE
    stored = read_file(file)
    chosen = []
    for each in declared():
        value = given[each.name]
        if each.option in used:
            chosen.append(Chosen(each.name, _value(each, value), Source.OPTION, each.secret, each.option))
        elif environment.get(each.variable):
            chosen.append(Chosen(each.name, _value(each, value), Source.ENVIRONMENT, each.secret, each.variable))
        elif each.name in stored:
            chosen.append(Chosen(each.name, stored[each.name], Source.FILE, each.secret, str(file)))
        else:
            chosen.append(Chosen(each.name, each.default, Source.DEFAULT, each.secret))
    on_line, in_environment = split_by_source(settings_of(providers), used)
    for setting in provider_settings():
        name = setting.name
        if name in on_line:
            chosen.append(Chosen(name, on_line[name], Source.OPTION, setting.secret, setting.option))
        elif name in in_environment:
            chosen.append(
                Chosen(name, in_environment[name], Source.ENVIRONMENT, setting.secret, setting.variable or "")
            )
        elif name in stored:
            chosen.append(Chosen(name, stored[name], Source.FILE, setting.secret, str(file)))
    return chosen


def provider_settings() -> list[Setting]:
    return [setting for descriptor in descriptors() for setting in descriptor.settings]


def _value(each: Declared, value: Any) -> Any:
    """The value of a field for the value of its option."""
    if each.kind is bool:
        return not value if each.off else bool(value)
    if each.kind is tuple:
        return tuple(value or ())
    return value.value if isinstance(value, StrEnum) else value


def read_file(file: Path) -> dict[str, Any]:
    """Returns the settings in a file, checked; none if there is no file."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _wrong(file, f"cannot be read: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise _wrong(file, "is too large")
    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(file, f"is not TOML: {error}") from None
    known = {each.name: each for each in declared() if not each.hidden}
    of_providers = {each.name: each for each in provider_settings()}
    values = {}
    for name, value in found.items():
        if name in known:
            values[name] = _checked(file, known[name], value)
        elif name in of_providers:
            values[name] = _checked_of_provider(file, of_providers[name], value)
        else:
            raise _wrong(file, f"has {name!r}, which is no setting", _fitting(name, [*known, *of_providers]))
    return values


def _checked(file: Path, each: Declared, value: Any) -> Any:
    kind = each.kind
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = tuple(value)
    if type(value) is not kind:
        shown = "a value" if each.secret else f"{value!r}"
        raise _wrong(file, f"has {each.name} = {shown}, which is not {_NAMES[kind]}")
    if each.choices and value not in each.choices:
        raise _wrong(file, f"has {each.name} = {value!r}, which is none of {', '.join(each.choices)}")
    least, most = each.least, each.most
    if isinstance(value, int | float) and (
        (least is not None and value < least) or (most is not None and value > most)
    ):
        limit = "" if most is None else f" and at most {most:g}"
        raise _wrong(file, f"has {each.name} = {value!r}, which must be at least {least or 0:g}{limit}")
    return value


def _checked_of_provider(file: Path, each: Setting, value: Any) -> Any:
    if each.kind is SettingKind.SWITCH:
        if not isinstance(value, bool):
            raise _wrong(file, f"has {each.name} = {value!r}, which is not true or false")
        return value
    if not isinstance(value, str):
        shown = "a value" if each.secret else f"{value!r}"
        raise _wrong(file, f"has {each.name} = {shown}, which is not a text")
    if each.kind is SettingKind.SIZE:
        try:
            return parse_size(value)
        except ValueError as error:
            raise _wrong(file, f"has {each.name}: {error}") from None
    return Path(value).expanduser() if each.kind is SettingKind.FOLDER else value


def _fitting(name: str, known: Sequence[str]) -> str:
    """What to do about a name that is no setting. No command of ours lists the settings while a file is wrong."""
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"write {near[0]}, if that is meant" if near else "correct the file"
    return f"{meant}; the settings are the options in holdfast up --help, with _ for -"


def _wrong(file: Path, what: str, next_step: str = "correct the file") -> CommandError:
    return CommandError(f"{file} {what}", next_step=next_step, exit=Exit.USAGE)
