"""Errors of subscriptions. Their codes are from the protocol, and clients distinguish causes by them."""

from __future__ import annotations

from holdfast.api.errors import Refused


class SubscriptionError(Refused):
    """Base class of subscription errors. `fields` are added to the error beside code and message."""

    code = "INVALID_REQUEST"

    def __init__(self, message: str, *, hint: str | None = None, **fields: str | int) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


class InvalidSubscription(SubscriptionError):
    """The request is invalid: a bad field, path or pattern, or a limit is exceeded."""


class WebhookRefused(SubscriptionError):
    """The server does not call this URL, because it leads or may lead into a non-public network."""

    code = "WEBHOOK_URL_REJECTED"


class SubscriptionNotFound(SubscriptionError):
    status = 404
    code = "SUBSCRIPTION_NOT_FOUND"


class SubscriptionExists(SubscriptionError):
    """A different subscription with this id already exists."""

    status = 409
    code = "SUBSCRIPTION_ALREADY_EXISTS"


class TokenInvalid(SubscriptionError):
    """The token of the wake is missing, forged, or for another subscription."""

    status = 401
    code = "TOKEN_INVALID"


class TokenExpired(TokenInvalid):
    code = "TOKEN_EXPIRED"


class Fenced(SubscriptionError):
    """The wake is over: it was finished or released, or its lease expired and a newer generation replaced it."""

    status = 409
    code = "FENCED"


class AlreadyClaimed(SubscriptionError):
    status = 409
    code = "ALREADY_CLAIMED"


class NoPendingWork(SubscriptionError):
    status = 409
    code = "NO_PENDING_WORK"


class InvalidAck(SubscriptionError):
    """An acknowledged offset goes backwards, goes past the tail, or is of a stream that is not subscribed to."""

    status = 409
    code = "INVALID_OFFSET"
