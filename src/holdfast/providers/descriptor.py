"""Describes a provider: its name, its settings, its checks of this machine, and how to create it.

The settings of a server, the options of `holdfast up` and `holdfast provider add`, and the checks of `holdfast
doctor` are derived from this. The command line reads all descriptors, so a descriptor's module imports its provider
only when it creates one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult


class SettingKind(StrEnum):
    TEXT = "text"
    FOLDER = "folder"
    """A `Path`."""
    SIZE = "size"
    """Bytes, as an int; on the command line as `512M` or `8G`."""
    SWITCH = "switch"
    """A bool that is off by default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a provider. It defaults to None, or to False for a switch."""

    name: str
    """Unique among all providers. `docker_host` becomes the option `--docker-host`."""
    help: str
    kind: SettingKind = SettingKind.TEXT
    metavar: str | None = None
    variable: str | None = None
    """The environment variable to use if the option is not given."""
    secret: bool = False
    """Part of the credential of an account: encrypted at rest, never shown, and never read from a command line."""

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def default(self) -> bool | None:
        return False if self.kind is SettingKind.SWITCH else None


def relay_setting(provider: str) -> Setting:
    """Returns the setting of a provider whose boxes can have a network of their own."""
    return Setting(
        f"{provider}_relay",
        f"How boxes of {provider} reach this server: the URL of a relay (holdfast relay), or its own. By default over "
        "the provider's API.",
        metavar="URL",
    )


Make: TypeAlias = "Callable[[Path, Egress | None, Mapping[str, Any]], Provider]"
"""Creates the provider from the home, the egress of its boxes, and its settings. Raises `BoxError` if the provider
cannot work on this machine. May block."""


@dataclass(frozen=True, slots=True)
class ProviderDescriptor:
    name: str
    make: Make
    settings: tuple[Setting, ...] = ()
    examine: Callable[[Path], Iterable[CheckResult]] = lambda home: ()
    """Checks whether this machine has what the provider needs. Blocks."""
    opt_in: str | None = None
    """The switch that enables the provider. None if it is always enabled."""
    warning: str | None = None
    """Shown when a server starts with a provider that had to be enabled."""
    credential_file: str | None = None
    """Where the vendor's own tools keep a credential: `~/.vendor.toml`. `make` uses it if no setting has one."""

    @property
    def secrets(self) -> tuple[Setting, ...]:
        return tuple(each for each in self.settings if each.secret)

    @property
    def has_accounts(self) -> bool:
        """Whether there can be several, each with a credential of its own."""
        return bool(self.secrets)

    def is_offered(self, chosen: Mapping[str, Any]) -> bool:
        return self.opt_in is None or bool(chosen.get(self.opt_in))

    def values(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the value of each of its settings, given or default."""
        return {each.name: chosen.get(each.name, each.default) for each in self.settings}
