"""Providers of boxes and their accounts. No response contains a credential."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from holdfast.api.box.records import Step
from holdfast.api.document import Document, Limits
from holdfast.api.limits import ProviderName, Secret, SettingName, SettingText, StrictBool

MOST_SETTINGS: Final = 64

MachineName = Annotated[str, Limits(min_length=1, max_length=128)]
VariableName = Annotated[str, Limits(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
VariableValue = Annotated[str, Limits(max_length=32_768, schema={"format": "password", "writeOnly": True})]
SettingValue = StrictBool | Annotated[int, Limits(ge=0, lt=1 << 60, strict=True)] | SettingText


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord(Document):
    """What boxes can be created with, by its name: a provider of this machine, or an account of one elsewhere."""

    name: str
    kind: str
    isolation: str
    """What isolates its boxes, in words. Empty if it is not usable."""
    is_ready: bool
    reason: str | None
    """Why it is not usable."""
    hint: str | None
    """What to do about that."""
    boxes: int
    """Boxes that it has."""
    is_added: bool
    """Whether it was added as an account, with or without a credential."""
    credential: str | None
    """Where the credential comes from: `sealed`, an option of `holdfast up`, a variable of the environment, or a file.
    None if there is none."""
    needs_credential: bool
    settings: dict[str, SettingValue]
    """The settings of the account, without its credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecordList(Document):
    providers: tuple[ProviderRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountChange(Document):
    """Omitted fields stay as they are."""

    kind: ProviderName | None = None
    """The kind of provider. Defaults to the name."""
    settings: Annotated[dict[SettingName, SettingValue | None], Limits(max_length=MOST_SETTINGS)] = field(
        default_factory=dict
    )
    """Settings that the provider declares. None removes one. Other settings need the credential again."""
    credential: Annotated[dict[SettingName, Secret], Limits(max_length=MOST_SETTINGS)] = field(
        default_factory=dict, repr=False
    )
    """Settings that the provider declares as secret. Stored encrypted, and never shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTrial(Document):
    """The result of a test, for which a box was created, used and deleted; or of a setup."""

    name: str
    ok: bool
    steps: tuple[Step, ...]
    """Of a test `reach`, `authorize`, `create`, `exec`, `delete`, up to the first that failed. What was created is
    deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSetup(Document):
    """What to put into a machine of the user. Nothing that the user has there is replaced."""

    machine: MachineName
    """Its name at the vendor, or the id of a box. One that does not exist is created."""
    agents: Annotated[tuple[ProviderName, ...], Limits(max_length=8)] = ()
    environment: Annotated[dict[VariableName, VariableValue], Limits(max_length=MOST_SETTINGS)] = field(
        default_factory=dict, repr=False
    )
    """Variables. Empty ones are left out. Not stored on the server, and never shown."""
