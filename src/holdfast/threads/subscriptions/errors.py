"""What can go wrong with a subscription. The codes are the protocol's; clients tell causes apart by them."""

from __future__ import annotations

from holdfast.api.errors import Refused


class SubscriptionError(Refused):
    """Base of everything that a subscription refuses. `fields` go into the error beside code and message."""

    code = "INVALID_REQUEST"

    def __init__(self, message: str, *, hint: str | None = None, **fields: str | int) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


class InvalidSubscription(SubscriptionError):
    """The request makes no sense: a bad field, path or pattern, or more than a limit allows."""


class WebhookRefused(SubscriptionError):
    """The server does not call this URL: it leads, or may lead, into a network that is not public."""

    code = "WEBHOOK_URL_REJECTED"


class SubscriptionNotFound(SubscriptionError):
    status = 404
    code = "SUBSCRIPTION_NOT_FOUND"


class SubscriptionExists(SubscriptionError):
    """A subscription of this id exists, and is another one than the request describes."""

    status = 409
    code = "SUBSCRIPTION_ALREADY_EXISTS"


class TokenInvalid(SubscriptionError):
    """The wake's token is missing, forged, or for another subscription."""

    status = 401
    code = "TOKEN_INVALID"


class TokenExpired(TokenInvalid):
    code = "TOKEN_EXPIRED"


class Fenced(SubscriptionError):
    """The wake is over: it was finished, released, or its lease ran out and a newer generation has taken its place."""

    status = 409
    code = "FENCED"


class AlreadyClaimed(SubscriptionError):
    status = 409
    code = "ALREADY_CLAIMED"


class NoPendingWork(SubscriptionError):
    status = 409
    code = "NO_PENDING_WORK"


class InvalidAck(SubscriptionError):
    """An acknowledged offset goes back, goes past the tail, or is of a stream that is not subscribed to."""

    status = 409
    code = "INVALID_OFFSET"
