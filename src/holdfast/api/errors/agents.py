"""Errors about agents."""

from __future__ import annotations

from holdfast.api.errors import InvalidRequest, Refused, ServerFailed


class HarnessError(Refused):
    """The base of errors of agents."""


class UnknownAgent(InvalidRequest, HarnessError):
    status = 422
    code = "unknown_agent"


class CannotInstall(ServerFailed, HarnessError):
    """The agent could not be installed on this machine or in a box."""

    status = 503
    code = "agent_not_installed"


class ModelNotSpoken(InvalidRequest, HarnessError):
    """The agent does not support the API of the chosen model."""

    status = 422
    code = "model_not_spoken"
