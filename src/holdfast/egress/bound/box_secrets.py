"""The secrets of boxes: what each may use where, what its programs see, and the files that they need.

In a box, a variable with the name of the secret has a placeholder, and the usual variables of TLS clients name a file
with the certificates of the machine and that of the box's own authority.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxError, InvalidSpec
from holdfast.api.errors.secrets import SecretMissing
from holdfast.api.secrets import Exposure, SecretAction, SecretRecord
from holdfast.egress.bound.rules import Bound, SecretSource, SecretUse, bound_at
from holdfast.egress.bound.tls import verifying

if TYPE_CHECKING:
    from holdfast.egress.bound.certificates import BoxAuthority

FOLDER: Final = "/tmp/.holdfast"
"""In a box, where every user can write. It is part of the box's files, and of its snapshots."""
CERTIFICATES: Final = f"{FOLDER}/certificates.pem"
_VARIABLES: Final = (
    "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
    "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT",
)  # fmt: skip
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
)  # fmt: skip
_MOST_BUNDLE: Final = 4 << 20


class ServerSecrets:
    """The secrets of one server, for all its boxes."""

    def __init__(self, source: SecretSource, secret: bytes, trust: ssl.SSLContext | None = None) -> None:
        """`secret` has 32 bytes: the keys of the boxes' authorities are derived from it, and nothing else.

        By `trust` the servers outside are verified; by default with the certificates of this machine.
        """
        self._source = source
        self._secret = secret
        self._trust = trust

    @cached_property
    def trust(self) -> ssl.SSLContext:
        return verifying(self._trust)

    def of(
        self, box: str, thread: str | None, policy: NetworkPolicy, before: BoxSecrets | None = None
    ) -> BoxSecrets | None:
        """Returns the secrets of a box, or None if its policy names none. `before` are those that it had."""
        if not policy.secrets:
            return None
        uses = tuple(map(SecretUse.parse, policy.secrets))
        if before is not None and (before.thread, before.uses) == (thread, uses):
            return before  # with its certificates
        return BoxSecrets(self, box, thread, uses)

    def check(self, policy: NetworkPolicy) -> None:
        """Raises `SecretMissing` or `InvalidSpec` if a box of this policy could not use its secrets."""
        missing = []
        for use in map(SecretUse.parse, policy.secrets):
            record = self.source.find(use.name)
            if record is None:
                missing.append(use.name)
            elif policy.mode is Network.NONE and record.expose is None:
                raise InvalidSpec(
                    f"the secret {use.name} is put into requests, and a box without a network sends none",
                    hint="add --network allow",
                )
        if missing:
            raise SecretMissing(
                f"there is no secret {', '.join(missing)}",
                hint=f"store it: holdfast secret set {missing[0]} --host HOST",
            )

    def environment(self, policy: NetworkPolicy) -> dict[str, str]:
        """Returns the variables of a box for its secrets: placeholders, and values that are exposed."""
        variables: dict[str, str] = {}
        for use in map(SecretUse.parse, policy.secrets):
            record = self.source.find(use.name)
            if record is None:
                continue  # it was removed: requests that need it are refused
            if record.bindings and policy.mode is not Network.NONE:
                variables |= dict.fromkeys(_VARIABLES, CERTIFICATES)
            if record.expose is Exposure.FILE:
                variables[f"{use.name}_FILE"] = secret_file(use.name)
            elif record.expose is Exposure.ENV:
                with suppress(SecretMissing):
                    variables[use.name] = self.source.reveal(use.name)
            else:
                variables[use.name] = record.placeholder
        return variables

    def needs_files(self, policy: NetworkPolicy) -> bool:
        return bool(policy.secrets)

    async def place(self, box: Box, thread: str | None, policy: NetworkPolicy) -> None:
        """Write the files that a new box needs for its secrets. Raises `BoxError` or `SecretMissing`."""
        for use in map(SecretUse.parse, policy.secrets):
            record = self.source.find(use.name)
            if record is None or record.expose is None:
                continue
            detail = f"as a {'variable' if record.expose is Exposure.ENV else 'file'}"
            self.source.note(use.name, SecretAction.EXPOSED, box=box.id, thread=thread, detail=detail)
            if record.expose is Exposure.FILE:
                await box.files.write(secret_file(use.name), self.source.reveal(use.name).encode(), mode=0o600)
        if any(record.bindings for record in self._records(policy)) and policy.mode is not Network.NONE:
            trusted = await _bundle(box) + b"\n" + self.authority(box.id).certificate()
            await box.files.write(CERTIFICATES, trusted)

    def exposed(self, policy: NetworkPolicy) -> tuple[str, ...]:
        """Returns the names of the secrets whose values are in a box of this policy."""
        return tuple(record.name for record in self._records(policy) if record.expose is not None)

    def authority(self, box: str) -> BoxAuthority:
        from holdfast.egress.bound.certificates import BoxAuthority  # it takes long, and few boxes need it

        return BoxAuthority(self._secret, box)

    @property
    def source(self) -> SecretSource:
        return self._source

    def _records(self, policy: NetworkPolicy) -> Iterable[SecretRecord]:
        found = (self.source.find(SecretUse.parse(text).name) for text in policy.secrets)
        return (record for record in found if record is not None)


class BoxSecrets:
    """The secrets of one box, as its connections use them."""

    def __init__(self, server: ServerSecrets, box: str, thread: str | None, uses: tuple[SecretUse, ...]) -> None:
        self._server = server
        self._box = box
        self.thread = thread
        self.uses = uses

    def bound_at(self, host: str, port: int) -> tuple[Bound, ...]:
        """Returns the secrets that this box may use at a host now: they can change at any time."""
        return bound_at(self.uses, self._server.source.find, host, port)

    def contexts(self, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Returns the context by which the proxy is a host, for the box, and that by which it verifies that host.

        Takes long the first time, so call it in a thread.
        """
        return self._authority.context(host), self._server.trust

    def values(self, bound: Iterable[Bound]) -> Mapping[str, str]:
        """Raises `SecretMissing`."""
        return {name: self._server.source.reveal(name) for name in {each.use.name for each in bound}}

    def note(self, name: str, action: SecretAction, host: str, detail: str = "") -> None:
        self._server.source.note(name, action, box=self._box, thread=self.thread, host=host, detail=detail)

    @cached_property
    def _authority(self) -> BoxAuthority:
        return self._server.authority(self._box)


def secret_file(name: str) -> str:
    """Returns the path in a box of a secret that is exposed as a file."""
    return f"{FOLDER}/secrets/{name}"


async def _bundle(box: Box) -> bytes:
    """Returns the certificates that the box trusts by itself, or those of this machine if it has none."""
    for path in _BUNDLES:
        with suppress(BoxError):
            found = await box.files.read(path, length=_MOST_BUNDLE)
            if found:
                return found
    return await asyncio.to_thread(_own_bundle)


def _own_bundle() -> bytes:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return Path(paths.cafile).read_bytes()
    import certifi

    return Path(certifi.where()).read_bytes()
