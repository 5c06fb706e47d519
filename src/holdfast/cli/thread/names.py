"""Finds threads by id, or by the beginning or end of an id that only one thread has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.session import matching, only

if TYPE_CHECKING:
    from holdfast.client import Client, SyncClient

_KIND: Final = "t-"
_SEARCHED: Final = 10_000
"""Most threads to search, most recently active first."""


async def find_thread(client: Client, name: str) -> str:
    """Return the id of a thread. Raises `NotFound`, or a `CommandError` that lists several matches."""
    from holdfast.client import HoldfastError, NotFound

    if name.startswith("r-"):
        return name  # a run, which the API accepts in place of its thread
    try:
        return (await client.threads.get(name)).id
    except NotFound as missing:
        try:
            ids = [each.id async for each in client.threads.list(archived="any", limit=_SEARCHED)]
        except HoldfastError:  # a token for one thread cannot list threads
            raise missing from None
        return _only_one(name, ids, missing)


def find_thread_now(client: SyncClient, name: str) -> str:
    """Like `find_thread`, for a sync client."""
    from holdfast.client import HoldfastError, NotFound

    try:
        return client.threads.get(name).id
    except NotFound as missing:
        try:
            ids = [each.id for each in client.threads.list(archived="any", limit=_SEARCHED)]
        except HoldfastError:
            raise missing from None
        return _only_one(name, ids, missing)


def _only_one(name: str, ids: list[str], missing: Exception) -> str:
    begun = [id for id in ids if id.startswith(name)] if name.startswith(_KIND) and name != _KIND else []
    found = list(dict.fromkeys([*begun, *matching(ids, name)]))
    if not found:
        raise missing from None
    return only(name, found, "threads")
