"""The codes that say why an agent's run failed, one table for all harnesses.

Each code has a message, for agents that give none, and what to do next. `THREAD` and `NAME` stand for the thread and
the model of the run. Readers use the table inside boxes: standard library only, in the syntax of Python 3.9.
"""

from __future__ import annotations

_SHOW = "see the output of the agent: holdfast thread show THREAD"
_RESUME = "continue with: holdfast resume THREAD"
_SPENT = "see what it was spent on: holdfast cost THREAD; "

OUTCOMES: dict[str, tuple[str, str]] = {
    "agent_aborted": ("the agent's turn was aborted", "holdfast resume THREAD"),
    "agent_failed": ("the agent failed", _SHOW),
    "agent_killed": ("the agent was killed", _RESUME),
    "agent_lost": ("the agent's end was not seen", _RESUME),
    "agent_not_found": ("the agent cannot be started", "install it in the box first"),
    "agent_not_logged_in": ("the agent is not logged in", "log the agent in, in its box, or give it a key"),
    "agent_out_of_turns": (
        "the agent reached its limit of model requests in one turn",
        "let it continue: holdfast resume THREAD",
    ),
    "agent_silent": (
        "the agent said and did nothing",
        "check the model (holdfast model test NAME), and how the agent is configured to reach it",
    ),
    "agent_stopped": ("the agent stopped before it was done", _RESUME),
    "context_exceeded": (
        "the request is longer than the model's context",
        "prompt and history are too long for the model: put long texts into files of the workspace, or use a"
        " model with a larger context: holdfast resume THREAD --model NAME",
    ),
    "model_cut_off": (
        "the model's last answer was cut off by its limit of tokens",
        "raise the model's limit of tokens, then: holdfast resume THREAD",
    ),
    "model_declined": ("the model declined to answer", "rephrase the prompt"),
    "model_error": ("the model gave no answer", "check the model: holdfast model test NAME"),
    "model_rate_limited": (
        "the model gave no answer",
        "wait, or use another model; then: holdfast resume THREAD",
    ),
    "model_refused": ("the model gave no answer", "the provider refused the request; use another model"),
    "model_unauthorized": ("the model gave no answer", "check the model's key: holdfast model test NAME"),
    "model_unavailable": ("the model gave no answer", "the provider failed; try later: holdfast resume THREAD"),
    "model_unknown": ("the model gave no answer", "check the model's name and address: holdfast model test NAME"),
    "model_unpaid": ("the model gave no answer", "check the balance of the account at the model's provider"),
    "model_unreachable": (
        "the model gave no answer",
        "check the network and the model's address (holdfast model test NAME), then: holdfast resume THREAD",
    ),
    "over_budget": ("the budget for models is used up", "see the budgets: holdfast budget list; then: " + _RESUME),
    "prompt_refused": ("the agent did not accept the prompt", _SHOW),
}
"""By code: the default message and the hint."""

NEEDS_DECISION = frozenset(
    {
        "agent_not_logged_in",
        "context_exceeded",
        "credential_missing",
        "disk_limit",
        "environment_incomplete",
        "environment_not_allowed",
        "memory_limit",
        "model_key_missing",
        "model_not_found",
        "model_unauthorized",
        "model_unpaid",
        "over_budget",
        "quota_exceeded",
        "secret_missing",
        "timed_out",
    }
)
"""Codes after which the work goes on as soon as somebody decides something: about money, a key, a limit, a permission.
"""

BUDGETS: dict[str, tuple[str, str]] = {
    "run": ("this run", _SPENT + "continue with more: holdfast resume THREAD --budget DOLLARS"),
    "parent": (
        "the run that delegated this task",
        "see what it was spent on: holdfast cost THREAD --tree; its parent can continue with more: holdfast resume"
        " PARENT --budget DOLLARS",
    ),
    "thread": ("this thread", _SPENT + "allow more: holdfast budget set THREAD --cost DOLLARS; then " + _RESUME),
    "tree": (
        "this tree of threads",
        "see whose budget it is: holdfast budget list; allow more: holdfast budget set ROOT --tree --cost DOLLARS;"
        " then " + _RESUME,
    ),
    "day": (
        "this day",
        "see what it was spent on: holdfast cost --since 1d; allow more: holdfast budget set --day --cost DOLLARS,"
        " or wait until midnight UTC; then " + _RESUME,
    ),
}
"""By scope: what the gateway calls it in its refusals, and what to do when its budget is used up."""
_OUT_OF_BUDGET = " is out of budget: "


def out_of_budget(scope: str, spent: str, most: str) -> str:
    """Returns the refusal of the model gateway, for the agent, its model and its user.

    Some agents (pi) look for numbers such as 500 in an error to tell whether to try again, unless it says "out of
    budget".
    """
    return f"{BUDGETS[scope][0]}{_OUT_OF_BUDGET}{spent} of {most} are spent"


def is_out_of_budget(message: str) -> bool:
    """Returns whether a message of an agent repeats such a refusal."""
    return _OUT_OF_BUDGET in message


def budget_hint(message: str) -> str:
    """Returns what to do about a refusal, by the budget that it names. Empty if it names none."""
    for name, hint in BUDGETS.values():
        if name + _OUT_OF_BUDGET in message:
            return hint
    return ""


def outcome_error(code: str, message: str = "", hint: str = "") -> dict[str, str]:
    """Returns the error of a run: `{code, message, hint}`. The table has the defaults."""
    usual_message, usual_hint = OUTCOMES[code]
    return {"code": code, "message": message or usual_message, "hint": hint or usual_hint}
