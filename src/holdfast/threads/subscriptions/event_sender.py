"""Sends the events of a wake to a webhook: reads the streams of the wake, and sends one request for each event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from holdfast.api.errors import Gone, NotFound
from holdfast.api.webhooks import DeliveryState
from holdfast.threads.access.seals import Seals
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.store import StreamStore
from holdfast.threads.subscriptions.clock import Clock
from holdfast.threads.subscriptions.delivery import DeliveryFailed, WebhookSender
from holdfast.threads.subscriptions.events import MOST_ATTEMPTS, Event, WebhookSecrets, events_of
from holdfast.threads.subscriptions.live import LiveSubscription
from holdfast.threads.subscriptions.records import Delivery, Subscription

_READ_LIMIT: Final = 1024 * 1024


class EventSender:
    """Has no state. What was sent is in the subscription: `sent` and `unsaved_deliveries`."""

    def __init__(
        self,
        store: StreamStore,
        sender: WebhookSender,
        secrets: WebhookSecrets,
        seals: Seals,
        clock: Clock,
        on_the_way: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._sender = sender
        self._secrets = secrets
        self._seals = seals
        self._clock = clock
        self._on_the_way = on_the_way

    async def send_all(self, live: LiveSubscription, subscription: Subscription) -> None:
        """Send the events of the open wake that were not sent yet. Raises `DeliveryFailed` at the first that fails. At
        the last attempt, those that fail are given up.
        """
        assert subscription.wake is not None
        last = subscription.attempts + 1 >= MOST_ATTEMPTS
        for path, end in subscription.wake.snapshot.items():
            async for event in self._events(live, path, end):
                if event.id in live.sent:
                    continue
                delivery = await self.send(subscription, event, last=last)
                live.unsaved_deliveries.append(delivery)
                if delivery.state == DeliveryState.FAILED:
                    raise DeliveryFailed(delivery.error or "")
                live.sent.add(event.id)

    async def send(self, subscription: Subscription, event: Event, *, last: bool = False) -> Delivery:
        """Send one event once."""
        url = subscription.config.webhook_url
        assert url is not None
        body, now = event.body(), self._clock.now()
        error = None
        try:
            async with self._on_the_way:
                await self._sender.send(url, body, self._secrets.headers(subscription, event.id, body, now))
        except DeliveryFailed as failure:
            error = str(failure)
        state = DeliveryState.DELIVERED
        if error is not None:
            state = DeliveryState.GIVEN_UP if last else DeliveryState.FAILED
        return Delivery(event.id, event.type, event.thread, now, state.value, error)

    async def _events(self, live: LiveSubscription, path: str, end: int) -> AsyncIterator[Event]:
        link, selection = live.links.links.get(path), live.selection
        if link is None or selection is None:
            return  # the thread is gone
        try:
            # What a fork has from its source happened there.
            position = max(link.acked, (await self._store.head(path)).fork_offset, 0)
            while position < end:
                piece = await self._store.read(path, position, min(_READ_LIMIT, end - position))
                for selected in selection.take(piece.data):
                    thread, wanted = path.removeprefix(THREADS), live.subscription.config.events
                    for event in events_of(thread, selected.entry, wanted, self._seals):
                        yield event
                if piece.end <= position:
                    return
                position = piece.end
        except (NotFound, Gone):
            return
