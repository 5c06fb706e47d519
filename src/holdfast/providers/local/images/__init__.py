"""Images of local boxes: imports archives, stores their layers, and provides what a box with an image starts with."""

from holdfast.providers.local.images.store import LocalImages

__all__ = ["LocalImages"]
