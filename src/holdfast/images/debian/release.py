"""Whom to believe: a release file is signed by the distribution, and says what every index of it hashes to.

The signature is checked by `gpgv`, which apt uses, too, with the keys that this machine trusts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from holdfast.images.debian.control import stanza, words
from holdfast.images.debian.sources import Source, is_fingerprint
from holdfast.images.errors import MirrorFailed, NotVerified
from holdfast.time_limit import time_limit

_SECONDS: Final = 60.0
_WEAK: Final = {"1", "2", "3"}
"""MD5, SHA-1 and RIPEMD-160, as OpenPGP numbers them."""
_INDEX: Final = re.compile(r"([0-9a-f]{64})\s+(\d{1,12})\s+(\S+)")
_ARMOUR: Final = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
_KEYRINGS: Final = "package debian-archive-keyring or ubuntu-keyring has them"
INSECURE_HINT: Final = "--insecure goes on all the same, where you trust the way to the mirror"


@dataclass(frozen=True, slots=True)
class IndexFile:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Release:
    origin: str
    codename: str
    files: dict[str, IndexFile]
    by_hash: bool
    all_apart: bool
    """Packages for every architecture have an index of their own."""
    valid_until: datetime | None

    def indexes(self, component: str, architecture: str) -> list[IndexFile]:
        """`Packages` of a component as it may lie on a mirror, what is quickest to bring first."""
        place = f"{component}/binary-{architecture}/Packages"
        return [self.files[name] for name in (f"{place}.xz", f"{place}.gz", place) if name in self.files]


def parse_release(text: str, source: Source) -> Release:
    fields = stanza(text)
    files = {}
    for line in fields.get("sha256", "").splitlines():
        if match := _INDEX.fullmatch(line.strip()):
            files[match[3]] = IndexFile(match[3], int(match[2]), match[1])
    if not files:
        raise MirrorFailed(f"the release file of {source.shown} has no SHA-256 checksums", hint="is this a mirror?")
    until = None
    if said := fields.get("valid-until"):
        with contextlib.suppress(ValueError):
            until = parsedate_to_datetime(said)
            until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return Release(
        fields.get("origin", ""),
        fields.get("codename", ""),
        files,
        fields.get("acquire-by-hash", "").lower() == "yes",
        "all" in words(fields, "architectures")
        and "packages" not in fields.get("no-support-for-architecture-all", "").lower(),
        until,
    )


def check_age(release: Release, source: Source, now: datetime) -> None:
    """An old release file, signed as it is, would hide what was fixed since."""
    if release.valid_until is not None and now > release.valid_until:
        raise NotVerified(
            f"the release file of {source.shown} was valid until {release.valid_until:%Y-%m-%d %H:%M} UTC",
            hint="the mirror is out of date, or this machine's clock is wrong; "
            'Acquire::Check-Valid-Until "false" in apt\'s configuration goes on all the same',
        )


async def verify(signed: bytes, detached: bytes | None, source: Source, trusted: Sequence[Path], gpgv: str) -> str:
    """What is signed, as text. With `detached` that is the signature, else the text has it inside.

    Raises `NotVerified`.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-gpgv-") as folder:
        room = Path(folder)
        keyrings, fingerprints = _keyrings(source, trusted, room)
        output = room / "signed"
        arguments = [gpgv, "--homedir", str(room), "--status-fd", "1"]
        for keyring in keyrings:
            arguments += ["--keyring", str(keyring)]
        (room / "release").write_bytes(signed)
        if detached is None:
            arguments += ["--output", str(output), str(room / "release")]
        else:
            (room / "signature").write_bytes(detached)
            output = room / "release"
            arguments += [str(room / "signature"), str(output)]
        status = await _run(arguments)
        judge(status, fingerprints, source)
        try:
            return output.read_text("utf-8", "replace")
        except FileNotFoundError:
            raise NotVerified(f"the release file of {source.shown} is not signed", hint=INSECURE_HINT) from None


def judge(status: str, fingerprints: Iterable[str], source: Source) -> None:
    """What `gpgv` says of the signatures: one good one by a trusted key is needed, and no bad one."""
    said = [line.split()[1:] for line in status.splitlines() if line.startswith("[GNUPG:] ")]
    if any(told[:1] == ["BADSIG"] for told in said):
        raise NotVerified(
            f"the release file of {source.shown} is not what was signed", hint="somebody, or something, changed it"
        )
    wanted = {each.rstrip("!").upper() for each in fingerprints}
    for told in said:
        # VALIDSIG fingerprint date timestamp expires version reserved algorithm hash class primary-fingerprint
        valid = told[:1] == ["VALIDSIG"] and len(told) >= 11 and told[8] not in _WEAK
        if valid and (not wanted or {told[1].upper(), told[10].upper()} & wanted):
            return
    missing = sorted({told[1] for told in said if told[:1] == ["NO_PUBKEY"] and len(told) > 1})
    keys = f" (it needs key {' or '.join(missing)})" if missing else ""
    raise NotVerified(
        f"the release file of {source.shown} is not signed by a key that this machine trusts{keys}",
        hint=f"give the keyring with --keyring; {_KEYRINGS}. {INSECURE_HINT}",
    )


def dearmour(data: bytes) -> bytes:
    """Keys as `gpgv` takes them: it reads no text."""
    blocks = _ARMOUR.findall(data)
    if not blocks:
        return data
    keys = b""
    for block in blocks:
        _, _, body = block.replace(b"\r", b"").partition(b"\n\n")
        lines = [line.strip() for line in body.splitlines()]
        with contextlib.suppress(binascii.Error):
            keys += base64.b64decode(b"".join(line for line in lines if line and not line.startswith(b"=")))
    return keys


def _keyrings(source: Source, trusted: Sequence[Path], room: Path) -> tuple[list[Path], list[str]]:
    fingerprints = [each for each in source.signed_by if is_fingerprint(each)]
    named = [each for each in source.signed_by if not is_fingerprint(each)]
    keys = [each.encode() if "BEGIN PGP" in each else _key(Path(each), source) for each in named]
    if not named:
        keys = [_key(path, source) for path in trusted]
    if not keys:
        raise NotVerified(
            f"nothing says which keys {source.shown} is signed by",
            hint=f"give a keyring with --keyring; {_KEYRINGS}. {INSECURE_HINT}",
        )
    found = []
    for number, data in enumerate(keys):
        path = room / f"keyring-{number}.gpg"
        path.write_bytes(dearmour(data))
        found.append(path)
    return found, fingerprints


def _key(path: Path, source: Source) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotVerified(
            f"the keyring {path} of {source.shown} cannot be read: {(error.strerror or str(error)).lower()}",
            hint=f"give another with --keyring; {_KEYRINGS}",
        ) from None


async def _run(arguments: Sequence[str]) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise NotVerified(
            "signatures are checked by gpgv, and this machine has none",
            hint=f"install it (apt install gpgv, dnf install gnupg2). {INSECURE_HINT}",
        ) from None
    try:
        async with time_limit(_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        raise NotVerified(f"gpgv did not answer within {_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode("utf-8", "replace")
