"""What can be wrong with an agent that somebody asks for."""

from __future__ import annotations

from typing import ClassVar


class HarnessError(Exception):
    """Base of all. Has a code and an HTTP status, and tells what to do next."""

    code: ClassVar[str] = "agent_error"
    status: ClassVar[int] = 422

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnknownAgent(HarnessError):
    code = "unknown_agent"


class CannotInstall(HarnessError):
    """The agent could not be brought to this machine, or into a box."""

    code = "agent_not_installed"
    status = 503


class ModelNotSpoken(HarnessError):
    """The agent does not speak the API of the model that was chosen."""

    code = "model_not_spoken"
