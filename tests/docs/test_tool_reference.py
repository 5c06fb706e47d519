"""The reference of the tools of sessions is what their definitions say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

LIB = Path(__file__).parents[2] / "bin" / "lib" / "tool_reference.py"


def test_the_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("tool_reference", LIB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run bin/generate"
