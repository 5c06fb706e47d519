"""What a session has come to: the branch, the commits and the files that its agent has changed, after each run.

The git of the box is asked, in the box: whoever works there can make it answer anything, so what it says is for people.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.errors import HoldfastError
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.checkpoint.checkpoints import Checkpoints
from holdfast.sessions.session_log import SessionLog, session_of
from holdfast.threads.session_events import MOST_FILES, work_done, work_id
from holdfast.visible_text import visible

log = logging.getLogger(__name__)

_SECONDS: Final = 60.0
_MOST_SECTION: Final = 128 * 1024
_REMEMBERED: Final = 10_000
_SCRIPT: Final = f"""
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || exit 3
base=$1
git cat-file -e "$base^{{commit}}" 2>/dev/null || base=HEAD
say() {{ "$@" 2>/dev/null | head -c {_MOST_SECTION} | base64 | tr -d '\\n'; echo; }}
say git symbolic-ref --quiet --short HEAD
say git rev-list --count "$base..HEAD"
say git --no-optional-locks diff --no-ext-diff --no-textconv --numstat --no-renames -z "$base" --
say git --no-optional-locks diff --no-ext-diff --no-textconv --name-status --no-renames -z "$base" --
say git --no-optional-locks ls-files --others --exclude-standard -z
"""
"""Each line of its output is a part in base64, because names of files can have any byte but NUL."""
_STATUS: Final = {b"A": "added", b"D": "deleted"}


class WorkStates:
    """Looks at the workspaces of sessions in the background, once after each run."""

    def __init__(self, sessions: SessionLog, boxes: Boxes, checkpoints: Checkpoints, tasks: BackgroundTasks) -> None:
        self._sessions = sessions
        self._boxes = boxes
        self._checkpoints = checkpoints
        self._tasks = tasks
        self._looked: dict[str, None] = {}
        """Runs after which this server has looked, or tried."""
        self._underway: dict[str, asyncio.Task[None]] = {}
        """By session."""

    def look(self, id: str, run: str, box: str) -> None:
        """Look at a session whose run has ended, unless that was done."""
        if run in self._looked:
            return
        self._looked[run] = None
        while len(self._looked) > _REMEMBERED:
            del self._looked[next(iter(self._looked))]
        self._underway[id] = task = self._tasks.start(self._look(id, run, box), name=f"work of session {id}")
        task.add_done_callback(lambda done: self._underway.pop(id, None) if self._underway.get(id) is done else None)

    async def settle(self, id: str) -> None:
        """Returns when nobody looks at the workspace of a session, which counts as work in its box."""
        if (task := self._underway.get(id)) is not None:
            await asyncio.wait((task,))

    async def _look(self, id: str, run: str, box: str) -> None:
        try:
            await self._checkpoints.settle(id)  # it may hold the box still
            row = await self._sessions.find(id)
            if row.runs.live is not None or row.runs.latest is None or row.runs.latest.run != run:
                return
            source = row.runs.source or {}
            with self._boxes.using(box):
                async with await self._boxes.open(box) as opened:
                    found = await read_work(opened, str(source.get("commit") or ""))
            if found is not None and session_of(row).work.get("run") != run:
                entry = self._sessions.runs.entry(work_done(run, found), id=work_id(run))
                await self._sessions.runs.append(id, entry)
        except HoldfastError as error:
            log.info("what session %s has changed is not known: %s", id, error)


async def read_work(box: Box, base: str) -> dict[str, Any] | None:
    """Returns `{branch?, commits, files, more}` of the workspace of a box, since the commit `base` if it has that.

    None if it is no repository.
    """
    done = await box.exec(
        ["sh", "-c", _SCRIPT, "sh", base or "HEAD"],
        cwd=box.spec.workdir,
        timeout=_SECONDS,
        max_output=8 * _MOST_SECTION,
    )
    return parse_work(done.stdout) if done.ok else None


def parse_work(output: bytes) -> dict[str, Any] | None:
    """Returns what the script has printed, or None if that cannot be."""
    try:
        parts = [b64decode(line, validate=True) for line in output.splitlines()]
        branch, count, numbers, statuses, new = parts
        commits = int(count or b"0")
    except ValueError:
        return None
    lines: dict[bytes, tuple[int | None, int | None]] = {}
    for record in numbers.split(b"\0")[:-1]:
        added, _, rest = record.partition(b"\t")
        removed, _, path = rest.partition(b"\t")
        lines[path] = (_number(added), _number(removed))
    words = statuses.split(b"\0")[:-1]
    changed = [(path, _STATUS.get(how[:1], "modified")) for how, path in zip(words[::2], words[1::2], strict=False)]
    changed += [(path, "added") for path in new.split(b"\0")[:-1]]
    files = [_file(path, how, *lines.get(path, (None, None))) for path, how in changed[:MOST_FILES]]
    is_cut = any(len(part) >= _MOST_SECTION for part in (numbers, statuses, new))
    found: dict[str, Any] = {"commits": commits, "files": files, "more": is_cut or len(changed) > MOST_FILES}
    name = branch.decode("utf-8", "replace").strip()
    return {"branch": visible(name)[:200], **found} if name else found


def _file(path: bytes, how: str, added: int | None, removed: int | None) -> dict[str, Any]:
    counts = {name: number for name, number in (("additions", added), ("deletions", removed)) if number is not None}
    shown = visible(path.decode("utf-8", "backslashreplace")).replace("\n", "\\n")
    return {"path": shown[:300], "status": how, **counts}


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None  # a binary file has "-"
