"""Reviews by the agent of a session: what it is asked, and how its answer is read. Decisions without effects.

A review is a prompt like any other, so it works with every agent. Its findings are in the agent's answer on the thread,
and are read from there.
"""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast.guest.hub_messages import InvalidMessage, from_runner

_MOST: Final = 1024 * 1024
_ASKED: Final = """\
Review the changes in this workspace{against}. Read the diff and the code around it. Do not change any file.

Answer with nothing but one JSON object of this form:
{{"files": [{{"path": "src/a.py", "summary": "what changed", "reviewOrder": 1, "linesAdded": 3, "linesDeleted": 1,
"findings": [{{"id": "1", "file": "src/a.py", "lineStart": 10, "lineEnd": 12,
"severity": "critical|warning|suggestion|nitpick", "category": "bug", "title": "short", "description": "why",
"suggestedFix": "optional"}}]}}], "overallSummary": "in a few sentences", "stats": {{}}}}"""


def review_prompt(base: str | None) -> str:
    """Returns the prompt for a review of the changes since `base`, or of those that are not committed."""
    return _ASKED.format(against=" that are not committed" if base is None else f" since {base} (git diff {base})")


def read_review(text: str) -> dict[str, Any] | None:
    """Returns the review in an answer of an agent, or None if there is none. Everything in it is checked."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin or len(text) > _MOST:
        return None
    try:
        found = json.loads(text[begin : end + 1])
        # The same check as for a review that comes over the hub.
        _, fields = from_runner(json.dumps({"type": "review-result", "requestId": "", "data": found}))
    except (ValueError, RecursionError, InvalidMessage):
        return None
    data = fields.get("data")
    return data if isinstance(data, dict) else None
