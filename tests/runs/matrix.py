"""The fault matrix as people read it: how each run ended, by what struck it and when. Told by tests, one cell each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

PROPERTY: Final = "run fault"
"""Of a test's report: agent, fault, moment and how the run ended."""
BROKEN: Final = "BROKEN"
"""In place of how it ended: something was not as it has to be."""
ALL: Final = bool(os.environ.get("HOLDFAST_TEST_ALL"))
_NOWHERE: Final = "–"

Ends = Mapping[tuple[str, str, str], str]
"""By agent, fault and moment."""


def read(reports: Iterable[Any]) -> Ends:
    """What the tests of these reports told."""
    told: dict[tuple[str, str, str], str] = {}
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                agent, fault, moment, ended = value
                told[agent, fault, moment] = ended
    return told


def table(ends: Ends, order: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines of Markdown: a row for each fault and moment, a column for each agent, all in this order."""
    known = [cell for cell in order if cell in ends]
    agents = list(dict.fromkeys(agent for agent, _, _ in known))
    strikes = list(dict.fromkeys((fault, moment) for _, fault, moment in order))
    rows = [["fault", "at", *agents], ["---"] * (2 + len(agents))]
    for fault, moment in strikes:
        row = [ends.get((agent, fault, moment), _NOWHERE) for agent in agents]
        if set(row) != {_NOWHERE}:
            rows.append([fault, moment, *row])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
