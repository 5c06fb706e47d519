"""TLS over a socket of the egress, as either end, without transports of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from holdfast.egress.sockets import Ended, ReadsNoMore, Socket, Wire
from holdfast.time_limit import time_limit

_PIECE: Final = 64 << 10


class HandshakeFailed(Exception):
    """The other end does not accept this end, or cannot prove who it is."""


def verifying(trust: ssl.SSLContext | None) -> ssl.SSLContext:
    """Returns the context by which servers are verified, by default with the certificates of this machine."""
    context = trust or ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if trust is None and not paths.cafile and not paths.capath:
        import certifi  # a machine without certificates of its own

        context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsSocket(Wire):
    """Owns the socket below it. The socket counts encrypted bytes.

    One task may read while another writes.
    """

    def __init__(self, socket: Socket, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """Without `server_name`, this is the server."""
        super().__init__()
        self._socket = socket
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._sending = asyncio.Lock()
        """Records must be sent in the order in which they were encrypted."""

    @property
    def waiting(self) -> bool:  # type: ignore[override]  # read-only here
        return self._socket.waiting

    async def handshake(self, seconds: float) -> None:
        """Raises `HandshakeFailed`."""
        try:
            async with time_limit(seconds):
                while True:
                    try:
                        self._tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        await self._send()
                        if not await self._receive():
                            raise HandshakeFailed("the connection closed within the TLS handshake") from None
                await self._send()
        except ssl.SSLCertVerificationError as error:
            raise HandshakeFailed(f"its certificate is not valid: {error.verify_message}") from None
        except ssl.SSLError as error:
            with contextlib.suppress(Ended, TimeoutError):
                async with time_limit(1.0):
                    await self._send()  # the alert
            raise HandshakeFailed(f"the TLS handshake failed: {error.reason or error}") from None
        except Ended as error:
            raise HandshakeFailed(f"the connection closed within the TLS handshake: {error}") from None
        except TimeoutError:
            raise HandshakeFailed(f"the TLS handshake took longer than {seconds:g} s") from None

    # --- reading ---

    async def more(self) -> bool:
        while True:
            try:
                data = self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._send()
                if not await self._receive():
                    return False
            except ssl.SSLZeroReturnError:
                return False
            except ssl.SSLError as error:
                raise Ended(f"TLS: {error.reason or error}") from None
            else:
                self._ahead += data
                return bool(data)

    def stale(self) -> bool:
        if self._ahead:
            return True
        try:
            data = self._socket.take(_PIECE) or self._socket.socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        if not data:
            return True
        self._incoming.write(data)
        try:
            self._ahead += self._tls.read(_PIECE)
        except ssl.SSLWantReadError:
            return False  # a record of TLS itself, such as a ticket
        except ssl.SSLError:
            pass
        return True

    # --- writing ---

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._tls.write(view[:_PIECE]) :]
            except ssl.SSLError as error:
                raise ReadsNoMore(f"TLS: {error.reason or error}") from None
            await self._send()

    def finish(self) -> None:
        self._say_goodbye()
        self._socket.finish()

    async def pump(self, to: Wire, most: int | None = None) -> int:
        passed = 0
        while most is None or passed < most:
            if not self._ahead and not await self.more():
                break
            data = self.take(_PIECE if most is None else min(_PIECE, most - passed))
            passed += len(data)
            await to.write(data)
        return passed

    def close(self) -> None:
        if self._socket.socket.fileno() >= 0:
            self._say_goodbye()
        self._socket.close()

    def reset(self) -> None:
        self._socket.reset()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError, ValueError, OSError):
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            if not self._sending.locked():
                self._socket.socket.send(self._outgoing.read())

    # --- the socket below ---

    async def _receive(self) -> bool:
        if not self._socket.ahead and not await self._socket.more():
            return False
        self._incoming.write(self._socket.take(_PIECE))
        return True

    async def _send(self) -> None:
        async with self._sending:
            while self._outgoing.pending:
                await self._socket.write(self._outgoing.read(_PIECE))
