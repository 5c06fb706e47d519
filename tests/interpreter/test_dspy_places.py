"""dspy's RLM with its code and its children at other places than this machine. The language model is scripted."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    import dspy

from tests.interpreter.places import Place
from tests.interpreter.test_dspy import outputs, script

from holdfast import SyncClient
from holdfast.interpreter.bridge.budget import Limits
from holdfast.interpreter.dspy import Boxes
from holdfast.testing.server import ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.places("docker", "daytona"),
]


def test_sub_rlm_has_a_sandbox_of_its_own_the_budget_of_its_parent_and_leaves_nothing(
    server: ServerProcess, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(server.home))
    with SyncClient(server.url, api_key=server.api_key) as client:
        before = {each.id for each in client.boxes.list()}
        lm = script(
            "print(llm_query('one'))\ntold = sub_rlm('What is left?', 'x' * 1000)\nprint(told)\n"
            "import os\nprint(os.path.exists('/tmp/child'))",
            # its child
            "open('/tmp/child', 'w').close()\ntry:\n    left = llm_query('two')\nexcept Exception as error:\n"
            "    left = str(error)\nSUBMIT(answer=f'{len(context)}: {left}')",
            "SUBMIT(answer=told)",
        )
        factory = Boxes(provider=place.name, limits=Limits(calls=1))
        rlm = dspy.RLM("query -> answer", interpreter_factory=factory, sub_lm=lambda prompt: [f"{prompt}!"])
        with dspy.context(lm=lm):
            found = rlm(query="?")
        said, told, there = outputs(found)[0].splitlines()
        assert (said, there) == ("one!", "False")
        assert told.startswith("1000: 0 of 1 model calls")
        assert found.answer == told
        assert {each.id for each in client.boxes.list()} == before
