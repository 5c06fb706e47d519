"""The sync twins are what `bin/generate` makes of the async classes of today."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

_SCRIPT = Path(__file__).parents[1] / "bin/lib/sync_twins.py"


def _load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sync_twins", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["sync_twins"] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    return script


SCRIPT = _load_script()


def test_the_twins_are_current() -> None:
    stale = [str(path.name) for path, code in SCRIPT.generate().items() if path.read_text() != code]
    assert stale == [], "run bin/generate, and commit what it writes"


@pytest.mark.parametrize(
    "twin", [twin for target in SCRIPT.TARGETS for twin in target.twins], ids=lambda twin: twin.cls
)
def test_a_twin_has_every_member_with_the_same_parameters(twin: object) -> None:
    module, _, name = twin.original.partition(":")  # type: ignore[attr-defined]
    original = getattr(import_module(module), name)
    home = next(target.module for target in SCRIPT.TARGETS if twin in target.twins)
    found = getattr(import_module(home), f"Sync{name}")
    for member, method in inspect.getmembers(original):
        if member.startswith("_") or member in twin.leave_out:  # type: ignore[attr-defined]
            continue
        there = getattr(found, {"aclose": "close"}.get(member, member))
        if inspect.isfunction(method):
            assert list(inspect.signature(there).parameters) == list(inspect.signature(method).parameters)
            assert not inspect.iscoroutinefunction(there)
    if twin.owns == "makes":  # type: ignore[attr-defined]
        assert inspect.signature(found) == inspect.signature(original)


def test_what_the_script_cannot_translate_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example.py").write_text(
        """
class Example:
    async def take(self, *things: str) -> None: ...
"""
    )
    monkeypatch.setattr(SCRIPT, "SOURCE", tmp_path)
    target = SCRIPT.Target("sync", "An example.", (SCRIPT.Twin("example:Example"),))
    with pytest.raises(SCRIPT.CannotTranslate, match="name its parameters"):
        SCRIPT.Writer(target, {"Example": "sync"}).write()
