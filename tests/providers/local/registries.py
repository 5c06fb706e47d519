"""Small package registries for the world of these tests: what pip, npm, apt and cargo want to see, and one package."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from email.utils import formatdate

from tests.providers.local.world import NOTHING, Answer, Request

Site = Callable[[Request], Answer]


def _files(files: Mapping[str, bytes]) -> Site:
    def site(request: Request) -> Answer:
        found = files.get(request.path)
        return NOTHING if found is None else Answer(found)

    return site


def _tarball(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def pip_site(package: str, source: str) -> Site:
    """A simple index, with a wheel of one module."""
    name = f"{package}-1.0-py3-none-any.whl"
    information = f"{package}-1.0.dist-info"
    files = {
        f"{package}.py": source,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{information}/RECORD"])
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'

    def site(request: Request) -> Answer:
        if request.path == f"/simple/{package}/":
            return Answer(page.encode(), Content_Type="text/html")
        return _files({f"/files/{name}": wheel.getvalue()})(request)

    return site


def npm_site(package: str, source: str) -> Site:
    description = {"name": package, "version": "1.0.0", "main": "index.js"}
    tarball = _tarball({"package/package.json": json.dumps(description).encode(), "package/index.js": source.encode()})
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(tarball).digest()).decode()}"

    def site(request: Request) -> Answer:
        if request.path == f"/{package}":
            dist = {"tarball": f"{request.origin}/{package}/-/{package}-1.0.0.tgz", "integrity": integrity}
            document = {"name": package, "dist-tags": {"latest": "1.0.0"}}
            return Answer.json({**document, "versions": {"1.0.0": {**description, "dist": dist}}})
        return _files({f"/{package}/-/{package}-1.0.0.tgz": tarball})(request)

    return site


def apt_site(package: str, content: str) -> Site:
    """A repository of one suite with one package of one file."""
    control = (
        f"Package: {package}\nVersion: 1.0\nArchitecture: all\nMaintainer: Tests <t@site.test>\nDescription: a test\n"
    )
    deb = _ar(
        {
            "debian-binary": b"2.0\n",
            "control.tar.gz": _tarball({"./control": control.encode()}),
            "data.tar.gz": _tarball({f"./usr/share/{package}": content.encode()}),
        }
    )
    place = f"pool/{package}_1.0_all.deb"
    digest = hashlib.sha256(deb).hexdigest()
    packages = f"{control}Filename: {place}\nSize: {len(deb)}\nSHA256: {digest}\n\n".encode()
    packed = gzip.compress(packages)
    sums = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-{architecture}/{name}\n"
        for architecture in ("amd64", "arm64", "all")
        for name, data in (("Packages", packages), ("Packages.gz", packed))
    )
    release = (
        f"Origin: Tests\nSuite: stable\nCodename: stable\nDate: {formatdate(usegmt=True).replace('GMT', 'UTC')}\n"
        f"Architectures: amd64 arm64 all\nComponents: main\nSHA256:\n{sums}"
    )
    files = {"/debian/dists/stable/Release": release.encode(), f"/debian/{place}": deb}
    for architecture in ("amd64", "arm64", "all"):
        files[f"/debian/dists/stable/main/binary-{architecture}/Packages"] = packages
        files[f"/debian/dists/stable/main/binary-{architecture}/Packages.gz"] = packed
    return _files(files)


def _ar(files: Mapping[str, bytes]) -> bytes:
    made = b"!<arch>\n"
    for name, data in files.items():
        made += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return made


def cargo_site(package: str, source: str) -> Site:
    """A sparse index, and its crates."""
    manifest = f'[package]\nname = "{package}"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = _tarball({f"{package}-1.0.0/Cargo.toml": manifest.encode(), f"{package}-1.0.0/src/lib.rs": source.encode()})
    line = {
        "name": package, "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(crate).hexdigest(), "features": {},
        "yanked": False,
    }  # fmt: skip

    def site(request: Request) -> Answer:
        if request.path == "/index/config.json":
            return Answer.json({"dl": f"{request.origin}/crates/{{crate}}-{{version}}.crate"})
        return _files(
            {
                f"/index/{package[:2]}/{package[2:4]}/{package}": json.dumps(line).encode() + b"\n",
                f"/crates/{package}-1.0.0.crate": crate,
            }
        )(request)

    return site
