"""Describes the Daytona provider: its settings, its checks and how to create it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind, relay_setting

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult

KEY_VARIABLE: Final = "DAYTONA_API_KEY"
URL_VARIABLE: Final = "DAYTONA_API_URL"
TARGET_VARIABLE: Final = "DAYTONA_TARGET"
ORGANIZATION_VARIABLE: Final = "DAYTONA_ORGANIZATION_ID"


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    if not settings["daytona_api_key"]:
        from holdfast.api.errors.boxes import CannotIsolate
        from holdfast.providers.unavailable import AbsentProvider

        error = CannotIsolate("there is no API key for Daytona", hint="give it: holdfast provider add daytona")
        return AbsentProvider("daytona", error)
    from holdfast.providers.daytona.account import API_URL, Account
    from holdfast.providers.daytona.provider import DaytonaProvider
    from holdfast.providers.stream.guest_relay import read_relay

    account = Account(
        settings["daytona_api_key"],
        settings["daytona_api_url"] or API_URL,
        settings["daytona_target"],
        settings["daytona_organization"],
    )
    return DaytonaProvider(
        home / "daytona",
        account,
        image=settings["daytona_image"],
        direct=bool(settings["daytona_direct"]),
        relay=read_relay("--daytona-relay", settings["daytona_relay"]),
        egress=egress,
    )


def _examine(home: Path) -> Iterator[CheckResult]:
    from holdfast.providers.daytona.checks import examine

    yield from examine()


DAYTONA: Final = ProviderDescriptor(
    "daytona",
    _make,
    settings=(
        Setting("daytona_api_key", "Key for boxes at Daytona.", metavar="KEY", variable=KEY_VARIABLE, secret=True),
        Setting("daytona_api_url", "Address of the Daytona API.", metavar="URL", variable=URL_VARIABLE),
        Setting(
            "daytona_target",
            "Region of boxes at Daytona, if not that of the organization.",
            metavar="NAME",
            variable=TARGET_VARIABLE,
        ),
        Setting(
            "daytona_organization",
            "Organization at Daytona, for a key of several.",
            metavar="ID",
            variable=ORGANIZATION_VARIABLE,
        ),
        Setting(
            "daytona_image",
            "What boxes at Daytona start from if they name no image: an image, snapshot:NAME or dockerfile:PATH.",
            metavar="IMAGE",
        ),
        Setting(
            "daytona_direct",
            "Let boxes at Daytona reach the network directly, limited by Daytona, and not through this server.",
            SettingKind.SWITCH,
        ),
        relay_setting("daytona"),
    ),
    examine=_examine,
)
