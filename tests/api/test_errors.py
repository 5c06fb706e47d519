"""Every error has one code, and arrives at a caller as the class that was raised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.api import errors
from holdfast.api.errors import HoldfastError, agents, boxes, interpreters, models, runs, threads

MODULES = (errors, agents, boxes, interpreters, models, runs, threads)
CLASSES = [
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, HoldfastError) and each.__module__ == module.__name__
]
WITH_CODE = [each for each in CLASSES if "code" in each.__dict__ and each is not HoldfastError]


@pytest.mark.parametrize("kind", WITH_CODE, ids=lambda kind: kind.code)
def test_an_error_arrives_as_itself(kind: type[HoldfastError]) -> None:
    raised = kind("no", hint="try this")
    told = {"code": raised.code, "message": raised.message, "hint": raised.hint}
    arrived = errors.error_from_document(told, status=raised.status)
    assert type(arrived) is kind
    assert (arrived.status, arrived.code, arrived.message, arrived.hint) == (raised.status, kind.code, "no", "try this")


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in WITH_CODE]
    assert len(codes) == len(set(codes))


def test_every_answer_of_a_server_has_a_status() -> None:
    without = {each for each in CLASSES if each.status is None}
    assert without == {HoldfastError, errors.Unreachable, errors.NotUnderstood}


def test_errors_load_without_pydantic() -> None:
    code = "import sys; from holdfast.api.errors import class_of; class_of('x'); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
