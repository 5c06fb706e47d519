"""The codes of outcomes are in one table."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import holdfast.api.errors
import holdfast.harnesses
from holdfast.api.errors import HoldfastError
from holdfast.api.outcomes import NEEDS_DECISION, OUTCOMES, outcome_error

HARNESSES = Path(next(iter(holdfast.harnesses.__path__)))


def codes_in(source: Path) -> set[str]:
    """The codes that a module gives to `outcome_error`, and those it looks up first."""
    tree = ast.parse(source.read_text())
    called = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "outcome_error"
        if isinstance(node.args[0], ast.Constant)
    }
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {str(code) for code in called} | {code for code in constants if code in OUTCOMES}


def test_every_code_of_a_harness_is_in_the_table_and_every_code_of_the_table_is_used() -> None:
    used = set().union(*(codes_in(path) for path in HARNESSES.rglob("outcome*.py")))
    assert used == OUTCOMES.keys()


def test_an_error_has_the_message_and_hint_of_the_table_unless_told_otherwise() -> None:
    message, hint = OUTCOMES["agent_stopped"]
    assert outcome_error("agent_stopped") == {"code": "agent_stopped", "message": message, "hint": hint}
    assert outcome_error("agent_failed", "no", "ask")["message"] == "no"
    with pytest.raises(KeyError):
        outcome_error("agent_unheard_of")


def test_a_code_that_waits_for_a_decision_is_one_that_a_run_can_end_with() -> None:
    for module in pkgutil.iter_modules(holdfast.api.errors.__path__):
        importlib.import_module(f"{holdfast.api.errors.__name__}.{module.name}")

    def below(kind: type[HoldfastError]) -> set[str]:
        return {kind.code}.union(*map(below, kind.__subclasses__()))

    # The last ones are made where the end of a run is decided: `runs/reconcile/rules` and the runners.
    assert below(HoldfastError) | OUTCOMES.keys() | {"disk_limit", "memory_limit", "timed_out"} >= NEEDS_DECISION
