"""Shell completion of ids that the server knows, and of agents.

The shell waits for this, so it is quick or offers nothing. A failure means no completions, never a message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.session import find_server, home_or_default, skip_httpx_cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.client import SyncClient

_SECONDS: Final = 2.0
_MOST: Final = 100

Completions = list[tuple[str, str]]
"""Words, each with a description."""


def complete_thread(incomplete: str) -> Completions:
    """Threads, newest activity first."""
    return _complete(
        incomplete, lambda client: ((each.id, each.title or each.status) for each in client.threads.list(limit=_MOST))
    )


def complete_box(incomplete: str) -> Completions:
    """Boxes by key and by id."""

    def ask(client: SyncClient) -> Iterable[tuple[str, str]]:
        for each in client.boxes.list(limit=_MOST):
            yield each.id, each.key or each.state
            if each.key:
                yield each.key, each.id

    return _complete(incomplete, ask)


def complete_agent(incomplete: str) -> Completions:
    """Agents; these are known without a server."""
    from holdfast.harnesses import registry

    return [(name, "") for name in registry.names() if name.startswith(incomplete)]


def complete_model(incomplete: str) -> Completions:
    """Models that are ready."""
    return _complete(
        incomplete, lambda client: ((each.name, each.model or "") for each in client.models.list() if each.is_ready)
    )


def complete_secret(incomplete: str) -> Completions:
    """Secrets, each with the hosts that it may be sent to."""
    return _complete(
        incomplete,
        lambda client: (
            (each.name, ", ".join(binding.host for binding in each.bindings)) for each in client.secrets.list()
        ),
    )


def complete_provider(incomplete: str) -> Completions:
    """Providers that are ready."""
    return _complete(
        incomplete, lambda client: ((each.name, each.kind) for each in client.providers.list() if each.is_ready)
    )


def _complete(incomplete: str, ask: Callable[[SyncClient], Iterable[tuple[str, str]]]) -> Completions:
    try:
        found = find_server(None, None, None, os.environ, home_or_default(None))
    except CommandError:
        return []
    skip_httpx_cli()
    from holdfast.client import HoldfastError, SyncClient

    try:
        with SyncClient(found.url, api_key=found.api_key, timeout=_SECONDS, retry_seconds=0.0) as client:
            return [each for each in ask(client) if each[0].startswith(incomplete)]
    except (HoldfastError, ValueError):
        return []
