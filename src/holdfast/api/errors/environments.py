"""Errors of environments."""

from __future__ import annotations

from holdfast.api.errors import Conflict, InvalidRequest, NotFound, Refused


class EnvironmentProblem(Refused):
    """The base of errors of environments."""


class InvalidEnvironment(InvalidRequest, EnvironmentProblem):
    """A recipe has errors. The message names each of them, with its line."""

    status = 422
    code = "invalid_environment"


class EnvironmentNotFound(NotFound, EnvironmentProblem):
    code = "environment_not_found"


class EnvironmentChanged(Conflict, EnvironmentProblem):
    """Another caller stored a version in the meantime."""

    code = "environment_changed"


class EnvironmentNotAllowed(Conflict, EnvironmentProblem):
    """A file from a repository asks for something that only a user may grant, and nobody has."""

    code = "environment_not_allowed"


class EnvironmentIncomplete(Conflict, EnvironmentProblem):
    """The server lacks something that the environment requires. The message names all of it."""

    code = "environment_incomplete"


class SetupFailed(EnvironmentProblem):
    """A setup command failed. The message ends with its last output."""

    status = 409
    code = "setup_failed"
