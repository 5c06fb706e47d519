"""How a request reaches a server: the contract of transports, and how they fail.

Clients use `asynchronous`: httpx on an event loop. The command line uses `blocking`: one request at a time on a
plain socket, which loads a tenth of the code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class TransportError(Exception):
    """There was no response. The message gives a short reason."""


class NotSent(TransportError):
    """The server never got the request."""


class AnswerLost(TransportError):
    """The server may have received the request and carried it out."""


class NotHttp(TransportError):
    """The response is not HTTP."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """With lower-case names."""
    body: bytes


class Transport(ABC):
    """Sends requests to servers. Its owner closes it."""

    @abstractmethod
    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout: float,
        connect_timeout: float,
    ) -> Reply:
        """Send one request. Raises `TransportError` if there is no response. `timeout` limits each silence."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...
