"""What can go wrong while an image is built. Each says what to do next."""

from __future__ import annotations

from holdfast.api.errors.boxes import BoxError


class InvalidRecipe(BoxError):
    """A recipe that cannot be read, or that makes no sense."""

    status = 422
    code = "invalid_recipe"


class StepFailed(BoxError):
    """A command of a recipe failed. What it printed last is kept here; nothing of the step is."""

    status = 500
    code = "step_failed"

    def __init__(self, message: str, *, output: bytes = b"", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.output = output


class NoSources(BoxError):
    """Nothing says where packages come from."""

    status = 422
    code = "no_package_sources"


class NotVerified(BoxError):
    """What a mirror sent is not signed by anybody that this machine trusts, or is not what was signed."""

    status = 500
    code = "not_verified"


class MirrorFailed(BoxError):
    """A mirror did not give what it should have."""

    status = 500
    code = "mirror_failed"


class Unresolvable(BoxError):
    """Some packages cannot be had together, or at all."""

    status = 422
    code = "unresolvable"


class BadPackage(BoxError):
    """A package that is broken, or that reaches for what is not its own."""

    status = 500
    code = "bad_package"
