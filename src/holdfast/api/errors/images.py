"""The errors of images that are pulled from registries."""

from __future__ import annotations

from holdfast.api.errors.boxes import BoxError


class RegistryFailed(BoxError):
    """A registry could not be reached, or answered in a way that makes no sense."""

    status = 502
    code = "registry_failed"


class RegistryRefused(BoxError):
    """A registry does not let this user have the image."""

    status = 403
    code = "registry_refused"


class NotInRegistry(BoxError):
    """A registry has no such image."""

    status = 404
    code = "not_in_registry"
