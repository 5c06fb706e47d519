"""What a shell is offered for the word under the cursor: ids that the server knows, and agents.

A shell waits for this: it is quick, or says nothing. Whatever goes wrong is no completion, never a message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.cli.discovery import find_server, leave_out_what_httpx_brings, the_home
from holdfast.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.client import SyncClient

_SECONDS: Final = 2.0
_MOST: Final = 100

Offers = list[tuple[str, str]]
"""A word, and what helps to choose it."""


def complete_thread(incomplete: str) -> Offers:
    """Threads, the newest activity first."""
    return _offer(
        incomplete, lambda client: ((each.id, each.title or each.status) for each in client.threads.list(limit=_MOST))
    )


def complete_box(incomplete: str) -> Offers:
    """Boxes by key and by id."""

    def ask(client: SyncClient) -> Iterable[tuple[str, str]]:
        for each in client.boxes.list(limit=_MOST):
            yield each.id, each.key or each.state
            if each.key:
                yield each.key, each.id

    return _offer(incomplete, ask)


def complete_agent(incomplete: str) -> Offers:
    """Agents that runs can be launched with; known without a server."""
    from holdfast.harnesses import registry

    return [(name, "") for name in registry.names() if name.startswith(incomplete)]


def complete_model(incomplete: str) -> Offers:
    """Models that are ready."""
    return _offer(
        incomplete, lambda client: ((each.name, each.model or "") for each in client.models.list() if each.is_ready)
    )


def _offer(incomplete: str, ask: Callable[[SyncClient], Iterable[tuple[str, str]]]) -> Offers:
    try:
        found = find_server(None, None, None, os.environ, the_home(None))
    except CommandError:
        return []
    leave_out_what_httpx_brings()
    from holdfast.client import HoldfastError, SyncClient

    try:
        with SyncClient(found.url, api_key=found.api_key, timeout=_SECONDS, retry_seconds=0.0) as client:
            return [each for each in ask(client) if each[0].startswith(incomplete)]
    except (HoldfastError, ValueError):
        return []
