"""The definition of a workflow: its steps, checked, and how values get into them. Pure.

Texts of prompts and inputs of tools may contain `{{variables.NAME}}` and `{{steps.ID.output}}`. Commands may not: what
an agent or a webhook has said would become part of a shell command. They find the same values in their environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import MAX_PROMPT
from holdfast.api.tools.catalogue import BY_NAME
from holdfast.api.tools.operation import Schema, ToolGroup, check_value, integer, list_of, text

MOST_STEPS: Final = 50
MOST_VARIABLES: Final = 64
MAX_OUTPUT: Final = 32 * 1024
"""Characters of the output of a step that is kept."""
MAX_FILLED: Final = MAX_PROMPT
"""Characters of the texts of a step and of all values in them. A reference is short, and may come again and again."""
MAX_ASKED: Final = 4 * MAX_OUTPUT
"""The same for what people are asked to approve: all that waits is listed at once."""
COMMAND_SECONDS: Final = 600
_ID: Final = text(64, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
_VALUE: Final = text(16 * 1024, empty=True)
_REFERENCE: Final = re.compile(r"\{\{\s*([A-Za-z0-9_.]+)\s*\}\}")
_NO_TOOLS: Final = frozenset({ToolGroup.WORKFLOWS})
"""A workflow that starts workflows could go on for ever."""
_NEVER: Final = frozenset({"complete_session"})


class StepType(StrEnum):
    AGENT = "agent"
    """A prompt of the session."""
    COMMAND = "command"
    """A shell command in the box of the session."""
    APPROVAL = "approval"
    """Waits until somebody approves."""
    TOOL = "tool"
    """An operation of the session."""


_FIELDS: Final[Mapping[StepType, Mapping[str, tuple[Schema, bool]]]] = {
    StepType.AGENT: {"prompt": (text(MAX_PROMPT), True)},
    StepType.COMMAND: {
        "command": (text(64 * 1024), True),
        "timeoutSeconds": (integer(1, 86_400), False),
        "repeat": ({"type": "boolean"}, False),
    },
    StepType.APPROVAL: {
        "prompt": (text(16 * 1024), True),
        "items": (list_of(text(1000), 50), False),
        "notify": (text(128, pattern=r"^@?[A-Za-z0-9][A-Za-z0-9._@+-]*$"), False),
    },
    StepType.TOOL: {"tool": (text(64), True), "input": ({"type": "object"}, False)},
}
"""The fields of each type of step beside `id` and `type`, and whether they are required."""


@dataclass(frozen=True, slots=True)
class Step:
    id: str
    type: StepType
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    steps: tuple[Step, ...]
    variables: Mapping[str, str]
    """Their defaults. Other variables are refused."""

    @property
    def json(self) -> dict[str, Any]:
        steps = [{"id": each.id, "type": each.type.value, **each.settings} for each in self.steps]
        return {"variables": dict(self.variables), "steps": steps}

    @property
    def hash(self) -> str:
        """Names exactly this definition."""
        return hashlib.sha256(json.dumps(self.json, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def with_defaults(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Returns all variables of an execution. Raises `InvalidRequest`."""
        values = dict(self.variables)
        for name, value in given.items():
            if name not in self.variables:
                known = ", ".join(self.variables) or "no variables"
                raise InvalidRequest(f"this workflow has no variable {name[:64]!r}: it has {known}")
            check_value(_VALUE, value, f"variable {name}")
            values[name] = value
        return values


def parse_definition(data: Any) -> Definition:
    """Read a definition. Raises `InvalidRequest` that names what is wrong."""
    if not isinstance(data, dict) or (unknown := data.keys() - {"steps", "variables"}):
        raise InvalidRequest(
            "a workflow is an object with steps and variables"
            + ("" if not isinstance(data, dict) else f", not {sorted(map(str, unknown))[0][:64]!r}")
        )
    variables, steps = data.get("variables", {}), data.get("steps")
    if not isinstance(variables, dict) or len(variables) > MOST_VARIABLES:
        raise InvalidRequest(f"variables must be an object with at most {MOST_VARIABLES} names and their defaults")
    for name, value in variables.items():
        check_value(_ID, name, "the name of a variable")
        check_value(_VALUE, value, f"variable {name}")
    if not isinstance(steps, list) or not 1 <= len(steps) <= MOST_STEPS:
        raise InvalidRequest(f"a workflow has 1 to {MOST_STEPS} steps")
    parsed: list[Step] = []
    for number, each in enumerate(steps):
        step = _parse_step(each, f"steps[{number}]")
        earlier = [other.id for other in parsed]
        if step.id in earlier:
            raise InvalidRequest(f"steps[{number}] has the id {step.id!r} of an earlier step")
        _check_references(step, variables, earlier)
        parsed.append(step)
    return Definition(tuple(parsed), variables)


def _parse_step(value: Any, where: str) -> Step:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object")
    kind = value.get("type")
    if kind not in list(StepType):
        raise InvalidRequest(f"{where}.type must be one of {', '.join(StepType)}, not {str(kind)[:64]!r}")
    check_value(_ID, value.get("id"), f"{where}.id")
    fields = _FIELDS[StepType(kind)]
    settings = {name: each for name, each in value.items() if name not in ("id", "type")}
    for name, each in settings.items():
        if name not in fields:
            raise InvalidRequest(f"{where} takes no {str(name)[:64]!r}: it takes {', '.join(fields)}")
        check_value(fields[name][0], each, f"{where}.{name}")
    for name, (_, required) in fields.items():
        if required and name not in settings:
            raise InvalidRequest(f"{where} needs {name}")
    if kind == StepType.TOOL:
        operation = BY_NAME.get(settings["tool"])
        if operation is None or operation.group in _NO_TOOLS or operation.name in _NEVER:
            raise InvalidRequest(f"{where}.tool {settings['tool'][:64]!r} is no tool that a workflow can use")
    return Step(value["id"], StepType(kind), settings)


def _check_references(step: Step, variables: Mapping[str, Any], earlier: list[str]) -> None:
    known = {f"variables.{name}" for name in variables} | {f"steps.{id}.output" for id in earlier}
    for each in _texts({name: value for name, value in step.settings.items() if name != "command"}):
        for reference in _REFERENCE.findall(each):
            if reference not in known:
                raise InvalidRequest(f"step {step.id} refers to {reference!r}: no variable, no earlier step")
    if step.type is StepType.COMMAND and _REFERENCE.search(step.settings["command"]):
        raise InvalidRequest(
            f"the command of step {step.id} must not contain {{{{…}}}}: use $VAR_name and $STEP_id, which are set"
        )


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else []


def fill(value: Any, variables: Mapping[str, str], outputs: Mapping[str, str], most: int = MAX_FILLED) -> Any:
    """Returns a text, or all texts in an object, with values for references. What is filled in stays as it is.

    Raises `InvalidRequest` if texts and values have more than `most` characters together, before they are put together.
    """
    known = {f"variables.{name}": each for name, each in variables.items()}
    known |= {f"steps.{id}.output": each for id, each in outputs.items()}
    left = most

    def counted(text: str) -> str:
        nonlocal left
        left -= len(text)
        if left < 0:
            raise InvalidRequest(f"with the values of its references it has more than {most} characters")
        return text

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(lambda found: counted(known.get(found[1], "")), counted(value))
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        return [filled(each) for each in value] if isinstance(value, list) else value

    return filled(value)


def environment_of(variables: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command."""
    return {
        **{f"VAR_{name}": value for name, value in variables.items()},
        **{f"STEP_{id}": value for id, value in outputs.items()},
    }
