"""What a provider declares about itself: its name, its settings, its checks of this machine, and how it is made.

The settings of a server, the options of `holdfast up` and the findings of `holdfast doctor` follow from this. A module
with a descriptor imports nothing of its provider until that is made: the command line reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from holdfast.boxes.finding import Finding
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider


class SettingKind(StrEnum):
    TEXT = "text"
    FOLDER = "folder"
    """A `Path`."""
    SIZE = "size"
    """Bytes, as an int; on the command line as `512M` or `8G`."""
    SWITCH = "switch"
    """A bool that is off unless it is given."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a provider. What nobody gives is None, or False for a switch."""

    name: str
    """Unique among the settings of all providers: `docker_host`, which is the option `--docker-host`."""
    help: str
    kind: SettingKind = SettingKind.TEXT
    metavar: str | None = None
    variable: str | None = None
    """The environment variable that has it, where the option is not given."""

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def default(self) -> bool | None:
        return False if self.kind is SettingKind.SWITCH else None


Make: TypeAlias = "Callable[[Path, Egress | None, Mapping[str, Any]], Provider]"
"""Makes the provider of a home, by its settings; what leaves its boxes goes through the egress. Raises `BoxError` if it
cannot work on this machine. May block."""


@dataclass(frozen=True, slots=True)
class ProviderDescriptor:
    name: str
    make: Make
    settings: tuple[Setting, ...] = ()
    examine: Callable[[Path], Iterable[Finding]] = lambda home: ()
    """Checks whether this machine has what the provider needs. Blocks."""
    opt_in: str | None = None
    """The switch without which the provider is not offered."""
    warning: str | None = None
    """Shown to whoever starts a server with a provider that has to be opted in to."""

    def is_offered(self, given: Mapping[str, Any]) -> bool:
        return self.opt_in is None or bool(given.get(self.opt_in))

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Its own among the settings that were given, and the defaults of the others."""
        return {each.name: given.get(each.name, each.default) for each in self.settings}
