"""Debian packages and a repository of them, made by hand, for tests: nothing of Debian's is needed."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARCHITECTURE = "amd64"


@dataclass(frozen=True)
class Entry:
    """One entry of a tar archive."""

    name: str
    data: bytes = b""
    type: bytes = tarfile.REGTYPE
    mode: int = 0o644
    link: str = ""


def folder(name: str, mode: int = 0o755) -> Entry:
    return Entry(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> Entry:
    return Entry(name, type=tarfile.SYMTYPE, mode=0o777, link=target)


def pack_tar(entries: Sequence[Entry]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            header = tarfile.TarInfo(entry.name)
            header.type, header.mode, header.linkname, header.size = entry.type, entry.mode, entry.link, len(entry.data)
            tar.addfile(header, io.BytesIO(entry.data))
    return target.getvalue()


def pack_ar(members: Mapping[str, bytes]) -> bytes:
    packed = b"!<arch>\n"
    for name, data in members.items():
        packed += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return packed


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".xz":
        return lzma.compress(data, preset=0)
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".zst":
        return subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


@dataclass
class TestPackage:
    __test__ = False

    name: str
    entries: Sequence[Entry] = ()
    version: str = "1.0"
    architecture: str = ARCHITECTURE
    fields: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, bytes] = field(default_factory=dict)
    """Control files by name: `postinst`, `conffiles`, `triggers`."""
    suffix: str = ".xz"

    @property
    def control(self) -> str:
        fields = {"Package": self.name, "Version": self.version, "Architecture": self.architecture, **self.fields}
        return "".join(f"{name}: {value}\n" for name, value in fields.items())

    def pack(self) -> bytes:
        control = [folder("./"), Entry("./control", self.control.encode())]
        control += [Entry(f"./{name}", data, mode=0o755) for name, data in self.scripts.items()]
        return pack_ar(
            {
                "debian-binary": b"2.0\n",
                f"control.tar{self.suffix}": compress(pack_tar(control), self.suffix),
                f"data.tar{self.suffix}": compress(pack_tar([folder("./"), *self.entries]), self.suffix),
            }
        )


class Repository:
    """A mirror in a folder. `publish` writes what the packages are, and signs it where there is a key."""

    def __init__(self, root: Path, suite: str = "test") -> None:
        self.root = root
        self.suite = suite
        self._stanzas: list[str] = []

    def clear(self) -> None:
        """Forget the packages, for the next `publish`."""
        self._stanzas.clear()

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    @property
    def release(self) -> Path:
        return self.root / "dists" / self.suite

    def add(self, package: TestPackage, **changes: Any) -> Path:
        data = package.pack()
        place = f"pool/{package.name}_{package.version}.deb"
        (self.root / "pool").mkdir(parents=True, exist_ok=True)
        (self.root / place).write_bytes(data)
        told = {"Filename": place, "Size": len(data), "SHA256": hashlib.sha256(data).hexdigest(), **changes}
        self._stanzas.append(package.control + "".join(f"{name}: {value}\n" for name, value in told.items()))
        return self.root / place

    def publish(self, key: Key | None = None, *, extra: str = "") -> None:
        place = f"main/binary-{ARCHITECTURE}/Packages"
        plain = "\n".join(self._stanzas).encode()
        packed = compress(plain, ".xz")
        path = self.release / f"{place}.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed)
        # apt wants the index listed as it is unpacked, too, though no mirror has it that way.
        listed = {place: plain, f"{place}.xz": packed}
        sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in listed.items())
        text = (
            f"Origin: Test\nSuite: {self.suite}\nCodename: {self.suite}\nArchitectures: {ARCHITECTURE}\n"
            f"Components: main\n{extra}SHA256:\n{sums}"
        )
        if key is None:
            (self.release / "Release").write_text(text)
        else:
            (self.release / "InRelease").write_bytes(key.sign(text.encode()))


class Key:
    """A signing key in a home of its own."""

    def __init__(self, home: Path) -> None:
        if shutil.which("gpg") is None or shutil.which("gpgv") is None:
            pytest.skip("this machine has no gpg and gpgv: nothing can be signed here")
        home.mkdir(mode=0o700)
        self._home = home
        made = ["--passphrase", "", "--quick-generate-key", "test@example.invalid", "ed25519", "sign", "never"]
        self._gpg(*made)
        self.keyring = home / "keyring.gpg"
        self.keyring.write_bytes(self._gpg("--export"))
        self.armoured = home / "keyring.asc"
        self.armoured.write_bytes(self._gpg("--armor", "--export"))
        listed = self._gpg("--with-colons", "--list-keys").decode()
        self.fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))

    def sign(self, data: bytes) -> bytes:
        return self._gpg("--digest-algo", "SHA256", "--clear-sign", data=data)

    def close(self) -> None:
        """The agent that gpg starts outlives it otherwise."""
        subprocess.run(["gpgconf", "--homedir", str(self._home), "--kill", "all"], check=False, capture_output=True)

    def _gpg(self, *arguments: str, data: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--no-tty", "--pinentry-mode", "loopback"]
        done = subprocess.run([*command, *arguments], input=data, capture_output=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout
