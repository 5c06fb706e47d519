"""Certificates by which a box trusts the proxy, for the hosts that its secrets are bound to.

Every box has a certificate authority of its own. Its key is derived from the secret of the server and never stored, so
it is the same after a restart, and no box has the key.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import ssl
from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CURVE: Final = ec.SECP256R1()
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BEGIN: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
_END: Final = datetime.datetime(2049, 12, 31, tzinfo=datetime.UTC)
_DAY: Final = datetime.timedelta(days=1)
_MOST: Final = 64
"""Contexts kept for each box."""

Now = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class BoxAuthority:
    """The certificate authority of one box."""

    def __init__(self, secret: bytes, box: str, *, now: Now = _now) -> None:
        """`secret` has 32 bytes and is used only for this."""
        digest = hmac.new(secret, b"authority of box " + box.encode(), hashlib.sha512).digest()
        self._key = ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, _CURVE)
        self._name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Holdfast"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"Holdfast egress of box {box}"[:64]),
            ]
        )
        self._now = now
        self._leaf_key = ec.generate_private_key(_CURVE)
        self._contexts: dict[str, tuple[datetime.datetime, ssl.SSLContext]] = {}

    def certificate(self) -> bytes:
        """Returns the certificate in PEM, for the box. The name and the key are the same each time."""
        public = self._key.public_key()
        built = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(1)
            .not_valid_before(_BEGIN)
            .not_valid_after(_END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Returns the context by which the proxy is this host, for the box. Speaks HTTP/1.1 only."""
        now = self._now()
        known = self._contexts.get(host)
        if known is not None and now < known[0]:
            return known[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, self._leaf(host, now) + _pem(self._leaf_key))
        if len(self._contexts) >= _MOST:
            self._contexts.clear()
        self._contexts[host] = (now + _DAY, context)
        return context

    def _leaf(self, host: str, now: datetime.datetime) -> bytes:
        public = self._leaf_key.public_key()
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 7 * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key, which `ssl` takes from files only, from one that no other process can open."""
    descriptor = os.memfd_create("holdfast-certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
