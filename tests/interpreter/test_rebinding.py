"""Which names a piece of code may bind."""

from __future__ import annotations

import pytest

from holdfast.interpreter.bridge.rebinding import ANYTHING, bound_names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("print(context[:10])", set()),
        ("part = context.split()", {"part"}),
        ("context = context[:10]", {"context"}),
        ("a, (*b, c) = d", {"a", "b", "c"}),
        ("x += 1; y: int = 2; (z := 3)", {"x", "y", "z"}),
        ("for each in context: pass", {"each"}),
        ("with open('f') as file: pass", {"file"}),
        ("import os.path, re as patterns\nfrom json import dumps", {"os", "patterns", "dumps"}),
        ("from os import *", {ANYTHING}),
        ("def work():\n    global context\n    return 1", {"work", "context"}),
        ("class Thing: pass", {"Thing"}),
        ("del context", {"context"}),
        ("try:\n    pass\nexcept ValueError as error:\n    pass", {"error"}),
        ("match x:\n    case [first, *rest]: pass\n    case {'a': 1, **others}: pass", {"first", "rest", "others"}),
        ("[each for each in context]", {"each"}),
        ("import re\nre.compile('a').match(context)", {"re"}),
        ("broken =", set()),
    ],
)
def test_names_are_found_wherever_they_are_bound(code: str, names: set[str]) -> None:
    assert bound_names(code) == names


@pytest.mark.parametrize(
    "code",
    ["globals()['context'] = 1", "exec('context = 1')", "import __main__\n__main__.context = 1", "vars().clear()",
     "f.__globals__; f.__dict__", "import builtins",
     "import sys\nsys.modules['__main__'].context = 1", "from importlib import import_module"],
)  # fmt: skip
def test_a_way_to_the_whole_namespace_may_bind_anything(code: str) -> None:
    assert ANYTHING in bound_names(code)
