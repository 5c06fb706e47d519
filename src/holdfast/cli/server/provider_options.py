"""Options for the settings that providers declare: those of `holdfast up`, and those of an account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from holdfast.cli.errors import read_value
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.terminal.sizes import parse_size
from holdfast.providers.descriptor import Setting, SettingKind
from holdfast.providers.registry import descriptors


def _option(setting: Setting, **more: Any) -> Any:
    if setting.metavar is not None:
        more["metavar"] = setting.metavar
    option = Option(setting.option, help=setting.help, **more)
    match setting.kind:
        case SettingKind.SWITCH:
            return Annotated[bool, option]
        case SettingKind.FOLDER:
            return Annotated[Path | None, option]
    return Annotated[str | None, option]


def _group(name: str, options: Iterable[tuple[Setting, Any]]) -> type[OptionGroup]:
    return make_dataclass(
        name,
        [(setting.name, option, setting.default) for setting, option in options],
        bases=(OptionGroup,),
        namespace={"__module__": __name__},
        frozen=True,
    )


def _of_server() -> Iterator[tuple[Setting, Any]]:
    for descriptor in descriptors():
        for setting in descriptor.settings:
            more = {} if setting.variable is None else {"envvar": setting.variable}
            yield setting, _option(setting, **more)


def _of_account() -> Iterator[tuple[Setting, Any]]:
    """No variables: those are for the default accounts. No secrets: other users can read command lines."""
    for descriptor in descriptors():
        if descriptor.has_accounts:
            for setting in descriptor.settings:
                if not setting.secret:
                    yield setting, _option(setting)


if TYPE_CHECKING:
    ProviderOptions = OptionGroup
    AccountOptions = OptionGroup
else:
    ProviderOptions = _group("ProviderOptions", _of_server())
    AccountOptions = _group("AccountOptions", _of_account())

NO_PROVIDER_OPTIONS = ProviderOptions()
NO_ACCOUNT_OPTIONS = AccountOptions()


def settings_of(options: OptionGroup) -> dict[str, Any]:
    """The settings of providers that have a value."""
    sizes = {each.name for known in descriptors() for each in known.settings if each.kind is SettingKind.SIZE}
    return {
        name: read_value(parse_size, value) if name in sizes else value
        for name, value in vars(options).items()
        if value not in (None, False)
    }


def split_by_source(settings: dict[str, Any], used: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the settings of the command line, whose options were `used`, from those of the environment."""
    on_line = {each.name for known in descriptors() for each in known.settings if each.option in used}
    flags = {name: value for name, value in settings.items() if name in on_line}
    return flags, {name: value for name, value in settings.items() if name not in on_line}


def without_own_address(environment: dict[str, Any], port: int) -> dict[str, Any]:
    """Leave the variables of Daytona out if they lead to the server that is about to start.

    A user of its Daytona API exports them for the SDK, and starts the next server in the same terminal.
    """
    address = urlsplit(environment.get("daytona_api_url") or "")
    here = address.hostname in ("127.0.0.1", "localhost", "::1") and address.port == port
    if not here or address.path.rstrip("/") != "/compat/daytona":
        return environment
    return {name: value for name, value in environment.items() if not name.startswith("daytona_")}


def warnings(settings: dict[str, Any]) -> Iterator[str]:
    """Warnings about the providers that these settings enable."""
    for descriptor in descriptors():
        if descriptor.warning is not None and descriptor.is_offered(settings):
            yield descriptor.warning
