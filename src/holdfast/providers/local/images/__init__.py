"""Images of local boxes: archives in, layers on disk, and what a box needs to begin with one."""

from holdfast.providers.local.images.store import LocalImages

__all__ = ["LocalImages"]
