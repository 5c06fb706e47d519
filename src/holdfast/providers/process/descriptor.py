"""Describes the process provider: its switch and how to create it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    from holdfast.providers.process.provider import ProcessProvider

    return ProcessProvider(home / "process", tools=home / "tools")


PROCESS: Final = ProviderDescriptor(
    "process",
    _make,
    settings=(
        Setting(
            "allow_process_provider",
            "Offer boxes of the process provider: on this machine, without isolation. For development only.",
            SettingKind.SWITCH,
        ),
    ),
    opt_in="allow_process_provider",
    warning="boxes of the process provider run on this machine without isolation",
)
