"""Encrypted tunnels into sandboxes of the counterpart: TLS on loopback, with a self-signed certificate."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxError

HOST: Final = "127.0.0.1"
_PIECE: Final = 1 << 16
_DAYS: Final = 7


def make_certificate() -> bytes:
    """Returns a key and a certificate for the loopback address, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tunnels of a counterpart of Modal")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def server_context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory(prefix="holdfast-modal-") as folder:
        file = Path(folder, "pem")
        file.write_bytes(pem)
        context.load_cert_chain(file)
    return context


class Tunnel:
    """One port of one sandbox. Close it with its sandbox."""

    def __init__(self, box: Box, port: int, encrypted: bool) -> None:
        self._box = box
        self.container_port = port
        self.encrypted = encrypted
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, context: ssl.SSLContext) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0, ssl=context if self.encrypted else None)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._box.connect(self.container_port) as connection:
                outward = asyncio.create_task(_outward(connection, writer))
                try:
                    while data := await reader.read(_PIECE):
                        await connection.write(data)
                    await connection.close_write()
                    await outward
                finally:
                    outward.cancel()
                    await asyncio.gather(outward, return_exceptions=True)
        except (BoxError, OSError):
            pass  # nothing listens there, or the caller left
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _outward(connection: Connection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read(_PIECE):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError, NotImplementedError):
        writer.write_eof()
    writer.close()
