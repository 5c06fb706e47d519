"""Errors of the accounts of providers. None of them holds a credential."""

from __future__ import annotations

from holdfast.api.errors import Conflict, InvalidRequest, NotFound, Refused


class AccountError(Refused):
    """The base of errors of accounts."""


class InvalidAccount(InvalidRequest, AccountError):
    """A name, kind, setting or credential is invalid."""

    status = 422
    code = "invalid_account"


class AccountNotFound(NotFound, AccountError):
    code = "account_not_found"


class AccountInUse(Conflict, AccountError):
    """It still has boxes, or one is being created in it."""

    code = "account_in_use"


class CredentialMissing(Conflict, AccountError):
    """The credential can no longer be decrypted."""

    code = "credential_missing"
