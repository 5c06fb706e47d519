"""Every store that a storage has comes with its contract as tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.contract import Storage
from holdfast.testing import store_suites

SUITES = Path(store_suites.__file__).parent
STORES: dict[str, Any] = {
    name: each.fget.__annotations__["return"]
    for name, each in vars(Storage).items()
    if isinstance(each, property) and name != "is_exclusive"
}


def test_there_are_stores() -> None:
    assert len(STORES) > 20


@pytest.mark.parametrize("name", STORES)
def test_a_suite_opens_the_store(name: str) -> None:
    kind = STORES[name]
    texts = [path.read_text() for path in SUITES.rglob("*.py")]
    opened = [text for text in texts if re.search(r"\bclass \w+Suite\b", text) and re.search(rf"\b{kind}\b", text)]
    assert opened, f"no suite of holdfast.testing.store_suites names {kind}"
