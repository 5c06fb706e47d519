"""Describes the sprites provider: its settings, its checks and how to create it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind, relay_setting

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult

TOKEN_VARIABLE: Final = "SPRITES_TOKEN"
URL_VARIABLE: Final = "SPRITES_API_URL"


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    from holdfast.providers.sprites.account import find_account

    account = find_account(settings["sprites_token"], settings["sprites_url"], Path.home())
    if account is None:
        from holdfast.api.errors.boxes import CannotIsolate
        from holdfast.providers.unavailable import AbsentProvider

        error = CannotIsolate(
            "there is no token for Sprites",
            hint="give one of sprites.dev: holdfast provider add sprites; or log in with `sprite login`",
        )
        return AbsentProvider("sprites", error)
    from holdfast.providers.namespace import namespace_of
    from holdfast.providers.sprites.network import check_relay
    from holdfast.providers.sprites.provider import SpritesProvider
    from holdfast.providers.stream.guest_relay import read_relay

    folder = home / "sprites"
    return SpritesProvider(
        account,
        namespace=namespace_of(folder),
        folder=folder,
        egress=egress,
        direct=bool(settings["sprites_direct"]),
        relay=check_relay(read_relay("--sprites-relay", settings["sprites_relay"])),
    )


def _examine(home: Path) -> Iterator[CheckResult]:
    from holdfast.providers.sprites.checks import examine

    yield from examine()


SPRITES: Final = ProviderDescriptor(
    "sprites",
    _make,
    settings=(
        Setting(
            "sprites_token",
            "Token for boxes that are Sprites of Fly.io. By default that of the sprite command.",
            metavar="TOKEN",
            variable=TOKEN_VARIABLE,
            secret=True,
        ),
        Setting("sprites_url", "Address of the Sprites API.", metavar="URL", variable=URL_VARIABLE),
        Setting(
            "sprites_direct",
            "Let sprites reach the network directly, limited by their own policy, and not through this server.",
            SettingKind.SWITCH,
        ),
        relay_setting("sprites"),
    ),
    examine=_examine,
    credential_file="~/.sprites/sprites.json",
)
