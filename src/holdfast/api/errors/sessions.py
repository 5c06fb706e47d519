"""Errors of sessions."""

from __future__ import annotations

from holdfast.api.errors import Conflict, NotFound, Unavailable


class SessionNotFound(NotFound):
    """The thread is no session, or there is no such thread."""

    code = "session_not_found"


class SessionConflict(Conflict):
    """The state of the session does not allow this."""

    code = "session_conflict"


class SessionBusy(Conflict):
    """The agent works on a prompt, or prompts wait for it."""

    code = "session_busy"


class SessionLimit(Conflict):
    """As many sessions as the server allows have a box at once."""

    code = "session_limit"


class IsSession(Conflict):
    """The thread is a session, which has a queue: runs are started by it alone."""

    code = "is_session"


class AgentAway(Unavailable):
    """The agent of the session is not connected, or does not answer."""

    code = "agent_away"


class AgentRefused(Conflict):
    """The agent of the session cannot do this. The message is the agent's."""

    code = "agent_refused"
