"""The maps of the code, in CONTRIBUTING.md and docs/architecture.md, lead to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "src/holdfast"
ARCHITECTURE = (CHECKOUT / "docs/architecture.md").read_text()
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text()
FILES = [
    str(path.relative_to(CHECKOUT))
    for folder in ("src", "tests", "benchmarks", "docs", "bin", "web/src", "deploy")
    for path in (CHECKOUT / folder).rglob("*")
    if path.is_file()
]
FILE = re.compile(r"`((?:[\w<>.-]+/)*[\w-]+\.(?:py|ts|md|toml))`")
ROW = re.compile(r"^\| (`[\w/]+/`[^|]*) \| (.+?) \|", re.MULTILINE)
WALKS = [
    (tuple(re.findall(r"`([\w/]+)/`", folders)), name)
    for folders, cell in ROW.findall(ARCHITECTURE)
    for name in re.findall(r"`([\w/]+)`", cell)
]


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = [each for each in FILE.findall((CHECKOUT / page).read_text()) if "<" not in each]
    assert len(named) > 20
    ends = {f"/{name}" for name in named if not (CHECKOUT / name).exists()}
    assert sorted(end for end in ends if not any(each.endswith(end) for each in FILES)) == []


def test_every_folder_of_the_map_is_there() -> None:
    rows = re.findall(r"^\|.*\|$", CONTRIBUTING, re.MULTILINE)
    folders = {name for row in rows for name in re.findall(r"`([\w/]+)/`", row)}
    assert len(folders) > 40
    found = {name for name in folders if any((base / name).is_dir() for base in (PACKAGE, CHECKOUT))}
    inner = {name for name in folders - found if any(f"/{name}/" in each for each in FILES)}
    assert folders - found - inner == set()


@pytest.mark.parametrize(("folders", "name"), WALKS, ids=["-".join((*each, name)) for each, name in WALKS])
def test_every_step_of_a_walk_is_a_module_or_a_package(folders: tuple[str, ...], name: str) -> None:
    places = [PACKAGE / name, *(PACKAGE / folder / name for folder in folders)]
    assert any(place.is_dir() or place.with_suffix(".py").is_file() for place in places), f"{folders}: {name}"


def test_the_walks_are_found() -> None:
    assert len(WALKS) > 60
    assert {folder for folders, _ in WALKS for folder in folders} > {"server/wire", "boxes/service", "egress/models"}
