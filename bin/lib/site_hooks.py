"""Hooks of the docs site: pages that are made of files outside of docs/, and links to such files. Used by mkdocs.yml.

The pages in docs/ and the README are read on code hosts too. So their links stay those of the checkout, and are
changed for the site here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT: Final = Path(__file__).parents[2]
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the checkout's root, and their names on the site."""

LINK: Final = re.compile(r"(\]\(|src=\"|srcset=\")((?:\.\./)*[A-Za-z][^)\s:\"]*)(?=[)\"])")
FENCE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    for source, name in ROOT_PAGES.items():
        text = (CHECKOUT / source).read_text()
        files.append(File.generated(config, name, content=relink(text, source, name)))
    decisions = sorted(path.name for path in (CHECKOUT / "docs/decisions").glob("*.md"))
    files.append(File.generated(config, "decisions/index.md", content=decision_list(decisions)))
    for path in sorted((CHECKOUT / "deploy").iterdir()):
        files.append(File.generated(config, f"deploy/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    name = page.file.src_uri
    if name in ROOT_PAGES.values() or name == "decisions/index.md":
        return markdown
    return relink(markdown, f"docs/{name}", name)


def relink(markdown: str, source: str, name: str) -> str:
    """Return the text of the checkout's file `source` with the links that the page `name` of the site has."""

    def changed(found: re.Match[str]) -> str:
        path, hash_sign, anchor = found[2].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        on_site = site_name(target)
        if on_site is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(on_site, posixpath.dirname(name) or '.')}{hash_sign}{anchor}"

    parts = FENCE.split(markdown)
    return "".join(part if number % 2 else LINK.sub(changed, part) for number, part in enumerate(parts))


def site_name(target: str) -> str | None:
    """Return what the site calls a file of the checkout, or None if it does not have it."""
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    if target == "docs/decisions":
        return "decisions/index.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target.startswith("deploy/"):
        return target
    return None


def decision_list(names: list[str]) -> str:
    lines = ["# Decisions", "", "Each page is about one decision: what was decided, why, and what was given up.", ""]
    for name in names:
        title = (CHECKOUT / "docs/decisions" / name).read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({name})")
    return "\n".join(lines) + "\n"
