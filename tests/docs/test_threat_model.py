"""Every test that the threat model names is there, so that no line of it outlives its proof."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:tests/[\w/]+\.py)?)::(test_\w+)`")


def rows() -> list[str]:
    text = (CHECKOUT / "docs/threat-model.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [line for line in table if line.count("|") == 5 and not line.startswith(("| place |", "| attacker |"))]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_what_the_threat_model_claims_has_a_test(row: str) -> None:
    named = NAMED.findall(row)
    assert named, "this row names no test"
    path = ""
    for file, test in named:
        path = file or path
        assert re.search(rf"^(async )?def {test}\b", (CHECKOUT / path).read_text(), re.MULTILINE), f"{path}::{test}"
