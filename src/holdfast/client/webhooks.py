"""The webhooks of a server: requests that it sends about threads. Changes need a key of an owner."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from holdfast.api.errors import NotFound
from holdfast.api.webhooks import NewWebhook, Webhook, WebhookDelivery, WebhookEvent, WebhookList, WebhookSecret
from holdfast.client.connection import ServerConnection, encode_json


class Webhooks:
    """All webhooks of one server: `client.webhooks`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def add(self, url: str, events: Sequence[WebhookEvent] = (), threads: Sequence[str] = ()) -> WebhookSecret:
        """Add a webhook for these events on these threads, or for all. The secret is returned only once."""
        body = encode_json(NewWebhook(url=url, events=tuple(events), threads=tuple(threads)).to_request())
        # If the response is lost, so is the secret: a retry would leave two webhooks.
        answer = await self._connection.ask("POST", "/v1/webhooks", body=body, repeatable=False)
        return answer.read(WebhookSecret.from_json)

    async def list(self) -> list[Webhook]:
        """Returns all webhooks, each with its latest deliveries."""
        return list((await self._connection.ask("GET", "/v1/webhooks")).read(WebhookList.from_json).webhooks)

    async def get(self, id: str) -> Webhook:
        return (await self._connection.ask("GET", _path(id))).read(Webhook.from_json)

    async def test(self, id: str) -> WebhookDelivery:
        """Send a test event once. Returns what came of it."""
        return (await self._connection.ask("POST", f"{_path(id)}/test")).read(WebhookDelivery.from_json)

    async def rotate(self, id: str) -> WebhookSecret:
        """Give a webhook a new secret. For a day, requests are signed with both."""
        answer = await self._connection.ask("POST", f"{_path(id)}/rotate", repeatable=False)
        return answer.read(WebhookSecret.from_json)

    async def remove(self, id: str) -> None:
        try:
            await self._connection.ask("DELETE", _path(id))
        except NotFound as error:
            if not error.repeated:
                raise


def _path(id: str) -> str:
    return f"/v1/webhooks/{quote(id, safe='')}"
