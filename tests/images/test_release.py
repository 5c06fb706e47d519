"""Whom to believe: signatures that are good, bad, weak, missing, or of somebody else; and releases that are too old."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from tests.images.packing import ARCHITECTURE, Key, Repository, TestPackage

from holdfast.images.debian.bootstrap import Signed, System, Trust, Unsigned, choose
from holdfast.images.debian.download import Downloads
from holdfast.images.debian.release import check_age, dearmour, judge, parse_release, verify
from holdfast.images.debian.sources import Source
from holdfast.images.errors import MirrorFailed, NotVerified
from holdfast.images.progress import Silent

SOURCE = Source("http://mirror.invalid/debian", "test", ("main",))
KEY, OTHER = "A" * 40, "B" * 40


def valid(key: str = KEY, hash: int = 10, primary: str = KEY) -> str:
    return f"[GNUPG:] VALIDSIG {key} 2026-01-01 1767225600 0 4 0 22 {hash} 01 {primary}"


@pytest.mark.parametrize(
    ("status", "fingerprints", "message"),
    [
        pytest.param(valid(), [], None, id="a good one"),
        pytest.param(
            f"{valid()}\n[GNUPG:] ERRSIG X 1 10 01 0 9\n[GNUPG:] NO_PUBKEY X", [], None, id="one of two is known"
        ),
        pytest.param(valid(), [KEY.lower() + "!"], None, id="by the fingerprint that is asked for"),
        pytest.param(valid(OTHER), [KEY], None, id="by a subkey of it"),
        pytest.param(valid(OTHER, primary=OTHER), [KEY], "not signed by a key", id="by another key"),
        pytest.param(valid(hash=2), [], "not signed by a key", id="with SHA-1"),
        pytest.param("[GNUPG:] NO_PUBKEY 0E98404D386FA1D9", [], "needs key 0E98404D386FA1D9", id="an unknown key"),
        pytest.param(
            f"{valid()}\n[GNUPG:] BADSIG X Someone", [], "is not what was signed", id="a bad one beside a good one"
        ),
        pytest.param("", [], "not signed by a key", id="nothing"),
        pytest.param("gpgv: VALIDSIG " + KEY, [], "not signed by a key", id="words that are no status"),
    ],
)
def test_what_gpgv_says_is_judged(status: str, fingerprints: list[str], message: str | None) -> None:
    if message is None:
        judge(status, fingerprints, SOURCE)
        return
    with pytest.raises(NotVerified, match=message):
        judge(status, fingerprints, SOURCE)


def test_an_old_release_is_refused() -> None:
    text = "Valid-Until: Sat, 01 Aug 2026 00:00:00 UTC\nSHA256:\n " + "0" * 64 + " 1 main/binary-amd64/Packages\n"
    release = parse_release(text, SOURCE)
    check_age(release, SOURCE, datetime(2026, 7, 31, tzinfo=UTC))
    with pytest.raises(NotVerified, match="valid until 2026-08-01"):
        check_age(release, SOURCE, datetime(2026, 8, 2, tzinfo=UTC))


def test_a_release_without_checksums_is_none() -> None:
    with pytest.raises(MirrorFailed, match="no SHA-256"):
        parse_release("<html>welcome to the hotel</html>", SOURCE)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "repository")
    repository.add(TestPackage("a", fields={"Essential": "yes"}))
    return repository


async def ask(repository: Repository, trust: Trust, folder: Path, signed_by: tuple[str, ...] = ()) -> System:
    source = Source(repository.url, repository.suite, ("main",), signed_by)
    async with httpx.AsyncClient(trust_env=False) as client:
        downloads = Downloads(client, folder / "cache")
        return await choose(downloads, [source], [], trust=trust, architecture=ARCHITECTURE, progress=Silent())


@pytest.mark.anyio
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("suffix", [".xz", ".gz", ""])
async def test_a_signed_repository_is_believed(
    repository: Repository, key: Key, tmp_path: Path, suffix: str, detached: bool
) -> None:
    repository.publish(key, suffix=suffix, detached=detached)
    system = await ask(repository, Signed([key.keyring]), tmp_path)
    assert [package.name for package in system.packages] == ["a"]


@pytest.mark.anyio
async def test_keys_may_be_named_in_every_form_that_apt_takes(repository: Repository, key: Key, tmp_path: Path) -> None:
    repository.publish(key)
    for form in (str(key.keyring), str(key.armoured), key.armoured.read_text()):
        assert (await ask(repository, Signed([]), tmp_path, (form,))).packages
    assert (await ask(repository, Signed([key.armoured]), tmp_path, (key.fingerprint,))).packages
    with pytest.raises(NotVerified, match="not signed by a key"):
        await ask(repository, Signed([key.armoured]), tmp_path, (OTHER,))


@pytest.mark.anyio
async def test_what_stands_outside_of_the_signature_is_not_read(
    repository: Repository, key: Key, tmp_path: Path
) -> None:
    repository.publish(key)
    path = repository.release / "InRelease"
    path.write_bytes(b"SHA256:\n " + b"0" * 64 + b" 1 evil\n\n" + path.read_bytes() + b"\nSHA256:\n evil\n")
    try:
        text = await verify(path.read_bytes(), None, SOURCE, [key.keyring], "gpgv")
    except NotVerified:
        return
    assert "evil" not in text


@pytest.mark.anyio
async def test_a_changed_release_is_refused(repository: Repository, key: Key, tmp_path: Path) -> None:
    repository.publish(key)
    path = repository.release / "InRelease"
    path.write_bytes(path.read_bytes().replace(b"Origin: Test", b"Origin: Mine"))
    with pytest.raises(NotVerified, match="not what was signed"):
        await ask(repository, Signed([key.keyring]), tmp_path)


@pytest.mark.anyio
async def test_an_unsigned_repository_is_refused_unless_somebody_says_so(
    repository: Repository, tmp_path: Path, key: Key
) -> None:
    repository.publish(None)
    with pytest.raises(NotVerified, match="is not signed") as raised:
        await ask(repository, Signed([key.keyring]), tmp_path)
    assert "--insecure" in (raised.value.hint or "")
    assert (await ask(repository, Unsigned(), tmp_path)).packages
    repository.publish(key)
    assert (await ask(repository, Unsigned(), tmp_path)).packages


@pytest.mark.anyio
async def test_without_keys_nothing_is_believed(repository: Repository, key: Key, tmp_path: Path) -> None:
    repository.publish(key)
    with pytest.raises(NotVerified, match="nothing says which keys"):
        await ask(repository, Signed([]), tmp_path)
    with pytest.raises(NotVerified, match=r"keyring .*missing.gpg .* cannot be read"):
        await ask(repository, Signed([]), tmp_path, (str(tmp_path / "missing.gpg"),))


@pytest.mark.anyio
async def test_without_gpgv_nothing_is_believed(repository: Repository, key: Key, tmp_path: Path) -> None:
    repository.publish(key)
    with pytest.raises(NotVerified, match="this machine has none"):
        await ask(repository, Signed([key.keyring], gpgv=str(tmp_path / "no-gpgv")), tmp_path)


@pytest.mark.anyio
async def test_an_index_that_is_not_the_signed_one_is_refused(repository: Repository, key: Key, tmp_path: Path) -> None:
    repository.publish(key, suffix="")
    path = repository.release / f"main/binary-{ARCHITECTURE}/Packages"
    path.write_bytes(path.read_bytes().replace(b"Version: 1.0", b"Version: 6.6"))
    with pytest.raises(MirrorFailed, match="checksum"):
        await ask(repository, Signed([key.keyring]), tmp_path)


def test_armour_is_taken_off(key: Key) -> None:
    assert dearmour(key.armoured.read_bytes()) == key.keyring.read_bytes()
    assert dearmour(key.keyring.read_bytes()) == key.keyring.read_bytes()


def test_a_password_never_gets_into_a_message() -> None:
    source = replace(SOURCE, url="https://user:s3cret@mirror.invalid/debian")
    with pytest.raises(NotVerified) as raised:
        judge("", [], source)
    assert "s3cret" not in raised.value.message
