"""Errors of repositories: cloning them, applying work to them, and pushing it."""

from __future__ import annotations

from holdfast.api.errors import Conflict, HoldfastError, InvalidRequest


class InvalidRepository(InvalidRequest):
    """The name of a repository, a ref or a branch cannot be used."""

    status = 422
    code = "invalid_repository"


class RepositoryFailed(HoldfastError):
    """Git, or the host of a repository, refused something."""

    code = "repository_failed"


class CannotApply(Conflict):
    """The changes do not fit the checkout. Nothing was written."""

    code = "cannot_apply"
