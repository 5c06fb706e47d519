"""Opens the providers of a home. Each is loaded only here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.boxes.errors import BoxError, CannotIsolate
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.providers.descriptor import ProviderDescriptor
from holdfast.providers.registry import descriptors
from holdfast.providers.unusable import UnusableProvider

log = logging.getLogger(__name__)


async def open_providers(
    home: Path, *, egress: Egress | None = None, settings: Mapping[str, Any] | None = None
) -> Mapping[str, Provider]:
    """Open all providers of a home, by the settings that they declare. The caller closes them.

    One that cannot work on this machine is there all the same: it answers everything with the reason. Without an
    `egress` no box has a network. Raises `ValueError` for a setting that no provider declares.
    """
    given = settings or {}
    known = await asyncio.to_thread(descriptors)
    if unknown := given.keys() - {each.name for descriptor in known for each in descriptor.settings}:
        raise ValueError(f"no provider has a setting {', '.join(sorted(unknown))}")
    opened: dict[str, Provider] = {}
    try:
        for descriptor in known:
            if descriptor.is_offered(given):
                opened[descriptor.name] = await _open(descriptor, home, egress, descriptor.values(given))
    except BaseException:
        for provider in opened.values():
            await provider.close()
        raise
    return opened


async def _open(
    descriptor: ProviderDescriptor, home: Path, egress: Egress | None, values: Mapping[str, Any]
) -> Provider:
    try:
        # On a thread: to load a provider takes so long that nobody else should wait for it.
        provider = await asyncio.to_thread(_make, descriptor, home, egress, values)
        await provider.open()
    except BoxError as error:
        log.warning("provider %s cannot be used here: %s", descriptor.name, error.message)
        return UnusableProvider(descriptor.name, error)
    return provider


def _make(descriptor: ProviderDescriptor, home: Path, egress: Egress | None, values: Mapping[str, Any]) -> Provider:
    try:
        return descriptor.make(home, egress, values)
    except ImportError as error:
        raise CannotIsolate(
            f"boxes of the provider {descriptor.name} need what is not installed here: {error}",
            hint=f"pip install 'holdfast[{descriptor.name}]'",
        ) from None
