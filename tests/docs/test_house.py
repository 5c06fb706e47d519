"""Files about the project agree with it: versions and the settings of editors."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import holdfast

CHECKOUT = Path(__file__).parents[2]


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    versions = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == holdfast.__version__


def test_editors_and_the_linter_agree_on_the_length_of_a_line() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert f"max_line_length = {settings['tool']['ruff']['line-length']}\n" in (CHECKOUT / ".editorconfig").read_text()
