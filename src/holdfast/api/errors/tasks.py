"""Errors of tasks, which are threads that another thread has started."""

from __future__ import annotations

from holdfast.api.errors import Conflict, NotFound


class TaskNotFound(NotFound):
    """The thread is no task, or not one of the caller."""

    code = "task_not_found"


class DelegationLimit(Conflict):
    """A limit of the tree of tasks is reached."""

    code = "delegation_limit"


class NothingToShare(Conflict):
    """The thread has no box that a task could share or copy."""

    code = "nothing_to_share"
