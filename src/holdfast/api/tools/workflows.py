"""The operations on workflows, their triggers and their executions."""

from __future__ import annotations

from typing import Final

from holdfast.api.tools.operation import (
    BOOLEAN,
    ID,
    KEY,
    OBJECT,
    Field,
    Operation,
    ToolGroup,
    choice,
    integer,
    text,
)

_NAME: Final = text(200)
_ABOUT: Final = text(4000, empty=True)
_WORKFLOW: Final = Field("workflowId", "The id or the slug of the workflow.", ID, required=True, aliases=("id",))
_THIS: Final = Field("id", "The id or the slug of the workflow.", ID, required=True, aliases=("workflowId",))
_TRIGGER: Final = Field("id", "The id of the trigger.", ID, required=True, aliases=("triggerId",))
_EXECUTION: Final = Field("id", "The id of the execution.", ID, required=True, aliases=("executionId",))
_VARIABLES: Final = Field("variables", "Values for its variables: texts by name.", OBJECT)
_DATA: Final = (
    "The definition: {variables: {name: default}, steps: [{id, type, …}]}. Types of steps: agent {prompt}, command"
    " {command, timeoutSeconds?, repeat?}, approval {prompt, items?, notify?}, tool {tool, input?}. Prompts and inputs"
    " can contain {{variables.NAME}} and {{steps.ID.output}}; commands find them as $VAR_NAME and $STEP_ID."
)
_CONFIG: Final = '{type: "schedule", cron: "0 6 * * 1-5"} (UTC), {type: "webhook"} or {type: "manual"}.'
_MAPPING: Final = 'Which variable gets which part of a webhook\'s body: {ref: "body.ref"}.'
_REASON: Final = Field("reason", "Why.", text(500))

OPERATIONS: Final = (
    Operation(
        name="list_workflows",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/workflows",
        description="List the workflows of this tree of sessions, and those of people.",
        result="workflows",
        changes=False,
    ),
    Operation(
        name="sync_workflow",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/workflows/sync",
        description="Create a workflow, or replace the one of the same slug. Executions in progress do not change.",
        fields=(
            Field("name", "Its name.", _NAME, required=True),
            Field("data", _DATA, OBJECT, required=True),
            Field("id", "The id of the workflow to replace.", ID),
            Field("slug", "A short name for it. Default: made from the name.", text(64)),
            Field("description", "What it is for.", _ABOUT),
            Field("version", "Any text.", text(64)),
        ),
        result="success, workflow",
    ),
    Operation(
        name="run_workflow",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/workflows/run",
        description=(
            "Start an execution of a workflow in this session: its prompts are queued here, and its commands run in"
            " this machine. Returns at once."
        ),
        fields=(_WORKFLOW, _VARIABLES, KEY),
        result="execution",
    ),
    Operation(
        name="list_executions",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/workflows/executions",
        description="List the executions of workflows in this tree of sessions, the newest first.",
        fields=(
            Field("workflowId", "Only executions of this workflow.", ID),
            Field("limit", "How many at most. Default: 50.", integer(1, 200)),
        ),
        result="executions",
        changes=False,
    ),
    Operation(
        name="get_workflow",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/workflows/{id}",
        description="Show a workflow, with its definition.",
        fields=(_THIS,),
        result="workflow",
        changes=False,
    ),
    Operation(
        name="update_workflow",
        group=ToolGroup.WORKFLOWS,
        route="PUT /api/workflows/{id}",
        description="Change a workflow of this tree. Executions in progress do not change.",
        fields=(
            _THIS,
            Field("name", "A new name.", _NAME),
            Field("description", "A new description.", _ABOUT),
            Field("version", "A new version.", text(64)),
            Field("data", "A new definition.", OBJECT),
        ),
        result="workflow",
    ),
    Operation(
        name="delete_workflow",
        group=ToolGroup.WORKFLOWS,
        route="DELETE /api/workflows/{id}",
        description="Delete a workflow of this tree, and its triggers. Executions in progress go on.",
        fields=(_THIS,),
        result="success",
    ),
    Operation(
        name="list_triggers",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/triggers",
        description="List the triggers of this tree of sessions.",
        fields=(
            Field("workflowId", "Only triggers of this workflow.", ID),
            Field("type", "Only triggers of this type.", choice("schedule", "webhook", "manual")),
            Field("enabled", "Only enabled ones, or only others.", BOOLEAN),
        ),
        result="triggers",
        changes=False,
    ),
    Operation(
        name="create_trigger",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/triggers",
        description="Start a workflow in this session by schedule, or by a signed webhook.",
        fields=(
            Field("name", "Its name.", _NAME, required=True),
            Field("config", _CONFIG, OBJECT, required=True),
            Field("workflowId", "The id or the slug of the workflow.", ID, required=True),
            Field("enabled", "Whether it is active. Default: true.", BOOLEAN),
            Field("variableMapping", _MAPPING, OBJECT),
            KEY,
        ),
        result="trigger",
    ),
    Operation(
        name="update_trigger",
        group=ToolGroup.WORKFLOWS,
        route="PATCH /api/triggers/{id}",
        description="Change a trigger of this tree.",
        fields=(
            _TRIGGER,
            Field("name", "A new name.", _NAME),
            Field("config", _CONFIG, OBJECT),
            Field("enabled", "Whether it is active.", BOOLEAN),
            Field("variableMapping", _MAPPING, OBJECT),
        ),
        result="trigger",
    ),
    Operation(
        name="run_trigger",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/triggers/{id}/run",
        description="Start the workflow of a trigger now.",
        fields=(_TRIGGER, _VARIABLES, KEY),
        result="execution",
    ),
    Operation(
        name="delete_trigger",
        group=ToolGroup.WORKFLOWS,
        route="DELETE /api/triggers/{id}",
        description="Delete a trigger of this tree.",
        fields=(_TRIGGER,),
        result="success",
    ),
    Operation(
        name="get_execution",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/executions/{id}",
        description="Show an execution of this tree: its status, and what it waits for.",
        fields=(_EXECUTION,),
        result="execution {executionId, status, requiresApproval?, error?, …}",
        changes=False,
    ),
    Operation(
        name="execution_steps",
        group=ToolGroup.WORKFLOWS,
        route="GET /api/executions/{id}/steps",
        description="Show the steps of an execution, with their outputs.",
        fields=(_EXECUTION,),
        result="steps [{stepId, type, status, attempt, startedAt, completedAt, output, error}]",
        changes=False,
    ),
    Operation(
        name="approve_execution",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/executions/{id}/approve",
        description="Approve or deny the step that waits, with the resume token that a person has given you.",
        fields=(
            _EXECUTION,
            Field("approve", "True to go on, false to end the execution.", BOOLEAN, required=True),
            Field("resumeToken", "The token of the step that waits.", text(200), required=True),
            _REASON,
        ),
        result="execution",
    ),
    Operation(
        name="cancel_execution",
        group=ToolGroup.WORKFLOWS,
        route="POST /api/executions/{id}/cancel",
        description="Cancel an execution of this tree.",
        fields=(_EXECUTION, _REASON),
        result="execution",
    ),
)
