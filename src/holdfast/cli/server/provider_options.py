"""Options of `holdfast up` for providers: one for each setting that a provider declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.errors import read_value
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.terminal.sizes import parse_size
from holdfast.providers.descriptor import Setting, SettingKind
from holdfast.providers.registry import descriptors


def _option(setting: Setting) -> Any:
    more = {
        name: value for name, value in (("metavar", setting.metavar), ("envvar", setting.variable)) if value is not None
    }
    option = Option(setting.option, help=setting.help, **more)
    match setting.kind:
        case SettingKind.SWITCH:
            return Annotated[bool, option]
        case SettingKind.FOLDER:
            return Annotated[Path | None, option]
    return Annotated[str | None, option]


if TYPE_CHECKING:
    ProviderOptions = OptionGroup
else:
    ProviderOptions = make_dataclass(
        "ProviderOptions",
        [
            (setting.name, _option(setting), setting.default)
            for descriptor in descriptors()
            for setting in descriptor.settings
        ],
        bases=(OptionGroup,),
        namespace={"__module__": __name__},
        frozen=True,
    )

NO_PROVIDER_OPTIONS = ProviderOptions()


def settings_of(options: ProviderOptions) -> dict[str, Any]:
    """The settings of providers that are on the command line."""
    sizes = {each.name for known in descriptors() for each in known.settings if each.kind is SettingKind.SIZE}
    return {
        name: read_value(parse_size, value) if name in sizes else value
        for name, value in vars(options).items()
        if value not in (None, False)
    }


def warnings(settings: dict[str, Any]) -> Iterator[str]:
    """Warnings about the providers that these settings enable."""
    for descriptor in descriptors():
        if descriptor.warning is not None and descriptor.is_offered(settings):
            yield descriptor.warning
