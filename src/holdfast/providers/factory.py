"""Opens the providers of a home. Providers are imported only here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from holdfast.api.errors.boxes import BoxError, CannotIsolate
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.providers.descriptor import ProviderDescriptor
from holdfast.providers.registry import descriptors
from holdfast.providers.unavailable import UnavailableProvider

log = logging.getLogger(__name__)


async def open_providers(
    home: Path,
    *,
    egress: Egress | None = None,
    settings: Mapping[str, Any] | None = None,
    kinds: Collection[str] | None = None,
) -> Mapping[str, Provider]:
    """Open all providers of a home with their settings, or those of some kinds. The caller closes them.

    A provider that cannot work on this machine is replaced by one that refuses every call with the reason. Without an
    `egress`, boxes have no network. Raises `ValueError` for a setting that no provider declares.
    """
    chosen = settings or {}
    known = await asyncio.to_thread(descriptors)
    if unknown := chosen.keys() - {each.name for descriptor in known for each in descriptor.settings}:
        raise ValueError(f"no provider has a setting {', '.join(sorted(unknown))}")
    opened: dict[str, Provider] = {}
    try:
        for descriptor in known:
            if descriptor.is_offered(chosen) and (kinds is None or descriptor.name in kinds):
                opened[descriptor.name] = await open_provider(descriptor, descriptor.name, home, egress, chosen)
    except BaseException:
        for provider in opened.values():
            await provider.close()
        raise
    return opened


async def open_provider(
    descriptor: ProviderDescriptor, name: str, home: Path, egress: Egress | None, settings: Mapping[str, Any]
) -> Provider:
    """Open one provider, under the name by which boxes name it. Settings that it does not declare are ignored."""
    try:
        return await opened(await make_provider(descriptor, name, home, egress, settings))
    except BoxError as error:
        return UnavailableProvider(name, error)


async def opened(provider: Provider) -> Provider:
    """Open a provider that was made, or return one that refuses every call with the reason why it cannot be opened."""
    try:
        await provider.open()
    except BoxError as error:
        log.warning("provider %s cannot be used here: %s", provider.name, error.message)
        return UnavailableProvider(provider.name, error)
    return provider


async def make_provider(
    descriptor: ProviderDescriptor, name: str, home: Path, egress: Egress | None, settings: Mapping[str, Any]
) -> Provider:
    """Create a provider without opening it. Raises `BoxError` if its settings or this machine do not allow that."""
    try:
        # On a thread, because importing a provider takes long and would block the event loop.
        provider = await asyncio.to_thread(_make, descriptor, home, egress, descriptor.values(settings))
    except BoxError as error:
        log.warning("provider %s cannot be used here: %s", name, error.message)
        raise
    provider.name = name
    return provider


def _make(descriptor: ProviderDescriptor, home: Path, egress: Egress | None, values: Mapping[str, Any]) -> Provider:
    try:
        return descriptor.make(home, egress, values)
    except ImportError as error:
        raise CannotIsolate(
            f"provider {descriptor.name} needs a package that is not installed: {error}",
            hint=f"pip install 'holdfast[{descriptor.name}]'",
        ) from None
