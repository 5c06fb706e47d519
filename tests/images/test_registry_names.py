"""Names of images in registries, and what registries say of them: pure decisions, the friendly and the hostile ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.images.registry import CONFIG, INDEX, MANIFEST, Pushed, index_of, sha256, small_image

from holdfast.api.errors.boxes import BadArchive, HostileArchive, InvalidSpec
from holdfast.boxes.images import local_name
from holdfast.images.registry.authentication import Challenge, Credentials, parse_challenges, parse_token
from holdfast.images.registry.manifest import Blob, Manifest, choose_platform, read_manifest
from holdfast.images.registry.reference import is_loopback, parse_reference

DIGEST = "sha256:" + "0123456789abcdef" * 4
PINNED = DIGEST.replace(":", "-")


@pytest.mark.parametrize(
    ("text", "full", "host", "here"),
    [
        ("debian", "docker.io/library/debian:latest", "registry-1.docker.io", "debian"),
        ("debian:12", "docker.io/library/debian:12", "registry-1.docker.io", "debian:12"),
        ("docker.io/debian", "docker.io/library/debian:latest", "registry-1.docker.io", "debian"),
        ("index.docker.io/team/app", "docker.io/team/app:latest", "registry-1.docker.io", "team/app"),
        ("team/app:v1.2", "docker.io/team/app:v1.2", "registry-1.docker.io", "team/app:v1.2"),
        ("ghcr.io/a/b/c:1", "ghcr.io/a/b/c:1", "ghcr.io", "ghcr.io/a/b/c:1"),
        ("GHCR.io/a/b", "ghcr.io/a/b:latest", "ghcr.io", "ghcr.io/a/b"),
        ("localhost/app", "localhost/app:latest", "localhost", "localhost/app"),
        ("localhost:5000/app:1", "localhost:5000/app:1", "localhost:5000", "localhost:5000/app:1"),
        ("10.0.0.1:80/x", "10.0.0.1:80/x:latest", "10.0.0.1:80", "10.0.0.1:80/x"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}", "registry-1.docker.io", f"debian:{PINNED}"),
        (f"r.io/a:1@{DIGEST}", f"r.io/a:1@{DIGEST}", "r.io", f"r.io/a:{PINNED}"),
    ],
)
def test_names_mean_what_they_mean_to_docker(text: str, full: str, host: str, here: str) -> None:
    reference = parse_reference(text)
    assert (str(reference), reference.host, reference.local_name) == (full, host, here)
    assert local_name(full) == here, "the long form names the same image here"


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "/", "Debian", "a//b", "../etc", "a/../b", "a/./b", "ghcr.io/", "ghcr.io/../../v2/x", "a b", "a?x=1",
        "a#b", "a%2e%2e", "user@host/a", "https://ghcr.io/a", "host:99999/a", "host:0/a", "host:/a", "a:", "a:b:c",
        "a:" + "x" * 129, "a@sha512:" + "0" * 128, "a@sha256:short", f"a@{DIGEST}@{DIGEST}", "a\nb", "a/b\0", "-a",
        "a-", "x" * 300, "[::1]:5000/a", "e\u0301.io/a",
    ],
)  # fmt: skip
def test_names_that_play_tricks_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_reference(text)


def test_loopback_is_this_machine() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:5000", "127.0.0.1:80", "127.9.9.9")))
    assert not any(map(is_loopback, ("ghcr.io", "localhost.evil.example", "10.0.0.1", "127.0.0.1.example:80", "")))


def changed(image: Pushed, **changes: Any) -> bytes:
    return json.dumps({**image.manifest, **changes}).encode()


def descriptor(size: Any = 1, digest: Any = DIGEST) -> dict[str, Any]:
    return {"mediaType": CONFIG, "digest": digest, "size": size}


def test_a_manifest_says_what_to_fetch() -> None:
    image = small_image("a", "b")
    found = read_manifest(image.data)
    assert isinstance(found, Manifest)
    assert [blob.digest for blob in found.layers] == [sha256(each) for each in image.packed]
    assert found.size == image.size


SMALL = small_image("a")
HOSTILE = {
    "no JSON": b"<html>",
    "a list": b"[]",
    "nesting without end": b"[" * 100_000,
    "no layers": changed(SMALL, layers=[]),
    "layers that are none": changed(SMALL, layers={"0": 1}),
    "too many layers": changed(SMALL, layers=[descriptor()] * 129),
    "a layer that is none": changed(SMALL, layers=["x"]),
    "no digest": changed(SMALL, layers=[{"size": 1}]),
    "a path as a digest": changed(SMALL, layers=[descriptor(digest="sha256:../../../../etc/passwd")]),
    "another kind of digest": changed(SMALL, layers=[descriptor(digest="md5:" + "0" * 32)]),
    "a digest that is none": changed(SMALL, layers=[descriptor(digest=7)]),
    "a size below zero": changed(SMALL, layers=[descriptor(-1)]),
    "a size that is text": changed(SMALL, layers=[descriptor("1")]),
    "a size that is true": changed(SMALL, layers=[descriptor(True)]),
    "a size with a point": changed(SMALL, layers=[descriptor(1e300)]),
    "a layer beyond every disk": changed(SMALL, layers=[descriptor(1 << 62)]),
    "layers beyond the limit together": changed(
        SMALL, layers=[descriptor(40 << 30), descriptor(40 << 30, "sha256:" + "1" * 64)]
    ),
    "a huge configuration": changed(SMALL, config=descriptor(1 << 30)),
    "two sizes for one digest": changed(SMALL, layers=[descriptor(1), descriptor(2)]),
    "platforms that are none": json.dumps({"schemaVersion": 2, "manifests": "x"}).encode(),
    "platforms without end": json.dumps({"schemaVersion": 2, "manifests": [{}] * 1025}).encode(),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in HOSTILE.items()])
def test_hostile_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(HostileArchive):
        read_manifest(data)


def test_what_is_no_image_is_said_to_be_none() -> None:
    chart = changed(SMALL, config={**descriptor(), "mediaType": "application/vnd.cncf.helm.config.v1+json"})
    with pytest.raises(BadArchive, match=r"not an image: the registry calls it .*helm"):
        read_manifest(chart)
    with pytest.raises(BadArchive, match="out of use"):
        read_manifest(json.dumps({"schemaVersion": 1, "fsLayers": []}).encode())


def test_the_manifest_for_this_machine_is_chosen() -> None:
    data = index_of(("linux", "amd64", b"1"), ("linux", "arm64", b"2"), ("windows", "amd64", b"3"))
    assert choose_platform(json.loads(data), "x86_64") == Blob(sha256(b"1"), 1)
    assert choose_platform(json.loads(data), "aarch64") == Blob(sha256(b"2"), 1)
    with pytest.raises(BadArchive, match="only for linux/amd64, linux/arm64, windows/amd64"):
        choose_platform(json.loads(data), "riscv64")
    assert json.loads(data)["mediaType"] == INDEX


def test_the_best_variant_that_runs_here_is_chosen() -> None:
    def entry(variant: str | None, digit: str) -> dict[str, Any]:
        about = {"os": "linux", "architecture": "arm", **({"variant": variant} if variant else {})}
        return {"mediaType": MANIFEST, "digest": f"sha256:{digit * 64}", "size": 1, "platform": about}

    index = {"manifests": [entry("v5", "5"), entry("v8", "8"), entry("v7", "7"), entry("v6", "6"), entry(None, "0")]}
    assert choose_platform(index, "armv7l").digest == "sha256:" + "7" * 64
    with pytest.raises(BadArchive):
        choose_platform(index, "aarch64")


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Bearer realm="https://a.io/token",service="a.io",scope="x"', Challenge("https://a.io/token", "a.io")),
        ('bearer REALM="https://a.io/t"', Challenge("https://a.io/t", None)),
        ("Bearer realm=https://a.io/t, service=s", Challenge("https://a.io/t", "s")),
        ('Basic realm="here"', Challenge()),
        ('Basic realm="here", Bearer realm="https://a.io"', Challenge("https://a.io", None)),
        ('Bearer realm="https://a.io/a,b\\"c"', Challenge('https://a.io/a,b"c', None)),
        ('Negotiate, Basic realm="x"', Challenge()),
        ("Digest realm=x", None),
        ("Bearer", None),
        ("Bearer realm=" + '"' * 10_000, None),
        ("", None),
    ],
)
def test_challenges_are_parsed(header: str, challenge: Challenge | None) -> None:
    assert parse_challenges([header]) == challenge


def test_tokens_that_could_not_be_a_header_are_none() -> None:
    assert parse_token(b'{"token": "a.b-c", "access_token": "d"}') == "a.b-c"
    assert parse_token(b'{"access_token": "d"}') == "d"
    for data in (b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nX-Evil: 1"}', b'{"token": ""}', b"[" * 99_999):
        assert parse_token(data) is None
    assert parse_token(json.dumps({"token": "x" * (1 << 17)}).encode()) is None


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(Credentials("a", "s3cret"))
    with pytest.raises(ValueError, match="colon"):
        Credentials("a:b", "c")
