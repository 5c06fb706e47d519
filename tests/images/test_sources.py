"""Where packages come from: apt's own files, in both of their forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.images.debian.sources import (
    Source,
    debian_architecture,
    given,
    of_distribution,
    parse_deb822,
    parse_list,
    parse_logins,
    parse_settings,
    read_configuration,
    read_os_release,
    with_login,
    without_password,
    write_deb822,
)
from holdfast.images.errors import NoSources

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
    for name in ("sources.list.d", "trusted.gpg.d", "apt.conf.d"):
        (tmp_path / name).mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.invalid/ bookworm main\n")
    (tmp_path / "sources.list.d" / "b.list").write_text("deb http://b.invalid/ bookworm main\n")
    (tmp_path / "sources.list.d" / "c.sources").write_text("Types: deb\nURIs: http://c.invalid/\nSuites: x\n")
    (tmp_path / "sources.list.d" / "ignored.save").write_text("deb http://d.invalid/ bookworm main\n")
    (tmp_path / "trusted.gpg.d" / "one.asc").write_text("key")
    (tmp_path / "apt.conf.d" / "proxy").write_text(
        '// Acquire::http::Proxy "http://old.invalid";\nAcquire::http::Proxy "http://proxy.invalid:3142";\n'
        'Acquire::Check-Valid-Until "false";\n'
    )
    found = read_configuration(tmp_path)
    assert [source.url for source in found.sources] == ["http://a.invalid/", "http://b.invalid/", "http://c.invalid/"]
    assert [path.name for path in found.keyrings] == ["one.asc"]
    assert (found.proxy, found.check_valid_until) == ("http://proxy.invalid:3142", False)


def test_a_machine_without_apt_has_no_sources(tmp_path: Path) -> None:
    found = read_configuration(tmp_path / "missing")
    assert (found.sources, found.keyrings, found.proxy, found.check_valid_until) == ((), (), None, True)


def test_only_the_distributions_own_sources_are_for_an_image(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME="Debian GNU/Linux"\nVERSION_CODENAME=bookworm\nBROKEN="\n')
    suites = ["bookworm", "bookworm-updates", "bookworm-security", "cloud-sdk-bookworm", "nodistro", "trixie"]
    sources = [Source("http://mirror.invalid", suite, ("main",)) for suite in suites]
    kept = of_distribution(sources, read_os_release(tmp_path / "os-release"))
    assert [source.suite for source in kept] == suites[:3]


def test_a_password_is_neither_shown_nor_passed_on() -> None:
    source = Source("https://user:s3cret@mirror.invalid:8443/debian", "bookworm", ("main",))
    assert without_password(source.url) == "https://mirror.invalid:8443/debian"
    for text in (repr(source), source.shown, write_deb822([source])):
        assert "s3cret" not in text


@pytest.mark.parametrize(
    ("machine", "url", "fits"),
    [
        ("mirror.invalid", "https://mirror.invalid/debian", True),
        ("mirror.invalid/debian", "https://mirror.invalid/debian/", True),
        ("mirror.invalid:8443", "https://mirror.invalid:8443/debian", True),
        ("http://mirror.invalid", "http://mirror.invalid/debian", True),
        ("mirror.invalid", "http://mirror.invalid/debian", False),
        ("mirror.invalid/debian", "https://mirror.invalid/debian-security", False),
        ("mirror.invalid", "https://mirror.invalid.evil.invalid/debian", False),
        ("mirror.invalid", "https://mirror.invalid:8443/debian", False),
    ],
)
def test_a_login_goes_to_its_own_machine_only(machine: str, url: str, fits: bool) -> None:
    [login] = parse_logins(f"# ours\nmachine {machine}\n  login me@work password s3/cret\nmachine half login x\n")
    source = with_login(Source(url, "bookworm", ("main",)), [login])
    assert ("me%40work:s3%2Fcret@" in source.url) is fits
    assert without_password(source.url) == url
    assert "s3" not in repr(login)


def test_what_is_written_is_read_again() -> None:
    sources = [Source("http://mirror.invalid/debian", "bookworm", ("main", "contrib"), ("/etc/apt/keyrings/a.gpg",))]
    assert parse_deb822(write_deb822(sources)) == sources


def test_settings_are_read_but_for_comments() -> None:
    assert parse_settings('A::B "1";\n# C "2";\n// D "3";\n  E::F   "4" ;\nblock { G "5"; };') == {
        "a::b": "1",
        "e::f": "4",
    }


def test_a_mirror_is_a_url() -> None:
    with pytest.raises(NoSources, match="is no mirror"):
        given("mirror.invalid/debian", "bookworm", ["main"], [])


def test_an_unknown_processor_is_said_so() -> None:
    assert (debian_architecture("x86_64"), debian_architecture("aarch64")) == ("amd64", "arm64")
    with pytest.raises(NoSources, match="pdp11"):
        debian_architecture("pdp11")
