"""Lists the providers: our own, and those of installed packages.

The command line reads this, so no provider is imported here; `factory` does that. A provider of ours is one folder and
one line here. Another package names its descriptor as an entry point of the group `holdfast.providers`.
"""

from __future__ import annotations

import functools
import logging
from importlib import metadata
from typing import Final

from holdfast.providers.daytona.descriptor import DAYTONA
from holdfast.providers.descriptor import ProviderDescriptor
from holdfast.providers.docker.descriptor import DOCKER
from holdfast.providers.local.descriptor import LOCAL
from holdfast.providers.modal.descriptor import MODAL
from holdfast.providers.process.descriptor import PROCESS
from holdfast.providers.sprites.descriptor import SPRITES

log = logging.getLogger(__name__)

ENTRY_POINTS: Final = "holdfast.providers"
_OURS: Final = (LOCAL, DOCKER, DAYTONA, SPRITES, MODAL, PROCESS)


@functools.cache
def descriptors() -> tuple[ProviderDescriptor, ...]:
    """Returns all providers of this installation, ours first. Reads the disk once."""
    found = {each.name: each for each in _OURS}
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            descriptor = entry_point.load()
        except Exception as error:  # foreign code may raise anything; the other providers still work
            log.warning("cannot load provider %s: %s", entry_point.value, error)
            continue
        if not isinstance(descriptor, ProviderDescriptor) or descriptor.name in found:
            log.warning("%s is not a ProviderDescriptor, or its name is taken", entry_point.value)
            continue
        found[descriptor.name] = descriptor
    return tuple(found.values())
