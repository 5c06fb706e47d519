"""The relatives of a thread: what it was forked from, whose child it is, and their other forks and children."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from holdfast.api.errors import NotFound
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.service import Threads

_DEEPEST: Final = 100
_MOST: Final = 1_000
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Relative:
    row: ThreadRow
    relation: Literal["root", "fork", "child"]
    of: str | None = None


async def family(threads: Threads, id: str) -> tuple[list[Relative], bool]:
    """Returns the oldest ancestor of a thread and everything that descends from it, each before its own descendants.

    The second value is whether there are more than fit.
    """
    root, seen = await threads.get(id), {id}
    for _ in range(_DEEPEST):
        above = root.parent if root.lineage.fork_of is None else root.lineage.fork_of.thread
        if above is None or above in seen:
            break
        try:
            root = await threads.get(above)
        except NotFound:  # deleted: the tree begins below it
            break
        seen.add(above)
    found: list[Relative] = []
    left, known = [Relative(root, "root")], {root.id}
    while left and len(found) < _MOST:
        relative = left.pop()
        found.append(relative)
        forks = await _all(threads, RowFilter(fork_of=relative.row.id, archived=None, limit=_PAGE))
        children = await _all(threads, RowFilter(parent=relative.row.id, archived=None, limit=_PAGE))
        below = [Relative(each, "fork", relative.row.id) for each in forks]
        below += [Relative(each, "child", relative.row.id) for each in children]
        new = [each for each in below if each.row.id not in known]
        known.update(each.row.id for each in new)
        left += sorted(new, key=lambda each: (each.row.created_at, each.row.id), reverse=True)
    return found, bool(left)


async def _all(threads: Threads, wanted: RowFilter) -> list[ThreadRow]:
    rows: list[ThreadRow] = []
    while len(rows) < _MOST:
        page = await threads.list(wanted)
        rows += page.rows
        if page.next_cursor is None:
            break
        last = page.rows[-1]
        wanted = replace(wanted, after=(last.last_activity_at, last.id))
    return rows
