"""What a user may name as a repository, and what git must never see."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.api.errors.repositories import InvalidRepository
from holdfast.repositories.address import Address, check_ref, parse_address, parse_remote, without_user


@pytest.mark.parametrize(
    ("text", "url", "ref", "protocol"),
    [
        ("https://host/a/b.git", "https://host/a/b.git", None, "https"),
        ("https://host/a/b.git@main", "https://host/a/b.git", "main", "https"),
        ("https://me@host/a/b.git@feature/x", "https://me@host/a/b.git", "feature/x", "https"),
        (
            "https://me:p%40ss@xn--bcher-kva.example:8443/a",
            "https://me:p%40ss@xn--bcher-kva.example:8443/a",
            None,
            "https",
        ),
        ("ssh://git@[2001:db8::1]:22/a", "ssh://git@[2001:db8::1]:22/a", None, "ssh"),
        ("ssh://git@host:2222/a/b@v1.2", "ssh://git@host:2222/a/b", "v1.2", "ssh"),
        ("git@host:a/b.git", "git@host:a/b.git", None, "ssh"),
        ("git@host:a/b.git@main", "git@host:a/b.git", "main", "ssh"),
        ("file:///srv/a.git@main", "file:///srv/a.git", "main", "file"),
    ],
)
def test_a_url_is_split_from_its_ref(text: str, url: str, ref: str | None, protocol: str, tmp_path: Path) -> None:
    address = parse_address(text, tmp_path)
    assert address == Address(url, ref, False)
    assert address.protocol == protocol


def test_a_folder_is_a_path_even_if_it_has_an_at_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    assert parse_address("a@b", tmp_path) == Address(str(tmp_path / "a@b"), None, True)
    assert parse_address("./a@b@main", tmp_path) == Address(str(tmp_path / "a@b"), "main", True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--upload-pack=touch /tmp/x",
        "-oProxyCommand=x",
        "ext::sh -c 'touch /tmp/x'",
        "ext::sh@main",
        "fd::17",
        "git://host/a",
        "http://host/a",
        "ftp://host/a",
        "javascript://host/a",
        "ssh://-oProxyCommand=x/a",
        "ssh://-x@host/a",
        "https:///a",
        "https://host",
        "https://host:99999/a",
        "file://other-host/a",
        "-host:path",
        "no/such/folder",
        "https://host/a\n--config",
        "https://host/a\x1b[2J",
        "https://host/a@--upload-pack=x",
        "https://host/a@a..b",
        "https://host/a@a b",
        "https://host/a@x^{commit}",
        "https://host/a@refs/heads/",
    ],
)
def test_what_git_could_take_for_a_program_or_an_option_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRepository):
        parse_address(text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        r"https://good.example\@evil.example/a",
        r"https://good.example\.evil.example/a",
        "https://good.example%2eevil.example/a",
        "https://good%00.example/a",
        "https://me@good.example@evil.example/a",
        "https://me:x@good.example:443@evil.example/a",
        "https://ⓖood.example/a",
        "https://good。example/a",
        "https://ɡood.example/a",
        "https://good.example:４４３/a",
        "https://good.example:/a",
        "https://[::1%25lo]/a",
        "https://[good.example]/a",
        "https://good.example;evil.example/a",
        "https://good.example,evil.example/a",
        "https://{good,evil}.example/a",
        "ssh://[git@good.example:22]:a/b",
        "ssh://git@good.example%40evil.example/a",
        "ssh://good.example\u200b/a",
    ],
)
def test_a_host_that_programs_read_differently_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRepository):
        parse_address(text, tmp_path)
    with pytest.raises(InvalidRepository):
        parse_remote(text)


@pytest.mark.parametrize("ref", ["main", "feature/x", "v1.2-rc1", "a" * 40, "ünï", "#12"])
def test_refs_of_every_day_are_accepted(ref: str) -> None:
    assert check_ref(ref) == ref


def test_a_url_is_recorded_without_credentials() -> None:
    assert without_user("https://me:t0ken@host/a") == "https://host/a"
    assert without_user("https://t0ken@host:8443/a") == "https://host:8443/a"
    assert without_user("ssh://git:pw@host/a") == "ssh://git@host/a"
    assert without_user("git@host:a") == "git@host:a"
