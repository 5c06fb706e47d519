"""Threads by the names people use: an id, or the beginning or end of one, where only one thread has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.session import matching, only

if TYPE_CHECKING:
    from holdfast.client import Client, SyncClient

_KIND: Final = "t-"
_SEARCHED: Final = 10_000
"""Threads that are looked through, the newest activity first."""


async def find_thread(client: Client, name: str) -> str:
    """The id of a thread. Raises `NotFound`, or an error that names those that may be meant."""
    from holdfast.client import HoldfastError, NotFound

    if name.startswith("r-"):
        return name  # a run: what takes a thread takes that as well
    try:
        return (await client.threads.get(name)).id
    except NotFound as missing:
        try:
            ids = [each.id async for each in client.threads.list(archived="any", limit=_SEARCHED)]
        except HoldfastError:  # a token opens one thread, and lists none
            raise missing from None
        return _only_one(name, ids, missing)


def find_thread_now(client: SyncClient, name: str) -> str:
    """The same for code without `await`."""
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
