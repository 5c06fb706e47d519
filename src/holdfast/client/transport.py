"""How a request reaches a server: the contract of transports, and the ways in which one fails.

`async_transport` is what clients use: httpx, on an event loop. `blocking` asks one thing after the other on a plain
socket, which loads a tenth of the code; the command line uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class TransportError(Exception):
    """No answer. The message says why, in a few words."""


class NotSent(TransportError):
    """The server never got the request."""


class AnswerLost(TransportError):
    """The server may have got the request, and may have carried it out."""


class NotHttp(TransportError):
    """What came back is no answer of HTTP."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Found by names in lower case."""
    body: bytes


class Transport(ABC):
    """Asks servers. Its owner closes it."""

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
        """Ask once. Raises a `TransportError` where no answer comes. `timeout` bounds each silence."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...
