"""The errors of building an image. Each has a hint on what to do next."""

from __future__ import annotations

from holdfast.api.errors.boxes import BoxError


class InvalidRecipe(BoxError):
    """A recipe that cannot be read, or is invalid."""

    status = 422
    code = "invalid_recipe"


class StepFailed(BoxError):
    """A command of a recipe failed. Contains its last output; none of the step's files are kept."""

    status = 500
    code = "step_failed"

    def __init__(self, message: str, *, output: bytes = b"", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.output = output


class NoSources(BoxError):
    """No source of packages is known."""

    status = 422
    code = "no_package_sources"


class NotVerified(BoxError):
    """The data of a mirror has no trusted signature, or does not match what was signed."""

    status = 500
    code = "not_verified"


class MirrorFailed(BoxError):
    """A mirror did not deliver what it should have."""

    status = 500
    code = "mirror_failed"


class Unresolvable(BoxError):
    """Some packages cannot be installed together, or at all."""

    status = 422
    code = "unresolvable"


class BadPackage(BoxError):
    """A package that is damaged, or that contains paths outside of its own."""

    status = 500
    code = "bad_package"
