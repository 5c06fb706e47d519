"""The webhooks of a tenant: add, list, test, rotate and remove them. Each is a subscription to events of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.api.errors import InvalidRequest, NotFound
from holdfast.api.ids import new_id
from holdfast.api.webhooks import (
    MOST_WEBHOOKS,
    DeliveryState,
    NewWebhook,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
    WebhookSecret,
)
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.subscriptions.errors import SubscriptionNotFound
from holdfast.threads.subscriptions.events import TEST, Event
from holdfast.threads.subscriptions.records import Delivery, Kind, Subscription, SubscriptionConfig
from holdfast.threads.subscriptions.schemas import DEFAULT_LEASE_MS, parse_path
from holdfast.threads.subscriptions.service import SubscriptionService

_ALL: Final = f"{THREADS}*"


class Webhooks:
    """Uses the service of subscriptions, which delivers, retries and keeps them."""

    def __init__(self, service: SubscriptionService) -> None:
        self._service = service

    async def add(self, new: NewWebhook) -> WebhookSecret:
        """Add a webhook. It gets what happens from now on."""
        if len(self._service.of_kind(Kind.EVENTS)) >= MOST_WEBHOOKS:
            raise InvalidRequest(
                f"there are {MOST_WEBHOOKS} webhooks already", hint="remove one with holdfast webhook remove"
            )
        streams = tuple(sorted({parse_path(f"{THREADS}{thread}", "threads") for thread in new.threads}))
        events = tuple(each.value for each in WebhookEvent if each in new.events or not new.events)
        pattern = None if streams else _ALL
        config = SubscriptionConfig(
            Kind.EVENTS, pattern, streams, new.url, None, DEFAULT_LEASE_MS, description=None, events=events
        )
        id = new_id("h")
        await self._service.create(id, config)
        return self._with_secret(self._service.record(id))

    def list(self) -> list[Webhook]:
        return [_describe(each) for each in self._service.of_kind(Kind.EVENTS)]

    def get(self, id: str) -> Webhook:
        return _describe(self._find(id))

    async def rotate(self, id: str) -> WebhookSecret:
        """Give a webhook a new secret. For a day, requests are signed with both."""
        self._find(id)
        rotated = await self._service.change(
            id, lambda each, now: replace(each, secret_version=each.secret_version + 1, rotated_at=now)
        )
        return self._with_secret(rotated)

    async def test(self, id: str) -> WebhookDelivery:
        """Send an event of the type `webhook.test` once, and return what came of it."""
        subscription = self._find(id)
        event = Event(new_id("e"), TEST, "", self._service.now(), {"type": TEST, "webhook": id})
        return _describe_delivery(await self._service.events.send(subscription, event))

    async def remove(self, id: str) -> None:
        self._find(id)
        await self._service.delete(id)

    def _find(self, id: str) -> Subscription:
        try:
            found = self._service.record(id)
        except SubscriptionNotFound:
            found = None
        if found is None or found.config.kind is not Kind.EVENTS:
            raise NotFound(f"there is no webhook {id}", hint="list them with holdfast webhook list")
        return found

    def _with_secret(self, subscription: Subscription) -> WebhookSecret:
        secret = self._service.secrets.secret(subscription, subscription.secret_version)
        return WebhookSecret(webhook=_describe(subscription), secret=secret)


def _describe(subscription: Subscription) -> Webhook:
    config = subscription.config
    assert config.webhook_url is not None
    return Webhook(
        id=subscription.id,
        url=config.webhook_url,
        events=tuple(map(WebhookEvent, config.events)),
        threads=tuple(each.removeprefix(THREADS) for each in config.streams),
        created_at=subscription.created_at,
        secret_version=subscription.secret_version,
        failures=subscription.attempts,
        next_attempt_at=subscription.next_attempt_at,
        last_error=subscription.last_error,
        deliveries=tuple(map(_describe_delivery, reversed(subscription.deliveries))),
    )


def _describe_delivery(delivery: Delivery) -> WebhookDelivery:
    return WebhookDelivery(
        event=delivery.event,
        type=delivery.type,
        thread=delivery.thread,
        at=delivery.at,
        state=DeliveryState(delivery.state),
        error=delivery.error,
    )
