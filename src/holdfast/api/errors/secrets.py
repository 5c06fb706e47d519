"""Errors of secrets. None of them holds a value."""

from __future__ import annotations

from holdfast.api.errors import Conflict, InvalidRequest, NotFound, Refused


class SecretError(Refused):
    """The base of errors of secrets."""


class InvalidSecret(InvalidRequest, SecretError):
    """A name, a value or a binding is invalid."""

    status = 422
    code = "invalid_secret"


class SecretNotFound(NotFound, SecretError):
    code = "secret_not_found"


class SecretMissing(Conflict, SecretError):
    """Something needs a secret that is not stored, or that can no longer be decrypted."""

    code = "secret_missing"
