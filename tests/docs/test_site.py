"""The docs site builds without a warning, and asks nobody else for anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not list((CHECKOUT / ".holdfast").glob("docs-*")), reason="its environment is not set up: bin/docs does"
    ),
]
FETCHED = re.compile(r"<(?:script|img|source|iframe)[^>]* src(?:set)?=\"?([^\"> ]+)|<link[^>]* href=\"?([^\"> ]+)")


def build(target: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CHECKOUT / "bin/docs"), "--to", str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(target)
    assert done.returncode == 0, done.stderr
    return target


def test_the_site_has_every_page_and_a_search(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    sources = {path.relative_to(CHECKOUT / "docs").as_posix() for path in (CHECKOUT / "docs").rglob("*.md")}
    assert sources - pages == set()
    assert {"index.md", "changelog.md", "contributing.md", "security.md", "decisions/index.md"} <= pages
    assert "Durable Streams" in (site / "search/search_index.json").read_text()


def test_the_site_has_a_dark_mode(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert 'data-md-color-scheme="slate"' in text


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    foreign = {
        (path.name, url)
        for path in site.rglob("*.html")
        for found in FETCHED.findall(path.read_text())
        for url in found
        if re.match(r"(https?:)?//", url)
    }
    assert foreign == set()


def test_a_link_outside_of_docs_leads_to_a_page_or_file_of_the_site(site: Path) -> None:
    assert 'href="security.html"' in (site / "threat-model.html").read_text()
    assert 'href="deploy/compose.yaml"' in (site / "deploy.html").read_text()
    assert (site / "deploy/compose.yaml").read_bytes() == (CHECKOUT / "deploy/compose.yaml").read_bytes()
