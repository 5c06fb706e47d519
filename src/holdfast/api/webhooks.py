"""Webhooks: requests that a server sends when something happens on its threads. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.limits import without_nul

WEBHOOK_ID: Final = r"h-[0-9a-z]{8,32}"
MOST_WEBHOOKS: Final = 100
MOST_THREADS: Final = 100
"""That one webhook names."""

WebhookId = Annotated[str, Limits(pattern=f"^{WEBHOOK_ID}$")]
_Thread = Annotated[str, Limits(min_length=1, max_length=128, check=without_nul)]


class WebhookEvent(StrEnum):
    """What a webhook can be about."""

    RUN_STARTED = "run.started"
    RUN_FINISHED = "run.finished"
    """However it ended."""
    NEEDS_YOU = "needs-you"
    """An agent asks a question, or a run has ended because somebody has to decide about money, a key or a limit."""
    SESSION_STATE = "session.state"
    BUDGET = "budget"
    """A budget is nearly used up, or is used up."""


class DeliveryState(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    """It is sent again."""
    GIVEN_UP = "given-up"
    """It failed so often that it is not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook(Document):
    url: Annotated[str, Limits(min_length=1, max_length=2048, check=without_nul)]
    events: Annotated[tuple[WebhookEvent, ...], Limits(max_length=len(WebhookEvent))] = ()
    """None given: all."""
    threads: Annotated[tuple[_Thread, ...], Limits(max_length=MOST_THREADS)] = ()
    """None given: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery(Document):
    """One attempt to send one event."""

    event: str
    """The id of the event, which is that of the entry. It is the header `webhook-id`."""
    type: str
    thread: str
    at: int
    state: DeliveryState
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(Document):
    id: str
    url: str
    events: tuple[WebhookEvent, ...]
    threads: tuple[str, ...]
    """Empty: all."""
    created_at: int
    secret_version: int
    """Starts at 1, and grows with each rotation."""
    failures: int
    """How often in a row the next event could not be sent."""
    next_attempt_at: int | None = None
    last_error: str | None = None
    deliveries: tuple[WebhookDelivery, ...] = ()
    """The latest ones, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookList(Document):
    webhooks: tuple[Webhook, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSecret(Document):
    """A webhook, and the secret of its signatures, which is returned only this once."""

    webhook: Webhook
    secret: str
