"""Where packages come from: apt's own files, in both of their forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.images.debian.sources import (
    Source,
    SourceFiles,
    named_source,
    of_distribution,
    parse_deb822,
    parse_list,
    read_authorities,
    read_os_release,
    read_sources,
    read_trusted,
    without_password,
)
from holdfast.images.errors import NoSources, NotVerified

KEYRINGS = "/etc/apt/keyrings"
LIST = """
# deb http://commented.invalid/debian bookworm main
deb http://mirror.invalid/debian bookworm main contrib  # a mirror of our own
deb-src http://mirror.invalid/debian bookworm main
deb [arch=amd64,arm64 signed-by=/etc/keys/a.gpg,/etc/keys/b.gpg] https://other.invalid/ stable main
deb cdrom:[Debian 12] bookworm main
deb http://flat.invalid/ ./
"""
DEB822 = """
# the distribution
Types: deb deb-src
URIs: http://mirror.invalid/debian
  https://second.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://off.invalid/
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://key.invalid/
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEZ
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_lines_are_read() -> None:
    assert parse_list(LIST) == [
        Source("http://mirror.invalid/debian", "bookworm", ("main", "contrib")),
        Source(
            "https://other.invalid/", "stable", ("main",), ("/etc/keys/a.gpg", "/etc/keys/b.gpg"), ("amd64", "arm64")
        ),
    ]


def test_stanzas_are_read() -> None:
    *mirrors, key = parse_deb822(DEB822)
    assert [(source.url, source.suite) for source in mirrors] == [
        ("http://mirror.invalid/debian", "bookworm"),
        ("http://mirror.invalid/debian", "bookworm-updates"),
        ("https://second.invalid/debian", "bookworm"),
        ("https://second.invalid/debian", "bookworm-updates"),
    ]
    assert {source.signed_by for source in mirrors} == {("/usr/share/keyrings/archive.gpg",)}
    assert key.signed_by[0].startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEZ\n")


def test_a_machine_is_read_as_apt_reads_it(tmp_path: Path) -> None:
    for name in ("sources.list.d", "trusted.gpg.d", "keyrings"):
        (tmp_path / name).mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.invalid/ bookworm main\n")
    (tmp_path / "sources.list.d" / "b.list").write_text("deb http://b.invalid/ bookworm main\n")
    (tmp_path / "sources.list.d" / "c.sources").write_text("Types: deb\nURIs: http://c.invalid/\nSuites: x\n")
    (tmp_path / "sources.list.d" / "ignored.save").write_text("deb http://d.invalid/ bookworm main\n")
    (tmp_path / "trusted.gpg.d" / "one.asc").write_text("key")
    (tmp_path / "keyrings" / "debian-archive-keyring.gpg").write_text("key")
    (tmp_path / "keyrings" / "somebody-else.gpg").write_text("key")
    urls = [source.url for source in read_sources(tmp_path)]
    assert urls == ["http://a.invalid/", "http://b.invalid/", "http://c.invalid/"]
    trusted = [path.name for path in read_trusted(tmp_path, tmp_path / "keyrings")]
    assert trusted == ["one.asc", "debian-archive-keyring.gpg"]


def test_a_machine_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert (read_sources(tmp_path / "missing"), read_trusted(tmp_path, tmp_path)) == ([], ())


def test_only_the_distributions_own_sources_are_for_an_image(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME="Debian GNU/Linux"\nVERSION_CODENAME=bookworm\nBROKEN="\n')
    suites = ["bookworm", "bookworm-updates", "bookworm-security", "cloud-sdk-bookworm", "nodistro", "trixie"]
    sources = [Source("http://mirror.invalid", suite, ("main",)) for suite in suites]
    kept = of_distribution(sources, read_os_release(tmp_path / "os-release"))
    assert [source.suite for source in kept] == suites[:3]


def test_the_image_gets_the_sources_with_their_keys_and_without_passwords(tmp_path: Path) -> None:
    (tmp_path / "trusted.gpg").write_bytes(b"trusted")
    armoured = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
    sources = (
        Source("https://user:s3cret@mirror.invalid:8443/debian", "bookworm", ("main", "contrib")),
        Source("http://other.invalid/", "bookworm", ("main",), (armoured,)),
        Source("file:/srv/mirror", "bookworm", ("main",)),
    )
    files = SourceFiles(sources, (tmp_path / "trusted.gpg",))
    image = files.image_files()
    assert image["etc/apt/keyrings/holdfast-1.gpg"] == b"trusted"
    assert image["etc/apt/keyrings/holdfast-2.asc"] == armoured.encode()
    assert parse_deb822(image["etc/apt/sources.list.d/holdfast.sources"].decode()) == [
        Source("https://mirror.invalid:8443/debian", "bookworm", ("main", "contrib"), (f"{KEYRINGS}/holdfast-1.gpg",)),
        Source("http://other.invalid/", "bookworm", ("main",), (f"{KEYRINGS}/holdfast-2.asc",)),
    ]
    assert "s3cret" not in repr(sources)
    assert without_password(sources[0].url) == "https://mirror.invalid:8443/debian"
    here = files.files(Path("/keys"))
    assert here["keys/holdfast-1.gpg"] == b"trusted"
    assert b"s3cret@mirror" in here["holdfast.sources"]
    assert b"URIs: copy:/srv/mirror\n" in here["holdfast.sources"]


def test_without_a_signature_no_key_is_named() -> None:
    files = SourceFiles((Source("http://mirror.invalid/", "bookworm", ("main",)),), insecure=True)
    [text] = files.image_files().values()
    assert text.decode().endswith("Components: main\nTrusted: yes\n")


def test_a_keyring_that_is_not_there_is_said(tmp_path: Path) -> None:
    files = SourceFiles((Source("http://mirror.invalid/", "x", ("main",), (str(tmp_path / "missing.gpg"),)),))
    with pytest.raises(NotVerified, match=r"missing\.gpg cannot be read"):
        files.image_files()


def test_a_mirror_is_a_url() -> None:
    with pytest.raises(NoSources, match="is not a mirror"):
        named_source("mirror.invalid/debian", "bookworm", ["main"], [])
    with pytest.raises(NoSources, match="no blanks"):
        named_source("http://mirror.invalid/", "bookworm\nTrusted: yes", ["main"], [])


def test_certificates_of_the_administrator_are_in_the_image(tmp_path: Path) -> None:
    (tmp_path / "company.crt").write_bytes(b"-----BEGIN CERTIFICATE-----")
    (tmp_path / "empty.crt").touch()
    (tmp_path / "notes.txt").write_text("no certificate")
    (tmp_path / "gone.crt").symlink_to("nowhere")
    found = read_authorities(tmp_path)
    assert found == {"company.crt": b"-----BEGIN CERTIFICATE-----"}
    assert read_authorities(tmp_path / "missing") == {}
    files = SourceFiles((), authorities=found).image_files()
    assert files == {"usr/local/share/ca-certificates/company.crt": b"-----BEGIN CERTIFICATE-----"}
