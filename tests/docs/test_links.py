"""Every relative link of the README and of docs/ leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


@cache  # a generated reference has hundreds of links into itself
def anchors(path: Path) -> set[str]:
    """As GitHub makes them."""
    found: set[str] = set()
    counted: Counter[str] = Counter()
    for heading in HEADING.findall(prose(path)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = counted[anchor]
        counted[anchor] += 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_no_link_is_broken(page: Path) -> None:
    links = [link for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if is_broken(page, link)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `word`, and more\n\n```\n# no heading\n```\n## Twice\n## Twice\n")
    assert anchors(page) == {"a-word-and-more", "twice", "twice-1"}
    assert is_broken(page, "missing.md")
    assert is_broken(page, "#no-heading")
    assert is_broken(page, "page.md#thrice")
    assert not is_broken(page, "page.md#twice-1")
