"""Chooses the step that answers a request. Scripts are found by marker, and each keeps its position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.testing.model.requests import Request
from holdfast.testing.model.steps import FOR_EVER, Scripted, Step, step_of

EXHAUSTED: Final = "The script is at its end."
"""The reply when the script has no further step."""
SIDE_ANSWER: Final = "Scripted side answer"
"""The reply to requests without tools."""
_MAX_SCRIPTS: Final = 10_000


class Script:
    """Steps in order, and how far they are used."""

    def __init__(self, steps: Iterable[Scripted]) -> None:
        self._steps = [step if callable(step) else step_of(step) for step in steps]
        self._next = 0
        self._used = 0

    @property
    def left(self) -> int:
        """How many steps are not used up yet."""
        return len(self._steps) - self._next

    @property
    def steps(self) -> list[Step]:
        """Returns the steps that are not functions."""
        return [step for step in self._steps if isinstance(step, Step)]

    def take(self, request: Request) -> Step:
        """Returns the step for this request, and records its number in the request."""
        if self._next >= len(self._steps):
            return Step(text=EXHAUSTED)
        given = self._steps[self._next]
        request.step = self._next
        step = step_of(given(request)) if callable(given) else given
        self._used += 1
        if step.times != FOR_EVER and self._used >= step.times:
            self._next, self._used = self._next + 1, 0
        return step


class Scripts:
    """A default script for all conversations, and scripts for those with a marker in what the user said."""

    def __init__(self) -> None:
        self.side: Scripted = SIDE_ANSWER
        self._by_marker: dict[str, Script] = {"": Script([])}

    def put(self, steps: Iterable[Scripted], marker: str) -> Script:
        if marker not in self._by_marker and len(self._by_marker) >= _MAX_SCRIPTS:
            raise ValueError(f"a model can have at most {_MAX_SCRIPTS} scripts: start another server for more")
        script = self._by_marker[marker] = Script(steps)
        return script

    def of(self, marker: str) -> Script:
        return self._by_marker[marker]

    def all(self) -> Iterable[Script]:
        return self._by_marker.values()

    def take(self, request: Request) -> Step:
        if not request.is_main:
            return step_of(self.side(request) if callable(self.side) else self.side)
        request.script = self._marker_of(request)
        return self._by_marker[request.script].take(request)

    def _marker_of(self, request: Request) -> str:
        """Look for markers in the beginning of a conversation, or, if it was summarised since, in anything the user
        said.
        """
        markers = [marker for marker in self._by_marker if marker]
        for texts in (request.opening, request.user_texts) if markers else ():
            said = "\n".join(texts)
            found = [marker for marker in markers if marker in said]
            if found:
                return max(found, key=len)
        return ""
