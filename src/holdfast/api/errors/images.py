"""Errors of pulling images from registries."""

from __future__ import annotations

from holdfast.api.errors.boxes import BoxError


class RegistryFailed(BoxError):
    """A registry could not be reached, or sent an invalid response."""

    status = 502
    code = "registry_failed"


class RegistryRefused(BoxError):
    """The registry does not allow this user to pull the image."""

    status = 403
    code = "registry_refused"


class NotInRegistry(BoxError):
    """A registry has no such image."""

    status = 404
    code = "not_in_registry"
