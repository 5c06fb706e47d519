"""Which providers there are, each loaded only where it is opened. A new one is one module and one line here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.boxes.errors import BoxError
from holdfast.boxes.provider import Provider
from holdfast.providers.unusable import UnusableProvider

log = logging.getLogger(__name__)


def _local(home: Path) -> Provider:
    from holdfast.providers.local import LocalProvider

    return LocalProvider(home)


def _process(home: Path) -> Provider:
    from holdfast.providers.process import ProcessProvider

    return ProcessProvider(home / "process")


def known_providers(*, allow_process: bool) -> dict[str, Callable[[Path], Provider]]:
    """Makers of providers, by name."""
    makers: dict[str, Callable[[Path], Provider]] = {"local": _local}
    if allow_process:
        makers["process"] = _process
    return makers


async def open_providers(home: Path, *, allow_process: bool = False) -> Mapping[str, Provider]:
    """All providers of a home, opened; the caller closes them. The process provider says what it is when it opens.

    One that cannot work on this machine is there all the same: it answers everything with the reason.
    """
    opened: dict[str, Provider] = {}
    try:
        for name, make in known_providers(allow_process=allow_process).items():
            opened[name] = await _open(name, make, home)
    except BaseException:
        for provider in opened.values():
            await provider.close()
        raise
    return opened


async def _open(name: str, make: Callable[[Path], Provider], home: Path) -> Provider:
    try:
        provider = make(home)
        await provider.open()
    except BoxError as error:
        log.warning("provider %s cannot be used here: %s", name, error.message)
        return UnusableProvider(name, error)
    return provider
