"""Describes the local provider: its settings, its checks and how to create it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    from holdfast.providers.local.provider import LocalProvider

    return LocalProvider(home, egress=egress, box_disk=settings["box_disk"])


def _examine(home: Path) -> Iterator[CheckResult]:
    from holdfast.providers.local.checks import examine

    yield from examine(home)


LOCAL: Final = ProviderDescriptor(
    "local",
    _make,
    settings=(
        Setting(
            "box_disk",
            "Disk of a local box that asks for no limit; else a quarter of the disk, 32 GB at most.",
            SettingKind.SIZE,
            metavar="SIZE",
        ),
    ),
    examine=_examine,
)
