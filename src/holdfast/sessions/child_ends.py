"""What the agent of a session is told about the end of a session below it."""

from __future__ import annotations

from typing import Final

from holdfast.api.session.sessions import SessionState
from holdfast.runs.delegate.reports import last_message
from holdfast.runs.delegate.rules import shorten
from holdfast.runs.run_log import RunLog
from holdfast.sessions.session_log import session_of
from holdfast.threads.rows import ThreadRow

_MAX_WHY: Final = 500


def end_text(row: ThreadRow, words: str) -> str:
    """Returns the message. `words` is the last message of the agent of the session that has ended."""
    session = session_of(row)
    name = f"Session {row.id}" if not row.title else f'Session {row.id} ("{row.title}")'
    if session.by == row.id:
        how = "has completed its work"
    elif session.state is SessionState.ERROR:
        how = "could not be started"
    else:
        how = "was terminated"
    because = f": {session.reason[:_MAX_WHY]}" if session.reason else ""
    if not words:
        return f"[{name}, which belongs to this one, {how}{because}. Its agent left no message.]"
    return f"[{name}, which belongs to this one, {how}{because}. The last message of its agent:]\n\n" + shorten(
        words, row.id
    )


async def last_words(log: RunLog, row: ThreadRow) -> str:
    """Returns the last message of the agent of a session, in its latest run."""
    run = row.runs.latest
    return "" if run is None else await last_message(log, row.id, run)
