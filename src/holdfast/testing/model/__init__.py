"""A scripted model server: real coding agents work against it with no model, no key and no network.

    async with ScriptedModel([bash("pytest"), text("All green.")]) as model:
        ...  # let an agent work against model.url
        assert model.main_requests[1].results[0].text == "1 passed"

For programs in other processes: `python -m holdfast.testing.model --script FILE --port 0 --port-file FILE`.
"""

from holdfast.api.model.models import Api
from holdfast.testing.model.gates import Gate
from holdfast.testing.model.requests import Answered, Called, Request, Said, Thought
from holdfast.testing.model.scripts import EXHAUSTED, SIDE_ANSWER
from holdfast.testing.model.server import ScriptedModel
from holdfast.testing.model.steps import (
    FOR_EVER,
    Bash,
    Edit,
    Scripted,
    Step,
    Tool,
    Usage,
    Write,
    bash,
    edit,
    error,
    held,
    step_of,
    text,
    tool,
    write,
)

__all__ = [
    "EXHAUSTED",
    "FOR_EVER",
    "SIDE_ANSWER",
    "Answered",
    "Api",
    "Bash",
    "Called",
    "Edit",
    "Gate",
    "Request",
    "Said",
    "Scripted",
    "ScriptedModel",
    "Step",
    "Thought",
    "Tool",
    "Usage",
    "Write",
    "bash",
    "edit",
    "error",
    "held",
    "step_of",
    "text",
    "tool",
    "write",
]
