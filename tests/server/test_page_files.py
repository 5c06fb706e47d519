"""The files of the page, as the server sends them: which there are, how they are cached, and that they are current."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import httpx

import holdfast
from holdfast.testing.server import ServerProcess

CHECKOUT = Path(__file__).parents[2]
BUILT = Path(holdfast.__file__).parent / "web"


def test_what_is_built_belongs_to_the_sources() -> None:
    sources = CHECKOUT / "web"
    found = [path for folder in ("src", "public") for path in (sources / folder).rglob("*") if path.is_file()]
    found += [sources / name for name in ("index.html", "package-lock.json", "vite.config.ts")]
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(sources).as_posix() for path in found):
        digest.update(name.encode() + b"\0" + (sources / name).read_bytes() + b"\0")
    assert (BUILT / "sources.sha256").read_text().strip() == digest.hexdigest(), "web/ has changed: run bin/build-web"


def test_every_address_of_the_page_is_one_document(server: ServerProcess) -> None:
    paths = ("/", "/new", "/boxes", "/settings", "/settings/models", "/compare/t-1/t-2", "/t/t-1", "/t/t-1/changes")
    answers = [httpx.get(server.url + path, trust_env=False) for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].headers["cache-control"] == "no-cache"


def test_files_are_named_by_what_is_in_them_and_kept(server: ServerProcess) -> None:
    document = httpx.get(server.url, trust_env=False).text
    names = re.findall(r'"/page/([^"]+\.(?:js|css))"', document)
    assert len(names) >= 2
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for name in names:
            first = client.get(f"/page/{name}", headers={"accept-encoding": "identity"})
            again = client.get(f"/page/{name}", headers={"if-none-match": first.headers["etag"]})
            packed = client.get(f"/page/{name}", headers={"accept-encoding": "gzip"})
            assert (first.status_code, again.status_code) == (200, 304)
            assert "immutable" in first.headers["cache-control"]
            assert first.content == packed.content == (BUILT / name).read_bytes()
            assert (packed.headers.get("content-encoding") == "gzip") is (len(first.content) >= 1024)


def test_there_are_no_other_files(server: ServerProcess) -> None:
    wrong = (
        "index.html",
        "..%2fapp.py",
        "%2e%2e%2fserver%2fcompose.py",
        "x",
        "sources.sha256",
        "index.js",
        "%00",
        "a" * 300,
    )
    for path in (*(f"/page/{name}" for name in wrong), "/t/a%2fb", "/t/t-1/nothing", "/page/"):
        answer = httpx.get(server.url + path, trust_env=False)
        assert answer.status_code in (404, 422), path
        assert answer.headers["content-type"] == "application/json"


def test_no_file_loads_anything_from_elsewhere() -> None:
    """Names of schemas and links in messages are no requests; the policy of the page forbids those anyway."""
    assert not re.search(r'(?:src|href)="(?!/page/)', (BUILT / "index.html").read_text())
    for path in BUILT.glob("*.css"):
        assert not re.search(r"@import|url\((?!data:)", path.read_text()), path


def test_the_first_page_is_small() -> None:
    """Without terminal and editor, which are loaded when somebody opens one."""
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in BUILT.iterdir()}
    first = sum(size for name, size in sizes.items() if not name.startswith(("editor-", "terminal-")))
    assert first < 120_000, sizes
