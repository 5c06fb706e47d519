"""Errors of agents that somebody asks for."""

from __future__ import annotations

from holdfast.api.errors import InvalidRequest, Refused, ServerFailed


class HarnessError(Refused):
    """The base of errors of agents."""


class UnknownAgent(InvalidRequest, HarnessError):
    status = 422
    code = "unknown_agent"


class CannotInstall(ServerFailed, HarnessError):
    """The agent could not be brought to this machine, or into a box."""

    status = 503
    code = "agent_not_installed"


class ModelNotSpoken(InvalidRequest, HarnessError):
    """The agent does not speak the API of the model that was chosen."""

    status = 422
    code = "model_not_spoken"
