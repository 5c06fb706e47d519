"""What to do next, for threads that are sessions: those go on with a prompt, and `holdfast resume` is refused."""

from __future__ import annotations

import re
from typing import Final

_RESUME: Final = re.compile(
    r'holdfast resume (?!PARENT\b)([\w-]{1,128})(?: "…")?((?: --[a-z]{1,16} [A-Z]{1,16}\b)*)'
    r"(; its files are kept|; --timeout sets [^;]*)?"
)


def hint_for_session(hint: str) -> str:
    """Returns a hint about a run as one about a session. What only a new session can have is asked of a new one."""
    return _RESUME.sub(_as_session, hint)


def _as_session(found: re.Match[str]) -> str:
    thread, options = found[1], found[2]
    return (
        f"a new session can have it: holdfast session new{options}"
        if options
        else f'holdfast session prompt {thread} "…"'
    )
